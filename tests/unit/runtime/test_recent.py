"""The table that forgets what was not used for long."""

from __future__ import annotations

import random

import pytest

from polygen.runtime.recent import Recent


def test_it_finds_what_was_put_and_nothing_else():
    table = Recent(8)
    assert table.get("a") is None
    assert table.put("a", 1) == 1 and table.get("a") == 1
    assert (len(table), list(table), table.values()) == (1, ["a"], [1])


@pytest.mark.parametrize("most", [2, 3, 8, 64])
def test_it_is_bounded_and_keeps_the_latest_half(most):
    table, used = Recent(most), []
    order = random.Random(most)
    for _ in range(40 * most):
        key = order.randrange(4 * most)
        if table.get(key) is None:
            table.put(key, str(key))
        used = [other for other in used if other != key] + [key]
        assert len(table) <= most
        assert all(table.get(recent) == str(recent) for recent in used[-(most // 2) :][::-1])


def test_what_is_used_stays_while_others_come_and_go():
    table = Recent(4)
    table.put("used", 1)
    for number in range(100):
        table.put(number, number)
        assert table.get("used") == 1
    assert table.get(0) is None


def test_a_changed_value_is_the_one_that_is_found():
    table = Recent(2)
    table.put("a", 1)
    table.put("b", 2)  # "a" is old now
    table.put("a", 3)
    assert table.get("a") == 3 and table.values().count(1) == 0
