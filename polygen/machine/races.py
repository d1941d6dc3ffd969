"""Happens-before races in shared memory: vector clocks (`clocks`) over a shadow of every cell.

1. A cell is `granule` bytes, the smallest access in the kernel. It remembers its last write and
   the last read of every actor as one record: time, actor, lane and instruction.
2. A read needs the last write ordered before it; a write needs that and every read. Lanes of one
   warp are ordered by the barriers of the warp.
3. Most accesses come after a barrier of their whole block that came after what they meet: then the
   *epochs* say so, and no record is looked at. Each such barrier ends one (`Clocks.met`).
4. Cells never written, and cells an asynchronous copy is about to write, carry a time nobody can
   have seen, so that the one comparison of step 2 catches them too; what it was is told apart only
   when it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygen.machine import race_reports
from polygen.machine.cells import Reads, fill, put
from polygen.machine.clocks import CODE, Clocks
from polygen.machine.lane_clocks import ACTOR, ACTORS
from polygen.machine.lanes import Geometry, Lanes, Vector
from polygen.machine.race_reports import FLIGHT, NEVER
from polygen.machine.report import Findings
from polygen.machine.special import RESERVED

LATER = np.int32(2**31 - 1)  # an epoch that never ends


class Shadow(Clocks):
    """The shadow of the shared memory of one wave."""

    def __init__(
        self,
        geometry: Geometry,
        shared_bytes: int,
        granule: int,
        findings: Findings,
        atomic: frozenset[int],
        more: int = 0,
        fences: bool = True,
    ) -> None:
        """`more` and `fences` are for the clocks."""
        super().__init__(geometry, more, fences)
        self.granule, self.findings, self.atomic = granule, findings, atomic
        self.followed: frozenset[int] = frozenset()  # loads whose values are: see `unwritten`
        self.shift = granule.bit_length() - 1
        self.bytes = shared_bytes
        cells = len(geometry.ctas) * shared_bytes // granule
        self.written = np.full(cells, NEVER)
        self.reads = Reads(self.actors, cells, self.beside)
        # epochs of the last read and write; `LATER`: look at the records
        self.read_in, self.written_in = np.zeros(cells, np.int32), np.full(cells, LATER)
        # wgmma or bulk reads in flight, of every 16 bytes
        self.reading = np.zeros(len(geometry.ctas) * shared_bytes // 16, np.int32)
        self.readers = 0  # such operations

    def cell_rows(self, at: Vector, size: int) -> tuple[Vector, int]:
        """The same cells as rows of so many each: see `polygen.machine.cells`."""
        count = max(size >> self.shift, 1)
        return at >> (self.shift + count.bit_length() - 1), count

    def cells(self, at: Vector, size: int) -> Vector:
        """Cells of accesses of `size` bytes at absolute byte positions; one row per access."""
        first = at >> self.shift
        count = max(size // self.granule, 1)
        if count == 1:
            return first[:, None]
        return first[:, None] + np.arange(count)

    def read(self, lanes: Lanes, at: Vector, size: int, position: int) -> tuple[Vector, str] | None:
        """Check and record reads of `size` bytes at absolute byte positions, one per lane.

        Returns:
            Of a load that is followed: which of its cells, one row per lane, nothing has written,
            and the sentence about them; None when there are none.
        """
        if not lanes.count:
            return None
        never = None
        warps, (rows, count) = self.rows(lanes), self.cell_rows(at, size)
        last = self.written_in.reshape(-1, count).take(rows, 0)
        if last.max() > self.behind and not (last <= self.met[warps][:, None]).all():
            never = self._check_writes(lanes, self.cells(at, size), warps, position)
        columns = self.column_of if lanes.everyone else self.column[warps]
        now = self.stamps(lanes), position, warps, columns, rows, count, self.epoch
        if self.reads.put_off(*now):
            self.reads.settled(self.met)
        fill(self.read_in, rows, count, self.epoch)
        return never

    def _check_writes(
        self, lanes: Lanes, cells: Vector, warps: Vector, position: int
    ) -> tuple[Vector, str] | None:
        """Check that the writes of cells are ordered before what lanes read now."""
        last = self.written[cells]
        wrong = last > self.seen(warps, last)
        wrong = self.single.excuse(wrong, lanes.index, last)
        wrong |= self.beside(last, self.mark(lanes, position))
        return race_reports.read(self, lanes, cells, wrong, position) if wrong.any() else None

    def write(
        self,
        lanes: Lanes,
        at: Vector,
        size: int,
        position: int,
        flight: bool = False,
        rows: Vector | None = None,
        actor: int = -1,
    ) -> bool:
        """Check and record writes; with `flight` they land later (see `land`).

        `rows` are the clock rows whose knowledge counts (default: the lanes' warps); `actor` is the
        clock row that writes when it is not the same (a copy engine).

        Returns:
            Whether lanes of one warp have met in a cell: their values decide whether that matters.
        """
        if not lanes.count:
            return False
        rows = self.rows(lanes) if rows is None else rows
        (places, count), warps = self.cell_rows(at, size), actor < 0
        mark = (
            self.mark(lanes, position) if warps else self.now(np.full(len(rows), actor), position)
        )
        last = self.written_in.reshape(-1, count).take(places, 0)
        met = self.met[rows][:, None]
        if last.max() > self.behind and not (last <= met).all():
            before = self._last_writes(places, count)
            wrong = (before > self.seen(rows, before)) & (before < NEVER)
            wrong = self.single.excuse(wrong, lanes.index, before)
            wrong |= self.beside(before, mark)
            if wrong.any():
                race_reports.write(self, lanes, self.cells(at, size), wrong, position)
        last = self.read_in.reshape(-1, count).take(places, 0)
        if self.readers or (last.max() > self.behind and not (last <= met).all()):
            self._check_reads(lanes, self.cells(at, size), rows, mark, position)
        if warps and self.fences:
            self.unfenced[rows, self.lane_of[lanes.index]] = True
        if flight:
            mark = mark | FLIGHT
        put(self.written, places, count, mark[:, 0])
        fill(self.written_in, places, count, self.epoch if warps and not flight else LATER)
        change = self.written.take(places * count) ^ mark[:, 0]
        if not change.any():
            return False
        lost = change >= 1 << ACTOR
        if lost.any():  # two warps wrote the same cell with this very instruction
            cells = self.cells(at, size)
            race_reports.write(self, lanes, cells, np.repeat(lost[:, None], count, 1), position)
            return False
        return True

    def _last_writes(self, rows: Vector, count: int) -> Vector:
        """The last writes of rows of `count` cells: one of each row where its cells have the same.

        What is wrong with them is by the same places.
        """
        last: Vector = self.written.reshape(-1, count).take(rows, 0)
        return last[..., :1] if count > 1 and (last == last[..., :1]).all() else last

    def _all_met(self, rows: Vector) -> None:
        """Likewise; reads that are behind everybody need no records."""
        before = self.behind
        super()._all_met(rows)
        if self.behind > before:
            self.reads.forget(self.behind)

    def _check_reads(
        self, lanes: Lanes, cells: Vector, rows: Vector, mark: Vector, position: int
    ) -> None:
        """Check that the reads of cells are over which lanes are about to write."""
        records = self.reads.settled(self.met)
        if records is None:  # what is read asynchronously has records when it is over
            if self.readers and self.being_read(cells).any():
                race_reports.overwrite(
                    self, lanes, cells, np.zeros((*cells.shape, 1), bool), position
                )
            return
        reads = records[:, cells]  # actors, lanes, cells of a lane
        known = self.clock[rows, : self.actors].T[:, :, None]
        late = np.moveaxis(reads > known, 0, 2)
        if self.single.own:
            late = self.single.excuse(late, lanes.index, np.moveaxis(reads, 0, 2))
        own = (mark[:, 0] >> ACTOR) & ACTORS
        if own[0] < self.actors:  # of other lanes' reads, those of the same warp are in one column
            near = self.beside(records[own[:, None], cells], mark)
            if near.any():
                lane, place = np.nonzero(near)
                late[lane, place, own[lane]] = True
            self._check_others(lanes, cells, own, mark, position)
        if late.any() or (self.readers and self.being_read(cells).any()):
            race_reports.overwrite(self, lanes, cells, late, position)

    def _check_others(
        self, lanes: Lanes, cells: Vector, own: Vector, mark: Vector, position: int
    ) -> None:
        """Several lanes of a warp have read a cell, and the last is the one that writes there."""
        others = self.reads.others
        if others is None:
            return
        last = others[own[:, None], cells]
        near = self.beside(last, mark) & ~self.beside(self.reads.records[own[:, None], cells], mark)
        if near.any():
            race_reports.overwritten(self, lanes, cells, (near, last), position)

    def land(self, rows: Vector, at: Vector, size: int, position: int, lane: Any = 0) -> None:
        """Copies issued earlier have landed, and the actors of `rows` know it."""
        places, count = self.cell_rows(at, size)
        put(self.written, places, count, self.now(rows, position, lane)[:, 0])
        epoch = self.epoch if rows[0] < len(self.unfenced) else LATER
        fill(self.written_in, places, count, epoch)

    def check_read(
        self,
        lanes: Lanes,
        at: Vector,
        size: int,
        position: int,
        rows: Vector,
        alone: bool = True,
    ) -> None:
        """Check reads without recording them; `alone`: what single lanes know counts for them."""
        last = self._last_writes(*self.cell_rows(at, size))
        wrong = last > self.seen(rows, last)
        if alone:
            wrong = self.single.excuse(wrong, lanes.index, last)
        if wrong.any():
            race_reports.read(self, lanes, self.cells(at, size), wrong, position)

    def check_async(
        self,
        lanes: Lanes,
        at: Vector,
        position: int,
        rows: Vector,
        size: int = 16,
        alone: bool = True,
    ) -> None:
        """Check reads by the async proxy on behalf of the actors of `rows`."""
        self.check_read(lanes, at, size, position, rows, alone)
        last = self._last_writes(*self.cell_rows(at, size))
        column = (last >> ACTOR) & ACTORS
        generic = self.generic(column)
        seen, fenced = self.clock[rows[:, None], column], self.fenced[rows[:, None], column]
        wrong = generic & (last <= seen) & (last > fenced)
        if alone:
            wrong = self.single.excuse(wrong, lanes.index, last, 1)
        if wrong.any():
            wrong &= ~self._fenced_itself(rows, last)
        if wrong.any():
            cells = self.cells(at, size)
            for lane, place, record, count in race_reports.pairs(wrong, self.written[cells]):
                self.findings.add(
                    "missing-proxy-fence",
                    f"the async proxy reads shared byte {self.offset(int(cells[lane, place]))} for "
                    f"{lanes.name(lane)}, written by {self.who(record)} "
                    "without fence.proxy.async in between",
                    position,
                    record & CODE,
                    count,
                )

    def check_groups(self, lanes: Lanes, rows: Vector, position: int, clocks: Vector) -> None:
        """Check reads of 16-byte rows of cells by the wgmma units of warpgroups.

        Every warp of a group must have the write ordered before it.

        Args:
            lanes: all of the groups, 128 each.
            rows: of cells, by group.
            position: of the instruction.
            clocks: rows of the warps' clocks, by group.
        """
        last = self._last_writes(rows, 16 >> self.shift)
        column = (last >> ACTOR) & ACTORS
        seen, fenced = self.clock[clocks].min(1), self.fenced[clocks].min(1)
        at = column + (np.arange(len(rows)) * seen.shape[1])[:, None, None]
        wrong = last > seen.take(at)
        wrong |= self.generic(column) & (last > fenced.take(at))
        for number in np.flatnonzero(wrong.any((1, 2))).tolist():
            many = lanes.pick(np.full(rows.shape[1], 128 * number))
            for row in clocks[number]:  # name each warp's missing order once
                mine = np.full(rows.shape[1], row)
                self.check_async(many, rows[number] << 4, position, mine, alone=False)

    def check_initialised_barrier(self, lanes: Lanes, at: int, rows: Vector, position: int) -> None:
        """The copy engine uses an mbarrier: its initialisation must be ordered and fenced."""
        self.check_async(lanes, np.array([at]), position, rows, 8)

    def start_reading(self, rows: Vector, operations: int = 1) -> None:
        """Asynchronous operations read these 16-byte rows of cells until `finish_reading`."""
        self.readers += operations
        np.add.at(self.reading, rows.ravel(), np.ones(rows.size, np.int32))

    def finish_reading(self, over: Sequence[tuple[Vector, int, int]]) -> None:
        """Asynchronous reads are over; who learns of it may overwrite.

        Args:
            over: of each its 16-byte rows of cells, its actor's clock row, and its instruction.
        """
        if not over:
            return
        self.readers -= len(over)
        rows = np.concatenate([one for one, _, _ in over])
        np.subtract.at(self.reading, rows, np.ones(len(rows), np.int32))
        actors, positions = np.array([rest for _, *rest in over]).T
        self.tick(np.unique(actors))
        times = [len(one) for one, _, _ in over]
        marks = np.repeat(self.now(actors, 0)[:, 0] | positions, times)
        places = np.repeat(self.column[actors], times) * len(self.reading) + rows
        put(self.reads.records.reshape(-1), places, 16 >> self.shift, marks)
        fill(self.read_in, rows, 16 >> self.shift, LATER)

    def being_read(self, cells: Vector) -> Vector:
        """Of which cells an asynchronous operation still reads the bytes."""
        return self.reading[cells >> (4 - self.shift)] > 0

    def offset(self, cell: int) -> int:
        """Where a cell is among the block's own shared memory."""
        return cell * self.granule % self.bytes - RESERVED
