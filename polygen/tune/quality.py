"""How well predictions rank: rank correlation, the best of the first few, regret."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]

FIRST = 5  # schedules that a prediction puts first, of which one should be good
GOOD = 1.05  # of the best time


@dataclass(frozen=True, slots=True)
class Quality:
    """How a prediction ranks the schedules of one problem.

    Attributes:
        schedules: how many there are.
        spearman: rank correlation of predicted and measured times.
        among_first: the best of the `FIRST` that are predicted fastest, over the best of all.
        regret: the one predicted fastest, over the best of all, less one.
        level: predicted over measured, median.
    """

    schedules: int
    spearman: float
    among_first: float
    regret: float
    level: float

    @property
    def hit(self) -> bool:
        """Whether a good schedule is among the first."""
        return self.among_first <= GOOD


def quality(predicted: Column, measured: Column) -> Quality:
    """Compare predicted and measured times of the same schedules.

    Args:
        predicted: one or more times, any unit.
        measured: microseconds, positive.
    """
    order = np.argsort(predicted, kind="stable")
    best = float(measured.min())
    return Quality(
        len(measured),
        spearman(predicted, measured),
        float(measured[order[:FIRST]].min()) / best,
        float(measured[order[0]]) / best - 1,
        float(np.median(predicted / measured)),
    )


def spearman(first: Column, second: Column) -> float:
    """Rank correlation; equal values share their mean rank. 0 if one of them is constant."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def _ranks(values: Column) -> Column:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[place], np.float64)
