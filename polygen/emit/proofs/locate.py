"""Which output tile is a work item's, as it is written: item by item.

Items of outputs with tiles in one group, in several, and in a last one that is narrower are run, of
every matrix and section, in every block of a cluster; where items are many, some of them. What is
proved of the formulas for any number of tiles (`polygen.poly.raster`, `polygen.poly.last_round`) is
so of what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.last_round import OWN_ITEMS, SHARE
from polygen.emit.leaf.table import proof
from polygen.emit.names import c_name
from polygen.emit.proofs.threads import Integers, size
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.errors import UndecidedText, VerifyError
from polygen.frontend.indices import Dim, named_in
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Locate
from polygen.poly.last_round import LastRound
from polygen.poly.tile_program import OWN_TILES

_STRIDE, _OWN = 3, 7  # blocks, or clusters of them; items that are tiles of a block's own
_MOST = 256  # items of a case
Batches = Sequence[tuple[str, Dim]]


@proof("locate", "threads", Locate)
def _(plan: KernelPlan, leaf: Leaf, work: Locate, texts: tuple[str, ...]) -> None:
    if work.groups is not None or work.walk is not None:
        raise UndecidedText("which groups have rows, or tiles products, is found as kernels run")
    batches = [*work.batches, *(one for section in work.sections for one in section.batches)]
    sizes = dict.fromkeys(name for _, extent in batches for name in named_in(extent))
    names: dict[str, Any] = {c_name(one): 2 + at for at, one in enumerate(sizes)}
    for tiles in _cases(work.group):
        known, wanted, count = (_of_sections if work.sections else _of_one)(names, work, tiles)
        found = run(read("\n".join(texts)), names | known, count, {"Divisor": _itself}).names
        for name, value in wanted.items():
            made = np.broadcast_to(found.get(name, -1), count)
            other = np.flatnonzero((made != value) & (value >= 0))
            if len(other):
                at = other[0]
                raise VerifyError(
                    f"{name} of item {known['first'][at] + known['i'][at] * _STRIDE} is "
                    f"{made[at]}, not {value[at]}"
                )


def _itself(called: Called) -> Any:
    """What divides is a number.

    Raises:
        VerifyError: it is 0.
    """
    if np.any(called.values[0] < 1):
        raise VerifyError("numbers of items are divided by 0")
    return called.values[0]


def _cases(group: int) -> Iterator[tuple[int, int]]:
    """Tiles along the dim of the groups, and along the other."""
    for along in sorted({1, group + 1, 3 * group - 1, 3 * group}):
        yield from ((along, across) for across in (1, 3))


def _items(total: int) -> Integers:
    """All items, or some of them."""
    return np.unique(np.linspace(0, total - 1, min(total, _MOST)).astype(np.int64))


def _threads(work: Locate, item: Integers, blocks: int) -> tuple[dict[str, Any], Integers]:
    """Every block of a cluster, at every tile of the runs; and the items once for each of them."""
    item = np.tile(item, blocks * work.run)
    rank = np.repeat(np.arange(blocks), len(item) // blocks)
    place = np.tile(np.repeat(np.arange(work.run), len(item) // blocks // work.run), blocks)
    own = {"first": item % _STRIDE, "i": item // _STRIDE * work.run + place, "rank": rank}
    return {**own, "stride": _STRIDE, "place": place}, item


def _of_one(
    names: dict[str, Any], work: Locate, tiles: tuple[int, int]
) -> tuple[dict[str, Any], dict[str, Integers], int]:
    """What threads know of one output, what they find, and how many they are."""
    matrices = int(np.prod([size(names, extent) for _, extent in work.batches], dtype=np.int64))
    total = tiles[0] * tiles[1] * matrices
    rows, columns = work.cluster
    of, own_items = LastRound(work.split), min(_OWN, total // work.split)
    count = total if work.split == 1 else total - (work.split - 1) * own_items
    known, item = _threads(work, _items(count), rows * columns * work.split)
    rank, number, share = known["rank"], item, np.zeros_like(item)
    if work.split > 1:
        alone = item < own_items
        number = np.where(alone, item * of.split + rank, item + (of.split - 1) * own_items)
        share = np.where(alone, 0, rank)
        own_tiles = (own_items - known["first"] + _STRIDE - 1) // _STRIDE
        known |= {OWN_ITEMS: own_items, OWN_TILES: own_tiles}
    known |= {f"tiles_{work.along}": tiles[0], f"tiles_{work.across}": tiles[1]}
    found = _tile(work, number, tiles, known)
    found |= _matrix(names, work.batches, number // (tiles[0] * tiles[1]), work.sides)
    return known, found | ({SHARE: share} if work.split > 1 else {}), len(item)


def _of_sections(
    names: dict[str, Any], work: Locate, tiles: tuple[int, int]
) -> tuple[dict[str, Any], dict[str, Integers], int]:
    """The same of several outputs, each with a row and a column of tiles more than the last."""
    counts: list[tuple[int, int]] = []
    known: dict[str, Any] = {}
    ends = [0]
    for at, one in enumerate(work.sections):
        own = tiles[0] + at, tiles[1] + at
        matrices = int(np.prod([size(names, extent) for _, extent in one.batches], dtype=np.int64))
        counts.append(own)
        ends.append(ends[-1] + own[0] * own[1] * matrices)
        known |= {f"tiles_{work.along}_{at}": own[0], f"tiles_{work.across}_{at}": own[1]}
        known[f"items_{at}"] = ends[-1]
    threads, item = _threads(work, _items(ends[-1]), work.cluster[0] * work.cluster[1])
    whose = np.searchsorted(ends, item, side="right") - 1
    found: dict[str, Integers] = {"section": whose}
    for at, (one, own) in enumerate(zip(work.sections, counts, strict=True)):
        number = item - ends[at]
        made = _tile(work, number, own, threads)
        made |= _matrix(names, one.batches, number // (own[0] * own[1]), ())
        for name, value in made.items():  # dims that a section lacks are what they were
            found[name] = np.where(whose == at, value, found.get(name, -np.ones_like(item)))
    return threads | known, found, len(item)


def _tile(
    work: Locate, number: Integers, tiles: tuple[int, int], known: dict[str, Any]
) -> dict[str, Integers]:
    """The tile of an item: groups of tiles one after the other, each column by column."""
    item = number % (tiles[0] * tiles[1])
    band, inside = np.divmod(item, work.group * tiles[1])
    width = np.maximum(np.minimum(work.group, tiles[0] - band * work.group), 1)
    found = {
        f"b_{work.along}": band * work.group + inside % width,
        f"b_{work.across}": inside // width,
    }
    rows, columns = work.cluster
    found["b_m"] = found["b_m"] * rows + known["rank"] % rows
    found["b_n"] = found["b_n"] * columns + known["rank"] // rows % columns
    found["b_n"] = found["b_n"] * work.run + known["place"]
    return found


def _matrix(
    names: dict[str, Any], batches: Batches, matrix: Integers, sides: Sequence[int]
) -> dict[str, Integers]:
    """Where the matrix of an item is along each batch dim, the last of which counts fastest."""
    found, left = {}, matrix
    for (name, extent), side in reversed([*zip(batches, sides or [1] * len(batches), strict=True)]):
        found[name], left = left % size(names, extent) * side, left // size(names, extent)
    return found
