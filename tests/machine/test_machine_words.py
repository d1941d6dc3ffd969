"""Statistics, norms and chosen elements on the PTX machine, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles, small

import polygen as pg
from polygen.emit import following as launched
from polygen.errors import VerifyError
from polygen.frontend.monoids import MONOIDS
from polygen.lower.result_work import Epilogue as Work
from polygen.lower.verify_folds import check_folds
from polygen.schedule.model import Epilogue

SHAPE = ("bf16[M,K]", "bf16[N,K]", "f32[M,N]")
# What a fold of f32 numbers, their root and a quotient may be off by.
CLOSE = {"rtol": 2.0**-20, "atol": 2.0**-20}


def kernel(function, *signature, **options):
    options = {"arch": "sm_80", "schedule": small(epilogue=Epilogue(through="registers"))} | options
    return pg.fuse(function, name="words").compile(*signature, **options)


def whole(seed, *shapes, low=-3, high=4):
    generator = np.random.default_rng(seed)
    return [generator.integers(low, high, shape).astype(np.float32) for shape in shapes]


def compared(made, function, arrays, exact):
    """Results are NumPy's: `exact` ones to the bit."""
    kinds = [tensor.dtype.numpy for tensor in made.program.inputs]
    found = made.emulate(*(a.astype(kind) for a, kind in zip(arrays, kinds, strict=True)))
    found = found if isinstance(found, tuple) else (found,)
    wanted = function(*(a.astype(np.int64 if k.kind == "i" else np.float64)
                        for a, k in zip(arrays, kinds, strict=True)))  # fmt: skip
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(found) == len(wanted)
    for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.shape == np.shape(other), at
        if at in exact:
            np.testing.assert_array_equal(one.astype(np.float64), other, err_msg=str(at))
        else:
            np.testing.assert_allclose(one.astype(np.float64), other, err_msg=str(at), **CLOSE)


def measures(axis):
    def of(x, w, r):
        v = x @ w.T + r
        return (
            np.ptp(v, axis), np.count_nonzero(v, axis), np.linalg.vector_norm(v, axis=axis, ord=1),
            np.linalg.vector_norm(v, axis=axis, ord=np.inf), np.var(v, axis), v.std(axis, ddof=1),
            np.linalg.norm(v, axis=axis),
        )  # fmt: skip

    return of


@pytest.mark.parametrize("axis", [1, 0, None])
def test_measures_are_numpy_s(axis):
    function = measures(axis)
    arrays = whole(3, (40, 16), (24, 16), (40, 24))
    compared(kernel(function, *SHAPE), function, arrays, {0, 1, 2, 3})


@pytest.mark.parametrize("axis", [1, 0])
def test_measures_by_roles_are_numpy_s(axis):
    function = measures(axis)
    made = kernel(function, *SHAPE, arch="sm_90a", schedule=roles("one", through="registers"))
    compared(made, function, whole(3, (40, 64), (24, 64), (40, 24)), {0, 1, 2, 3})
    assert made.check().ok


def test_measures_of_batches():
    def function(x, w):
        v = x @ w
        return np.var(v, axis=(0, 2), ddof=1), np.linalg.norm(v, axis=(1, 2))

    made = kernel(function, "bf16[B,M,K]", "bf16[B,K,N]")
    compared(made, function, whole(4, (2, 24, 16), (2, 16, 24)), ())


def test_averages_are_weighed():
    def function(x, w, r, of_n, of_m):
        v = x @ w.T
        mean, total = np.average(v, 0, of_m, returned=True)
        return np.average(v, axis=1, weights=of_n), mean, total, np.average(v, weights=r)

    made = kernel(function, *SHAPE, "f32[N]", "f32[M]")
    arrays = whole(5, (40, 16), (24, 16), (40, 24), (24,), (40,), low=1)
    compared(made, function, arrays, {2})


def test_chosen_elements_are_exact_whatever_stands_beside_them():
    def function(x, w, r, t):
        v = x @ w.T + r
        return (
            np.take_along_axis(v, t[:, None], axis=1), np.take_along_axis(v, t[None, :16], axis=0),
            np.diagonal(v), np.trace(v, 0),
        )  # fmt: skip

    x, w, r = whole(6, (40, 16), (16, 16), (40, 16))
    r[:, 3], r[5], r[2, 2] = np.inf, -np.inf, -0.0
    x[2] = 0
    t = np.resize([0, 2, -1, 15, -16, 1], 40)
    made = kernel(function, "bf16[40,K]", "bf16[16,K]", "f32[40,16]", "s32[40]")
    with np.errstate(invalid="ignore"):
        compared(made, function, [x, w, r, t], {0, 1, 2, 3})
    chosen, _, diagonal, _ = made.emulate(x.astype(made.program.inputs[0].dtype.numpy),
                                          w.astype(made.program.inputs[1].dtype.numpy),
                                          r, np.full(40, 16, np.int32))  # fmt: skip
    assert np.isnan(chosen).all()  # a number that names no column
    assert diagonal[2] == 0.0 and not np.isnan(diagonal[[0, 1, 2]]).any()


@pytest.mark.parametrize("axis", [1, 0, None])
def test_a_large_mean_costs_no_digits(axis):
    """As NumPy's two passes over the same f32 numbers, in float64: the square of the mean is 10^8
    times the variance.
    """

    def function(x, w, b):
        v = x @ w.T + b
        return np.var(v, axis=axis), v

    made = kernel(function, "f16[M,K]", "f16[N,K]", "f32[N]", out_dtype="f32")
    generator = np.random.default_rng(7)
    x, w = (generator.standard_normal((n, 16)).astype(np.float16) for n in (72, 40))
    found, v = made.emulate(x / 4, w, np.full(40, 1e4, np.float32))
    wanted = np.var(v.astype(np.float64), axis=axis)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-20)


def test_a_variance_of_infinities_is_none():
    made = kernel(lambda x, w, r: np.var(x @ w.T + r, axis=1), *SHAPE)
    x, w, r = whole(8, (40, 16), (24, 16), (40, 24))
    r[0, 3], r[1, 4], r[2, 20], r[3, 7], r[3, 8] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    r[4], x[4] = 3e37, 0
    found = made.emulate(*(a.astype(t.dtype.numpy) for a, t in
                           zip((x, w, r), made.program.inputs, strict=True)))  # fmt: skip
    assert np.isnan(found[:4]).all() and found[4] == 0.0 and not np.isnan(found[4:]).any()


def test_rows_use_their_own_deviation():
    """In tiles that hold whole rows, and behind a product of computed operands."""

    def normed(x, w):
        v = x @ w.T
        return (v - v.mean(-1, keepdims=True)) / (np.std(v, -1, keepdims=True) + 1)

    for rows in ("tile", "after"):
        made = kernel(
            normed, *SHAPE[:2], schedule=small(epilogue=Epilogue(through="registers", rows=rows))
        )
        compared(made, normed, whole(9, (40, 16), (24, 16)), ())


def test_operands_are_normed_by_their_deviation():
    def beside(x, w):
        return (x @ w.T) / np.std(x, axis=1, keepdims=True)

    def before(x, w):
        mean = np.mean(x, axis=1, keepdims=True)
        return ((x - mean) / np.sqrt(np.var(x, axis=1, keepdims=True) + 1.0)) @ w.T

    for function in (beside, before):
        made = kernel(function, *SHAPE[:2], out_dtype="f32", schedule="auto")
        compared(made, function, whole(10, (40, 64), (24, 64)), ())


def test_logarithms_of_softmax():
    made = kernel(lambda x, w: pg.log_softmax(x @ w.T), *SHAPE[:2])
    x, w = whole(11, (40, 16), (24, 16))
    v = x.astype(np.float64) @ w.T
    wanted = v - np.log(np.exp(v - v.max(1, keepdims=True)).sum(1, keepdims=True))
    wanted -= v.max(1, keepdims=True)
    found = made.emulate(*(a.astype(made.program.inputs[0].dtype.numpy) for a in (x, w)))
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2.0**-7, atol=2.0**-20)


# --- einsums of several operands, vectors behind products ----------------------------------------
@pytest.mark.parametrize(
    ("text", "signature", "shapes"),
    [
        ("bi,oij,bj->bo", ("bf16[B,16]", "bf16[O,16,8]", "bf16[B,8]"),
         ((40, 16), (24, 16, 8), (40, 8))),
        ("bi,i,oi->bo", ("bf16[B,K]", "bf16[K]", "bf16[O,K]"), ((40, 16), (16,), (24, 16))),
        ("bk,nk,n->bn", ("bf16[B,K]", "bf16[N,K]", "bf16[N]"), ((40, 16), (24, 16), (24,))),
        ("mk,nk,mn->m", ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]"), ((40, 16), (24, 16), (40, 24))),
    ],
)  # fmt: skip
def test_einsums_of_three_operands(text, signature, shapes):
    made = kernel(lambda x, w, y: pg.einsum(text, x, w, y), *signature,
                  schedule="auto", out_dtype="f32")  # fmt: skip
    arrays = whole(12, *shapes, low=-2, high=3)
    compared(made, lambda x, w, y: np.einsum(text, x, w, y), arrays, {0})


def test_a_vector_behind_a_product():
    def head(x, w, b):
        hidden = np.maximum(x @ w.T, 0)
        return hidden @ b

    for kind in ("bf16", "f32"):
        made = kernel(head, f"{kind}[M,K]", f"{kind}[N,K]", f"{kind}[N]",
                      schedule="auto", out_dtype="f32")  # fmt: skip
        compared(made, head, whole(13, (40, 16), (24, 16), (24,)), {0})


# --- mistakes ------------------------------------------------------------------------------------
MEET = MONOIDS["deviations"].combine


def _without_the_rest(*both):
    """The mean in one number, as large as it is: its rounding is lost."""
    mean, _, count, squares = MEET(*both)
    return mean, 0.0, count, squares


def _without_distances(*both):
    """Squares are added up, each about a mean of its own."""
    mean, more, count, _ = MEET(*both)
    return mean, more, count, both[3] + both[7]


def _halves(*both):
    """Means meet in the middle, however many terms each has."""
    mean, more, count, squares = MEET(*both)
    return (both[0] + both[4]) * 0.5, more * 0.0, count, squares + mean * 0.0


@pytest.mark.parametrize("wrong", [_without_the_rest, _without_distances, _halves])
def test_means_that_meet_the_wrong_way_are_found(monkeypatch, wrong):
    """In the kernel alone: what a large mean costs is more than the bound of the others' test."""
    changed = {**MONOIDS, "deviations": replace(MONOIDS["deviations"], combine=wrong)}
    monkeypatch.setattr(launched, "MONOIDS", changed)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_a_large_mean_costs_no_digits(1)


def test_counts_that_are_not_the_program_s_are_refused():
    """A term that counts twice: records of a plan are held to the statements."""
    made = kernel(lambda x, w: np.var(x @ w.T, axis=1), *SHAPE[:2])
    plan = made.passes.plan
    (fold,) = plan.epilogue.folds
    assert fold.terms[1:] == (0.0, 1.0, 0.0)
    twice = replace(fold, terms=(fold.terms[0], 0.0, 2.0, 0.0))

    def counted(work):
        if isinstance(work, Work):
            return replace(work, folds=(twice,))
        nested = hasattr(work, "epilogue")
        return replace(work, epilogue=counted(work.epilogue)) if nested else work

    changed = replace(plan, leaves=tuple(replace(one, work=counted(one.work))
                                         for one in plan.leaves))  # fmt: skip
    assert changed.epilogue.folds == (twice,) and check_folds(plan)
    with pytest.raises(VerifyError, match="folds are"):
        check_folds(changed)
