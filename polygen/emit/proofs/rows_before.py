"""Lanes of launches before a kernel: which row each has, and which chunk of it is its first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.proofs.threads import Integers, size
from polygen.lower.realign_work import RowMake
from polygen.poly.realign_program import CHUNK, FIRST, ROWS, WARP
from polygen.poly.turn_program import TurnShape

# The block, the first chunk of its segment, the one that is visited, and rows from its first on.
Case = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes of some blocks.

    Attributes:
        names: what they know of where they are.
        row: of the operand.
        place: the number of the row among those of all cases.
        number: the first chunk of a lane's.
        inside: whether the row is there.
        at: where the row is along its dims.
    """

    names: dict[str, Integers]
    row: Integers
    place: Integers
    number: Integers
    inside: Integers
    at: dict[str, Integers]


def row_count(work: RowMake, names: Mapping[str, Any]) -> int:
    """Rows of an operand."""
    return int(np.prod([size(names, extent) for _, extent in work.outer], dtype=np.int64))


def lanes_of(work: RowMake, names: Mapping[str, Any], cases: Sequence[Case]) -> Lanes:
    """The lanes of blocks, case by case."""
    shape = work.shape
    case = np.repeat(np.arange(len(cases)), shape.warps * shape.lanes)
    block, first, chunk, there = np.array(cases)[case].T
    lane = np.tile(np.arange(shape.lanes), len(cases) * shape.warps)
    warp = np.tile(np.repeat(np.arange(shape.warps), shape.lanes), len(cases))
    if isinstance(shape, TurnShape):
        of_block = warp % shape.beside * shape.group + lane % shape.group
        number = first + chunk + warp // shape.beside * shape.beside + lane // shape.group
    else:
        of_block, number = warp, first + chunk + lane
    row = rest = block * shape.rows + of_block
    at: dict[str, Integers] = {}
    for dim, extent in work.outer:
        at[dim], rest = rest % size(names, extent), rest // size(names, extent)
    known = {"lane": lane, WARP: warp, FIRST: first, CHUNK: chunk, ROWS: there}
    return Lanes(known | at, row, case * shape.rows + of_block, number, of_block < there, at)
