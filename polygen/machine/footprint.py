"""Which bytes of global memory a wave touches: what tells whether waves may run side by side.

Waves are *independent* when none writes what another reads or writes. Then each of them finds in
memory what it would find after those before it, leaves the same, and nothing that it does can race
with what another does: run apart, they give what they give one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polygen.machine.lanes import Vector
from polygen.machine.module import Kernel


class Footprint:
    """Bytes read and written so far."""

    def __init__(self, size: int) -> None:
        self.read, self.written = np.zeros(size, bool), np.zeros(size, bool)

    def touch(self, at: Vector, size: int, writes: bool) -> None:
        """Accesses of `size` bytes each at places in global memory."""
        (self.written if writes else self.read)[at[..., None] + np.arange(size)] = True

    def packed(self) -> tuple[Vector, Vector]:
        """Both, eight bytes of memory in a byte."""
        return np.packbits(self.read), np.packbits(self.written)


@dataclass(slots=True)
class Union:
    """What waves have touched together, packed."""

    read: Vector
    written: Vector

    def takes(self, read: Vector, written: Vector) -> bool:
        """Add a wave; False when it is not independent of those before it."""
        meets = (written & (self.read | self.written)) | (read & self.written)
        if meets.any():
            return False
        self.read |= read
        self.written |= written
        return True


def may_be_apart(kernel: Kernel) -> bool:
    """Whether blocks cannot wait for each other: no atomics, fences or strong accesses to share.

    Those that have some can spin for a block that another process runs.
    """
    return not any(_ties(one.parts) for one in kernel.instructions)


_STRONG = frozenset(["relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"])


def _ties(parts: tuple[str, ...]) -> bool:
    if any(part.split("::")[0] in ("shared", "local", "param", "const") for part in parts):
        return False
    first = parts[0]
    if first in ("membar", "fence"):
        return bool({"gl", "gpu", "sys"}.intersection(parts))
    return first in ("atom", "red") or (first in ("ld", "st") and not _STRONG.isdisjoint(parts))
