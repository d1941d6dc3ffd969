"""Operands of f64 that are computed, and folds of operands, beside products of f64."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.emit.proofs.threads import words_of
from polygen.emit.text_functions import FUNCTIONS
from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.dtypes import F64
from polygen.frontend.evaluate import evaluate
from polygen.lower.tallies import check_tallies
from polygen.lower.verify_computed import check_computed
from polygen.lower.work import Copy

PLAIN = ("f64[M,K]", "f64[N,K]")
SIZES = {"M": 32, "N": 32, "K": 64}
SLOW = pytest.mark.slow


def kernel_of(function, *signature, arch="sm_90a", **options):
    fused = pg.fuse(function, name="wide")
    known = {dim: size for dim, size in SIZES.items() if f"{dim}" in "".join(signature)}
    return fused.compile(*signature, arch=arch, sizes=known, **options)


def run(kernel, *arrays):
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    return done.results


def whole(*shape, bits=12):
    """Whole numbers: sums of products of three of them have more bits than a float."""
    numbers = np.random.default_rng(len(shape) + shape[0]).integers(-(1 << bits), 1 << bits, shape)
    return numbers.astype(np.float64)


X, W, ROWS, COLUMNS, ALONG = whole(37, 18), whole(41, 18), whole(37), whole(41), whole(18)
# Signature, function, arrays, and what whole numbers make of it.
COMPUTED = {
    "a vector along k": (
        (*PLAIN, "f64[K]"), lambda x, w, g: (x * g) @ w.T, (X, W, ALONG), (X * ALONG) @ W.T,
    ),
    "a vector of rows": (
        (*PLAIN, "f64[M]"), lambda x, w, m: (x - m[:, None]) @ w.T, (X, W, ROWS),
        (X - ROWS[:, None]) @ W.T,
    ),
    "the right operand": (
        (*PLAIN, "f64[N,K]"), lambda x, w, a: x @ (w * a).T, (X, W, W), X @ (W * W).T,
    ),
    "both operands": (
        (*PLAIN, "f64[K]", "f64[N]"), lambda x, w, g, h: (x * g) @ (pg.relu(w) * h[:, None]).T,
        (X, W, ALONG, COLUMNS), (X * ALONG) @ (np.maximum(W, 0) * COLUMNS[:, None]).T,
    ),
    "a matrix that lies the other way": (
        (*PLAIN, "f64[K,M]"), lambda x, w, a: (x * a.T) @ w.T,
        (X, W, np.ascontiguousarray(X.T)), (X * X) @ W.T,
    ),
    "operands that lie the other way": (
        ("f64[K,M]", "f64[K,N]", "f64[K]"), lambda x, w, g: (x * g[:, None]).T @ w,
        (np.ascontiguousarray(X.T), np.ascontiguousarray(W.T), ALONG), (X * ALONG) @ W.T,
    ),
    "a matrix of floats": (
        (*PLAIN, "f32[M,K]"), lambda x, w, a: (x * a) @ w.T, (X, W, X.astype(np.float32)),
        (X * X) @ W.T,
    ),
    "a number for four": (
        ("f64[M,16]", "f64[N,16]", "f64[M,4]"),
        lambda x, w, s: (x * pg.repeat(s, 4, axis=1)) @ w.T,
        (X[:, :16].copy(), W[:, :16].copy(), X[:, :4].copy()),
        (X[:, :16] * np.repeat(X[:, :4], 4, axis=1)) @ W[:, :16].T,
    ),
    "where an element is": (
        PLAIN, lambda x, w: pg.where(pg.indices(x)[1] <= pg.indices(x)[0], x, 0.0) @ w.T,
        (X, W), np.tril(X) @ W.T,
    ),
    "rows that begin anywhere": (
        ("f64[M,K]@8", "f64[N,K]@8", "f64[K]@8"), lambda x, w, g: (x * g) @ w.T,
        (X[:, :17].copy(), W[:, :17].copy(), ALONG[:17].copy()),
        (X[:, :17] * ALONG[:17]) @ W[:, :17].T,
    ),
    "matrices": (
        ("f64[B,M,K]", "f64[B,N,K]", "f64[K]"), lambda x, w, g: (x * g) @ w.mT,
        (np.stack([X, -X]), np.stack([W, W]), ALONG),
        np.stack([(X * ALONG) @ W.T, -(X * ALONG) @ W.T]),
    ),
    "a fold behind": (
        (*PLAIN, "f64[K]"), lambda x, w, m: ((x - m) @ w.T).max(axis=1), (X, W, ALONG),
        ((X - ALONG) @ W.T).max(axis=1),
    ),
}  # fmt: skip
QUICK = ("a vector along k", "both operands", "operands that lie the other way")


@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=SLOW)])
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in QUICK else SLOW) for one in COMPUTED]
)
def test_operands_are_computed_in_double(name, arch):
    signature, function, arrays, wanted = COMPUTED[name]
    kernel = kernel_of(function, *signature, arch=arch)
    np.testing.assert_array_equal(run(kernel, *arrays), wanted)
    assert (wanted != wanted.astype(np.float32)).any(), "which no float holds"


def test_functions_in_front_are_as_near_as_doubles_are():
    kernel = kernel_of(lambda x, w, g: pg.exp(x * g) @ pg.tanh(w).T, *PLAIN, "f64[K]")
    rng = np.random.default_rng(5)
    x, w, g = (rng.standard_normal(shape) for shape in ((20, 14), (23, 14), (14,)))
    found, arrays = run(kernel, x, w, g), {"x": x, "w": w, "g": g}
    sizes = {"M": 20, "N": 23, "K": 14}
    (wanted,) = evaluate(kernel.program, arrays, sizes)
    assert np.abs(found - wanted).max() < 2.0**-42
    (bound,) = expected(kernel.program, arrays, sizes, 8)
    assert bound.compare(found)[2] == 0 and (bound.allowed < 2.0**-36).all()
    assert bound.compare(wanted.astype(np.float32))[2] > 100, "what floats round is found"
    report = kernel.check()
    assert report.ok and "within" in report.comparison, str(report)


# --- folds of operands ----------------------------------------------------------------------------
def squares(x, w):
    return np.sum(x * x, axis=1)[:, None] + np.sum(w * w, axis=1) - 2 * (x @ w.T)


DISTANCES = (X * X).sum(axis=1)[:, None] + (W * W).sum(axis=1) - 2 * (X @ W.T)
OF_OPERANDS = {
    "distances": (PLAIN, squares, (X, W), DISTANCES),
    "the nearest": (
        PLAIN, lambda x, w: np.argmin(squares(x, w), axis=1), (X, W), DISTANCES.argmin(axis=1),
    ),
    "of columns": (
        ("f64[K,M]", "f64[K,N]"),
        lambda x, w: x.T @ w + np.max(w, axis=0) - np.min(x, axis=0)[:, None],
        (np.ascontiguousarray(X.T), np.ascontiguousarray(W.T)),
        X @ W.T + W.max(axis=1) - X.min(axis=1)[:, None],
    ),
    "of what is computed": (
        (*PLAIN, "f64[K]"),
        lambda x, w, g: (x * g) @ w.T - np.sum((x * g) ** 2, axis=1, keepdims=True),
        (X, W, ALONG), (X * ALONG) @ W.T - ((X * ALONG) ** 2).sum(axis=1, keepdims=True),
    ),
    "with a vector": (
        (*PLAIN, "f64[K]"),
        lambda x, w, g: x @ w.T + np.max(np.abs(x) * g, axis=1, keepdims=True), (X, W, ALONG),
        X @ W.T + (np.abs(X) * ALONG).max(axis=1, keepdims=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=SLOW)])
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "distances" else SLOW) for one in OF_OPERANDS]
)
def test_folds_of_operands_are_made_in_double(name, arch):
    signature, function, arrays, wanted = OF_OPERANDS[name]
    kernel = kernel_of(function, *signature, arch=arch)
    found = run(kernel, *arrays)
    np.testing.assert_array_equal(found, wanted)
    assert "write_double(norms_" in kernel.source and "not proved" not in kernel.source


FACTORS = [
    lambda x, w: np.exp(-0.05 * squares(x, w)),
    pytest.param(
        lambda x, w: (x @ w.T) / (
            np.sqrt(np.sum(x * x, axis=1, keepdims=True)) * np.sqrt(np.sum(w * w, axis=1))
        ),
        marks=SLOW,
    ),
    pytest.param(lambda x, w: pg.rms_norm(x) @ w.T, marks=SLOW),
]  # fmt: skip


@pytest.mark.parametrize("function", FACTORS)
def test_what_comes_of_folds_is_as_near_as_doubles_are(function):
    kernel = kernel_of(function, *PLAIN)
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((20, 14)), rng.standard_normal((23, 14))
    found, arrays, sizes = run(kernel, x, w), {"x": x, "w": w}, {"M": 20, "N": 23, "K": 14}
    (wanted,) = evaluate(kernel.program, arrays, sizes)
    assert np.abs(found - wanted).max() < 2.0**-46 * max(1.0, np.abs(wanted).max())
    (bound,) = expected(kernel.program, arrays, sizes, 8)
    assert bound.compare(found)[2] == 0 and (bound.allowed < 2.0**-38).all()
    assert bound.compare(wanted.astype(np.float32))[2] > 0, "what floats round is found"
    assert kernel.check().ok


# --- what is proved -------------------------------------------------------------------------------
def test_a_number_of_two_words_is_that_of_its_words():
    bits = (1 << 40) + 12345
    low, high = words_of([bits], F64.bytes)

    class Called:
        values = (high, low)

    class Other:
        values = (low, high)

    made = FUNCTIONS["__hiloint2double"]
    assert made(Called) == made(Called) and made(Called) != made(Other)


def test_results_of_rows_have_room_for_doubles():
    plan = kernel_of(squares, *PLAIN).passes.plan
    names = [one.name for one in plan.buffers if one.name.startswith("norms_")]
    assert len(names) == 2
    half = tuple(
        replace(one, slot_bytes=one.slot_bytes // 2) if one.name == names[0] else one
        for one in plan.buffers
    )
    with pytest.raises(VerifyError, match=r"results of .* rows in"):
        check_tallies(replace(plan, buffers=half))


def test_a_chunk_has_two_words_for_an_element():
    plan = kernel_of(lambda x, w, m: (x - m[:, None]) @ w.T, *PLAIN, "f64[M]").passes.plan
    copy = next(c for c in plan.of(Copy) if c.computed is not None)
    assert copy.computed is not None and copy.computed.elements == 2
    row = next(f for f in copy.computed.fetches if f.kind == "row")
    assert row.words == 2
    fetches = tuple(replace(f, words=1) if f is row else f for f in copy.computed.fetches)
    wrong = replace(copy, computed=replace(copy.computed, fetches=fetches))
    with pytest.raises(VerifyError, match="as row into 1 words"):
        check_computed(plan, wrong, lambda *_: None)


# --- refused by name ------------------------------------------------------------------------------
def test_products_of_products_are_refused():
    with pytest.raises(
        UnsupportedProgram, match=r"in which a product is.*Return that product from one"
    ):
        kernel_of(lambda x, w, v: (x @ w.T) @ v, *PLAIN, "f64[N,D]")


def test_one_kernel_makes_no_operand_with_a_softmax():
    fused = pg.fuse(lambda x, w: pg.softmax(x) @ w.T, name="f")
    with pytest.raises(UnsupportedProgram, match=r"exp.* is not moved behind a product"):
        fused.compile(*PLAIN, arch="sm_80", single=True)
    generator = np.random.default_rng(0)
    x, w = (generator.normal(size=(20, 24)) for _ in range(2))
    kernels = fused.compile("f64[M,K]", "f64[M,K]", arch="sm_80", sizes={"M": 20, "K": 24})
    np.testing.assert_allclose(kernels.emulate(x, w), fused.reference(x, w), atol=1e-14)


def test_named_rows_are_refused():
    with pytest.raises(UnsupportedProgram, match=r"rows in groups or by index.*take rows outside"):
        kernel_of(lambda x, w, rows: x[rows] @ w.T, *PLAIN, "s32[T]")
