"""Dependent launches: grids that run beside each other, until one waits for those before it.

1. A grid that is launched dependently may begin before those before it on the stream are complete.
   Until a thread has executed ``griddepcontrol.wait`` it must not read what they may still write,
   and not write what they may still read or write.
2. The machine runs grids one after the other, and reports each access that is too early for that:
   of a thread that has not waited, to an array that an earlier grid uses (`Behind`).
3. What they may still write is not constant while the grid runs, not even behind the wait: loads
   through the read-only path (``ld.global.nc``) may be moved in front of it (`check_constant`).
4. A wait by one thread is none of another's: kernels that hand on what one thread has waited for
   are refused here, though barriers would make them right.

``griddepcontrol.launch_dependents`` lets the next grid begin. That may always happen, so that it
changes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.lanes import Lanes, Vector

if TYPE_CHECKING:
    from polygen.machine.memory import Buffer
    from polygen.machine.state import Machine

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Behind:
    """What grids before a launch may still do when it begins.

    Attributes:
        writes: arrays that they write.
        reads: arrays that they only read.
    """

    writes: tuple[Array, ...] = ()
    reads: tuple[Array, ...] = ()


class Grids:
    """Which threads of a wave have waited, and where it matters.

    Args:
        behind: what the grids before may do.
        arrays: of the launch, those of maps too.
        buffers: where they are.
    """

    def __init__(self, behind: Behind, arrays: Sequence[Array], buffers: Sequence[Buffer]) -> None:
        self.waited = np.zeros(0, bool)
        ranges = {}
        for array, buffer in zip(arrays, buffers, strict=True):
            written = any(np.may_share_memory(array, one) for one in behind.writes)
            if written or any(np.may_share_memory(array, one) for one in behind.reads):
                ranges[buffer.offset, buffer.offset + buffer.size] = written
        self._ranges = tuple((*ends, written) for ends, written in ranges.items())

    def begin(self, threads: int) -> None:
        """A wave of so many threads begins."""
        self.waited = np.zeros(threads, bool)

    def check(
        self, machine: Machine, lanes: Lanes, at: Vector, size: int, position: int, *, writes: bool
    ) -> None:
        """Report accesses of `size` bytes each that come too early."""
        early = ~self.waited[lanes.index]
        if not early.any():
            return
        for begin, end, written in self._ranges:
            wrong = early & (at < end) & (at + size > begin) if written or writes else early[:0]
            does, may = "stores to" if writes else "loads", "write" if written else "read"
            self._report(machine, "before-grid-wait", (lanes, at, position), wrong, (does, may))

    def check_constant(
        self, machine: Machine, lanes: Lanes, at: Vector, size: int, position: int
    ) -> None:
        """Report loads that take for constant what an earlier grid may write while this one runs.

        A compiler may move them in front of the wait, whatever stands between.
        """
        for begin, end, written in self._ranges:
            wrong = (at < end) & (at + size > begin)
            found = wrong if written else wrong[:0]
            words = "loads as constant", "write while this one runs"
            self._report(machine, "not-constant", (lanes, at, position), found, words)

    @staticmethod
    def _report(
        machine: Machine,
        code: str,
        where: tuple[Lanes, Vector, int],
        wrong: Vector,
        words: tuple[str, str],
    ) -> None:
        """One finding of the lanes that do something too early, if there are any."""
        if not wrong.any():
            return
        (lanes, at, position), (does, may) = where, words
        lane = int(wrong.argmax())
        place = machine.memory.describe(int(at[lane]))
        text = f"{lanes.name(lane)} {does} {place}, which a grid before may still {may}"
        machine.findings.add(code, text, position, count=int(wrong.sum()))


def wait(machine: Machine, lanes: Lanes) -> None:
    """``griddepcontrol.wait``."""
    if machine.grids is not None:
        machine.grids.waited[lanes.index] = True


def check(
    machine: Machine, lanes: Lanes, at: Vector, size: int, position: int, *, writes: bool
) -> None:
    """Note accesses to global memory, and report those that come before their thread's wait."""
    if machine.footprint is not None:
        machine.footprint.touch(at, size, writes)
    if machine.grids is not None and len(at):
        machine.grids.check(machine, lanes, at, size, position, writes=writes)


def check_box(
    machine: Machine, lanes: Lanes, lane: int, at: Vector, size: int, position: int, *, writes: bool
) -> None:
    """Likewise, what one lane has the copy engine do."""
    if machine.footprint is not None:
        machine.footprint.touch(at, size, writes)
    if machine.grids is not None and len(at):
        many = lanes.pick(np.full(len(at), lane))
        machine.grids.check(machine, many, at.ravel(), size, position, writes=writes)
