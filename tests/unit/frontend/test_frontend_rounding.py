"""Rounding to storage dtypes, at values whose result is known by hand."""

import numpy as np
import pytest

from polygen.frontend.rounding import round_to


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("f16", 1 + 2**-11, 1.0),  # a tie goes to even
        ("f16", 1 + 3 * 2**-11, 1 + 2**-9),
        ("f16", 65519.0, 65504.0),
        ("f16", 70000.0, np.inf),
        ("bf16", 1 + 2**-8, 1.0),
        ("bf16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("f32", 1 + 2**-25, 1.0),
        ("tf32", 1 + 2**-20, 1 + 2**-20),
        ("e4m3", 1.0625, 1.0),
        ("e4m3", 500.0, 448.0),
        ("e4m3", -np.inf, -448.0),
        ("e5m2", 1e9, 57344.0),
        ("s8", 2.5, 2.0),
        ("s8", 3.5, 4.0),
        ("s8", 300.0, 127.0),
        ("s8", -300.0, -128.0),
        ("s8", np.nan, 0.0),
        ("s32", 2**24 + 1, 2**24 + 1),
        ("bool", -3.0, 1.0),
    ],
)
def test_known_values(dtype, value, expected):
    got = round_to(value, dtype)
    assert got.dtype == np.float64
    assert got == expected


@pytest.mark.parametrize("dtype", ["f16", "bf16", "e4m3", "e5m2", "f32"])
def test_nan_survives_and_rounding_is_idempotent(dtype):
    values = np.linspace(-300, 300, 1001)
    once = round_to(values, dtype)
    assert np.array_equal(round_to(once, dtype), once)
    assert np.isnan(round_to(np.nan, dtype))
