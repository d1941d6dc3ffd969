"""Conflicting writes to global memory: two threads, one place, different values, no order.

1. Every cell (the smallest global store of the kernel) remembers who wrote it in this launch: the
   cluster, and the record the shared-memory clocks give (time, warp, lane, instruction).
2. Another thread's store is a conflict unless the clocks of their common cluster order it. Threads
   of different clusters have no order at all; in kernels that use global atomics or fences they may
   have one, and are left alone.
3. A conflict counts only when it changes the value: threads that all store the same are harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polygen.machine.facts import Facts
from polygen.machine.lanes import Lanes, Vector
from polygen.machine.races import ACTOR, ACTORS, CODE, Shadow

if TYPE_CHECKING:
    from polygen.machine.state import Machine


class GlobalStores:
    """Who wrote what in global memory, for a whole launch."""

    def __init__(self, facts: Facts, size: int) -> None:
        self.granule = facts.store_granule
        self.record = np.zeros(size // self.granule, np.int64)
        self.cluster = np.full(size // self.granule, -1, np.int32)
        self.relaxed = facts.orders_global

    def cells(self, at: Vector, size: int) -> Vector:
        """Cells of accesses of `size` bytes; one row per access."""
        return (at // self.granule)[:, None] + np.arange(max(size // self.granule, 1))

    def write(
        self, machine: Machine, lanes: Lanes, at: Vector, size: int, new: Vector, position: int
    ) -> None:
        """Check and record stores whose bytes are the rows of `new`; memory still has the old."""
        shadow = machine.shadow
        assert shadow is not None
        rows, cells = shadow.rows(lanes), self.cells(at, size)
        mark = shadow.now(rows, position, lanes.index & 31)
        first = lanes.cta // machine.geometry.cluster * machine.geometry.cluster
        mine = machine.geometry.ctas[first].astype(np.int32)[:, None]
        last, owner = self.record[cells], self.cluster[cells]
        self._check(machine, shadow, lanes, rows, at, new, (last, owner, mark, mine), position)
        self.record[cells], self.cluster[cells] = mark, mine

    def _check(
        self,
        machine: Machine,
        shadow: Shadow,
        lanes: Lanes,
        rows: Vector,
        at: Vector,
        new: Vector,
        records: tuple[Vector, Vector, Vector, Vector],
        position: int,
    ) -> None:
        last, owner, mark, mine = records
        near = owner == mine
        wrong = near & (last > shadow.clock[rows[:, None], (last >> ACTOR) & ACTORS])
        wrong |= near & shadow.beside(last, mark)
        if not self.relaxed:
            wrong |= ~near & (owner >= 0)
        if not wrong.any():
            return
        old = machine.memory.bytes[at[:, None] + np.arange(new.shape[1])]
        changed = wrong.any(1) & (old != new).any(1)
        for lane in np.flatnonzero(changed)[:1]:
            place = int(wrong[lane].argmax())
            record = int(last[lane, place])
            where = machine.memory.describe(int(at[lane]))
            who = shadow.who(record) if near[lane, place] else "a thread of another block"
            machine.findings.add(
                "race-write-write",
                f"{lanes.name(lane)} stores to {where}, where {who} has stored another value, "
                "with nothing to order them",
                position,
                record & CODE,
                int(changed.sum()),
            )

    def collide(
        self, machine: Machine, lanes: Lanes, at: Vector, new: Vector, position: int
    ) -> None:
        """After the data is in memory: lanes of one instruction that stored different values."""
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
