"""Folds behind products of f64: terms, parts, results and what comes of them in double."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.comparison import compare
from polygen.emit.fold_terms import function
from polygen.errors import VerifyError
from polygen.frontend.dtypes import F32, F64
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Tensor
from polygen.frontend.rounding import as_computed
from polygen.lower.folds import SHARED
from polygen.lower.verify_folds import check_folds

PLAIN = ("f64[M,K]", "f64[N,K]")
NARROW, WIDE, LONG = (
    32,
    64,
    1024,
)  # rows of a warp, of several, of no block


def kernel_of(function, *more, columns=NARROW, arch="sm_90a", **options):
    sizes = {"M": 32, "N": columns, "K": 64}
    fused = pg.fuse(function, name="wide")
    return fused.compile(*PLAIN, *more, arch=arch, sizes=sizes, **options)


def run(kernel, *arrays):
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    return done.results if isinstance(done.results, tuple) else (done.results,)


def wide_numbers(rows, columns, bits=24):
    """Whole numbers: products of two have more bits than a float, and sums of those more again."""
    rng = np.random.default_rng(3)
    shapes = ((rows, 18), (columns, 18))
    return [rng.integers(-(1 << bits), 1 << bits, one).astype(np.float64) for one in shapes]


EXACT = {
    "rows": (lambda x, w: (x @ w.T).sum(axis=1), lambda y: y.sum(axis=1)),
    "columns": (lambda x, w: (x @ w.T).min(axis=0), lambda y: y.min(axis=0)),
    "everything": (lambda x, w: (x @ w.T).sum(), lambda y: y.sum()),
    "an index": (lambda x, w: np.argmin(x @ w.T, axis=1), lambda y: y.argmin(axis=1)),
    "of columns": (lambda x, w: np.argmax(x @ w.T, axis=0), lambda y: y.argmax(axis=0)),
    "truths": (
        lambda x, w: ((x @ w.T > 1.0).any(axis=1), (x @ w.T > -(2.0**48)).all(axis=0)),
        lambda y: ((y > 1).any(axis=1), (y > -(2**48)).all(axis=0)),
    ),
    "beside the matrix": (
        lambda x, w: (x @ w.T, (x @ w.T).max(axis=1), (x @ w.T).sum(axis=0) * 2.0),
        lambda y: (y, y.max(axis=1), y.sum(axis=0) * 2),
    ),
    "in their row": (
        lambda x, w: (x @ w.T) - (x @ w.T).max(axis=1, keepdims=True),
        lambda y: y - y.max(axis=1, keepdims=True),
    ),
}  # fmt: skip


QUICK = ("rows", "beside the matrix", "truths")
SLOW = [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in EXACT]


@pytest.mark.parametrize("name", SLOW)
def test_whole_numbers_that_no_float_holds_are_exact(name):
    function, meaning = EXACT[name]
    kernel = kernel_of(function)
    x, w = wide_numbers(37, 29)
    found = run(kernel, x, w)
    wanted = meaning(x.astype(np.int64) @ w.T.astype(np.int64))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for array, one in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(array, one)
    assert "not proved" not in kernel.source


def test_a_check_compares_bits():
    report = kernel_of(lambda x, w: np.argmin(x @ w.T, axis=1)).check()
    assert report.ok and "bit for bit" in report.comparison, str(report)


ROWS = [
    (lambda v: pg.softmax(v, axis=-1), NARROW, "sm_90a"),
    (lambda v: pg.softmax(v, axis=-1), WIDE, "sm_90a"),
    (lambda v: pg.softmax(v, axis=-1), LONG, "sm_80"),
    (lambda v: pg.softmax(v, axis=0), NARROW, "sm_80"),
    (lambda v: pg.rms_norm(v), LONG, "sm_120"),
    (pg.layer_norm, WIDE, "sm_80"),
    (lambda v: pg.logsumexp(v, axis=1), NARROW, "sm_90a"),
    (lambda v: (v * v).mean(), NARROW, "sm_90a"),
    (lambda v: (1 + v * 1e-3).prod(axis=1), NARROW, "sm_80"),
]


@pytest.mark.parametrize(
    ("behind", "columns", "arch"),
    [
        pytest.param(*one, marks=() if n in (1, 2, 6) else pytest.mark.slow)
        for n, one in enumerate(ROWS)
    ],
)
def test_what_rounds_is_as_near_as_doubles_are(behind, columns, arch):
    kernel = kernel_of(lambda x, w: behind(x @ w.T), columns=columns, arch=arch)
    rows, wide = 21, min(columns, 77) - 1
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((rows, 10)), rng.standard_normal((wide, 10))
    (found,) = run(kernel, x, w)
    arrays, sizes = {"x": x, "w": w}, {"M": rows, "N": wide, "K": 10}
    (wanted,) = evaluate(kernel.program, arrays, sizes)
    assert found.dtype == np.float64
    assert np.abs(found - wanted).max() < 2.0**-45 * max(1.0, np.abs(wanted).max())
    (bound,) = expected(kernel.program, arrays, sizes, 8)
    assert bound.compare(found)[2] == 0 and (bound.allowed < 2.0**-35).all()
    # What floats would have made of the same sums is found.
    single = np.asarray(wanted.astype(np.float32), np.float64)
    assert bound.compare(single)[2] > 0


def test_indices_are_whole_numbers_whatever_the_columns():
    """`2^24 + 1` is no float: an index of a term that lies there is."""
    kernel = kernel_of(lambda x, w: np.argmax(x @ w.T, axis=1), columns=LONG)
    assert "(double)(b_n" in kernel.source and "(float)(b_n" not in kernel.source
    (term,) = (s for s in kernel.passes.plan.epilogue.statements if s.result.endswith("_1"))
    assert term.dtype == F64


def test_parts_lie_in_the_workspace_as_doubles():
    kernel = kernel_of(lambda x, w: (x @ w.T).sum(axis=1))
    narrow = pg.fuse(lambda x, w: (x @ w.T).sum(axis=1)).compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", sizes={"M": 32, "N": 32, "K": 64}
    )
    for one, real in ((kernel, F64), (narrow, F32)):
        after = one.passes.plan.following
        assert after.real == real and after.alignment == real.bytes
        (parts,) = after.parts
        sizes = {"M": 100, "N": 100, "K": 16}
        assert one.workspace(sizes) == real.bytes * parts.elements(sizes)
    assert "double* parts" in kernel.source
    assert "parts of folds, f64" in kernel.header and "parts of folds, f32" in narrow.header


@pytest.mark.parametrize("kind", ["f64", "bf16"])
def test_the_header_counts_what_is_kept_of_rows_as_python_does(kind):
    """Parts, and rows of the kernel's values that the launch that follows goes through."""
    kernel = pg.fuse(lambda x, w: pg.softmax(x @ w.T)).compile(
        f"{kind}[M,K]", f"{kind}[N,K]", arch="sm_80", sizes={"M": 32, "N": 4096, "K": 64}
    )
    assert kernel.passes.plan.following.kept
    line = next(one for one in kernel.header.splitlines() if "(unsigned long long)(" in one)
    text = line.partition("(unsigned long long)")[2].rstrip(";")
    for sizes in ({"M": 32, "N": 4096, "K": 64}, {"M": 7, "N": 331, "K": 8}):
        assert eval(text.replace("LL", "").replace("/", "//"), {}, sizes) == kernel.workspace(sizes)


def test_agents_that_share_rows_have_room_for_doubles():
    plan = kernel_of(lambda x, w: pg.softmax(x @ w.T), columns=WIDE).passes.plan
    given = [one for one in plan.buffers if one.name.startswith(SHARED)]
    assert plan.tiles.warps[1] > 1 and given
    half = tuple(
        replace(one, slot_bytes=one.slot_bytes // 2) if one in given else one
        for one in plan.buffers
    )
    with pytest.raises(VerifyError, match="numbers in"):
        check_folds(replace(plan, buffers=half))


def test_terms_at_once_are_of_the_type_that_is_computed():
    for name in ("argmax", "logsumexp"):
        lines, _ = function(name, ["double& a0", "double& a1"], "double")
        assert not [line for line in lines if "float" in line or ".0f" in line]


# --- what a comparison may say --------------------------------------------------------------------
def test_values_in_fewer_digits_show_what_cancels():
    """A sum of large terms that cancel is off by their rounding, in f64 as in f32."""
    assert as_computed(1.0 + 2.0**-52, F64) == 1.0 and as_computed(2.0**-300, F64) == 2.0**-300
    assert np.isnan(as_computed(np.nan, F64)) and as_computed(-np.inf, F64) == -np.inf
    kernel = kernel_of(lambda x, w: (pg.tanh(x @ w.T) * 1e9).sum(axis=1))
    report = kernel.check({"M": 9, "N": 30, "K": 12})
    assert report.ok and "within" in report.comparison, str(report)


def test_errors_of_the_size_of_floats_are_found():
    tensor = Tensor("y", F64, ("M",))
    wanted = np.array([1.0, 1e6])
    assert compare(tensor, wanted * (1 + 2.0**-50), wanted, False, wanted)[0] is None
    finding, _ = compare(tensor, wanted * (1 + 2.0**-30), wanted, False, wanted)
    assert finding is not None and finding.code == "wrong-value"
