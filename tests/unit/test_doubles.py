"""Products of f64 by tensor cores, and everything behind them in double precision."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.emit.doubles import FORMS, double_literal, in_double
from polygen.emit.primitives import PRIMITIVES
from polygen.errors import DTypeError, ScheduleError, UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import device

SIZES = {"M": 32, "N": 32, "K": 64}  # of small tiles
PLAIN = ("f64[M,K]", "f64[N,K]")


def product(*signature, arch="sm_90a", function=lambda x, w: x @ w.T, **options):
    return pg.fuse(function, name="wide").compile(
        *(signature or PLAIN), arch=arch, sizes=SIZES, **options
    )


def wide_numbers(rng, shape):
    """Whole numbers of 24 bits: products of two have 48, which no f32 holds."""
    return rng.integers(-(1 << 24), 1 << 24, shape).astype(np.float64)


@pytest.mark.parametrize(
    ("arch", "atom", "function", "second"),
    [
        pytest.param("sm_80", "m8n8k4", lambda x, w: x @ w.T, "f64[N,K]", marks=pytest.mark.slow),
        ("sm_90a", "m16n8k8", lambda x, w: x @ w, "f64[K,N]"),
        pytest.param("sm_90", "m16n8k8", lambda x, w: x @ w.T, "f64[N,K]", marks=pytest.mark.slow),
        pytest.param("sm_120", "m16n8k8", lambda x, w: x @ w.T, "f64[N,K]", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_sums_keep_what_no_float_holds(arch, atom, function, second):
    kernel = product("f64[M,K]", second, arch=arch, function=function)
    assert f"{atom}.row.col.f64.f64.f64.f64" in kernel.source
    rng = np.random.default_rng(1)
    x, w = wide_numbers(rng, (37, 18)), wide_numbers(rng, (40, 18))
    done = kernel.emulation(x, w if second == "f64[N,K]" else np.ascontiguousarray(w.T))
    assert done.report.ok, str(done.report)
    wanted = x.astype(np.int64) @ w.T.astype(np.int64)
    assert done.results.dtype == np.float64 and (wanted % (1 << 20) != 0).any()
    np.testing.assert_array_equal(done.results, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m16n8k4_f64_f64", "m16n8k16_f64_f64", "m8n8k4_f64_f64"])
@pytest.mark.parametrize("layout", [("f64[K,M]", "f64[K,N]"), ("f64[M,K]", "f64[N,K]")])
def test_every_instruction_and_layout(name, layout):
    turned = layout[0] == "f64[K,M]"
    function = (lambda x, w: x.T @ w) if turned else (lambda x, w: x @ w.T)
    auto = product(*layout, function=function).schedule
    pipeline = replace(auto.pipeline, fragments=1, lookahead=0)
    chosen = replace(auto, atom=name, pipeline=pipeline)
    kernel = product(*layout, function=function, schedule=chosen)
    assert f"{name.split('_')[0]}.row.col.f64" in kernel.source
    report = kernel.check({"M": 70, "N": 72, "K": 44})
    assert report.ok and "bit for bit" in report.comparison, str(report)


def test_functions_behind_are_computed_in_double():
    """Constants keep every bit, and tanh is CUDA's of two words: f32 would be off by 2^-24."""
    kernel = product(
        "f64[M,K]", "f64[N,K]", "f64[N]", "f32[M,N]",
        function=lambda x, w, b, r: pg.where(x @ w.T > b, (x @ w.T) * 0.1 + b, pg.tanh(r * 1e-3)),
        arch="sm_90",
    )  # fmt: skip
    assert "* 0.1;" in kernel.source and "tanh(" in kernel.source
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((9, 12)), rng.standard_normal((16, 12))
    b, r = rng.standard_normal(16), rng.standard_normal((9, 16)).astype(np.float32)
    done = kernel.emulation(x, w, b, r)
    assert done.report.ok, str(done.report)
    arrays = dict(zip("xwbr", (x, w, b, r), strict=True))
    sizes = {"M": 9, "N": 16, "K": 12}
    (wanted,) = evaluate(kernel.program, arrays, sizes)
    assert np.abs(done.results - wanted).max() < 2.0**-46
    (bound,) = expected(kernel.program, arrays, sizes, 8)
    assert bound.compare(done.results)[2] == 0 and (bound.allowed < 2.0**-40).all()
    single = wanted.astype(np.float32).astype(np.float64)
    assert bound.compare(single)[2] > 100, "what f32 rounds is found"


def test_elements_apart_are_copied_by_threads():
    fused = pg.fuse(lambda x, w: x[:, ::2] @ w.T, name="wide")
    kernel = fused.compile("f64[M,22]", "f64[N,11]", arch="sm_80", sizes={"M": 32, "N": 32})
    report = kernel.check({"M": 17, "N": 23})
    assert report.ok and "bit for bit" in report.comparison, str(report)


def test_results_may_be_stored_as_floats():
    kernel = product(function=lambda x, w: (x @ w.T, (x @ w.T).astype("f32") * 0.5), arch="sm_80")
    assert [str(t.dtype) for t in kernel.program.outputs] == ["f64", "f64"]
    kernel = product(out_dtype="f32", arch="sm_80")
    report = kernel.check({"M": 17, "N": 24, "K": 12})
    assert report.ok and str(kernel.program.outputs[0].dtype) == "f32", str(report)


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_every_primitive_has_a_form_in_double(name):
    arguments = ["a", "b", "c", "d", "e"]
    text, _ = in_double(name, arguments, None)
    assert "{" not in text and (name not in FORMS or "f(" not in text.replace("erf(", ""))


def test_constants_keep_every_bit():
    assert double_literal(0.1) == "0.1" and float(double_literal(1 / 3)) == 1 / 3
    assert double_literal(-2.5) == "(-2.5)" and double_literal(1e300) == "1e+300"
    assert "7ff8" in double_literal(float("nan")) and "fff" in double_literal(-float("inf"))
    assert "1e+300" in product(function=lambda x, w: x @ w.T * 1e300).source


def test_the_model_knows_what_tensor_cores_do_in_double():
    assert (
        cost_parameters(device("sm_90a")).double_rate
        > cost_parameters(device("sm_120")).double_rate
    )


# --- refused by name ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "signature", "error", "words"),
    [
        (lambda x, w, b: x @ w.T + b, ("bf16[M,K]", "bf16[N,K]", "f64[N]"), DTypeError,
         "f64 beside S0, whose sums are f32"),
        (lambda x, w, b: x @ w.T + b, (*PLAIN, "bf16[N]"), DTypeError,
         "b: bf16.N.* beside products of f64.*Use f64 or f32"),
        (lambda x, w: (x @ w.T).astype("s8") * 2.0, PLAIN, DTypeError, "rounded to s8"),
    ],
)  # fmt: skip
def test_what_no_kernel_does_in_double(function, signature, error, words):
    with pytest.raises(error, match=words):
        product(*signature, function=function)


def test_targets_without_the_instruction_say_what_they_have():
    with pytest.raises(UnsupportedProgram, match=r"sm_75 has no warp instruction for f64.*Use f16"):
        product(arch="sm_75")


def test_scratch_areas_hold_words():
    auto = product().schedule
    staged = replace(auto, epilogue=replace(auto.epilogue, through="smem"))
    with pytest.raises(ScheduleError, match=r"through = 'smem' with sums of f64.*registers"):
        product(schedule=staged)
