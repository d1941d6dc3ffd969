"""Fast forms: compiled PTX on the PTX machine, against float64, within the recorded errors."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from matrix import case, small
from pointwise_kernels import SIGNS, apply, arguments, compiled, every, off_by, reference

import polygen as pg
from polygen.cli import accuracy
from polygen.emit.function_errors import fast_error
from polygen.emit.functions import expression
from polygen.emit.primitives import COMPOSITES, PRIMITIVES
from polygen.frontend.functions import INTERNAL, TABLE

FAST = sorted(name for name, e in {**PRIMITIVES, **COMPOSITES}.items() if e.fast)
STORED = [name for name in FAST if name not in INTERNAL]  # others become exponents alone
BRANCHES = {"sin", "cos", "tan"}  # large angles are reduced on a path of their own
LIMITS = np.finfo(np.float32)


def errors_beyond(error, found, wanted):
    """The elements off by more than recorded, where the function is finite in f32."""
    compared = np.abs(wanted) < 0.999 * float(LIMITS.max)
    absolute, relative = error
    with np.errstate(invalid="ignore"):
        off = np.abs(found.astype(np.float64) - wanted)
        return int((compared & ~(off <= absolute + relative * np.abs(wanted))).sum())


# --- the errors
@pytest.fixture(params=SIGNS, ids=str)
def instructions(request):
    """The machine's approximate instructions, all off by what is documented, in either direction.

    The first sign is that of the reciprocal, the second that of the others.
    """
    with off_by(request.param) as note:
        yield note


SAMPLE = [pytest.mark.slow, pytest.mark.sample(3)]


# The figures in docs/accuracy.md come from a run with every 251st.
@pytest.mark.parametrize("step", [19937, pytest.param(4001, marks=SAMPLE)])
@pytest.mark.parametrize("name", FAST)
def test_the_recorded_error_holds(name, step, instructions):
    x = every(step)
    for piece in np.array_split(x, -(-len(x) // (1 << 20))):
        args = arguments(name, piece)
        found, wanted = apply(name, *args, note=instructions), reference(name, *args)
        assert np.array_equal(np.isnan(found), np.isnan(wanted))
        assert errors_beyond(fast_error(name, None), found, wanted) == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FAST)
def test_the_recorded_error_is_no_larger_than_it_must_be(name):
    """It is within a factor of 4 of what the form does, or of what its instructions may do."""
    x = every(9973)
    absolute, relative = fast_error(name, None)
    args = arguments(name, x)
    wanted, beyond = reference(name, *args), 0
    for signs in SIGNS:
        with off_by(signs) as note:
            beyond += errors_beyond((absolute, relative / 4), apply(name, *args, note=note), wanted)
    assert beyond or relative <= 2.0**-21
    assert relative <= 2.0**-15 and absolute <= 2.0**-21


def test_every_fast_form_has_an_error_and_only_they():
    for entry in (*PRIMITIVES.values(), *COMPOSITES.values()):
        assert bool(entry.fast) == any(entry.fast_error)
        assert entry.fast or not entry.fast_helpers


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_outputs_of_16_bits_are_almost_always_rounded_right(name, kind):
    """All arguments of 16 bits: never off by more than one unit, and seldom by that."""
    x = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)
    x = x[np.isfinite(x)]
    args = arguments(name, x)
    with np.errstate(over="ignore", invalid="ignore"):
        args = [arg.astype(kind).astype(np.float32) for arg in args]
        found = apply(name, *args).astype(kind)
        wanted = reference(name, *args).astype(np.float32).astype(kind)
    number = np.isfinite(wanted.astype(np.float32))
    if name == "gelu":  # beyond, its error is absolute: 2^-23, less than f16's smallest normal
        number &= x > -3
    ordinal = [
        np.where(bits < 0, np.int32(-0x8000) - bits, bits)
        for bits in (array.view(np.int16).astype(np.int32) for array in (found, wanted))
    ]
    tiny = np.abs(wanted.astype(np.float32)) < 2.0**-115  # bf16 only: flushed to zero
    off = np.abs(ordinal[0] - ordinal[1])[number & ~tiny]
    assert off.max() <= 1
    assert np.count_nonzero(off) < 0.04 * off.size


# --- special values
INFINITY = float("inf")
SPECIAL = {
    "exp": {-INFINITY: 0, INFINITY: INFINITY, 89.0: INFINITY, -200.0: 0, 0.0: 1},
    "exp2": {-INFINITY: 0, INFINITY: INFINITY, 128.0: INFINITY, -200.0: 0, 0.0: 1, 10.0: 1024},
    "log": {0.0: -INFINITY, INFINITY: INFINITY, -1.0: math.nan, 1.0: 0},
    "sqrt": {0.0: 0, INFINITY: INFINITY, -1.0: math.nan, 4.0: 2},
    "sigmoid": {-INFINITY: 0, INFINITY: 1, -1e30: 0, 1e30: 1, 0.0: 0.5},
    "softplus": {-INFINITY: 0, INFINITY: INFINITY, -1e30: 0, 1e30: 1e30},
    "tanh": {-INFINITY: -1, INFINITY: 1, -1e30: -1, 1e30: 1, 0.0: 0},
    "tanh_of_power": {-INFINITY: -1, INFINITY: 1, -1e30: -1, 1e30: 1},
    "erf": {-INFINITY: -1, INFINITY: 1, -1e30: -1, 1e30: 1, 0.0: 0},
    "gelu": {-INFINITY: math.nan, INFINITY: INFINITY, -1e30: 0, 1e30: 1e30, 0.0: 0},
    "gelu_tanh": {-INFINITY: math.nan, INFINITY: INFINITY, -1e30: 0, 1e30: 1e30, 0.0: 0},
    "silu": {-INFINITY: math.nan, INFINITY: INFINITY, -1e30: 0, 1e30: 1e30, 0.0: 0},
    "mish": {-INFINITY: math.nan, INFINITY: INFINITY, -1e30: 0, 1e30: 1e30, 0.0: 0},
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name):
    """As NumPy's; a limit is exact once it is rounded to 16 bits, and a NaN stays one."""
    x = np.array([*SPECIAL[name], math.nan], np.float32)
    wanted = np.array([*SPECIAL[name].values(), math.nan], np.float32)
    found = apply(name, x)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-20)
    for kind in (np.float16, ml_dtypes.bfloat16):
        with np.errstate(over="ignore"):
            pair = [array.astype(kind).astype(np.float32) for array in (found, wanted)]
        np.testing.assert_array_equal(*pair)
    with np.errstate(all="ignore"):
        table = np.asarray(TABLE[name].reference(x.astype(np.float64)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(table))


def test_quotients_of_special_values():
    special = [0.0, -0.0, 1.0, -3.0, 1e-41, 3e38, 1.2e38, math.inf, -math.inf, math.nan]
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        wanted = x / y
    np.testing.assert_allclose(apply("div", x, y), wanted, rtol=2.0**-21, atol=2.0**-126)


@pytest.mark.parametrize("name", ["tanh", "erf", "sin", "cos"])
def test_what_lies_between_minus_one_and_one_stays_there(name, instructions):
    """``sqrt(1 - tanh(x) ** 2)`` must not be NaN."""
    largest = np.abs(apply(name, every(9973), note=instructions)).max()
    assert largest <= 1 if name in BRANCHES else largest < 1


def test_the_tails_of_gelu_keep_their_digits():
    x = np.linspace(-3, 0, 1 << 14, dtype=np.float32)
    wanted = reference("gelu", x)
    found = apply("gelu", x).astype(np.float64)
    assert (np.abs(found - wanted) <= 2.0**-15 * np.abs(wanted)).all()


# --- the reciprocal by steps
STEPPED = {  # where the divisor goes from 2^100 beyond 2^128, and what the results are times 1 / it
    "sigmoid": (np.linspace(-91, -69, 1 << 15, dtype=np.float32), 1.0),
    "silu": (np.linspace(-91, -69, 1 << 15, dtype=np.float32), 91.0),
    "gelu_tanh": (np.linspace(-10.5, -9.2, 1 << 15, dtype=np.float32), 10.5),
}


@pytest.mark.parametrize("name", STEPPED)
def test_reciprocals_of_the_largest_divisors_fall_to_zero(name, instructions):
    """A guess out of the bits of a divisor beyond 2^126.9 would be a NaN, or of the wrong sign."""
    x, factor = STEPPED[name]
    found, wanted = apply(name, x, note=instructions), reference(name, x)
    assert errors_beyond(fast_error(name, None), found, wanted) == 0
    assert (np.abs(found) <= factor * 2.0**-98).all() and not found[:64].any()
    assert (np.signbit(found) == (factor > 1)).all()


@pytest.mark.parametrize("step", [19937, pytest.param(4001, marks=SAMPLE)])
@pytest.mark.parametrize("name", STEPPED)
def test_the_recorded_error_holds_with_reciprocals_by_the_special_unit(name, step, instructions):
    x = np.concatenate([every(step), STEPPED[name][0]])
    found, wanted = apply(name, x, special=True, note=instructions), reference(name, x)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert errors_beyond(fast_error(name, None), found, wanted) == 0
    numbers = np.array([np.nan, np.inf, -np.inf, 88.0, 0.0], np.float32)
    by_steps, by_unit = (apply(name, numbers, special=s, note=instructions) for s in (False, True))
    assert np.allclose(by_steps, by_unit, rtol=2.0**-19, atol=0, equal_nan=True)


def test_functions_with_a_reciprocal_by_steps_have_one_special_instruction():
    for name in FAST:
        entry = PRIMITIVES.get(name) or COMPOSITES[name]
        assert ("stepped_reciprocal" in entry.fast_helpers) == (name in STEPPED)
    for name in STEPPED:
        assert compiled(name).count(".approx") == 1, name
        assert compiled(name, special=True).count(".approx") == 2, name


# --- the text
def test_fast_forms_are_short():
    for name in FAST:
        ptx = compiled(name)
        assert ("bra" in ptx.split("{", 1)[1]) == (name in BRANCHES), name
        assert ptx.count("fma.rn") + ptx.count(".approx") <= (11 if name in BRANCHES else 9), name
        assert "local" not in ptx, name


def test_constants():
    assert expression("div", ["x", "3.0f"], True, 3) == ("x * 0.33333334f", ())
    assert expression("div", ["x", "3.0f"], False, 3)[0] == "x / 3.0f"
    for constant in (0.0, 1e-45, 3e38, math.inf):
        text, helpers = expression("div", ["x", "c"], True, constant)
        assert (text, helpers) == ("approximate_quotient(x, c)", ("approximate_quotient",))
    assert expression("pow", ["x", "y"], True, 0.5)[0] == "approximate_sqrt(x)"
    assert expression("pow", ["x", "y"], True, -1.0)[0] == "approximate_quotient(1.0f, x)"
    assert expression("pow", ["x", "y"], False, -1.0)[0] == "1.0f / x"
    assert expression("pow", ["x", "y"], True, 2.0)[0] == "x * x"
    assert expression("pow", ["x", "y"], False, 4.0)[0] == "(x * x) * (x * x)"
    assert expression("pow", ["x", "y"], True, 7.0)[0] == "(x * x * x) * (x * x * x) * x"
    assert expression("pow", ["x", "y"], True, -3.0)[0] == "copysignf(fast_power(fabsf(x), y), x)"
    assert expression("pow", ["x", "y"], True, 10.0)[0] == "fast_power(fabsf(x), y)"
    assert expression("pow", ["x", "y"], True, 2.5)[0] == "fast_power(x, y)"
    assert expression("pow", ["x", "y"], True, -0.5)[0] == "inverse_root(x)"
    for constant, fast in (
        (2.5, False),
        (5.0, False),
        (65.0, True),
        (0.0, True),
        (math.nan, True),
        (None, True),
    ):
        assert expression("pow", ["x", "y"], fast, constant) == ("powf(x, y)", ())
    assert fast_error("pow", 0.5) == PRIMITIVES["sqrt"].fast_error
    assert fast_error("pow", 2.5) == (2.0**-126, 2.0**-14)
    assert fast_error("pow", 65.5) == fast_error("pow", 3) == (0.0, 0.0)
    assert fast_error("cast", None) == fast_error("pow", None) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "constant"),
    [("div", 3.0), *(("pow", exponent) for exponent in (0.5, -1.0, 2.5, -3.0, 64.0, -0.01))],
)
def test_errors_with_a_constant(name, constant, instructions):
    x = every(99991)
    found = apply(name, x, constants=(constant,), note=instructions)
    wanted = reference(name, x, np.float32(constant))
    assert errors_beyond(fast_error(name, constant), found, wanted) == 0


def test_wide_outputs_take_the_accurate_forms():
    for out_dtype, fast in (("f32", False), ("bf16", True)):
        kernel = case(
            "f", "nt", "bf16", "bias_gelu", schedule=small(), options={"out_dtype": out_dtype}
        ).kernel()
        assert ("float fast_gelu(" in kernel.source) == fast
        assert ("float gelu(" in kernel.source) != fast


def _both(x, w):
    """A narrow output of its own function, a wide one, and what both are made of."""
    total = pg.silu(x @ w)
    return pg.gelu(total).astype("bf16"), pg.tanh(total).astype("f32")


def test_each_statement_takes_the_form_of_what_it_is_made_for():
    kernel = pg.fuse(_both).compile("bf16[M,K]", "bf16[K,N]", arch="sm_80")
    source = kernel.source
    assert "float fast_gelu(" in source and "tanhf(" in source
    assert "fast_tanh(" not in source and "sum * sigmoid(sum)" in source
    generator = np.random.default_rng(0)
    x, w = (
        generator.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for shape in ((40, 64), (64, 48))
    )
    sizes = {"M": 40, "N": 48, "K": 64}
    bounds = accuracy.expected(kernel.program, {"x": x, "w": w}, sizes, 16)
    for bound, found in zip(bounds, kernel.emulate(x, w), strict=True):
        error, ratio, wrong = bound.compare(found)
        assert wrong == 0 and 0 < ratio < 1 and error > 0
    alone = pg.fuse(lambda x, w: _both(x, w)[1]).compile("bf16[M,K]", "bf16[K,N]", arch="sm_80")
    (bound,) = accuracy.expected(alone.program, {"x": x, "w": w}, sizes, 16)
    np.testing.assert_array_equal(bound.allowed, bounds[1].allowed)


def test_beside_its_log_sum_attention_divides_fast():
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    given = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    source = pg.fuse(function).compile(*given, arch="sm_90a").source
    assert "= approximate_quotient(sum" in source and "= logf(" in source


# --- the bound of `polygen run`
def test_the_bound_of_run_counts_fast_functions_and_what_magnifies_them():
    kernels = {
        out: case("f", "nt", "f16", "bias_gelu", schedule=small(), options={"out_dtype": out})
        for out in ("f16", "f32")
    }
    generator = np.random.default_rng(0)
    sizes = {"M": 40, "N": 48, "K": 64}
    arrays = {
        name: generator.standard_normal([sizes[d] for d in dims]).astype(np.float16) * scale
        for name, dims, scale in (("x", "MK", 1), ("w", "NK", 0.125), ("b", "N", 1))
    }
    arrays = {name: array.astype(np.float16) for name, array in arrays.items()}
    bounds = {}
    for out, entry in kernels.items():
        kernel = entry.kernel()
        (bounds[out],) = accuracy.expected(kernel.program, arrays, sizes, 16)
        found = kernel.emulate(*arrays.values())
        error, ratio, wrong = bounds[out].compare(found)
        assert wrong == 0 and 0 < ratio < 1 and error > 0
    absolute, relative = fast_error("gelu", None)
    value = np.abs(bounds["f16"].value)
    rounding = (2.0**-10 * value + 2.0**-24) - (2.0**-23 * value + 2.0**-126)
    difference = bounds["f16"].allowed - bounds["f32"].allowed - rounding
    np.testing.assert_allclose(difference, absolute + relative * value, rtol=1e-3, atol=1e-12)
