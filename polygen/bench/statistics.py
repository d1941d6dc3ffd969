"""Medians and what they are worth, from the launches themselves; no distribution is assumed.

Of n independent launches the number below the true median is binomial with n trials of one half.
So the l-th and the u-th smallest enclose the median with probability P(l <= B < u); the narrowest
symmetric pair with at least 95 % is the interval. Fewer than six launches have none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

CONFIDENCE = 0.95
PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(frozen=True, slots=True)
class Summary:
    """The launches of one contender, in microseconds.

    Attributes:
        median: of all launches.
        interval: of the median, 95 %; None where it is not known.
        percentiles: those of `PERCENTILES`; None where one was not kept.
        launches: how many.
    """

    median: float
    interval: tuple[float, float] | None
    percentiles: tuple[float | None, ...]
    launches: int


@functools.cache
def interval_ranks(count: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Which of `count` ordered values enclose the median.

    Args:
        count: of values.
        confidence: least probability.

    Returns:
        Two ranks from 1, the lower and the upper; None where the extremes are not enough.
    """
    total = 2**count
    outside = 0  # ways in which fewer than `lower` values are below the median
    best = None
    for lower in range(1, count // 2 + 1):
        outside += math.comb(count, lower - 1)
        if total - 2 * outside < Fraction(confidence) * total:
            break
        best = (lower, count + 1 - lower)
    return best


def summary(values: Sequence[float]) -> Summary:
    """Median, its interval and percentiles of launches, rounded to nanoseconds."""
    ordered = sorted(values)
    ranks = interval_ranks(len(ordered))
    interval = None
    if ranks is not None:
        interval = (_short(ordered[ranks[0] - 1]), _short(ordered[ranks[1] - 1]))
    points = tuple(_short(float(v)) for v in np.percentile(ordered, PERCENTILES))
    return Summary(points[PERCENTILES.index(50)], interval, points, len(ordered))


def samples(found: Summary, count: int = 101) -> list[float]:
    """Launches with the percentiles of a summary, for replaying it.

    Args:
        found: what to have.
        count: 1 more than a multiple of 20, so that the percentiles are values.

    Returns:
        Ordered values; beyond the percentiles that are known, the last one known.
    """
    known = [(p, v) for p, v in zip(PERCENTILES, found.percentiles, strict=True) if v is not None]
    places, values = zip(*known, strict=True)
    return [float(v) for v in np.interp(np.linspace(0.0, 100.0, count), places, values)]


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def apart(one: Summary, other: Summary) -> bool:
    """Whether the medians' intervals do not overlap; without intervals: whether medians differ."""
    a = one.interval or (one.median, one.median)
    b = other.interval or (other.median, other.median)
    return a[1] < b[0] or b[1] < a[0]


def to_json(found: Summary) -> dict[str, Any]:
    """As the record holds it."""
    return {
        "us": found.median,
        "ci": list(found.interval) if found.interval else None,
        "percentiles": list(found.percentiles),
        "n": found.launches,
    }


def from_json(data: dict[str, Any]) -> Summary:
    """What `to_json` made."""
    interval = (float(data["ci"][0]), float(data["ci"][1])) if data["ci"] else None
    return Summary(data["us"], interval, tuple(data["percentiles"]), data["n"])


def _short(value: float) -> float:
    return round(value, 3)
