"""`Lanes`: the threads that execute a block together, and the geometry of one wave of CTAs."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

Vector: TypeAlias = Any  # a NumPy array; its shape and type are in the docstrings


class Geometry:
    """Which thread of the wave is where; CTAs are padded to whole warps.

    Attributes:
        total: threads of the wave, padding included.
        cta: per thread, the CTA's place in the wave.
        thread: per thread, its linear index in the CTA.
        warp: per thread, the warp's index in its CTA.
        exists: per thread, False for padding.
        cluster: CTAs per cluster; CTAs of one cluster are neighbours in the wave.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        ctas: Vector,
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        self.grid, self.block, self.ctas, self.cluster_shape = grid, block, ctas, cluster
        self.cluster = int(np.prod(cluster))
        self.threads = int(np.prod(block))
        self.warps = -(-self.threads // 32)
        self.padded = self.warps * 32
        self.total = len(ctas) * self.padded
        everyone = np.arange(self.total)
        self.cta = everyone // self.padded
        self.thread = everyone % self.padded
        self.warp = self.thread // 32
        self.exists = self.thread < self.threads
        self._units: dict[int, tuple[Vector, Vector]] = {}

    def units(self, width: int) -> tuple[Vector, Vector]:
        """Per thread its warp (32) or warpgroup (128) in the wave, and the threads each one has."""
        if width not in self._units:
            per_cta = -(-self.padded // width)
            unit = self.cta * per_cta + self.thread // width
            size = np.bincount(unit, self.exists, len(self.ctas) * per_cta).astype(np.int64)
            self._units[width] = unit, size
        return self._units[width]


class Lanes:
    """A set of threads in ascending order.

    Attributes:
        index: thread numbers in the wave.
        everyone: True when the set is the whole wave.
    """

    def __init__(self, geometry: Geometry, index: Vector, everyone: bool = False) -> None:
        self.geometry, self.index, self.everyone = geometry, index, everyone
        self.count = len(index)

    def pick(self, chosen: Vector) -> Lanes:
        """The subset at the given places (or mask) of this set."""
        return Lanes(self.geometry, self.index[chosen])

    @cached_property
    def cta(self) -> Vector:
        """CTA place per lane."""
        return self.geometry.cta[self.index]

    @cached_property
    def warp(self) -> Vector:
        """Warp in the CTA per lane."""
        return self.geometry.warp[self.index]

    def whole(self, width: int) -> Vector | None:
        """Which lanes have all `width` mates of their unit here; None when every lane has."""
        if self.everyone or width == 1:
            return None
        unit, full_units = self.geometry.units(width)
        mine = unit[self.index]
        counts = np.bincount(mine, minlength=len(full_units))
        fine = (counts == full_units)[mine]
        return None if fine.all() else fine

    @cached_property
    def warps(self) -> int:
        """How many warps have some of the lanes."""
        if self.everyone:
            return self.count // 32
        warp = self.index >> 5
        return int(np.count_nonzero(warp[1:] != warp[:-1])) + (self.count > 0)

    @cached_property
    def complete(self) -> bool:
        """Whether every warp of the set has all 32 lanes in it."""
        return self.count % 32 == 0 and bool((self.rows * 32 == self.index[::32]).all())

    @cached_property
    def rows(self) -> Vector:
        """The warp (in the wave) of every 32nd lane; meaningful for whole warps."""
        return self.index[::32] // 32

    def name(self, place: int) -> str:
        """A lane in words."""
        thread = int(self.index[place])
        geometry = self.geometry
        cta = int(geometry.ctas[geometry.cta[thread]])
        gx, gy, _ = geometry.grid
        block = f"({cta % gx}, {cta // gx % gy}, {cta // (gx * gy)})"
        return f"thread {int(geometry.thread[thread])} of block {block}"


def full(lanes: Lanes, value: Any) -> Vector:
    """A vector with one element per lane; scalars are repeated."""
    if getattr(value, "ndim", 0) == 0:
        return np.full(lanes.count, value)
    return value
