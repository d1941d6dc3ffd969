"""Races in global memory: two threads, one place, a store that changes it, and no order.

1. Every cell (the smallest global store of the kernel) remembers the last store, and the last one
   that changed it: the cluster, and the record the shared-memory clocks give (time, warp, lane,
   instruction).
2. Another thread's access is a conflict unless clocks order it: those of a common cluster, or what
   strong operations passed on (`polygen.machine.order`). Threads of different clusters have no
   order at all in kernels without such operations; in others, those of earlier waves are left
   alone.
3. A conflict counts only when the store changes the value: threads that all store the same are
   harmless. Strong operations may meet anywhere, and are no conflict; a strong load and a plain
   store before it are one.
4. Loads, and which stores change something, are remembered only in buffers that a kernel both loads
   from and stores to. Which these are is known when it happens: then the launch begins again
   (`Again`), with those buffers watched. Of the loads of a cell the last two by different warps are
   kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polygen.machine.clocks import CODE
from polygen.machine.facts import Facts
from polygen.machine.lane_clocks import ACTOR, ACTORS
from polygen.machine.lanes import Lanes, Vector
from polygen.machine.memory import Buffer
from polygen.machine.races import Shadow
from polygen.machine.unwritten import Again

if TYPE_CHECKING:
    from polygen.machine.state import Machine


class _Records:
    """One record per cell: when, and the number of the first block of the cluster."""

    def __init__(self, cells: int) -> None:
        self.time = np.zeros(cells, np.int64)
        self.owner = np.full(cells, -1, np.int32)


class GlobalStores:
    """Who stored and loaded what in global memory, for a whole launch."""

    def __init__(
        self,
        facts: Facts,
        size: int,
        buffers: tuple[Buffer, ...] = (),
        blocks: int = 1,
        watched: frozenset[int] = frozenset(),
    ) -> None:
        self.granule = facts.store_granule
        cells = size // self.granule
        self.last, self.changed = _Records(cells), _Records(cells)
        self.relaxed = facts.orders_global
        self.begins = np.array([buffer.offset for buffer in buffers], np.int64)
        self.stored = np.zeros(len(buffers) + 1, bool)  # by buffer
        self.loaded = np.zeros(len(buffers) + 1, bool)
        self.watched, self.watching = watched, np.zeros(len(buffers) + 1, bool)
        self.watching[list(watched)] = True
        self.loads = [_Records(cells) for _ in range(2 if watched else 0)]
        self.place_of = np.full(blocks, -1, np.int32)  # of every block in the wave that runs

    def begin(self, ctas: Vector) -> None:
        """A wave begins."""
        self.place_of[:] = -1
        self.place_of[ctas] = np.arange(len(ctas))

    def cells(self, at: Vector, size: int) -> Vector:
        """Cells of accesses of `size` bytes; one row per access."""
        return (at // self.granule)[:, None] + np.arange(max(size // self.granule, 1))

    def _buffers(self, at: Vector) -> Vector:
        """The buffers that some places may lie in."""
        ends = np.searchsorted(self.begins, [at.min(), at.max()], "right") - 1
        return np.arange(max(int(ends[0]), 0), int(ends[1]) + 1)

    def write(
        self, machine: Machine, lanes: Lanes, at: Vector, size: int, new: Vector, position: int
    ) -> None:
        """Check and record stores whose bytes are the rows of `new`; memory still has the old."""
        shadow = machine.shadow
        assert shadow is not None
        touched = self._buffers(at)
        self.stored[touched] = True
        self._watch()
        cells = self.cells(at, size)
        if position in machine.program.facts.strong:
            self.update(at, size)
            return
        mark, mine = self._mark(machine, shadow, lanes, position)
        wrong = self._unordered(machine, shadow, lanes, self.last, cells, mark, mine)
        watched = self.watching[touched].any()
        if watched or wrong.any():
            old = machine.memory.bytes[at[:, None] + np.arange(size)]
            differs = (old != new).reshape(len(at), -1, max(size // cells.shape[1], 1)).any(2)
            wrong &= differs.any(1)[:, None]
            words = "stored another"
            self._report(machine, lanes, at, wrong, self.last, cells, mine, words, position)
        self.last.time[cells], self.last.owner[cells] = mark, mine
        if not watched:  # nobody has loaded from there
            return
        for loads in self.loads:
            wrong = self._unordered(machine, shadow, lanes, loads, cells, mark, mine) & differs
            self._report(machine, lanes, at, wrong, loads, cells, mine, "to load", position)
        cells, place = cells[differs], np.nonzero(differs)[0]
        self.changed.time[cells] = mark[place, 0]
        self.changed.owner[cells] = mine[place, 0]

    def read(self, machine: Machine, lanes: Lanes, at: Vector, size: int, position: int) -> None:
        """Check loads, and record them where their buffer is watched."""
        shadow = machine.shadow
        if shadow is None or not len(at):
            return
        strong = position in machine.program.facts.strong
        touched = self._buffers(at)
        self.loaded[touched] = True
        if not self.stored[touched].any() and not self.watching[touched].any():
            return
        self._watch()
        cells = self.cells(at, size)
        mark, mine = self._mark(machine, shadow, lanes, position)
        wrong = self._unordered(machine, shadow, lanes, self.changed, cells, mark, mine)
        self._report(machine, lanes, at, wrong, self.changed, cells, mine, "stored", position)
        if self.loads and not strong:
            last, other = self.loads
            columns = (last.time[cells] ^ mark) >> ACTOR & ACTORS
            moved = (columns != 0) | (last.owner[cells] != mine)
            other.time[cells] = np.where(moved, last.time[cells], other.time[cells])
            other.owner[cells] = np.where(moved, last.owner[cells], other.owner[cells])
            last.time[cells], last.owner[cells] = mark, mine

    def update(self, at: Vector, size: int) -> None:
        """Atomics: strong, and so no conflict with what comes."""
        cells = self.cells(at, size)
        for one in (self.last, self.changed):
            one.time[cells], one.owner[cells] = 0, -1

    def _watch(self) -> None:
        both = self.stored & self.loaded
        if (both & ~self.watching).any():
            raise Again(self.watched.union(np.flatnonzero(both).tolist()))

    def _mark(
        self, machine: Machine, shadow: Shadow, lanes: Lanes, position: int
    ) -> tuple[Vector, Vector]:
        first = lanes.cta // machine.geometry.cluster * machine.geometry.cluster
        owner = machine.geometry.ctas[first].astype(np.int32)[:, None]
        return shadow.mark(lanes, position), owner

    def _unordered(
        self,
        machine: Machine,
        shadow: Shadow,
        lanes: Lanes,
        records: _Records,
        cells: Vector,
        mark: Vector,
        mine: Vector,
    ) -> Vector:
        """Which recorded accesses nothing orders before those of the lanes."""
        last, owner, rows = records.time[cells], records.owner[cells], shadow.rows(lanes)
        near = owner == mine
        wrong = near & (last > shadow.seen(rows, last))
        wrong = shadow.single.excuse(wrong, lanes.index, last)
        wrong |= near & shadow.beside(last, mark)
        far = ~near & (owner >= 0)
        if not self.relaxed:
            return wrong | far
        if machine.order is not None and far.any():
            column = machine.order.column(owner, last, self.place_of)
            late = last > shadow.clock[rows[:, None], np.maximum(column, 0)]
            wrong |= far & (column >= 0) & late
        return wrong

    def _report(
        self,
        machine: Machine,
        lanes: Lanes,
        at: Vector,
        wrong: Vector,
        records: _Records,
        cells: Vector,
        mine: Vector,
        what: str,
        position: int,
    ) -> None:
        if not wrong.any():
            return
        shadow = machine.shadow
        assert shadow is not None
        lane = int(wrong.any(1).argmax())
        place = int(wrong[lane].argmax())
        record = int(records.time[cells[lane, place]])
        near = bool(records.owner[cells[lane, place]] == mine[lane, 0])
        where = machine.memory.describe(int(at[lane]))
        who = shadow.who(record) if near else "a thread of another block"
        code, words = {
            "stored another": ("race-write-write", f"stores to {where}, where {who} has stored "
                               "another value"),
            "to load": ("race-read-write", f"stores to {where}, which {who} may still have to "
                        "load"),
            "stored": ("race-write-read", f"loads {where}, where {who} stores another value"),
        }[what]  # fmt: skip
        machine.findings.add(
            code,
            f"{lanes.name(lane)} {words}, with nothing to order them",
            position,
            record & CODE,
            int(wrong.any(1).sum()),
        )

    def collide(
        self, machine: Machine, lanes: Lanes, at: Vector, new: Vector, position: int
    ) -> None:
        """After the data is in memory: lanes of one instruction that stored different values."""
        if position in machine.program.facts.strong:
            return
        lost = (machine.memory.bytes[at[:, None] + np.arange(new.shape[1])] != new).any(1)
        if lost.any():
            lane = int(lost.argmax())
            machine.findings.add(
                "race-write-write",
                f"{lanes.name(lane)} and another thread store different values to "
                f"{machine.memory.describe(int(at[lane]))} with one instruction",
                position,
                count=int(lost.sum()),
            )
