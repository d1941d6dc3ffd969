"""Medians and their intervals."""

from __future__ import annotations

import random

import numpy as np
import pytest

from polygen.bench import statistics
from polygen.bench.statistics import Summary, apart, interval_ranks, samples, summary


@pytest.mark.parametrize(
    ("count", "ranks"), [(5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (100, (40, 61))]
)
def test_ranks_are_those_of_the_tables(count, ranks):
    assert interval_ranks(count) == ranks  # as printed in textbooks for the sign test


@pytest.mark.parametrize("count", [7, 21, 101])
def test_the_interval_covers_the_median_as_often_as_it_says(count):
    generator, hits, trials = random.Random(count), 0, 4000
    for _ in range(trials):
        found = summary([generator.expovariate(1.0) for _ in range(count)])
        assert found.interval is not None
        hits += found.interval[0] <= np.log(2) <= found.interval[1]
    assert 0.94 < hits / trials < 0.995  # at least 95 %, but for sampling; the narrowest there is


def test_a_summary_does_not_depend_on_order_and_drops_nothing():
    values = [1.0, 2.0, 3.0, 4.0, 100.0, 5.0, 6.0]
    found = summary(values)
    assert found == summary(values[::-1]) and found.median == 4.0
    assert found.percentiles[0] == 1.0 and found.percentiles[-1] == 100.0 and found.launches == 7


def test_samples_have_the_percentiles_they_come_from():
    generator = random.Random(1)
    found = summary([generator.gauss(100, 5) for _ in range(100)])
    again = summary(samples(found))
    assert again.percentiles == found.percentiles and again.median == found.median
    old = Summary(61.2, None, (None, None, 60.9, 61.2, 61.8, None, None), 40)
    assert summary(samples(old)).percentiles == (60.9, 60.9, 60.9, 61.2, 61.8, 61.8, 61.8)


def test_summaries_survive_json():
    found = summary([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert statistics.from_json(statistics.to_json(found)) == found
    none = Summary(2.0, None, (1.0,) * 7, 3)
    assert statistics.from_json(statistics.to_json(none)) == none


def test_intervals_apart():
    one, two = (Summary(m, (m - 1, m + 1), (), 9) for m in (10.0, 12.5))
    assert apart(one, two) and apart(two, one)
    assert not apart(one, Summary(11.9, (10.9, 13.0), (), 9))
    assert apart(one, Summary(12.0, None, (), 9)) and not apart(one, Summary(10.5, None, (), 9))


def test_geometric_mean():
    assert statistics.geometric_mean([]) is None
    assert statistics.geometric_mean([2.0, 8.0]) == pytest.approx(4)


def test_the_interval_of_thousands_of_launches():
    lower, upper = interval_ranks(2001)
    assert lower + upper == 2002 and 950 < lower < 960  # normal: 1000.5 - 0.98 * sqrt(2001)
