"""Whether a graph is better run in kernels of several operations, or each of them by itself: timed.

A plan that joins operations is no gain where CuPy takes longer for what it fuses than for its own
functions, and where the graph itself costs more than the launches that it saves. So executions of a
plan are timed, but for its first ones, which compile: in turns as it is planned, the graph's own
cost included, and operation by operation. Plans that are alike but for their sizes share what was
found, and not what was compiled: each has its own first executions.

An execution that is timed waits for the device, and others do not: in a program the host issues
what follows while the device computes, and whichever of the two is busier says how long a loop
takes. With one kernel of several operations the device begins later and computes longer at a
stretch, and operations one by one keep both busy at once: timed alone they may take less, and in a
loop of which the host is the busier part more. So operation by operation has to take less in both:
until the device is idle, and of whichever is busier, by medians. Then it is what runs from then on,
and `alone` learns that nothing was gained: these places of the program record no more. Both ways
compute the same values, but for how often they are rounded: times decide nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from polygen.adapters.numpy.steps import Member

JOINED, APART = "joined", "apart"
_WARM = 1  # executions of a plan in either way before one that counts
_ROUNDS = 3  # that count, of either
_MARGIN = 0.95  # of the time as planned: less has to be taken apart
_MOST_BYTES = 1 << 28  # of results, all kept apart: there launches are the least


class Spent(NamedTuple):
    """Seconds of an execution.

    Attributes:
        host: until all of it was issued.
        whole: until the device had computed it.
    """

    host: float
    whole: float

    @property
    def busier(self) -> float:
        """What it adds to a loop in which the host does not wait, at least.

        What the device computes before the host is done is not seen: of several launches it may
        be as much as the host takes.
        """
        return max(self.host, self.whole - self.host)


class Trial:
    """The executions that are timed of plans that are alike.

    Attributes:
        winner: which way took less; nothing while it is not over.
    """

    __slots__ = ("_spent", "winner")

    def __init__(self) -> None:
        self.winner = ""
        self._spent: dict[str, list[Spent]] = {JOINED: [], APART: []}

    def run(
        self, ways: dict[str, Callable[[], None]], timed: Callable[..., Spent], runs: dict[str, int]
    ) -> str:
        """Run one of two ways, and note what it took.

        Args:
            ways: `JOINED` and `APART`: either computes all there is to compute.
            timed: runs a function and says what it spent.
            runs: how often this plan ran in either way; counted here.

        Returns:
            The way that ran.
        """
        way, done = JOINED if runs[JOINED] <= runs[APART] else APART, False
        runs[way] += 1

        def run() -> None:
            nonlocal done
            ways[way]()
            done = True

        spent = None
        try:
            if runs[way] > _WARM:
                spent = timed(run)
            else:
                run()
        except Exception:
            if way == JOINED or done:
                raise
            self.winner = JOINED  # apart it needs more memory
            ways[JOINED]()
            return JOINED
        if spent is None:
            return way
        self._spent[way].append(spent)
        if all(len(found) >= _ROUNDS for found in self._spent.values()):
            joined, apart = (_medians(self._spent[one]) for one in (JOINED, APART))
            less = all(a < _MARGIN * j for a, j in zip(apart, joined, strict=True))
            self.winner = APART if less else JOINED
        return way


def _medians(found: Sequence[Spent]) -> tuple[float, float]:
    """Seconds until the device was idle, and of whichever was busier."""
    whole, busier = zip(*((one.whole, one.busier) for one in found), strict=True)
    return statistics.median(whole), statistics.median(busier)


def worthwhile(members: Sequence[Member]) -> bool:
    """Whether a graph is so small that running it apart may be faster."""
    made = sum(one.operation.size * one.operation.dtype.itemsize for one in members)
    return len(members) > 1 and made <= _MOST_BYTES
