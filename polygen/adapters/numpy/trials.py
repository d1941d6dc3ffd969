"""Whether a graph is better run in kernels of several operations, or each of them by itself: timed.

A plan that joins operations is no gain where CuPy takes longer for what it fuses than for its own
functions, and where the graph itself costs more than the launches that it saves. So the first
executions of a plan that are neither the first, which compile, are timed: in turns as it is
planned, the graph's own cost included, and operation by operation. What takes less, by medians, is
what runs from then on; where that is operation by operation, `alone` learns that nothing was
gained, and these places of the program record no more. Both ways compute the same values, but for
how often they are rounded: times decide nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from polygen.adapters.numpy.planning import Member

JOINED, APART = "joined", "apart"
_WARM = 2  # executions of either way before one that counts
_ROUNDS = 3  # that count, of either
_MARGIN = 0.95  # of the time as planned: less has to be taken apart
_MOST_BYTES = 1 << 28  # of results, all kept apart: there launches are the least


class Trial:
    """The executions of one plan that are timed.

    Attributes:
        winner: which way took less; nothing while it is not over.
    """

    __slots__ = ("_runs", "_seconds", "winner")

    def __init__(self) -> None:
        self._runs, self.winner = 0, ""
        self._seconds: dict[str, list[float]] = {JOINED: [], APART: []}

    def run(self, ways: dict[str, Callable[[], None]], timed: Callable[..., float]) -> str:
        """Run one of two ways, and note what it took.

        Args:
            ways: `JOINED` and `APART`: either computes all there is to compute.
            timed: runs a function and gives seconds.

        Returns:
            The way that ran.
        """
        way, done = JOINED if self._runs % 2 == 0 else APART, False
        self._runs += 1

        def run() -> None:
            nonlocal done
            ways[way]()
            done = True

        try:
            seconds = timed(run)
        except Exception:
            if way == JOINED or done:
                raise
            self.winner = JOINED  # apart it needs more memory
            ways[JOINED]()
            return JOINED
        if self._runs > 2 * _WARM:
            self._seconds[way].append(seconds)
        if all(len(found) >= _ROUNDS for found in self._seconds.values()):
            joined, apart = (statistics.median(self._seconds[one]) for one in (JOINED, APART))
            self.winner = APART if apart < _MARGIN * joined else JOINED
        return way


def worthwhile(members: Sequence[Member]) -> bool:
    """Whether a graph is so small that running it apart may be faster."""
    made = sum(one.operation.size * one.operation.dtype.itemsize for one in members)
    return len(members) > 1 and made <= _MOST_BYTES
