"""Sums that become products with ones, and that the program is the same."""

from __future__ import annotations

import numpy as np
import pytest
from sequence_samples import operands
from summed_samples import SUMMED, centred, correlation, standardised

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F32, F64
from polygen.frontend.evaluate import evaluate
from polygen.rewrite.sums_with_ones import with_ones


def traced(function, *signature):
    return pg.fuse(function, name="f").program(*signature)


def texts(program):
    return [str(one) for one in program.statements]


ROWS = ("bf16[M,K]", "bf16[K,N]")


def test_a_mean_of_columns_is_a_product_with_ones():
    found = with_ones(traced(lambda x, w: centred(x) @ w, *ROWS))
    assert texts(found) == [
        "w0[i] = cast(1.0)",
        "v0[j] += w0[i] * x[i,j]",
        "v1[j] = div(v0[j], size(M))",  # of a column, and not of every element
        "v2[i,j] = sub(x[i,j], v1[j])",
        "v3[i,j] = cast(v2[i,j])",
        "v4[i,j] += v3[i,k] * w[k,j]",
        "y0[i,j] = cast(v4[i,j])",
    ]


def test_deviations_are_of_the_mean_that_is_there():
    found = with_ones(traced(lambda x, w: standardised(x) @ w, "f32[M,K]", "f32[K,N]"))
    assert len(found.contractions) == 3
    assert sum("div(v0[j], size(M))" in text for text in texts(found)) == 1
    assert sum(" = mul(" in text for text in texts(found)) == 1
    assert not found.folds


@pytest.mark.parametrize(
    ("kind", "one", "sums"),
    [("bf16", "bf16", F32), ("f16", "f16", F32), ("f32", "f32", F32), ("tf32", "f32", F32),
     ("f64", "f64", F64)],
)  # fmt: skip
def test_what_is_summed_keeps_its_digits(kind, one, sums):
    found = with_ones(traced(lambda x, w: centred(x) @ w, f"{kind}[M,K]", f"{kind}[K,N]"))
    first = found.contractions[0]
    made = {s.write.name: s.dtype for s in found.pointwise}
    assert (str(made[first.lhs.name]), first.dtype) == (one, sums)
    assert first.exact == (one == "f32")
    assert first.rhs.name == "x" or str(made[first.rhs.name]) == one


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w,
        lambda x, w: pg.rms_norm(x) @ w,  # of its own rows
        lambda x, w: pg.softmax(x @ w),
        lambda x, w: (x @ w).sum(0),
        lambda x, w: ((h := x @ w) - h.mean(0)) / h.std(0),
        lambda x, w: (x / np.abs(x).max(0)) @ w,  # no sum
    ],
)
def test_other_folds_stay(function):
    assert with_ones(traced(function, *ROWS)) is None


def test_all_sums_of_arguments_where_some_are_not_enough():
    program = traced(correlation, "f32[M,K]")
    some, every = with_ones(program), with_ones(program, every=True)
    assert some is None or len(some.contractions) < len(every.contractions) == 3


def test_a_deep_program_is_looked_at_once():
    def deep(x, w):
        v = x - x.mean(0)
        for _ in range(60):
            v = v * v + v
        return v @ w

    assert len(with_ones(traced(deep, *ROWS)).contractions) == 2


@pytest.mark.parametrize("name", SUMMED)
def test_the_program_is_the_same(name):
    sample = SUMMED[name]
    program = traced(sample.function, *sample.signature)
    given = operands(sample)
    sizes = {**sample.sizes, **sample.run}
    arrays = {t.name: one for t, one in zip(program.operands, given, strict=True)}
    wanted = evaluate(program, arrays, sizes)
    for every in (False, True):
        made = with_ones(program, every=every)
        if made is None:
            continue
        for found, value in zip(evaluate(made, arrays, sizes), wanted, strict=True):
            far = 2.0**-6 * np.abs(value.astype(np.float64)).max()
            np.testing.assert_allclose(
                found.astype(np.float64), value.astype(np.float64), rtol=0, atol=far
            )


def test_one_kernel_runs_no_such_program():
    fused = pg.fuse(lambda x, w: centred(x) @ w, name="f")
    for more in ({"single": True}, {"invariant": ("N",)}):
        with pytest.raises(UnsupportedProgram, match="of another row"):
            fused.compile(*ROWS, arch="sm_80", sizes={"M": 64, "N": 64, "K": 64}, **more)


def test_maxima_of_columns_are_refused_as_before():
    fused = pg.fuse(lambda x, w: (x / np.abs(x).max(0)) @ w, name="f")
    with pytest.raises(UnsupportedProgram, match="of another row"):
        fused.compile(*ROWS, arch="sm_80", sizes={"M": 64, "N": 64, "K": 64})
