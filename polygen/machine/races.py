"""Happens-before races in shared memory, by vector clocks over a shadow of every cell.

1. An *actor* is a warp, the bulk-copy engine of a CTA, or the wgmma unit of a warpgroup; actors of
   one cluster share memory. Each has a vector clock: row ``[actor, other]`` is the latest time of
   `other` that is ordered before what `actor` does next. Bulk loads complete in any order, so those
   that different mbarriers wait for are different actors, *loaders*; they only write.
2. A cell is `granule` bytes, the smallest access in the kernel. It remembers its last write and
   the last read of every actor as one integer: time, actor, lane and instruction.
3. A read needs the last write ordered before it; a write needs that and every read. Lanes of one
   warp are ordered by the barriers of the warp: each starts a new time.
4. Cells never written, and cells an asynchronous copy is about to write, carry a time nobody can
   have seen, so that the one comparison of step 3 catches them too; what it was is told apart only
   when it failed.
5. A second clock per actor counts only what a proxy fence covered: the async proxy compares with
   it. The lowest bits of a time count the fences since the warp's last barrier: what a warp writes
   after a fence is not covered, though its lanes are not ordered by it either. A fence by some
   lanes covers for the others what a barrier had ordered before, and no more (`fence`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.machine.lane_clocks import LaneClocks
from polygen.machine.lanes import Geometry, Lanes, Vector
from polygen.machine.report import Findings
from polygen.machine.special import RESERVED

TIME = 33  # a record is time << 33 | actor << 23 | lane << 18 | instruction
ACTOR = 23
ACTORS = 1023
LANE = 18
CODE = (1 << LANE) - 1
LAST = (1 << TIME) - 1
FENCES = np.int64(15 << TIME)  # of a time: proxy fences since the barrier that started it
FENCE = np.int64(1 << TIME)
STEP = np.int64(1 << TIME + 4)
LOADERS = 16  # per CTA; more mbarriers than that share some
NEVER = np.int64(1 << 62)  # the write record of a cell nobody wrote
FLIGHT = np.int64(1 << 61)  # added to the record of a copy that has not landed


class Shadow:
    """The shadow of the shared memory of one wave."""

    def __init__(
        self,
        geometry: Geometry,
        shared_bytes: int,
        granule: int,
        findings: Findings,
        atomic: frozenset[int],
        more: int = 0,
    ) -> None:
        """`more` columns of the clocks are for what `Order` keeps there."""
        self.geometry, self.granule, self.findings, self.atomic = (
            geometry,
            granule,
            findings,
            atomic,
        )
        self.bytes = shared_bytes
        self.groups = -(-geometry.warps // 4)
        self.per_cta = geometry.warps + self.groups + 1
        self.actors = self.per_cta * geometry.cluster
        ctas = len(geometry.ctas)
        cells = ctas * shared_bytes // granule
        self.written = np.full(cells, NEVER)
        self.read_at = np.zeros((cells, self.actors), np.int64)
        self.reading = np.zeros(cells, np.int32)  # wgmma or bulk reads in flight
        # one clock row per actor of every CTA, then per loader; columns: the same of its cluster
        self.loaders: list[dict[int, int]] = [{} for _ in range(ctas)]  # mbarrier -> loader
        own, loaders = np.arange(ctas * self.per_cta), np.arange(ctas * LOADERS)
        width = LOADERS * geometry.cluster
        self.column = np.concatenate([own % self.actors, self.actors + loaders % width])
        self.clock = np.full((len(self.column), self.actors + width + more), LAST, np.int64)
        self.fenced = np.full(self.clock.shape, LAST, np.int64)
        self.clock[np.arange(len(self.column)), self.column] += STEP
        self.row_of = geometry.cta * self.per_cta + geometry.warp  # thread -> its warp's clock row
        self.single = LaneClocks(self.row_of, self.clock, self.fenced)
        # By clock row and lane: whether it wrote since the warp's last time and its own last fence;
        # the time of a fence that covered not all of its warp.
        self.unfenced = np.zeros((len(own), 32), bool)
        self.lane_fenced = np.zeros((len(own), 32), np.int64)

    # --- helpers -----------------------------------------------------------------------------
    def rows(self, lanes: Lanes) -> Vector:
        """Clock row of each lane's warp."""
        return self.row_of[lanes.index]

    def engine(self, cta: int) -> int:
        """Clock row of a CTA's tensor-memory engine."""
        return cta * self.per_cta + self.per_cta - 1

    def loader(self, cta: int, barrier: int) -> int:
        """Clock row of the loads into a CTA that an mbarrier waits for."""
        known = self.loaders[cta]
        number = known.setdefault(barrier, len(known)) % LOADERS
        return len(self.loaders) * self.per_cta + cta * LOADERS + number

    def matrix_unit(self, cta: int, group: int) -> int:
        """Clock row of a warpgroup's wgmma unit."""
        return cta * self.per_cta + self.geometry.warps + group

    def cells(self, at: Vector, size: int) -> Vector:
        """Cells of accesses of `size` bytes at absolute byte positions; one row per access."""
        first = at // self.granule
        count = max(size // self.granule, 1)
        if count == 1:
            return first[:, None]
        return first[:, None] + np.arange(count)

    def now(self, rows: Vector, position: int, lane: Any = 0) -> Vector:
        """The records of accesses happening now, one row per access."""
        columns = self.column[rows]
        time = self.clock[rows, columns] & ~np.int64(LAST)
        return (time | (columns << ACTOR) | (lane << LANE) | position)[:, None]

    @staticmethod
    def beside(records: Vector, mark: Vector) -> Vector:
        """Accesses by other lanes of the same warp since it last synchronised."""
        change = (records ^ mark) & ~FENCES
        return (change < 1 << ACTOR) & (change >= 1 << LANE)  # only the lane (and code) differ

    # --- accesses ----------------------------------------------------------------------------
    def read(
        self, lanes: Lanes, at: Vector, size: int, position: int, rows: Vector | None = None
    ) -> None:
        """Check and record reads of `size` bytes at absolute byte positions, one per lane."""
        rows = self.rows(lanes) if rows is None else rows
        cells = self.cells(at, size)
        last = self.written[cells]
        mark = self.now(rows, position, lanes.index & 31)
        wrong = last > self.clock[rows[:, None], (last >> ACTOR) & ACTORS]
        wrong = self.single.excuse(wrong, lanes.index, last)
        wrong |= self.beside(last, mark)
        if wrong.any():
            self._report_read(lanes, cells, wrong, position)
        self.read_at[cells, self.column[rows][:, None]] = mark

    def write(
        self,
        lanes: Lanes,
        at: Vector,
        size: int,
        position: int,
        flight: bool = False,
        rows: Vector | None = None,
        actor: int = -1,
    ) -> None:
        """Check and record writes; with `flight` they land later (see `land`).

        `rows` are the clock rows whose knowledge counts (default: the lanes' warps); `actor` is the
        clock row that writes when it is not the same (a copy engine).
        """
        rows = self.rows(lanes) if rows is None else rows
        cells = self.cells(at, size)
        last = self.written[cells]
        writers = rows if actor < 0 else np.full(len(rows), actor)
        mark = self.now(writers, position, lanes.index & 31 if actor < 0 else 0)
        wrong = (last > self.clock[rows[:, None], (last >> ACTOR) & ACTORS]) & (last < NEVER)
        wrong = self.single.excuse(wrong, lanes.index, last)
        wrong |= self.beside(last, mark)
        if wrong.any():
            self._report_write(lanes, cells, wrong, position)
        reads = self.read_at[cells]
        known = self.clock[rows, : self.actors]
        late = self.single.excuse(reads > known[:, None, :], lanes.index, reads)
        late |= self.beside(reads, mark[:, :, None])
        if late.any() or self.reading[cells].any():
            self._report_overwrite(lanes, cells, late, position)
        if actor < 0:
            self.unfenced[rows, lanes.index & 31] = True
        if flight:
            mark = mark | FLIGHT
        self.written[cells] = mark
        lost = (self.written[cells] ^ mark) >= 1 << ACTOR
        if lost.any():  # two warps wrote the same cell with this very instruction
            self._report_write(lanes, cells, lost, position)

    def land(self, rows: Vector, at: Vector, size: int, position: int, lane: Any = 0) -> None:
        """Copies issued earlier have landed, and the actors of `rows` know it."""
        cells = self.cells(at, size)
        self.written[cells] = self.now(rows, position, lane)

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
        cells = self.cells(at, size)
        last = self.written[cells]
        wrong = last > self.clock[rows[:, None], (last >> ACTOR) & ACTORS]
        if alone:
            wrong = self.single.excuse(wrong, lanes.index, last)
        if wrong.any():
            self._report_read(lanes, cells, wrong, position)

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
        cells = self.cells(at, size)
        last = self.written[cells]
        column = (last >> ACTOR) & ACTORS
        generic = self.generic(column)
        seen, fenced = self.clock[rows[:, None], column], self.fenced[rows[:, None], column]
        wrong = generic & (last <= seen) & (last > fenced)
        if alone:
            wrong = self.single.excuse(wrong, lanes.index, last, 1)
        if wrong.any():
            wrong &= ~self._fenced_itself(rows, last)
        if wrong.any():
            for lane, place, record, count in self._pairs(wrong, last):
                self.findings.add(
                    "missing-proxy-fence",
                    f"the async proxy reads shared byte {self.offset(int(cells[lane, place]))} for "
                    f"{lanes.name(lane)}, written by {self.who(record)} "
                    "without fence.proxy.async in between",
                    position,
                    record & CODE,
                    count,
                )

    def check_group(self, lanes: Lanes, lane: int, at: Vector, position: int, rows: Vector) -> None:
        """Check 16-byte reads by the wgmma unit of the warpgroup whose warps have clock `rows`.

        Every warp of the group must have the write ordered before it.
        """
        cells = self.cells(at, 16)
        last = self.written[cells]
        column = (last >> ACTOR) & ACTORS
        seen, fenced = self.clock[rows].min(0), self.fenced[rows].min(0)
        generic = self.generic(column)
        wrong = (last > seen[column]) | (generic & (last > fenced[column]))
        if not wrong.any():
            return
        many = lanes.pick(np.full(len(at), lane))
        for row in rows:  # name each warp's missing order once
            self.check_async(many, at, position, np.full(len(at), row), alone=False)

    def check_initialised_barrier(self, lanes: Lanes, at: int, rows: Vector, position: int) -> None:
        """The copy engine uses an mbarrier: its initialisation must be ordered and fenced."""
        self.check_async(lanes, np.array([at]), position, rows, 8)

    def start_reading(self, at: Vector) -> None:
        """An asynchronous operation reads these 16-byte chunks until `finish_reading`."""
        self.reading[self.cells(at, 16)] += 1  # a repeated cell counts once, here and there

    def finish_reading(self, at: Vector, row: int, position: int) -> None:
        """The reads of the asynchronous actor `row` are over; who learns of it may overwrite."""
        cells = self.cells(at, 16).ravel()
        self.reading[cells] -= 1
        rows = np.array([row])
        self.tick(rows)
        self.read_at[cells, self.column[row]] = self.now(rows, position)[0, 0]

    # --- ordering ----------------------------------------------------------------------------
    def join(self, rows: Vector) -> None:
        """All the given actors learn what each of them knows (a barrier)."""
        self.clock[rows] = self.clock[rows].max(0)
        self.fenced[rows] = self.fenced[rows].max(0)
        self.tick(rows)

    def join_groups(self, rows: Vector) -> None:
        """`join` for many equal groups at once; `rows` is groups × members."""
        self.clock[rows] = self.clock[rows].max(1, keepdims=True)
        self.fenced[rows] = self.fenced[rows].max(1, keepdims=True)
        self.tick(rows.ravel())

    def tick(self, rows: Vector) -> None:
        """What the actors do from now on is not known to others yet."""
        columns = self.column[rows]
        self.clock[rows, columns] = (self.clock[rows, columns] & ~FENCES) + STEP
        self.unfenced[rows[rows < len(self.unfenced)]] = False

    def released(self, thread: int) -> tuple[Vector, Vector]:
        """What one thread publishes: its warp's clocks, without what later lanes did just now.

        Records of the same time compare by lane: those of earlier lanes pass unnoticed.
        """
        row, lane = self.row_of[thread], thread & 31
        own, fenced = self.single.of(thread)
        clock, column = own.copy(), self.column[row]
        clock[column] = clock[column] & ~np.int64(LAST) | column << ACTOR | lane << LANE | CODE
        return clock, fenced.copy()

    def learn(self, rows: Vector, row: int) -> None:
        """The actors of `rows` learn what the actor `row` did so far."""
        column = self.column[row]
        self.clock[rows, column] = np.maximum(self.clock[rows, column], self.clock[row, column])

    def fence(self, lanes: Lanes) -> None:
        """A proxy fence: what the lanes know now may reach the async proxy.

        Of what their warp wrote since its last barrier, that is what they wrote themselves.
        """
        rows = np.unique(self.rows(lanes))
        self.unfenced[self.rows(lanes), lanes.index & 31] = False
        columns = self.column[rows]
        time = self.clock[rows, columns]
        known = self.clock[rows].copy()
        others = self.unfenced[rows].any(1)
        known[others, columns[others]] = (time[others] & ~(FENCES | LAST)) - 1
        self.fenced[rows] = np.maximum(self.fenced[rows], known)
        part = lanes.index[np.isin(self.rows(lanes), rows[others])]
        mine = self.row_of[part]
        self.lane_fenced[mine, part & 31] = self.clock[mine, self.column[mine]]
        self.clock[rows, columns] = np.where(time & FENCES == FENCES, time, time + FENCE)

    def _fenced_itself(self, rows: Vector, last: Vector) -> Vector:
        """Whether the lanes that left records have fenced them, though not all of their warp."""
        column = (last >> ACTOR) & ACTORS
        own = (rows - rows % self.actors)[:, None] + np.where(self.generic(column), column, 0)
        return self.lane_fenced[own, last >> LANE & 31] >= last

    def generic(self, column: Any) -> Any:
        """Whether actors are warps."""
        return (column < self.actors) & (column % self.per_cta < self.geometry.warps)

    # --- words -------------------------------------------------------------------------------
    def who(self, record: int) -> str:
        """The thread or unit that left a record, in words."""
        column = record >> ACTOR & ACTORS
        name = self.actor_name(column)
        lane = f"lane {record >> LANE & 31} of " if name.startswith("warp") else ""
        return lane + name

    def actor_name(self, column: int) -> str:
        """An actor in words."""
        inside, rank = column % self.per_cta, column // self.per_cta
        if column >= self.actors:
            inside, rank = self.per_cta - 1, (column - self.actors) // LOADERS
        place = f" of cluster rank {rank}" if self.geometry.cluster > 1 else ""
        if inside < self.geometry.warps:
            return f"warp {inside}{place}"
        if inside == self.per_cta - 1:
            return f"the bulk-copy engine{place}"
        return f"the wgmma unit of warpgroup {inside - self.geometry.warps}{place}"

    def offset(self, cell: int) -> int:
        """Where a cell is among the block's own shared memory."""
        return cell * self.granule % self.bytes - RESERVED

    def _pairs(self, wrong: Vector, records: Vector) -> list[tuple[int, int, int, int]]:
        """First (lane, place) per other instruction, with that record and the count."""
        found: dict[int, list[int]] = {}
        for lane, place in np.argwhere(wrong)[:4096]:
            record = int(records[lane, place])
            entry = found.setdefault(record & CODE, [lane, place, record, 0])
            entry[3] += 1
        return [(lane, place, record, count) for lane, place, record, count in found.values()]

    def _report_read(self, lanes: Lanes, cells: Vector, wrong: Vector, position: int) -> None:
        last = self.written[cells]
        never = wrong & (last >= NEVER)
        if never.any():
            lane, place = np.argwhere(never)[0]
            self.findings.add(
                "uninitialised-shared-read",
                f"{lanes.name(lane)} reads shared byte {self.offset(int(cells[lane, place]))}, "
                "which nothing has written",
                position,
                count=int(never.any(1).sum()),
            )
        for lane, place, record, count in self._pairs(wrong & ~never, last):
            other = record & CODE
            flying = record >= FLIGHT
            if position in self.atomic and other in self.atomic:
                continue
            actor = self.who(record)
            detail = (
                "a copy still in flight from" if flying else "a write not ordered before it, by"
            )
            self.findings.add(
                "in-flight-access" if flying else "race-write-read",
                f"{lanes.name(lane)} reads shared byte {self.offset(int(cells[lane, place]))} "
                f"against {detail} {actor}",
                position,
                other,
                count,
            )

    def _report_write(self, lanes: Lanes, cells: Vector, wrong: Vector, position: int) -> None:
        for lane, place, record, count in self._pairs(wrong, self.written[cells]):
            other = record & CODE
            flying = record >= FLIGHT
            if position in self.atomic and other in self.atomic:
                continue
            actor = self.who(record)
            detail = (
                "a copy still in flight from" if flying else "a write not ordered before it, by"
            )
            self.findings.add(
                "in-flight-access" if flying else "race-write-write",
                f"{lanes.name(lane)} writes shared byte {self.offset(int(cells[lane, place]))} "
                f"against {detail} {actor}",
                position,
                other,
                count,
            )

    def _report_overwrite(self, lanes: Lanes, cells: Vector, late: Vector, position: int) -> None:
        flying = self.reading[cells] > 0
        if flying.any():
            lane, place = np.argwhere(flying)[0]
            self.findings.add(
                "in-flight-access",
                f"{lanes.name(lane)} writes shared byte {self.offset(int(cells[lane, place]))} "
                "while an asynchronous operation still reads it",
                position,
                count=int(flying.any(1).sum()),
            )
        for column in np.flatnonzero(late.any((0, 1))):
            wrong = late[:, :, column]
            for lane, place, record, count in self._pairs(wrong, self.read_at[cells, column]):
                other = record & CODE
                if position in self.atomic and other in self.atomic:
                    continue
                self.findings.add(
                    "race-read-write",
                    f"{lanes.name(lane)} writes shared byte "
                    f"{self.offset(int(cells[lane, place]))} while {self.who(record)} "
                    "may still have to read it",
                    position,
                    other,
                    count,
                )
