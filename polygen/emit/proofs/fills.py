"""Operands that producers compute, as they are written: every chunk of a tile, once, to its place.

All pieces of a tile are read and then computed: of one that is whole, of those of which rows or
columns end inside, and of the last, of which both do. Every chunk is then where the copy engine
would put it, of what the program makes of its elements as far as they are inside, with zeros behind
them; and nothing else is written to the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.computed import spaced, writing
from polygen.emit.proofs.copies import bounds, chunks_made, last_tile
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import SHARED, Arrays, of_place, times
from polygen.emit.run_text import Handler
from polygen.emit.text_functions import run
from polygen.errors import VerifyError
from polygen.hardware.matrix_layout import copied_to
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Copy, Fill, Source

_APART = 1009  # slots


@proof("put", "threads", Fill, "get")
def _(plan: KernelPlan, leaf: Leaf, work: Fill, texts: tuple[str, ...]) -> None:
    for source in work.sources:
        if source.copy.computed is not None:
            _check_computed(plan, leaf, work, source, texts)


def _check_computed(
    plan: KernelPlan, leaf: Leaf, work: Fill, source: Source, texts: Sequence[str]
) -> None:
    """Run the texts for all pieces of some tiles, and compare what they write to their ring."""
    c, known = source.copy, last_tile(plan, source.copy)
    (own, threads), tiles = of_place(plan, leaf.place), _tiles(c, known)
    rings = _APART * (1 + np.arange(len(tiles)))  # slots, of none that another operand has
    ring = plan.buffer(c.buffer)
    start = SHARED + ring.offset + rings * ring.slot_bytes
    pieces = range(source.first, source.first + source.pieces)
    wanted: list[Wanted] = []
    for ours in (True, False):
        every = [
            (tile, q, s)
            for tile, q, s in np.ndindex(len(tiles), work.rounds, work.each)
            if (q * work.each + s in pieces) == ours
        ]
        if not every:  # all pieces are this operand's
            continue
        tile, q, s = np.repeat(np.array(every), threads, axis=0).T
        names = known | times(own, len(every)) | {"q": q, "s": s, "true": 1, "false": 0}
        names |= {name: np.array([one[name] for one in tiles])[tile] for name in tiles[0]}
        names |= {f"{work.counter}.slot": rings[tile]}
        arrays, written = Arrays(plan, names), Writes()
        left = names
        for text in texts:
            left = run(read(text), left, len(tile), _handlers(arrays, written)).names
        if ours:
            wanted = [_wanted(plan, source, names, arrays, tiles, start)]
            check_writes(written, wanted)
        elif any(np.isin(to, wanted[0].place).any() for to, _ in written):
            raise VerifyError(f"pieces of others are written to {c.buffer}")


def _handlers(arrays: Arrays, written: Writes) -> dict[str, Handler]:
    """What functions do that read what operands are computed from, and write chunks of them."""
    return arrays.handlers() | {
        "again": lambda called: called.values[0],
        "read_spaced": spaced(arrays),
        "read_wide": spaced(arrays),
        "write_computed": writing(written),
        # Of another operand, whose rows are shifted into place.
        **dict.fromkeys(("read_whole", "read_edge", "write_chunk"), lambda called: None),
    }


def _tiles(c: Copy, last: dict[str, Any]) -> list[dict[str, int]]:
    """Tiles that end inside along both axes, along one of them, and nowhere."""
    role = f"b_{c.role}"
    return [{"k": k, role: block} for k in (last["k"], 0) for block in (last[role], 0)]


def _wanted(
    plan: KernelPlan, source: Source, names: dict[str, Any], arrays: Arrays,
    tiles: list[dict[str, int]], start: Any,
) -> Wanted:  # fmt: skip
    """The chunks of tiles that begin at addresses of shared memory."""
    c, layout = source.copy, plan.buffer(source.copy.buffer).matrix
    assert layout is not None and c.computed is not None
    shape = (len(tiles), layout.rows, layout.row_bytes // chunk_bytes())
    tile, row, chunk = np.indices(shape).reshape(3, -1)
    known = names | {name: np.array([one[name] for one in tiles])[tile] for name in tiles[0]}
    row_base, column_base, *ends = bounds(plan, c, known, len(tile))
    place = start[tile] + copied_to(layout, row, chunk * chunk_bytes())
    index = (row_base + row, column_base + chunk * c.computed.elements)
    content = chunks_made(plan, c, known, arrays, index, ends, rounded=True)
    return Wanted(c.buffer, place, content, index)
