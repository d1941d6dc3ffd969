"""Folds of what operands hold, as outputs beside their product: on the PTX machine, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from matrix import roles, small, tiled

import polygen as pg
from polygen.kernel import Kernel
from polygen.schedule.model import Epilogue, Raster

X_W = ("bf16[M,K]", "bf16[N,K]")
X_DY = ("bf16[B,M]", "bf16[B,N]")


@pg.fuse
def gradients(x, dy):
    """Of a weight and of a bias."""
    return x.T @ dy, dy.sum(0)


@pg.fuse
def statistics(x, dy):
    """Several of one side, one of the other; a mean of 72 terms is no number of bf16."""
    squares = np.sum(dy * dy, axis=0)
    return x.T @ dy, np.sum(dy, axis=0), squares * 2 - 1, np.max(x, axis=0, keepdims=True)


@pg.fuse
def rows(x, w):
    return x @ w.T, np.sum(x * x, axis=1)


@pg.fuse
def largest(x, w, b):
    return np.max(np.abs(x), axis=1), x @ w.T + b


@pg.fuse
def both(x, w):
    """Of both sides, in other types."""
    return x @ w.T, np.sum(x, axis=1).astype("bf16"), (np.min(w, axis=1) * 2).astype("s32")


@pg.fuse
def used(x, w):
    """Beside elements that use the same fold, and another that only leaves."""
    squares = np.sum(x * x, axis=1)
    return squares[:, None] - 2 * (x @ w.T), squares, np.max(w, axis=1)


@pg.fuse
def matrices(x, w):
    """Of batches: one operand counts them, the other is the same in all."""
    return x @ w, np.sum(w, axis=-2), np.sum(x, axis=-1)


@pg.fuse
def exchanged(x, w):
    """Batches and rows of the result in another order."""
    return x @ w, np.max(x, axis=-1).T


@pg.fuse
def of_computed(x, w, g):
    """Of a computed operand's own value, and of what it is computed from."""
    v = (x * g).astype("bf16")
    return v @ w.T, np.sum(v * v, axis=1), np.max(x, axis=1)


@pg.fuse
def gram(x):
    """Rows of one array on both sides."""
    return x @ x.T, np.sum(x * x, axis=1)


@pg.fuse
def folded(x, w):
    """Beside folds of results, which leave by the launch that follows."""
    v = np.clip(x @ w.T, -3, 3)
    return np.sum(v, axis=1), np.sum(x, axis=1), np.sum(w, axis=1)


@pg.fuse
def scaled(x, w, s):
    """With a number that is passed, and one that is made of it."""
    return x @ w.T, 2 * s * np.sum(x, axis=1) + s


@pg.fuse
def truths(x, w):
    """Of comparisons, and one of a result."""
    return x @ w.T, np.any(x > 1, axis=1), np.sum(w, axis=1) > 0


@pg.fuse
def vector(x, w):
    """Of a vector: one number."""
    return x @ w.T, np.sum(x * x)


@pg.fuse
def several(x, w, u, v):
    """Two products in one: each has the rows that it sums."""
    return x @ w.T + u @ v.T, np.sum(x, axis=1), np.max(u, axis=1)


FUNCTIONS = {
    "gradients": (gradients, X_DY),
    "statistics": (statistics, X_DY),
    "rows": (rows, X_W),
    "largest": (largest, (*X_W, "bf16[N]")),
    "both": (both, X_W),
    "used": (used, X_W),
    "one of many": (matrices, ("bf16[M,K]", "bf16[B,K,N]")),
    "the same weight": (matrices, ("bf16[B,M,K]", "bf16[K,N]")),
    "exchanged": (exchanged, ("bf16[B,M,K]", "bf16[B,K,N]")),
    "of_computed": (of_computed, (*X_W, "bf16[K]")),
    "gram": (gram, X_W[:1]),
    "folded": (folded, X_W),
    "scaled": (scaled, (*X_W, "f32[]")),
    "truths": (truths, X_W),
    "vector": (vector, ("bf16[K]", "bf16[N,K]")),
    "several": (several, ("bf16[M,K]", "bf16[N,K]", "bf16[M,L]", "bf16[N,L]")),
    "bytes": (rows, ("s8[M,K]", "s8[N,K]")),
    "floats": (rows, ("f32[M,K]", "f32[N,K]")),
}
PAIRS = Epilogue(through="registers")
SCHEDULES = {
    "small": ("sm_80", small(epilogue=PAIRS)),
    "staged": ("sm_80", small()),
    "wide": ("sm_80", tiled((32, 64, 32), (32, 16), epilogue=PAIRS)),
    "grouped": ("sm_80", small(epilogue=PAIRS, raster=Raster("n", 2))),
    "one": ("sm_90a", roles("one", through="registers")),
    "panels": ("sm_90a", roles("pingpong")),
    "lines": ("sm_90a", roles("two", through="lines")),
    "auto": ("sm_90a", "auto"),
}
FAST = {("gradients", "small"), ("used", "panels"), ("statistics", "wide"), ("rows", "lines")}
OTHERS = [
    ("gradients", "auto"), ("gradients", "grouped"), ("statistics", "auto"), ("rows", "one"),
    ("largest", "staged"), ("largest", "panels"), ("both", "grouped"), ("both", "lines"),
    ("used", "staged"), ("one of many", "wide"), ("one of many", "lines"),
    ("the same weight", "small"), ("the same weight", "auto"), ("exchanged", "wide"),
    ("of_computed", "small"), ("of_computed", "auto"), ("gram", "small"), ("gram", "panels"),
    ("folded", "wide"), ("folded", "one"), ("scaled", "small"), ("scaled", "lines"),
    ("vector", "small"), ("vector", "auto"), ("several", "small"), ("several", "one"),
    ("truths", "small"), ("truths", "lines"), ("bytes", "wide"), ("bytes", "lines"),
    ("floats", "auto"),
]  # fmt: skip
SIZES = {"M": 72, "N": 200, "K": 80, "B": 3}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [*sorted(FAST), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)],
)
def test_results_that_leave_beside_the_product(name, schedule):
    function, signature = FUNCTIONS[name]
    arch, given = SCHEDULES[schedule]
    kernel = function.compile(*signature, arch=arch, schedule=given)
    sizes = {dim: SIZES.get(dim, 40) for dim in kernel.program.sizes}
    report = kernel.check(sizes | ({"B": 72} if signature == X_DY else {}))
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"
    assert "every result of rows is stored by one tile, the first that has it" in str(report)
    assert len(kernel.sums.folds) == len(kernel.program.folds) and kernel.deterministic


def test_means_are_those_of_their_terms():
    """Batch statistics, of 64 rows: the mean is exact, of which the test of others says nothing."""

    def moments(x, dy):
        return x.T @ dy, np.mean(dy, axis=0), np.mean(dy * dy, axis=0, keepdims=True)

    kernel = pg.fuse(moments).compile("bf16[64,M]", "bf16[64,N]", arch="sm_80", schedule=small())
    report = kernel.check({"M": 40, "N": 72})
    assert report.ok and report.comparison == "within 0 of NumPy", str(report)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 512, 256), (3, 40, 1001), (130, 7, 33), (65, 129, 257)]
)
def test_few_rows_and_odd_sizes_find_a_schedule(m, n, k):
    for arch in ("sm_80", "sm_90a"):
        kernel = rows.compile(*X_W, arch=arch, sizes={"M": m, "N": n, "K": k})
        assert kernel.schedule.cluster.k == 1 and not kernel.schedule.by_lanes
        report = kernel.check({"M": m, "N": min(n, 80), "K": min(k, 100)})
        assert report.ok, str(report)
        if m < 65:
            break


def test_every_tile_folds_and_one_stores():
    """What blocks of other columns, and warps of other columns, have is not stored."""
    kernel = rows.compile("f16[M,K]", "f16[N,K]", arch="sm_80", schedule=small())
    assert "if (b_n == 0) {" in kernel.source and "if ((warp % 2) == 0) {" in kernel.source
    data = np.random.default_rng(7)
    x, w = (data.integers(-3, 4, (size, 48)).astype("f2") for size in (70, 130))
    y, squares = kernel.emulate(x, w)
    assert np.array_equal(squares, (x * x).sum(1, "f4")) and squares.dtype == np.float32
    assert np.array_equal(y, x @ w.T)


def test_kernels_are_saved_with_what_leaves(tmp_path):
    kernel = statistics.compile(*X_DY, arch="sm_80", schedule=small())
    kernel.save(tmp_path)
    found = Kernel.load(tmp_path / "pg_statistics.cu")
    assert found.program.outputs == kernel.program.outputs and found.sums == kernel.sums
    report = found.check({"B": 40, "M": 33, "N": 70})
    assert report.ok and report.comparison == "equal to NumPy, bit for bit", str(report)
    assert "address of y2: f32[N]" in kernel.passes.source.header
    assert "leave_b" in kernel.show("ast") and "leave_b" in kernel.show("tree")


def test_names_of_arrays_are_none_of_the_kernels():
    def named(leave_a, norms_b, own_row):
        return leave_a @ norms_b.T, np.sum(leave_a * own_row, axis=1), np.max(norms_b, axis=1)

    types = (*X_W, "bf16[K]")
    kernel = pg.fuse(named).compile(*types, arch="sm_80", schedule=small(epilogue=PAIRS))
    report = kernel.check({"M": 40, "N": 40, "K": 40})
    assert report.ok, str(report)


def test_folds_of_doubles_leave_as_doubles():
    """Sums that f32 cannot hold: a bias's gradient, and a norm's squares of the other operand."""

    def function(x, dy):
        return x.T @ dy, dy.sum(0), np.sum(x * x, axis=0), np.count_nonzero(dy, axis=0)

    kernel = pg.fuse(function, name="doubles").compile("f64[B,M]", "f64[B,N]", arch="sm_80")
    random = np.random.default_rng(3)
    x, dy = (random.integers(-9, 10, (40, n)) * 1.0 for n in (72, 56))
    dy[0], dy[1] = 2.0**30 + 1, -(2.0**30)
    wanted = (x.T @ dy, dy.sum(0), (x * x).sum(0), np.count_nonzero(dy, axis=0))
    for found, exact in zip(kernel.emulate(x, dy), wanted, strict=True):
        np.testing.assert_array_equal(found, exact)
