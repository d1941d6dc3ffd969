"""Whether a graph is better run in kernels of several operations, or each of them by itself: timed.

A plan that joins operations is no gain where CuPy takes longer for what it fuses than for its own
functions, and where the graph itself costs more than the launches that it saves. So executions of a
plan are timed, but for its first ones, which compile: in turns as it is planned, the graph's own
cost included, and operation by operation. Plans that are alike but for their sizes share what was
found, and not what was compiled: each has its own first executions. What takes less, by medians, is
what runs from then on; where that is operation by operation, `alone` learns that nothing was
gained, and these places of the program record no more. Both ways compute the same values, but for
how often they are rounded: times decide nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from polygen.adapters.numpy.steps import Member

JOINED, APART = "joined", "apart"
_WARM = 1  # executions of a plan in either way before one that counts
_ROUNDS = 3  # that count, of either
_MARGIN = 0.95  # of the time as planned: less has to be taken apart
_MOST_BYTES = 1 << 28  # of results, all kept apart: there launches are the least


class Trial:
    """The executions that are timed of plans that are alike.

    Attributes:
        winner: which way took less; nothing while it is not over.
    """

    __slots__ = ("_seconds", "winner")

    def __init__(self) -> None:
        self.winner = ""
        self._seconds: dict[str, list[float]] = {JOINED: [], APART: []}

    def run(
        self, ways: dict[str, Callable[[], None]], timed: Callable[..., float], runs: dict[str, int]
    ) -> str:
        """Run one of two ways, and note what it took.

        Args:
            ways: `JOINED` and `APART`: either computes all there is to compute.
            timed: runs a function and gives seconds.
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

        seconds = None
        try:
            if runs[way] > _WARM:
                seconds = timed(run)
            else:
                run()
        except Exception:
            if way == JOINED or done:
                raise
            self.winner = JOINED  # apart it needs more memory
            ways[JOINED]()
            return JOINED
        if seconds is None:
            return way
        self._seconds[way].append(seconds)
        if all(len(found) >= _ROUNDS for found in self._seconds.values()):
            joined, apart = (statistics.median(self._seconds[one]) for one in (JOINED, APART))
            self.winner = APART if apart < _MARGIN * joined else JOINED
        return way


def worthwhile(members: Sequence[Member]) -> bool:
    """Whether a graph is so small that running it apart may be faster."""
    made = sum(one.operation.size * one.operation.dtype.itemsize for one in members)
    return len(members) > 1 and made <= _MOST_BYTES
