"""Folds that get products of zeros of their own, and that the program is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from alone_samples import ALONE, centred, correlation, standardised
from sequence_samples import operands

import polygen as pg
from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.dtypes import F16, F32, F64
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Access, Constant, Extent
from polygen.rewrite.check_alone import check_alone
from polygen.rewrite.folds_alone import with_products
from polygen.small_problem import trial_operands


def traced(function, *signature):
    return pg.fuse(function, name="f").program(*signature)


def texts(program):
    return [str(one) for one in program.statements]


ROWS = ("bf16[M,K]", "bf16[K,N]")
WAYS = ({}, {"apart": True}, {"every": True}, {"every": True, "apart": True})


def test_a_mean_of_columns_is_folded_behind_a_product_of_zeros():
    found = with_products(traced(lambda x, w: centred(x) @ w, *ROWS))
    assert texts(found) == [
        "w0[i,k] = cast(0.0)",
        "w1[k,j] = cast(0.0)",
        "w2[i,j] += w0[i,k] * w1[k,j]",
        "w3[i,j] = add(x[i,j], w2[i,j])",
        "v0[j] = sum over i of w3[i,j]",
        "v1[j] = div(v0[j], size(M))",  # of a column, and not of every element
        "v2[i,j] = sub(x[i,j], v1[j])",
        "v3[i,j] = cast(v2[i,j])",
        "v4[i,j] += v3[i,k] * w[k,j]",
        "y0[i,j] = cast(v4[i,j])",
    ]


def test_folds_over_the_same_axes_share_a_product():
    found = with_products(traced(lambda x, w: standardised(x) @ w, "f32[M,K]", "f32[K,N]"))
    assert len(found.contractions) == 2 and len(found.folds) == 2


def test_those_that_others_are_behind_may_have_another():
    program = traced(lambda x, w: pg.softmax(x, axis=0) @ w, *ROWS)
    assert len(with_products(program).contractions) == 2
    apart = with_products(program, apart=True)
    terms = [dict(one.domain)[one.summed[0]] for one in apart.contractions]
    assert sorted(map(str, terms)) == ["2", "3", "K"]


@pytest.mark.parametrize(
    ("kind", "zeros", "sums"),
    [("bf16", F16, F32), ("f32", F16, F32), ("tf32", F16, F32), ("f64", F64, F64)],
)
def test_zeros_are_of_the_program_s_types(kind, zeros, sums):
    found = with_products(traced(lambda x, w: centred(x) @ w, f"{kind}[M,K]", f"{kind}[K,N]"))
    first = found.contractions[0]
    made = {s.write.name: s.dtype for s in found.pointwise}
    assert (made[first.lhs.name], made[first.rhs.name], first.dtype) == (zeros, zeros, sums)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w,
        lambda x, w: pg.rms_norm(x) @ w,  # of its own rows
        lambda x, w: pg.softmax(x @ w),
        lambda x, w: (x @ w).sum(0),
        lambda x, w: ((h := x @ w) - h.mean(0)) / h.std(0),
        lambda x, w: x @ w * np.any(x > 0),  # of truth values
    ],
)
def test_other_folds_stay(function):
    program = traced(function, *ROWS)
    assert with_products(program) is with_products(program, apart=True) is None


def test_all_folds_of_arguments_where_some_are_not_enough():
    program = traced(correlation, "f32[M,K]")
    assert with_products(program) is None
    assert len(with_products(program, every=True).contractions) == 2
    assert len(with_products(program, every=True, apart=True).contractions) == 3


def test_a_deep_program_is_looked_at_once():
    def deep(x, w):
        v = x - x.mean(0)
        for _ in range(60):
            v = v * v + v
        return v @ w

    assert len(with_products(traced(deep, *ROWS)).contractions) == 2


@pytest.mark.parametrize("name", ALONE)
def test_the_program_is_the_same(name):
    sample = ALONE[name]
    program = traced(sample.function, *sample.signature)
    given = operands(sample)
    sizes = {**sample.sizes, **sample.run}
    arrays = {t.name: one for t, one in zip(program.operands, given, strict=True)}
    wanted = evaluate(program, arrays, sizes)
    made = [with_products(program, **way) for way in WAYS]
    assert any(made)
    for one in dict.fromkeys(one for one in made if one is not None):
        for found, value in zip(evaluate(one, arrays, sizes), wanted, strict=True):
            np.testing.assert_array_equal(found.astype(np.float64), value.astype(np.float64))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_infinities_stay_where_they_are(arch):
    x = np.ones((16, 16), np.float32)
    x[3, 5] = np.inf
    function = pg.fuse(lambda x, w: x @ w + x.sum(0), name="f")
    kernels = function.compile("f32[M,K]", "f32[K,K]", arch=arch, sizes={"M": 16, "K": 16})
    assert len(kernels.kernels) == 2
    first = kernels.emulate(x, np.zeros((16, 16), np.float32))[0]
    assert [*first[:5], *first[6:]] == [16.0] * 15 and first[5] == np.inf
    largest = pg.fuse(lambda x, w: np.max(x @ w, 1).sum(), name="f")
    kernels = largest.compile(*ROWS, arch=arch, sizes={"M": 16, "K": 16, "N": 16})
    assert kernels.emulate(x.astype("bfloat16"), np.ones((16, 16)).astype("bfloat16")) == np.inf


def test_several_that_others_are_behind():
    """Factors leave the second product of some parts as one of arguments alone: no chain."""

    def function(x, w):
        x = x / np.sqrt(x.var(0) + 0.1)
        w = w / np.sqrt((w * w).sum(0) + 0.5)
        w = w / np.sqrt((w * w).mean() + 0.5)
        y = pg.gelu(x @ w)
        return y.mean(1).mean(), y

    fused = pg.fuse(function, name="f")
    sizes = {"M": 16, "K": 24, "N": 20}
    kernels = fused.compile("f32[M,K]", "f32[K,N]", arch="sm_80", sizes=sizes)
    generator = np.random.default_rng(0)
    x, w = (generator.normal(size=size).astype("f4") for size in ((16, 24), (24, 20)))
    for found, wanted in zip(kernels.emulate(x, w), fused.reference(x, w), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("function", "beside", "single"),
    [
        (lambda x, w, t: np.max(x @ w, 1) * t, "f32[M]", True),
        (lambda x, w, t: pg.logsumexp(x @ w, axis=1) - t, "f32[M]", True),
        (lambda x, w, t: pg.where(np.any(x @ w > 5, 1), t, np.max(x @ w, 1)), "f32[M]", True),
        (lambda x, w, t: 0.9 * t + 0.1 * (x @ w).mean(0), "f32[16]", False),
        (lambda x, w, t: np.max(x @ w, 1) + t[::2], "f32[60]", False),
        (lambda x, w, t: np.max(x @ w, 1) + (x * x).sum(1) * t, "f32[M]", False),
        (lambda x, w, t: (x @ w).sum() + (w * w).sum() - t[3], "f32[16]", False),
        (
            lambda x, w, t: pg.logsumexp(x @ w, axis=1).mean() + (x @ w).std() - t[0],
            "f32[1]",
            False,
        ),
        (lambda x, w, t: (t - 0.1 * x.sum(0), (x @ w).astype("f32")), "f32[24]", False),
    ],
)
def test_results_of_folds_beside_arguments(function, beside, single, arch):
    fused = pg.fuse(function, name="f")
    kernels = fused.compile("f32[M,24]", "f32[24,16]", beside, arch=arch, sizes={"M": 30})
    assert (len(kernels.kernels) == 1) == single
    generator = np.random.default_rng(0)
    shape = (30,) if "M" in beside else (int(beside[4:-1]),)
    given = [generator.normal(size=size).astype("f4") for size in ((30, 24), (24, 16), shape)]
    found, wanted = kernels.emulate(*given), fused.reference(*given)
    several = isinstance(wanted, tuple)
    pairs = zip(found, wanted, strict=True) if several else [(found, wanted)]
    for one, value in pairs:
        np.testing.assert_allclose(one, value, atol=1e-5)


@pytest.mark.parametrize("order", [1, -1, np.inf, -np.inf])
def test_norms_of_matrices_are_folds_of_sums(order):
    fused = pg.fuse(lambda x, w: np.linalg.norm(x @ w, order), name="f")
    sizes = {"M": 30, "K": 24, "N": 16}
    kernels = fused.compile(*ROWS, arch="sm_80", sizes=sizes)
    x, w = (one.astype(np.float32) for one in operands_of(fused, sizes))
    found = kernels.emulate(x.astype("bfloat16"), w.astype("bfloat16"))
    assert found == np.linalg.norm(x @ w, order)


def operands_of(fused, sizes):
    return trial_operands(fused.program(*ROWS), sizes, 0)


def _changed(made, name, **fields):
    statements = tuple(
        replace(one, **fields) if one.write.name == name else one for one in made.statements
    )
    return replace(made, statements=statements)


STANDARD = traced(lambda x, w: standardised(x) @ w, *ROWS)
MADE = with_products(STANDARD)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: _changed(MADE, "w0", args=(Constant(1.0),)),
        lambda: _changed(MADE, "w2", rhs=Access("w", ("k", "j"))),
        lambda: _changed(MADE, "w3", function="sub"),
        lambda: _changed(MADE, "w3", args=(Access("x", ("j", "i")), Access("w2", ("i", "j")))),
        lambda: _changed(MADE, "w3", domain=(("i", "K"), ("j", "K"))),
        lambda: _changed(MADE, "w2", domain=(("i", "K"), ("j", "K"), ("k", 2))),
        lambda: _changed(MADE, "v0", function="max"),
        lambda: _changed(MADE, "v0", args=(Access("w3", ("j", "i")),)),
        lambda: _changed(MADE, "v1", args=(Access("v0", ("j",)), Extent(("K",)))),
        lambda: _changed(MADE, "v2", args=(Access("x", ("i", "j")), Access("v1", ("i",)))),
        lambda: _changed(MADE, "v2", write=Access("v2", ("j",)), domain=(("j", "K"),)),
        lambda: replace(MADE, statements=MADE.statements[:-1]),
        lambda: replace(MADE, outputs=()),
    ],
)
def test_another_program_is_refused(changed):
    check_alone(STANDARD, MADE)
    with pytest.raises(VerifyError, match="with products of zeros"):
        check_alone(STANDARD, changed())


def test_one_kernel_runs_no_such_program():
    fused = pg.fuse(lambda x, w: centred(x) @ w, name="f")
    for more in ({"single": True}, {"invariant": ("N",)}):
        with pytest.raises(UnsupportedProgram, match="of another row"):
            fused.compile(*ROWS, arch="sm_80", sizes={"M": 64, "N": 64, "K": 64}, **more)


SHARES = (
    lambda x, w: pg.softmax(x, axis=0) @ w,
    lambda x, w: (np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0)).astype(w.dtype) @ w,
    lambda x, w: (x * np.exp(x - np.max(x, axis=0)).sum(0)).astype(w.dtype) @ w,
)


@pytest.mark.parametrize("function", SHARES)
def test_sums_of_exponentials_are_of_the_pass_that_finds_the_largest(function):
    program = traced(function, *ROWS)
    found = with_products(program)
    folds = {one.function: one for one in found.folds}
    (term, one), whole = folds["exponentials"].args, folds.get("max")
    assert one == Constant(1.0) and len(found.contractions) == 2
    assert set(folds) <= {"exponentials", "max"} and (whole is None or whole.args == (term,))
    x, w = (np.random.default_rng(3).normal(size=shape) * 30 for shape in ((40, 6), (6, 5)))
    np.testing.assert_allclose(
        evaluate(found, {"x": x, "w": w})[0], evaluate(program, {"x": x, "w": w})[0], rtol=1e-6
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x / np.exp(x - x.max(1, keepdims=True)).sum(0)).astype(w.dtype) @ w,
        lambda x, w: (x / np.exp(x - x.min(0)).sum(0)).astype(w.dtype) @ w,
        lambda x, w: (x / np.exp(2 * x - x.max(0)).sum(0)).astype(w.dtype) @ w,
        lambda x, w: (x / (x - x.max(0)).sum(0)).astype(w.dtype) @ w,
        lambda x, w: (x / np.exp(x.max(0) - x).sum(0)).astype(w.dtype) @ w,
    ],
)
def test_other_sums_stay(function):
    found = with_products(traced(function, *ROWS))
    assert "exponentials" not in {one.function for one in found.folds}
