"""Formulas of C over whole numbers, and what is none."""

import numpy as np
import pytest

from polygen.errors import VerifyError
from polygen.hardware.formula import value


def test_formulas_are_read_as_c_reads_them():
    names = {"lane": np.arange(32), "k": 7}
    found = value("(lane / 4) * 2 + (lane % 4 << 1 ^ k & 3)", names)
    lane = np.arange(32)
    assert np.array_equal(found, lane // 4 * 2 + ((lane % 4 << 1) ^ (7 & 3)))
    assert value("(long long)k * 3LL - 1", names) == 20
    assert value("(k & 127u) == 7u", names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k > 0 s > 0", "no formula"),
        ("k if s else 0", "has no IfExp"),
        ("open('x')", "has no Call"),
        ("1 < k < 3", "has no Compare"),
        ("1.5 * k", "has no Constant"),
        ("k * t", "nothing is called t"),
    ],
)
def test_what_is_no_formula_is_refused(text, message):
    with pytest.raises(VerifyError, match=message):
        value(text, {"k": 1, "s": 2})


def test_numbers_may_be_negative():
    assert value("(39LL * step) + row * (-1LL * step) + -2", {"step": 3, "row": 4}) == 103


def test_the_lesser_and_the_larger_of_two():
    assert value("min((rank * 4 + k) / 2, (3 - 1)) + max(k, 1)", {"rank": 2, "k": 0}) == 3
