"""Folds of what operands hold, beside their product: on the PTX machine, without any finding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import pipeline, roles, small, tiled

import polygen as pg
from polygen.schedule.model import Epilogue

X_W = ("bf16[M,K]", "bf16[N,K]")


@pg.fuse
def distances(x, w):
    """Sums of both sides, each of its own ring."""
    return np.sum(x * x, axis=-1)[:, None] + np.sum(w * w, axis=-1) - 2 * (x @ w.T)


@pg.fuse
def gram(x):
    """One sum, of the rows and of the columns."""
    squares = np.sum(x * x, axis=1)
    return squares[:, None] + squares - 2 * (x @ x.T)


@pg.fuse
def bounds(x, w, g):
    """Terms that are not 0 behind the end of k, of arrays beside the ring."""
    least = np.min(abs(w) + 2, axis=1)
    return x @ w.T + np.max(x * g - 3, axis=1, keepdims=True) * 2 + least


@pg.fuse
def stacks(x, w):
    """Of batches, and of an operand whose rows are not innermost."""
    return x @ w - np.sum(x, axis=-1, keepdims=True) * np.max(w, axis=-2, keepdims=True)


@pg.fuse
def nearest(x, w):
    """What is folded of an operand is in terms that are folded."""
    return np.argmin(np.sum(w * w, axis=1) - 2 * (x @ w.T), axis=1)


@pg.fuse
def of_computed(x, w, g):
    """Of a computed operand's own value, and of what it is computed from."""
    v = (x * g).astype("bf16")
    return v @ w.T + np.sum(v * v, axis=1, keepdims=True) - np.max(x, axis=1, keepdims=True)


@pg.fuse
def cosine(x, w):
    """Computed of results of a row alone: once for the row."""
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1)
    return (x @ w.T) / (length * np.sqrt(np.sum(w * w, axis=-1) + 1))


FUNCTIONS = {
    "distances": (distances, X_W),
    "gram": (gram, X_W[:1]),
    "bounds": (bounds, (*X_W, "bf16[K]")),
    "stacks": (stacks, ("bf16[B,M,K]", "bf16[B,K,N]")),
    "nearest": (nearest, X_W),
    "of_computed": (of_computed, (*X_W, "bf16[K]")),
    "cosine": (cosine, X_W),
}
PAIRS = Epilogue(through="registers")
SCHEDULES = {
    "small": ("sm_80", small(epilogue=PAIRS)),
    "staged": ("sm_80", small()),
    "wide": ("sm_80", tiled((32, 64, 32), (32, 32), epilogue=PAIRS)),
    "one": ("sm_90a", roles("one", through="registers")),
    "panels": ("sm_90a", roles("pingpong")),
    "lines": ("sm_90a", roles("two", through="lines")),
}
FAST = {("distances", "small"), ("distances", "panels"), ("bounds", "staged")}
OTHERS = [
    ("gram", "small"), ("stacks", "wide"), ("nearest", "one"), ("of_computed", "small"),
    ("cosine", "lines"), ("bounds", "lines"), ("stacks", "panels"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "schedule"),
    [*sorted(FAST), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)],
)
def test_folds_beside_the_product(name, schedule):
    function, signature = FUNCTIONS[name]
    arch, given = SCHEDULES[schedule]
    if name == "nearest":
        given = replace(given, epilogue=PAIRS)
    kernel = function.compile(*signature, arch=arch, schedule=given)
    report = kernel.check({"B": 2} if name == "stacks" else {})
    assert report.ok, str(report)
    assert "every element of the agent's rows enters the fold once" in str(report)
    if name != "cosine":
        assert report.comparison == "equal to NumPy, bit for bit"
    assert len(kernel.sums.folds) == len(kernel.program.folds) and kernel.deterministic


@pytest.mark.parametrize("stages", [2, 3])
def test_a_scratch_area_that_is_larger_than_the_rings(stages):
    """Sums of warps on their way out lie over the rings, and beyond them: beside what is folded."""
    given = tiled((64, 64, 32), (32, 32), pipeline=pipeline(stages, 1))
    correction = pg.fuse(lambda x, w: x @ w.T - 3 * np.sum(x, axis=1)[:, None] - np.sum(w, axis=1))
    kernel = correction.compile("s8[M,K]", "s8[N,K]", arch="sm_80", schedule=given)
    by_name = {one.name: one for one in kernel.passes.plan.buffers}
    assert by_name["scratch"].end > by_name["ring_b"].end
    assert by_name["norms_a"].offset >= by_name["scratch"].end
    report = kernel.check()
    assert report.ok and report.comparison == "equal to NumPy, bit for bit", str(report)


@pytest.mark.parametrize(
    ("arch", "schedule"),
    [
        ("sm_80", tiled((32, 32, 32), (16, 32), epilogue=Epilogue("registers", rows="tile"))),
        pytest.param("sm_90a", roles("one", rows="tile"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("last", [pg.softmax, pg.layer_norm])
def test_folds_of_operands_before_passes_over_a_row(arch, schedule, last):
    """Terms of a row's folds use what is folded of operands, and what comes behind does not."""

    def scaled(x, w):
        sides = np.sum(x * x, axis=1)[:, None] + np.sum(w * w, axis=1)
        return last(2 * (x @ w.T) - sides)

    kernel = pg.fuse(scaled).compile(*X_W, arch=arch, schedule=schedule)
    report = kernel.check({"M": 40, "N": 24, "K": 72})
    assert report.ok, str(report)


@pg.fuse
def rms(x, w, g):
    return pg.rms_norm(x, g) @ w.T


@pg.fuse
def layer(x, w, g, b):
    return pg.layer_norm(x, g, b).astype("bf16") @ w.T


@pg.fuse
def by_hand(x, w):
    return (x * np.reciprocal(np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5))) @ w.T


@pg.fuse
def cosines(x, w):
    """Both operands are normed: two factors leave the sum."""
    left, right = (v / np.sqrt(np.sum(v * v, axis=-1, keepdims=True) + 1) for v in (x, w))
    return left @ right.T


@pg.fuse
def written_out(x, w, g, b):
    """A layer norm as it is written: the variance is a square of what a mean is in."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return (centred * pg.rsqrt(variance + 1e-5) * g + b).astype("bf16") @ w.T


@pytest.mark.parametrize(
    ("function", "schedule"),
    [
        (by_hand, "panels"),
        pytest.param(written_out, "small", marks=pytest.mark.slow),
        pytest.param(rms, "small", marks=pytest.mark.slow),
        pytest.param(rms, "one", marks=pytest.mark.slow),
        pytest.param(layer, "small", marks=pytest.mark.slow),
    ],
)
def test_norms_leave_the_product(function, schedule):
    """Near the norm in double precision, with elements rounded where they are multiplied."""
    arch, given = SCHEDULES[schedule]
    if function is rms and schedule == "one":  # threads of the producer compute the operand
        given = replace(given, roles=replace(given.roles, producer_registers=96))
    count = function.function.__code__.co_argcount
    signature = ("bf16[M,K]", "bf16[N,K]", "bf16[K]", "bf16[K]")[:count]
    kernel = function.compile(*signature, arch=arch, schedule=given, out_dtype="f32")
    assert kernel.check().ok
    generator = np.random.default_rng(3)
    m, n, k = 40, 48, 72
    shapes = ((m, k), (n, k), (k,), (k,))[:count]
    bf16 = kernel.program.inputs[0].dtype.numpy
    arrays = [generator.standard_normal(shape).astype(bf16) for shape in shapes]
    x, w, *rest = (array.astype(np.float64) for array in arrays)
    centred = x - x.mean(1, keepdims=True) if function in (layer, written_out) else x
    root = np.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)
    gained = centred / root * (rest[0] if rest else 1)
    wanted = (gained + (rest[1] if count == 4 else 0)) @ w.T
    # Half a unit of bf16 of every element that is rounded, and f32 sums of k terms.
    inner = abs(x) / root * (abs(rest[0]) if rest else 1)
    allowed = (2.0**-8 * bool(rest) + 2.0**-15) * (inner + 1) @ abs(w).T
    found = kernel.emulate(*arrays)
    assert (abs(found - wanted) <= allowed).all()


@pytest.mark.parametrize(
    ("schedule", "arch"),
    [("small", "sm_80"), pytest.param("panels", "sm_90a", marks=pytest.mark.slow)],
)
def test_operands_that_are_both_normed(schedule, arch):
    """Products of arguments are exact in f32's sums of few terms: what is left is two factors."""
    arch, given = SCHEDULES[schedule]
    kernel = cosines.compile(*X_W, arch=arch, schedule=given, out_dtype="f32")
    assert kernel.check().ok and len(kernel.program.folds) == 2
    generator = np.random.default_rng(4)
    bf16 = kernel.program.inputs[0].dtype.numpy
    x, w = (generator.integers(-4, 5, (rows, 72)).astype(bf16) for rows in (40, 48))
    exact = cosines.reference(x, w)
    found = kernel.emulate(x, w)
    assert (abs(found - exact) <= 2.0**-20 * (1 + abs(exact))).all()
