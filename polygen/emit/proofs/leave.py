"""Numbers of rows that leave, as it is written: each of an array once, from where it is shared.

The text is run for the first block along every dim that the numbers do not depend on, for its first
tile and for one that ends outside; and for blocks that are others along one of these dims, which
store nothing. Of the agents those run it that the tile program says: the first that have the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.element_types import name_of
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import address, of_kernel, of_place, size
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import mixed
from polygen.frontend.dtypes import S32
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.tally import Leave, Tally
from polygen.poly.ring_folds import RingOutput

_TILE = 1  # of the block, where it is not the first along its rows


@proof("leave", "threads", Leave, alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: Leave, texts: tuple[str, ...]) -> None:
    of, place = work.work, plan.place(leaf.place)
    cta, across = plan.tiles.cta["mn".index(of.role)], "n" if of.role == "m" else "m"
    own, threads = of_place(plan, leaf.place)
    names = of_kernel(plan, {str(of.extents[0]): (_TILE + 1) * cta - 3}) | own
    room = plan.buffer(of.norms)
    areas = names["shared"] + room.offset + names[place.agent] * room.owner_bytes
    names[f"{of.norms}_at"] = areas
    # Consumers that take turns have tiles of their own: one of them, then.
    text = f"if (w_{across} == 0 && {place.agent} < {plan.tiles.warp_count}) {{ {texts[0]} }}"
    dims = tuple(dict.fromkeys(dim for one in work.outputs for dim in one.first))
    for other, tile in itertools.product(("", *dims), (0, _TILE)):
        known = names | dict.fromkeys(dims, 0) | {f"b_{of.role}": tile}
        known |= {other: 1} if other else {}
        written: Writes = []
        shared = partial(_shared, of, areas, known, plan.program.real.bytes)
        handlers = {
            "read_sum": shared,
            "read_double": shared,
            "store": partial(_stored, written),
        }
        run(read(text), known, threads, handlers)
        row = tile * cta + np.arange(cta)
        row = row[row < size(known, of.extents[0])]
        wanted = [_wanted(known, one, of.role, row) for one in of.of.outputs]
        first = [other not in one.first for one in work.outputs]
        check_writes(written, [one for one, stores in zip(wanted, first, strict=True) if stores])


def _shared(of: Tally, areas: Any, names: Mapping[str, Any], each: int, called: Called) -> Any:
    """A result, by where it lies in the area of the thread's agent."""
    number, row = np.divmod((called.of_all(0) - areas) // each, of.rows)
    first = (names[f"b_{of.role}"] * of.parts + names[f"w_{of.role}"]) * of.rows
    return mixed("result", number, first + row)


def _stored(written: Writes, called: Called) -> None:
    """Keep what is stored."""
    who = called.state.who()
    written.append((called.of_all(0)[who], called.of_all(1)[who]))


def _wanted(names: Mapping[str, Any], one: RingOutput, role: str, row: Any) -> Wanted:
    """What the rows of a tile have to be in an array, as its type."""
    place = address(names, one.tensor, one.index, {role: row})
    value = mixed("result", one.number, row)
    value = mixed("round_s32", value) if one.tensor.dtype == S32 else value
    value = mixed(f"to_{name_of(one.tensor.dtype)}", value)
    return Wanted(one.tensor.name, np.broadcast_to(place, row.shape), value, (row,))
