"""What single lanes know and their warp does not: who waits alone learns alone.

1. The clocks of `Shadow` are those of warps. A wait by some lanes of a warp gives them entries;
   when all lanes that are alive have some, the warp knows what they all know.
2. A barrier of the warp, or one that the whole warp arrives at, gives all of it to those that meet.
3. Where a check against a warp's clock fails, the lane's own entry is looked at (`excuse`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.machine.lanes import Lanes, Vector

ACTOR = 23  # of records: see `polygen.machine.clocks`
ACTORS = 1023


class LaneClocks:
    """Entries by clock row and lane: a clock, and the fenced clock."""

    def __init__(self, row_of: Vector, clock: Vector, fenced: Vector) -> None:
        self.row_of, self.clock, self.fenced = row_of, clock, fenced
        self.own: dict[int, dict[int, tuple[Vector, Vector]]] = {}

    def learn(self, threads: Vector, alive: Vector, clock: Vector, fenced: Vector | None) -> None:
        """Threads learn what a clock says; `alive` tells of every thread whether it is."""
        rows = self.row_of[threads]
        for row in np.unique(rows).tolist():
            mine = threads[rows == row]
            warp = int(mine[0]) // 32 * 32
            living = np.flatnonzero(alive[warp : warp + 32])
            if len(mine) >= len(living):
                self._raise(row, clock, fenced)
                continue
            if (self.clock[row] >= clock).all() and (
                fenced is None or (self.fenced[row] >= fenced).all()
            ):
                continue
            entries = self.own.setdefault(row, {})
            for lane in (mine & 31).tolist():
                old = entries.get(lane, (self.clock[row], self.fenced[row]))
                more = old[1] if fenced is None else np.maximum(old[1], fenced)
                entries[lane] = np.maximum(old[0], clock), more
            self._settle(row, living)

    def _raise(self, row: int, clock: Vector, fenced: Vector | None) -> None:
        self.clock[row] = np.maximum(self.clock[row], clock)
        if fenced is not None:
            self.fenced[row] = np.maximum(self.fenced[row], fenced)

    def _settle(self, row: int, living: Vector) -> None:
        """What all lanes know, their warp knows."""
        entries = self.own[row]
        if all(lane in entries for lane in living.tolist()):
            common = [np.min([entries[lane][part] for lane in living], 0) for part in (0, 1)]
            self._raise(row, common[0], common[1])

    def meet(self, lanes: Lanes, alive: Vector) -> None:
        """Lanes wait for each other: each knows what all of them knew."""
        if not self.own:
            return
        rows = self.row_of[lanes.index]
        for row in set(np.unique(rows).tolist()) & self.own.keys():
            here = lanes.index[rows == row]
            known = [self.own[row][lane] for lane in (here & 31).tolist() if lane in self.own[row]]
            if not known:
                continue
            clock, fenced = (np.max([one[part] for one in known], 0) for part in (0, 1))
            warp = int(here[0]) // 32 * 32
            if len(here) >= int(alive[warp : warp + 32].sum()):
                self._raise(row, clock, fenced)
                del self.own[row]
            else:
                self.learn(here, alive, clock, fenced)

    def of(self, thread: int) -> tuple[Vector, Vector]:
        """The clocks of one thread."""
        row = int(self.row_of[thread])
        clock, fenced = self.clock[row], self.fenced[row]
        own = self.own.get(row, {}).get(thread & 31)
        if own is None:
            return clock, fenced
        return np.maximum(clock, own[0]), np.maximum(fenced, own[1])

    def most(self, rows: slice, column: int) -> Any:
        """The latest time of an actor that any lane of some warps knows."""
        found = self.clock[rows, column].max()
        for row in range(rows.start, rows.stop):
            for clock, _ in self.own.get(row, {}).values():
                found = max(found, clock[column])
        return found

    def excuse(self, wrong: Vector, threads: Vector, records: Vector, part: int = 0) -> Vector:
        """What remains of failed checks (threads × cells) when lanes' own clocks are looked at.

        Args:
            wrong: per thread and cell.
            threads: whose accesses they are.
            records: what was compared with the clocks; a third axis is of actors.
            part: 0 for the clock, 1 for the fenced one.
        """
        if not self.own or not wrong.any():
            return wrong
        wrong = wrong.copy()
        failed = threads[wrong.reshape(len(wrong), -1).any(1)]
        for thread in np.unique(failed).tolist():
            own = self.own.get(int(self.row_of[thread]), {}).get(thread & 31)
            if own is not None:
                places = np.flatnonzero(threads == thread)
                last = records[places]
                wrong[places] &= last > own[part][(last >> ACTOR) & ACTORS]
        return wrong
