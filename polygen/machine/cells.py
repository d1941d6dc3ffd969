"""Many cells at once: what an access covers is a row of neighbouring cells.

1. An access lies at a multiple of its size, so its cells are a row of the array of all cells cut
   into rows of that many, and two accesses of an instruction meet in all of their cells or in none.
2. Rows are moved as elements of up to 16 bytes: NumPy gathers and scatters these at once, and
   many times faster than cells one by one.
3. Reads are put off (`Reads`): most are followed by a barrier of the whole block before anybody
   asks who read, and then nobody has to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polygen.machine.lanes import Vector

# Two or four cells of an array as one element, which is only moved, never computed with.
_PAIR = {4: "i8", 8: "c16"}
LONG = 16  # rows of so many cells are written as rows
_BEGIN = ~np.int64((1 << 37) - 1)  # of a record: when its warp last synchronised (`Clocks`)
MOST_PUT_OFF = 64  # instructions whose reads are kept until somebody asks


def fill(cells: Vector, rows: Vector, count: int, value: np.int32) -> None:
    """Give all cells of some rows of `count` one value."""
    if count == 1:
        cells[rows] = value
    elif count == 2:
        cells.view("i8")[rows] = np.full(2, value).view("i8")[0]
    elif count >= LONG:
        cells.reshape(-1, count)[rows] = value
    else:
        _each(cells.view("c16"), rows, count // 4, np.full(4, value).view("c16")[0])


def put(cells: Vector, rows: Vector, count: int, values: Vector) -> None:
    """Give the cells of every row its value; `values` is one per row, or one for all."""
    if count == 1:
        cells[rows] = values
        return
    if count >= LONG:
        cells.reshape(-1, count)[rows] = values if np.ndim(values) == 0 else values[:, None]
        return
    both = np.repeat(values, 2).view(_PAIR[cells.itemsize])
    _each(cells.view(both.dtype), rows, count // 2, both)


def _each(wide: Vector, rows: Vector, many: int, values: Vector) -> None:
    if many == 1:
        wide[rows] = values
        return
    first = rows * many
    for place in range(many):
        wide[first + place] = values


@dataclass(frozen=True, slots=True)
class _Read:
    """The reads of one instruction."""

    stamps: Vector  # records without the instruction, one per access
    position: int
    clocks: Vector  # clock rows of the warps
    columns: Vector  # of their records
    rows: Vector  # of cells
    count: int
    epoch: np.int32


class Reads:
    """The last read of every cell by every actor, and those by warps that are not in there yet.

    Attributes:
        others: like the records, reads by other lanes of the same warps since these synchronised
            (`Clocks.beside`); who writes is beside one of two. None: there are none.
    """

    def __init__(self, actors: int, cells: int, beside: Callable[[Vector, Vector], Vector]) -> None:
        self._shape, self._beside = (actors, cells), beside
        self._records: Vector | None = None  # made when a read has to be in there
        self.others: Vector | None = None
        self._waiting: list[_Read] = []

    @property
    def records(self) -> Vector:
        """Actor by cell."""
        if self._records is None:
            self._records = np.zeros(self._shape, np.int64)
        return self._records

    def put_off(
        self,
        stamps: Vector,
        position: int,
        clocks: Vector,
        columns: Vector,
        rows: Vector,
        count: int,
        epoch: np.int32,
    ) -> bool:
        """Keep the reads of an instruction; whether there are so many that they should be settled.

        Args:
            stamps: the records, without the instruction.
            position: the instruction.
            clocks: clock rows of the warps that read, one per access.
            columns: of the same in the records.
            rows: of `count` cells each, one per access.
            count: cells of an access.
            epoch: of the reads.
        """
        self._waiting.append(_Read(stamps, position, clocks, columns, rows, count, epoch))
        return len(self._waiting) >= MOST_PUT_OFF

    def forget(self, behind: np.int32) -> None:
        """What was put off in the epochs up to `behind` is behind all warps."""
        self._waiting = [one for one in self._waiting if one.epoch > behind]

    def settled(self, met: Vector) -> Vector | None:
        """The records, actor by cell, if there are any; `met`: the epochs behind every clock row.

        What is behind all warps that may write there stays away: a record is compared with clocks
        that know of it.
        """
        for one in self._waiting:
            if (met[one.clocks] >= one.epoch).all():
                continue
            rows = one.columns * (self._shape[1] // one.count) + one.rows
            marks = (one.stamps | one.position)[:, None]
            by_row = self.records.reshape(-1, one.count)
            before = by_row[rows]
            put(self.records.reshape(-1), rows, one.count, marks[:, 0])
            if (before >= marks & _BEGIN).any():  # read since the warps synchronised
                self._note(rows, one.count, before, marks)
            if ((after := by_row[rows]) != marks).any():  # by several lanes at once
                self._note(rows, one.count, np.broadcast_to(marks, after.shape), after)
        self._waiting.clear()
        return self._records

    def _note(self, rows: Vector, count: int, first: Vector, last: Vector) -> None:
        """Keep the first of two reads where only their lanes are others."""
        near = self._beside(first, last)
        if not near.any():
            return
        if self.others is None:
            self.others = np.zeros(self._shape, np.int64)
        lane, place = np.nonzero(near)
        self.others.reshape(-1, count)[rows[lane], place] = first[lane, place]
