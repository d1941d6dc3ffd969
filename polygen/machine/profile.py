"""Access profile: shared-memory wavefronts and global 32-byte sectors per instruction.

Shared memory has 32 banks of 4 bytes. A warp access is served in phases of 128 bytes (32 lanes at
up to 4 bytes, 16 at 8, 8 at 16); a phase takes as many wavefronts as the most loaded bank has
distinct words. A global access takes one sector per distinct 32-byte piece it touches.
"""

from __future__ import annotations

import numpy as np

from polygen.machine.lanes import Lanes, Vector
from polygen.machine.report import AccessProfile, Findings


def _distinct(keys: Vector) -> Vector:
    """Sorted rows with every repetition replaced by -1; negative keys stay -1."""
    keys = np.sort(keys, axis=1)
    keys[:, 1:][keys[:, 1:] == keys[:, :-1]] = -1
    return keys


class Profiler:
    """Adds up what every memory instruction costs."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], list[int]] = {}

    def add(self, position: int, space: str, executions: int, actual: int, ideal: int) -> None:
        """Count executions of an instruction by warps."""
        row = self.rows.setdefault((position, space), [0, 0, 0])
        row[0] += executions
        row[1] += actual
        row[2] += ideal

    def _by_warp(self, lanes: Lanes, at: Vector) -> Vector:
        """(warps, 32) addresses, -1 for lanes that take no part."""
        warps, row = np.unique(lanes.index // 32, return_inverse=True)
        grid = np.full((len(warps), 32), -1, np.int64)
        grid[row, lanes.index % 32] = at
        return grid

    def shared_access(self, lanes: Lanes, offset: Vector, size: int, position: int) -> None:
        """Count one shared access of `size` bytes per lane."""
        grid = self._by_warp(lanes, offset)
        warps = len(grid)
        per_phase = max(1, min(32, 128 // size))
        phases = grid.reshape(-1, per_phase)
        phases = phases[(phases >= 0).any(1)]
        words = phases[:, :, None] // 4 + np.arange(max(1, size // 4))
        words = np.where(phases[:, :, None] < 0, -1, words).reshape(len(phases), -1)
        words = _distinct(words)
        row, column = np.nonzero(words >= 0)
        banks = np.bincount(row * 32 + words[row, column] % 32, minlength=len(words) * 32)
        actual = int(banks.reshape(-1, 32).max(1).sum())
        self.add(position, "shared", warps, actual, len(phases))

    def global_access(self, lanes: Lanes, at: Vector, size: int, position: int) -> None:
        """Count one global access of `size` bytes per lane."""
        grid = self._by_warp(lanes, at)
        sectors = np.where(grid < 0, -1, grid // 32)
        actual = int((_distinct(sectors) >= 0).sum())
        distinct = (_distinct(grid.copy()) >= 0).sum(1)
        ideal = int((-(-distinct * size // 32)).sum())
        self.add(position, "global", len(grid), actual, ideal)

    def finish(self, findings: Findings) -> tuple[AccessProfile, ...]:
        """The profile, in program order."""
        return tuple(
            AccessProfile(findings.place(position), space, *counts)
            for (position, space), counts in sorted(self.rows.items())
        )
