"""What measures: the interface between the protocol and the thing that has the times.

There are two: `polygen.bench.gpu` has a card, `polygen.bench.replay` has a record. All else, the
order of launches, the statistics, the child process, records, tables and plots, is common to both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from polygen.bench.rows import Row
from polygen.runtime.child import Stage

Call = Callable[[], Any]  # queues one launch
Errors = tuple[float, float]  # relative Frobenius error, largest error of an element

POLYGEN = "polygen"
EMPTY = "empty"  # a kernel that does nothing, beside the contenders


class DeviceLost(Exception):
    """An error that leaves the device useless to this process, so that another has to go on."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the child is asked to do for a row.

    Attributes:
        row: what.
        kernel: polygen's compiled kernel, as `polygen.bench.compiling` sends it.
        peers: names of the libraries wanted.
        leave_out: those of them that are not tried, with the reason.
        repeats: launches of every contender.
    """

    row: Row
    kernel: Any
    peers: tuple[str, ...]
    leave_out: dict[str, str] = field(default_factory=dict)
    repeats: int = 101


class Work(Protocol):
    """One row, opened: its contenders can be made, checked and timed."""

    def make(self, name: str) -> Call:
        """A contender; any exception says that it cannot take part."""
        ...

    def check(self, name: str, call: Call) -> Errors:
        """Launch a contender on poisoned outputs, and compare with float64; NaN is no number."""
        ...

    def empty(self) -> Call | None:
        """A kernel that does nothing: what any launch takes; None: that is not known."""
        ...

    def poison(self) -> None:
        """Make polygen's output something that no launch leaves."""
        ...

    def left(self) -> Errors:
        """Compare what polygen's last launch left with float64."""
        ...

    def timed(self, calls: Sequence[Call]) -> list[float]:
        """Microseconds of launches in this order, each with a cold L2 cache."""
        ...

    def captured(self, name: str, call: Call) -> Call:
        """The contender as a CUDA graph of one launch; any exception says that there is none."""
        ...

    def facts(self, name: str) -> dict[str, Any]:
        """What is worth keeping about a contender that was made: algorithm, seconds."""
        ...

    def conditions(self) -> dict[str, Any]:
        """Clocks, power and temperature since the last call; empty where they cannot be read."""
        ...


class Source(Protocol):
    """Has the times."""

    def about(self, stage: Stage) -> dict[str, Any]:
        """Versions of libraries, the ceilings of the card, and peers that are missing."""
        ...

    def open(self, job: Job, stage: Stage) -> Work:
        """Make the operands of a row."""
        ...
