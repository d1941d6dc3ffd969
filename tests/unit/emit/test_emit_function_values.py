"""Every function of the vocabulary against NumPy: special values, and a sweep of all floats.

The compiled PTX runs on the PTX machine, in the form and with the conversion of each output type.
What a function should be is its reference in float64, which for a composite is its definition run
by NumPy.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from matrix import small
from pointwise_kernels import (
    SIGNS,
    TYPES,
    apply,
    arrays_of,
    beyond_record,
    compiled,
    every,
    off_by,
    partners,
    reference,
    rounded,
)

import polygen as pg
from polygen.comparison import compare
from polygen.emit.function_errors import recorded_error
from polygen.emit.primitives import COMPOSITES, PRIMITIVES
from polygen.frontend.dtypes import F32
from polygen.frontend.functions import INTERNAL, TABLE
from polygen.frontend.program import Tensor

FUNCTIONS = sorted(set(TABLE) - INTERNAL)
LIMITS = np.finfo(np.float32)
# fmt: off
_SIZES = [
    0.0, math.inf, 1e-45, 1e-40, 2.0**-126, LIMITS.max, 1.0, 65504.0, 3e38, 0.5, 1.5, 2.5, 2.0, 3.0,
    5.5, 20.0, 89.0, 104.0, 8388609.0, 65537.0, 1e30,
]
SPECIAL = np.array([math.nan, *(sign * size for size in _SIZES for sign in (1, -1))], np.float32)
# fmt: on
EXPONENTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0, 40.0, 64.0, 65.0, -1.0, -2.0, -3.0, -5.0)
EXPONENTS += (0.5, -0.5, 1 / 3, 1.7, 2.5, -1.5, -0.01, 63.5, 64.5, math.inf, math.nan)
CALLS = [(name, ()) for name in FUNCTIONS if name != "clip"]
CALLS += [(name, TABLE[name].defaults) for name in FUNCTIONS if TABLE[name].defaults]
CALLS += [("leaky_relu", (-0.5,)), ("elu", (0.7,)), ("celu", (0.7,)), ("celu", (-2.0,))]
CALLS += [("clip", (-1.5, 2.5)), ("clip", (0.0, math.inf)), ("heaviside", (0.5,)), ("div", (3.0,))]
CALLS += [("pow", (exponent,)) for exponent in EXPONENTS]
CALLS = [call for call in CALLS if call[1] or not TABLE[call[0]].defaults]


def call_name(call):
    return call[0] + "".join(f"_{constant:g}" for constant in call[1])


def wrong(call, args, dtype):
    """Elements that no value within the recorded error of NumPy's would have been stored as."""
    name, constants = call
    found = apply(name, *args, constants=constants, fast=dtype != "f32", dtype=dtype)
    return beyond_record(call, args, dtype, found)


def pairs(name, constants):
    """The special values, or every pair or triple of them."""
    count = arrays_of(name) if not constants else 1
    values = SPECIAL if count < 3 else SPECIAL[:15]
    return [grid.ravel() for grid in np.meshgrid(*[values] * count)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("call", CALLS, ids=call_name)
def test_special_values_are_those_of_numpy(call, dtype):
    found = wrong(call, pairs(*call), dtype)
    assert not found, found[:8]


SAMPLE = [pytest.mark.slow, pytest.mark.sample(3)]


# docs/accuracy.md has what a sweep with every 251st found.
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("step", [99991, pytest.param(39989, marks=SAMPLE)])
@pytest.mark.parametrize("call", CALLS, ids=call_name)
def test_the_recorded_error_holds_everywhere(call, step, dtype):
    name, constants = call
    x = every(step)
    count = arrays_of(name) if not constants else 1
    args = [x, *(partners(x, seed) for seed in range(count - 1))]
    if name == "pow" and not constants:  # exponents of every sort
        args[1][1::2] = np.random.default_rng(2).normal(0, 20, len(x))[1::2]
        args[1][::5] = np.rint(np.clip(args[1][::5], -99, 99))
    found = wrong(call, args, dtype)
    assert not found, (len(found), found[:8])


# Accurate forms with approximate instructions of their own, not only those inside CUDA's functions;
# those of scores, which have constants, have tests of their own.
OWN = {
    name: "approximate_exp2" in entry.helpers
    for name, entry in {**PRIMITIVES, **COMPOSITES}.items()
    if any(helper.startswith("approximate_") for helper in entry.helpers)
    and (name not in INTERNAL or arrays_of(name) == 1)
}


@pytest.mark.parametrize("step", [99991, pytest.param(12007, marks=SAMPLE)])
@pytest.mark.parametrize("name", OWN)
def test_the_recorded_error_allows_for_approximate_instructions(name, step):
    """All off by what NVIDIA documents; `expf`, whose bound is one of its own, stays as it is."""
    x = every(step)
    for reciprocal, others in SIGNS:
        with off_by((reciprocal, others if OWN[name] else 0)) as note:
            found = apply(name, x, fast=False, note=note)
        beyond = beyond_record((name, ()), [x], "f32", found)
        assert not beyond, (len(beyond), beyond[:8])


SHORT = ["gelu", "gelu_tanh", "mish", "sigmoid", "silu", "softplus", "logsigmoid", "expm1", "elu"]


@pytest.mark.parametrize("name", SHORT)
def test_accurate_forms_have_one_path(name):
    """No slow path of a division, no branch, no call, no local memory."""
    text = compiled(name, TABLE[name].defaults, fast=False)
    assert not re.search(r"\b(bra|call|div)\b|\.local", text)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_and_critical_angles(name, dtype):
    """Next to multiples of pi / 2, where reductions lose their digits, up to the largest float."""
    multiples = np.concatenate([np.arange(1, 60000), 2.0 ** np.arange(16, 127) / math.pi])
    near = (multiples * (math.pi / 2)).astype(np.float32)
    random = np.random.default_rng(3).uniform(16, 128, 1 << 15)
    # The floats that come closest to a multiple of pi / 2 for their size.
    hardest = np.array([16367173 * 2.0**72, 8509035 * 2.0**24, 13371195 * 2.0**-22, 2.0**127])
    x = np.concatenate(
        [near, np.nextafter(near, np.float32(0)), (2.0**random).astype(np.float32), hardest]
    ).astype(np.float32)
    found = wrong((name, ()), [np.concatenate([x, -x])], dtype)
    assert not found, (len(found), found[:8])


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_stay_within_one(name, fast):
    """``sqrt(1 - sin(x) ** 2)`` must not be NaN."""
    assert np.abs(apply(name, every(9973), fast=fast)).max() <= 1


def test_records_are_those_of_functions():
    for name in FUNCTIONS:
        for fast in (False, True):
            absolute, relative = recorded_error(name, None, fast)
            assert 0 <= absolute <= 2.0**-21 and 2.0**-24 <= relative <= 2.0**-15
    for name, entry in COMPOSITES.items():
        assert recorded_error(name, None, True) == (entry.fast_error if entry.fast else entry.error)
        assert recorded_error(name, None, False) == entry.error != PRIMITIVES["add"].error
    assert recorded_error("log1p", None, True) == PRIMITIVES["log1p"].error


# --- through whole kernels
NARROW = {"rtol": 2.0**-7, "atol": 2.0**-23}  # the absolute part is gelu's
TOLERANCE = {"f32": {"rtol": 2.0**-20}, "f16": NARROW, "bf16": NARROW}
X = np.ones((5, 8), np.float16)
W = np.ones((40, 8), np.float16)
R = np.resize(SPECIAL, (5, 40))


@pytest.mark.parametrize("dtype", TYPES)
def test_kernels_store_special_values_as_numpy_does(dtype):
    """Through loads, the epilogue and stores of a generated kernel; x @ w.T is 8 everywhere."""

    @pg.fuse
    def f(x, w, r):
        chosen = x @ w.T > 0
        return (
            pg.where(chosen, np.sin(r), r),
            pg.where(chosen, pg.gelu(r), r),
            pg.where(chosen, r**-0.5, r),
            pg.where(chosen, np.sign(r), r),
        )

    kernel = f.compile(
        "f16[M,K]", "f16[N,K]", "f32[M,N]", arch="sm_80", out_dtype=dtype, schedule=small()
    )
    outputs = kernel.emulate(X, W, R)
    with np.errstate(all="ignore"):
        wide = R.astype(np.float64)
        expected = [np.sin(wide), TABLE["gelu"].reference(wide), wide**-0.5, np.sign(wide)]
    for found, wanted in zip(outputs, expected, strict=True):
        found, wanted = found.astype(np.float64), rounded(wanted, dtype)
        np.testing.assert_allclose(found, wanted, **TOLERANCE[dtype])
        zero = (found == 0) & (wanted == 0)
        assert np.array_equal(np.signbit(found[zero]), np.signbit(wanted[zero]))


@pytest.mark.parametrize("dtype", TYPES)
def test_constants_may_be_nan_or_infinite(dtype):
    kernel = pg.fuse(
        lambda x, w, r: pg.where(r > 0, x @ w.T, np.nan) + pg.where(r > 1, 0.0, -np.inf)
    ).compile("f16[M,K]", "f16[N,K]", "f32[M,N]", arch="sm_80", out_dtype=dtype, schedule=small())
    wanted = np.where(R > 1, 8.0, -np.inf)
    wanted[~(R > 0)] = np.nan
    np.testing.assert_array_equal(kernel.emulate(X, W, R).astype(np.float64), wanted)


def test_values_that_were_wrong():
    x = np.array([-5.5, -0.0, -20.0, 3e38, -math.inf], np.float32)
    wanted = reference("gelu", x[:3])
    np.testing.assert_allclose(apply("gelu", x[:2], fast=False), wanted[:2], rtol=2.0**-20)
    for fast in (False, True):
        assert np.signbit(apply("gelu", x[:3], fast=fast)).all()
        assert apply("hardswish", x[3:4], fast=fast)[0] == x[3]
        assert apply("pow", x[4:], constants=(-0.5,), fast=fast)[0] == 0.0


def test_a_check_allows_for_what_a_function_makes_of_a_rounding():
    """The sine of a large product and a number next to a whole one; neither is wrong."""
    kernel = pg.fuse(lambda x, w: np.sin((x @ w.T) * 1000.1) + np.floor((x @ w.T) * 0.37)).compile(
        "f16[M,K]", "f16[N,K]", arch="sm_80", out_dtype="f32", schedule=small()
    )
    report = kernel.check()
    assert report.ok, report.findings


def test_a_check_allows_no_more_than_that():
    tensor = Tensor("y", F32, ("M",))
    wide, single = np.array([0.5, 2.0, 3.0]), np.array([0.51, 2.0, 3.0])
    assert compare(tensor, np.array([0.505, 2.0, 3.0]), wide, False, single)[0] is None
    for found in ([0.52, 2.0, 3.0], [0.49, 2.0, 3.0], [0.5, 2.001, 3.0], [math.nan, 2.0, 3.0]):
        assert compare(tensor, np.array(found), wide, False, single)[0] is not None
    assert compare(tensor, np.array([0.505, 2.0, 3.0]), wide, True, single)[0] is not None
    assert compare(tensor, np.array([0.505, 2.0, 3.0]), wide, False)[0] is not None
