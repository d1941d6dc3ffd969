"""What memory itself orders: releases and acquires through locks, flags and counters.

1. *Strong* operations are atomics and loads and stores that are relaxed, acquire, release or
   volatile. They may meet at one place, and who reads there may learn what the writer knew.
2. Every warp of a wave has two more columns per warp in the clocks of `Shadow`: what it knows of
   them, and what it has *fenced* of that. Barriers pass both on, with everything else.
3. A strong write leaves at its place what its warp has fenced, or with ``.release`` what it knows.
   A strong read takes it over at once with ``.acquire``, else at the warp's next fence. What has
   the scope of a block reaches, and is reached from, that block alone.
4. Warps of earlier waves have no columns: what they wrote is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polygen.machine.lanes import Geometry, Lanes, Vector

if TYPE_CHECKING:
    from polygen.machine.races import Shadow
    from polygen.machine.state import Machine


class Order:
    """What strong operations of a wave have left at their places."""

    def __init__(self, shadow: Shadow, narrow: frozenset[int] = frozenset()) -> None:
        self.shadow, geometry = shadow, shadow.geometry
        self.geometry = geometry
        self.warps = warps_of(geometry)
        self.base = shadow.clock.shape[1] - 2 * self.warps
        self.left: dict[tuple[str, int, int], Vector] = {}  # by space, place, block (-1: all)
        self.narrow = narrow  # positions of strong operations of the scope of a block
        self.pending: dict[int, Vector] = {}  # by clock row: taken over at the next fence

    def _mates(self, row: int) -> tuple[Vector, Vector]:
        """Columns of the warps of a row's cluster: among the shared clocks, and here."""
        shadow, geometry = self.shadow, self.geometry
        cta = row // shadow.per_cta
        first = cta // geometry.cluster * geometry.cluster
        rank, warp = np.divmod(np.arange(geometry.cluster * geometry.warps), geometry.warps)
        return rank * shadow.per_cta + warp, first * geometry.warps + np.arange(len(rank))

    def known(self, row: int, thread: int) -> Vector:
        """What a thread may publish of what every warp of the wave did."""
        clock, _ = self.shadow.released(thread)
        shared, here = self._mates(row)
        found = clock[self.base : self.base + self.warps].copy()
        found[here] = np.maximum(found[here], clock[shared])
        return found

    def fence(self, lanes: Lanes, only_block: bool) -> None:
        """A fence of memory by some lanes: of the scope of a block, or wider."""
        clock = self.shadow.clock
        for row, thread in self._threads(lanes):
            if (waiting := self.pending.pop(row, None)) is not None:
                self._take(row, waiting)
            found = self.known(row, thread)
            if only_block:
                kept = clock[row, self.base + self.warps :].copy()
                _, here = self._mates(row)
                kept[here] = found[here]
                found = kept
            fenced = slice(self.base + self.warps, None)
            clock[row, fenced] = np.maximum(clock[row, fenced], found)
        self.shadow.count_fence(np.unique(self.shadow.rows(lanes)))

    def write(self, lanes: Lanes, space: str, at: Vector, release: bool, position: int) -> None:
        """Strong writes to some places."""
        for row, place, thread in self._places(lanes, at):
            self._leave(row, space, place, thread, release, position in self.narrow)
        if release:
            self.shadow.tick(np.unique(self.shadow.rows(lanes)))

    def update(
        self,
        lanes: Lanes,
        space: str,
        at: Vector,
        acquire: bool,
        release: bool,
        position: int,
    ) -> None:
        """Atomics: in thread order each finds what the one before it has left."""
        narrow = position in self.narrow
        for row, place, thread in self._places(lanes, at):
            self._find(row, space, place, acquire, narrow)
            self._leave(row, space, place, thread, release, narrow)
        if release:
            self.shadow.tick(np.unique(self.shadow.rows(lanes)))

    def _places(self, lanes: Lanes, at: Vector) -> list[tuple[int, int, int]]:
        """(clock row, place, last lane of the warp there), in thread order."""
        last: dict[tuple[int, int], int] = {}
        rows = self.shadow.rows(lanes).tolist()
        for row, place, thread in zip(rows, at.tolist(), lanes.index.tolist(), strict=True):
            last[row, place] = thread
        return [(row, place, thread) for (row, place), thread in last.items()]

    def _leave(
        self, row: int, space: str, place: int, thread: int, release: bool, narrow: bool
    ) -> None:
        if release:
            found = self.known(row, thread)
        else:
            found = self.shadow.clock[row, self.base + self.warps :].copy()
        for block in (row // self.shadow.per_cta, *(() if narrow else (-1,))):
            old = self.left.get((space, place, block))
            self.left[space, place, block] = found if old is None else np.maximum(old, found)

    def read(self, lanes: Lanes, space: str, at: Vector, acquire: bool, position: int) -> None:
        """Strong reads of some places."""
        if not self.left:
            return
        for row, place, _ in self._places(lanes, at):
            self._find(row, space, place, acquire, position in self.narrow)

    def _find(self, row: int, space: str, place: int, acquire: bool, narrow: bool) -> None:
        block = row // self.shadow.per_cta if narrow else -1
        found = self.left.get((space, place, block))
        if not narrow:  # what its own block left for itself alone
            own = self.left.get((space, place, row // self.shadow.per_cta))
            found = own if found is None else found if own is None else np.maximum(found, own)
        if found is None:
            return
        if acquire:
            self._take(row, found)
        else:
            old = self.pending.get(row)
            self.pending[row] = found if old is None else np.maximum(old, found)

    def _take(self, row: int, found: Vector) -> None:
        clock = self.shadow.clock
        shared, here = self._mates(row)
        known = slice(self.base, self.base + self.warps)
        clock[row, known] = np.maximum(clock[row, known], found)
        clock[row, shared] = np.maximum(clock[row, shared], found[here])

    def _threads(self, lanes: Lanes) -> list[tuple[int, int]]:
        """The clock rows of some lanes, each with its last lane."""
        rows = self.shadow.rows(lanes)
        return sorted(dict(zip(rows.tolist(), lanes.index.tolist(), strict=True)).items())

    def column(self, owner: Vector, records: Vector, place_of: Vector) -> Vector:
        """Where the clocks say what is known of the warps that left records; -1: nowhere.

        Args:
            owner: number in the grid of the first block of each record's cluster.
            records: times as `Shadow.now` makes them.
            place_of: place in this wave of every block of the grid, or -1.
        """
        rank, warp = np.divmod((records >> 23) & 1023, self.shadow.per_cta)
        first = place_of[np.maximum(owner, 0)]
        column = self.base + (first + rank) * self.geometry.warps + warp
        return np.where((first < 0) | (owner < 0), -1, column)


def warps_of(geometry: Geometry) -> int:
    """Warps of a wave."""
    return len(geometry.ctas) * geometry.warps


def fence(machine: Machine, lanes: Lanes, only_block: bool) -> None:
    """``membar`` and ``fence``."""
    if machine.order is not None:
        machine.order.fence(lanes, only_block)
