"""Promotions: a block's inner sum, multiplied by its factors, is added to the sum in registers.

1. A factor goes with rows, with columns, or with none of them, as the operand does that it left. A
   thread reads those of its own rows and columns in front of the block's products, and multiplies
   what goes with the same side: a number for every row and, for columns, one for each run of them
   for which all factors are the same, where such runs are whole groups of an instruction's. What
   goes with none is a number by itself, so that bits are the same with operands exchanged.
2. Rows and columns behind the ends of the arrays read the last ones': their sums nobody stores.

`prove` follows every element of an agent's sums to the row and the column whose factors it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from polygen.errors import VerifyError
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.device import common_facts
from polygen.lower.accesses import base, elements_along
from polygen.lower.computed import group
from polygen.lower.formulas import value
from polygen.lower.lanes import flat_form
from polygen.poly.elements import Element
from polygen.poly.match import Multiplied
from polygen.poly.tiling import Tiling


@dataclass(frozen=True, slots=True)
class Factor:
    """What multiplies the sum of a block.

    Attributes:
        tensor: the array.
        side: "m", "n", or "" where it is the same for a matrix of results.
        step: elements from one index of the side that it has to the next: an argument, or a number.
        k_step: likewise along k.
        per: indices of the side, and of k, that have one element.
        base: terms that lead to the block's matrix.
    """

    tensor: Tensor
    side: str
    step: str
    k_step: str
    per: tuple[int, int]
    base: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Promote:
    """How the blocks of a sum are promoted.

    Attributes:
        inner: the registers of a block's sum.
        total: of the whole.
        scales: what the tile program calls the factors' registers.
        factors: that multiply.
        instructions: along m of an agent's tile.
        groups: of an instruction's columns along n.
        atom: rows and columns of an instruction and of a group.
        quarter: where a warp's rows of an instruction begin, as a term; "" where it has all.
        lane_row: formula for the row of a lane's first element in the quarter of an instruction.
        lane_column: for its column in a group.
        offsets: row and column of every element, behind the first.
        each: columns of an agent's tile that have one number; 1: every column has its own.
        tile: of the block, along m, n and k.
        parts: where an agent's part begins along m and n, as terms.
        extents: of the problem along m and n.
        block: indices of k.
        sets: of the inner sum's registers, which blocks take in turns.
    """

    inner: str
    total: str
    scales: str
    factors: tuple[Factor, ...]
    instructions: int
    groups: int
    atom: tuple[int, int]
    quarter: str
    lane_row: str
    lane_column: str
    offsets: tuple[tuple[int, int], ...]
    each: int
    tile: tuple[int, int, int]
    parts: tuple[str, str]
    extents: tuple[Dim, Dim]
    block: int
    sets: int = 1

    @property
    def tiles(self) -> int:
        """K tiles of a block."""
        return self.block // self.tile[2]

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """Rows of an instruction that a lane has elements of, behind the first."""
        return tuple(sorted({row for row, _ in self.offsets}))

    @property
    def column_offsets(self) -> tuple[int, ...]:
        """Likewise columns of a group."""
        return tuple(sorted({column for _, column in self.offsets}))

    def of_side(self, side: str) -> tuple[Factor, ...]:
        """The factors that go with rows, "m", columns, "n", or neither."""
        return tuple(one for one in self.factors if one.side == side)

    @property
    def row_numbers(self) -> int:
        """Numbers of rows that a thread holds; 0: no factor goes with rows."""
        return self.instructions * len(self.row_offsets) if self.of_side("m") else 0

    @property
    def column_numbers(self) -> int:
        """Numbers of columns that a thread holds; 0: no factor goes with columns."""
        if not self.of_side("n"):
            return 0
        columns = self.groups * self.atom[1]
        return columns // self.each if self.each > 1 else self.groups * len(self.column_offsets)

    def row_number(self, element: int) -> str:
        """Which of the numbers of rows element `element` of instruction `m` takes."""
        at = self.row_offsets.index(self.offsets[element][0])
        return f"m * {len(self.row_offsets)} + {at}"

    def column_number(self, element: int) -> str:
        """Which of the numbers of columns it takes in group `j`."""
        if self.each > 1:
            return f"j * {self.atom[1]} / {self.each}"
        at = self.column_offsets.index(self.offsets[element][1])
        return f"j * {len(self.column_offsets)} + {at}"

    def row_of(self, number: str) -> str:
        """The row of results of a number of rows."""
        count, (first, *others) = len(self.row_offsets), self.row_offsets
        step = others[0] - first if others else 0
        return (
            f"b_m * {self.tile[0]}{self.parts[0]}{self.quarter} + {self.lane_row} + "
            f"{number} / {count} * {self.atom[0]} + {number} % {count} * {step}"
        )

    def column_of(self, number: str) -> str:
        """The column of results of a number of columns, the first of those that have it."""
        start = f"b_n * {self.tile[1]}{self.parts[1]}"
        if self.each > 1:
            return f"{start} + {number} * {self.each}"
        count, (first, *others) = len(self.column_offsets), self.column_offsets
        step = others[0] - first if others else 0
        return (
            f"{start} + {self.lane_column} + {number} / {count} * {self.atom[1]} + "
            f"{number} % {count} * {step}"
        )


def promote(
    product: Multiplied,
    names: tuple[str, str, str],
    tiles: Tiling,
    atom: Atom,
    parts: tuple[str, str],
    extents: tuple[Dim, Dim],
    sets: int = 1,
) -> Promote:
    """How the blocks of a product's sum are promoted.

    Args:
        product: with blocks.
        names: of the inner sum, the whole one and the factors' registers.
        tiles: the tile hierarchy.
        atom: the instruction.
        parts: where an agent's part of a tile begins along m and n, as terms.
        extents: of the problem along m and n.
        sets: of the inner sum's registers.

    Raises:
        VerifyError: an element would take factors of another row or column.
    """
    table, lanes = atom.c.table, common_facts()["warp_size"]
    offsets = table[0] - table[0, 0]
    found = Promote(
        *names,
        factors=tuple(map(_factor, product.factors)),
        instructions=tiles.atoms[0],
        groups=tiles.columns // atom.n,
        atom=(atom.m, atom.n),
        quarter=" + quarter" if atom.scope == "warpgroup" else "",
        lane_row=flat_form(table[:lanes, 0, 0]),
        lane_column=flat_form(table[:lanes, 0, 1]),
        offsets=tuple((int(row), int(column)) for row, column in offsets),
        each=_columns_alike(product.factors, tiles, atom),
        tile=tiles.cta,
        parts=parts,
        extents=extents,
        block=product.block,
        sets=sets,
    )
    prove(found, atom, tiles)
    return found


def _factor(one: Element) -> Factor:
    side = "m" if one.axis("m") is not None else "n" if one.axis("n") is not None else ""
    step, k_step = (elements_along(one.tensor, one.index, dim) for dim in (side or "m", "k"))
    per = (group(one, side) if side else 1, group(one, "k"))
    return Factor(one.tensor, side, step, k_step, per, base(one.tensor, one.index))


def _columns_alike(factors: tuple[Element, ...], tiles: Tiling, atom: Atom) -> int:
    """Adjacent columns of an agent's tile that have one number: whole groups, or 1."""
    along = [group(one, "n") for one in factors if one.axis("n") is not None]
    alike = math.gcd(tiles.columns, *along)
    return alike if along and alike % atom.n == 0 else 1


def numbers_held(product: Multiplied, tiles: Tiling, atom: Atom) -> int:
    """Registers of the factors that a thread holds while it multiplies a block."""
    sides = {_factor(one).side for one in product.factors}
    each = _columns_alike(product.factors, tiles, atom)
    rows, width = (len({int(at) for at in atom.c.table[0, :, axis]}) for axis in range(2))
    columns = tiles.columns // each if each > 1 else tiles.columns // atom.n * width
    counts = {"m": tiles.atoms[0] * rows, "n": columns, "": 1}
    return sum(counts[side] for side in sides)


def prove(of: Promote, atom: Atom, tiles: Tiling) -> None:
    """Every element of an agent's sums takes the numbers of its own row and column.

    Raises:
        VerifyError: with the first element that takes another's.
    """
    lanes = common_facts()["warp_size"]
    for thread, instruction, part, element in _elements(of, atom, tiles):
        warp, lane = divmod(thread, lanes)
        row, column = (int(at) for at in atom.c.table[thread, element])
        zero = dict.fromkeys(("group", "w_m", "w_n", "rank", "b_m", "b_n"), 0)
        at = zero | {"m": instruction, "j": part, "lane": lane}
        at["quarter"] = warp * (atom.m * lanes // atom.lanes)
        wanted = instruction * atom.m + row, part * atom.n + column
        if of.row_numbers:
            number = value(of.row_number(element), at)
            found = value(of.row_of(str(number)), at)
            if found != wanted[0] or number >= of.row_numbers:
                raise _other("row", found, wanted[0])
        if of.column_numbers:
            number = value(of.column_number(element), at)
            found = value(of.column_of(str(number)), at)
            if not found <= wanted[1] < found + of.each or number >= of.column_numbers:
                raise _other("column", found, wanted[1])
    runs = (tiles.columns, *(one.per[0] for one in of.of_side("n")))  # tiles begin where runs do
    if of.each > 1 and (any(one % of.each for one in runs) or tiles.cta[1] % tiles.columns):
        raise VerifyError(f"{of.each} columns have one number, of runs of {runs}", where=of.total)


def _elements(of: Promote, atom: Atom, tiles: Tiling) -> Iterator[tuple[int, int, int, int]]:
    """Thread, instruction, group and element of an agent's tile: each of them once.

    Formulas are sums of a term of the thread and one of the others, so that every thread with the
    first instruction and group, and the first thread with all of these, decide.
    """
    count = atom.c.elements
    for thread in range(atom.lanes):
        yield from ((thread, 0, 0, element) for element in range(count))
    for instruction in range(of.instructions):
        for part in range(of.groups):
            yield from ((0, instruction, part, element) for element in range(count))
    if (of.instructions, of.groups) != (tiles.atoms[0], tiles.columns // atom.n):
        raise VerifyError(f"{of.instructions} x {of.groups} sums are promoted", where=of.total)
    if not np.array_equal(np.array(of.offsets), atom.c.table[0] - atom.c.table[0, 0]):
        raise VerifyError(f"elements lie at {of.offsets}", where=of.total)


def _other(side: str, found: int, wanted: int) -> VerifyError:
    return VerifyError(
        f"a sum of {side} {wanted} is promoted by factors of {side} {found}", where="promotion"
    )
