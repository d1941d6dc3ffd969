"""Products by powers of two inside of sums: one fused step, of the bits that two would have."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matrix import small

import polygen as pg
from polygen.schedule.model import Epilogue

SCHEDULE = small(epilogue=Epilogue(through="registers"))
SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "f32[N]")


def kernel(function):
    return pg.fuse(function).compile(*SIGNATURE, arch="sm_80", schedule=SCHEDULE)


@pytest.mark.parametrize(
    ("function", "step"),
    [
        (lambda v, c: c - 2 * v, "fmaf(sum, (-2.0f), c_0)"),
        (lambda v, c: c + 0.25 * v, "fmaf(sum, 0.25f, c_0)"),
        (lambda v, c: v * 8 - c, "fmaf(sum, 8.0f, -(c_0))"),
        (lambda v, c: v * -2 + c, "fmaf(sum, (-2.0f), c_0)"),
        (lambda v, c: (4 * v + 1.5) * c, "fmaf(sum, 4.0f, 1.5f)"),
        (lambda v, c: abs(4 * v - 1.5) + c, "fmaf(sum, 4.0f, (-1.5f))"),
        (lambda v, c: 3 - (v * 2 - c) * 4, "fmaf(t2, (-4.0f), 3.0f)"),
    ],
)
def test_bits_are_those_of_two_steps(function, step):
    made = kernel(lambda x, w, c: function(x @ w.T, c).astype("f32"))
    assert step in made.source
    assert not re.search(r"const float t\d = sum \* ", made.source)  # no product is left
    generator = np.random.default_rng(6)
    kind = made.program.inputs[0].dtype.numpy
    x, w = (generator.integers(-5, 6, (32, 32)).astype(kind) for _ in range(2))
    c = (generator.standard_normal(32) * 2.0 ** generator.integers(-40, 30, 32)).astype("f4")
    c[:4] = 0.0, -0.0, np.inf, 1e-42
    v = x.astype("f4") @ w.astype("f4").T  # exact
    done = made.emulation(x, w, c)
    assert done.report.ok
    wanted = np.asarray(function(v, c))
    assert wanted.dtype == np.float32
    np.testing.assert_array_equal(done.results.view("u4"), wanted.view("u4"))


@pytest.mark.parametrize("factor", [3, 0.1, 2.0**-127, float("inf")])
def test_products_that_round_stay(factor):
    """The program's product is rounded, and so is the kernel's."""
    assert "fmaf" not in kernel(lambda x, w, c: c - (x @ w.T) * factor).source


def test_a_product_that_others_read_stays():
    source = kernel(lambda x, w, c: (lambda d: (c - d) * pg.exp(d))(2 * (x @ w.T))).source
    assert "t1 = sum * 2.0f;" in source and "fmaf(sum, (-2.0f), c_0)" in source


def test_sums_beyond_the_range_of_a_product_are_right():
    """2 s alone is infinite, 2 s - c is not."""
    made = kernel(lambda x, w, c: (2 * (x @ w.T) - c).astype("f32"))
    kind = made.program.inputs[0].dtype.numpy
    x, w = np.zeros((2, 32, 32), kind)
    x[:, 0], w[:, 0] = 1, 2.0**127
    c = np.full(32, 1.5 * 2.0**127, "f4")
    np.testing.assert_array_equal(made.emulation(x, w, c).results, np.float32(2.0**126))
