"""Vector clocks of who touches shared memory: what each actor knows that the others did.

1. An *actor* is a warp, the bulk-copy engine of a CTA, or the wgmma unit of a warpgroup; actors of
   one cluster share memory. Each has a vector clock: row ``[actor, other]`` is the latest time of
   `other` that is ordered before what `actor` does next. Bulk loads complete in any order, so those
   that different mbarriers wait for are different actors, *loaders*; they only write.
2. What an actor does leaves one integer, a *record*: time, actor, lane and instruction. A record is
   ordered before an actor's next step when it is not greater than the entry of its clock.
3. Lanes of one warp are ordered by the barriers of the warp: each starts a new time.
4. A second clock per actor counts only what a proxy fence covered: the async proxy compares with
   it. The lowest bits of a time count the fences since the warp's last barrier: what a warp writes
   after a fence is not covered, though its lanes are not ordered by it either. A fence by some
   lanes covers for the others what a barrier had ordered before, and no more (`Clocks.fence`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.machine.lane_clocks import ACTOR, ACTORS, LaneClocks
from polygen.machine.lanes import Geometry, Lanes, Vector

TIME = 33  # a record is time << 33 | actor << 23 | lane << 18 | instruction
LANE = 18
CODE = (1 << LANE) - 1
LAST = (1 << TIME) - 1
FENCES = np.int64(15 << TIME)  # of a time: proxy fences since the barrier that started it
FENCE = np.int64(1 << TIME)
STEP = np.int64(1 << TIME + 4)
LOADERS = 16  # per CTA; more mbarriers than that share some
_BESIDE, _LANES = np.int64(1 << LANE), np.uint64((1 << ACTOR) - (1 << LANE))


class Clocks:
    """The clocks of one wave; `more` columns are for what `Order` keeps there."""

    def __init__(self, geometry: Geometry, more: int = 0, fences: bool = True) -> None:
        """`fences`: whether the kernel has proxy fences."""
        self.geometry = geometry
        self.groups = -(-geometry.warps // 4)
        self.per_cta = geometry.warps + self.groups + 1
        self.actors = self.per_cta * geometry.cluster
        ctas = len(geometry.ctas)
        # one clock row per actor of every CTA, then per loader; columns: the same of its cluster
        self.loaders: list[dict[int, int]] = [{} for _ in range(ctas)]  # mbarrier -> loader
        own, loaders = np.arange(ctas * self.per_cta), np.arange(ctas * LOADERS)
        width = LOADERS * geometry.cluster
        self.column = np.concatenate([own % self.actors, self.actors + loaders % width])
        self.every = np.arange(len(self.column))
        self.clock = np.full((len(self.column), self.actors + width + more), LAST, np.int64)
        self.fenced = np.full(self.clock.shape, LAST, np.int64)
        self.clock[self.every, self.column] += STEP
        self.time = self.clock[self.every, self.column] & ~np.int64(LAST)  # of every row, its own
        self.row_of = geometry.cta * self.per_cta + geometry.warp  # thread -> its warp's clock row
        self.lane_of = np.arange(geometry.total) & 31
        self.column_of = self.column[self.row_of]
        self.marks = (self.column_of << ACTOR) | (self.lane_of << LANE)  # of a thread's records
        self._stamped: tuple[Lanes | None, Vector] = (None, None)  # who was asked for last
        self.epoch = np.int32(1)
        self.met = np.zeros(len(self.column), np.int32)  # by clock row: the epochs behind it
        self.warp_rows = np.unique(self.row_of)
        self.behind = np.int32(0)  # the epochs behind every warp
        self.single = LaneClocks(self.row_of, self.clock, self.fenced)
        # By clock row and lane: whether it wrote since the warp's last time and its own last fence;
        # the time of a fence that covered not all of its warp.
        self.fences = fences
        self.unfenced = np.zeros((len(own), 32), bool)
        self.lane_fenced = np.zeros((len(own), 32), np.int64)

    def rows(self, lanes: Lanes) -> Vector:
        """Clock row of each lane's warp."""
        return self.row_of if lanes.everyone else self.row_of[lanes.index]

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

    def mark(self, lanes: Lanes, position: int) -> Vector:
        """The records of accesses by lanes, one row per access."""
        return (self.stamps(lanes) | position)[:, None]

    def stamps(self, lanes: Lanes) -> Vector:
        """Those records without the instruction, one per lane; nobody changes them later."""
        known, found = self._stamped
        if known is not lanes:
            marks = self.marks if lanes.everyone else self.marks[lanes.index]
            found = self.time[self.rows(lanes)] | marks
            self._stamped = lanes, found
        return found

    def _timed(self, rows: Vector) -> None:
        """The times of some rows have changed."""
        self.time[rows] = self.clock[rows, self.column[rows]] & ~np.int64(LAST)
        self._stamped = None, None

    def seen(self, rows: Vector, records: Vector) -> Vector:
        """What the clocks `rows` say of the actors that left records; a row of these each."""
        column = (records >> ACTOR) & ACTORS
        return self.clock.reshape(-1).take(rows[:, None] * self.clock.shape[1] + column)

    def now(self, rows: Vector, position: int, lane: Any = 0) -> Vector:
        """The records of accesses happening now, one row per access."""
        columns = self.column[rows]
        return (self.time[rows] | (columns << ACTOR) | (lane << LANE) | position)[:, None]

    @staticmethod
    def beside(records: Vector, mark: Vector) -> Vector:
        """Accesses by other lanes of the same warp since it last synchronised."""
        change = (records ^ mark) & ~FENCES
        return (change - _BESIDE).view(np.uint64) < _LANES  # only the lane (and code) differ

    def join(self, rows: Vector) -> None:
        """All the given actors learn what each of them knows (a barrier)."""
        self.clock[rows] = self.clock[rows].max(0)
        self.fenced[rows] = self.fenced[rows].max(0)
        self.tick(rows)
        if len(rows) == self.geometry.warps and rows[0] // self.per_cta == rows[-1] // self.per_cta:
            self._all_met(rows)

    def join_groups(self, rows: Vector) -> None:
        """`join` for all warps of many blocks; `rows` is blocks × warps."""
        self.clock[rows] = self.clock[rows].max(1, keepdims=True)
        self.fenced[rows] = self.fenced[rows].max(1, keepdims=True)
        self.tick(rows.ravel())
        self._all_met(rows.ravel())

    def _all_met(self, rows: Vector) -> None:
        """All warps of their blocks have met: what any of them did is behind each of them."""
        if self.geometry.cluster == 1:  # nobody else reaches their memory
            self.met[rows] = self.epoch
            self.epoch += np.int32(1)
            self.behind = self.met[self.warp_rows].min()

    def tick(self, rows: Vector) -> None:
        """What the actors do from now on is not known to others yet."""
        columns = self.column[rows]
        self.clock[rows, columns] = (self.clock[rows, columns] & ~FENCES) + STEP
        self._timed(rows)
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
        self.count_fence(rows)

    def count_fence(self, rows: Vector) -> None:
        """What warps write from now on is told from what they wrote before a fence."""
        columns = self.column[rows]
        time = self.clock[rows, columns]
        self.clock[rows, columns] = np.where(time & FENCES == FENCES, time, time + FENCE)
        self._timed(rows)

    def _fenced_itself(self, rows: Vector, last: Vector) -> Vector:
        """Whether the lanes that left records have fenced them, though not all of their warp."""
        column = (last >> ACTOR) & ACTORS
        own = (rows - rows % self.actors)[:, None] + np.where(self.generic(column), column, 0)
        return self.lane_fenced[own, last >> LANE & 31] >= last

    def generic(self, column: Any) -> Any:
        """Whether actors are warps."""
        return (column < self.actors) & (column % self.per_cta < self.geometry.warps)

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
