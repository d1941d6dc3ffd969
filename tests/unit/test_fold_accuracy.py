"""How far folds of floats may be from float64: a bound that a kernel stays within."""

from __future__ import annotations

import numpy as np
from matrix import roles, small

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.comparison import folds_off
from polygen.schedule.model import Epilogue


@pg.fuse
def statistics(x, w):
    v = x @ w.T
    return (
        np.sum(v, axis=1), np.mean(v * v, axis=0), pg.logsumexp(v, axis=1), np.max(v, axis=0),
        np.argmax(v, axis=1), v,
    )  # fmt: skip


def bounds(kernel, given, sizes):
    arrays = dict(zip("xw", given, strict=True))
    return expected(kernel.program, arrays, sizes, kernel.passes.plan.atom.k)


def test_folds_of_floats_are_within_their_bound():
    sizes = {"M": 40, "N": 56, "K": 64}
    for arch, schedule in (("sm_80", small(epilogue=Epilogue(through="registers"))),
                           ("sm_90a", roles("one"))):  # fmt: skip
        kernel = statistics.compile("bf16[M,K]", "bf16[N,K]", arch=arch, schedule=schedule)
        kind, generator = kernel.program.inputs[0].dtype.numpy, np.random.default_rng(6)
        given = [generator.standard_normal((sizes[d], 64)).astype(kind) for d in "MN"]
        for one, found in zip(bounds(kernel, given, sizes), kernel.emulate(*given), strict=True):
            _, ratio, above = one.compare(found)
            assert not above and ratio < 1


def test_variances_are_within_their_bound_and_one_that_loses_a_term_is_not():
    spread = pg.fuse(lambda x, w: (np.var(x @ w.T + 3, axis=1), np.std(x @ w.T, axis=0)))
    sizes, generator = {"M": 40, "N": 56, "K": 64}, np.random.default_rng(6)
    kernel = spread.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=small(epilogue=Epilogue("registers"))
    )
    kind = kernel.program.inputs[0].dtype.numpy
    given = [generator.standard_normal((sizes[d], 64)).astype(kind) for d in "MN"]
    rows, columns = bounds(kernel, given, sizes)
    found = kernel.emulate(*given)
    for one, got in zip((rows, columns), found, strict=True):
        assert one.compare(got)[2] == 0 and one.compare(got)[1] < 1
    v = given[0].astype(np.float64) @ given[1].T.astype(np.float64)
    assert rows.compare(np.var(v[:, :-1], axis=1).astype("f4"))[2] > 0
    assert columns.compare(np.std(v, axis=0, ddof=1).astype("f4"))[2] > 0


def test_truth_values_that_are_stored_as_numbers_have_bounds():
    """Where no term is near to what it is compared with, a kernel's answer is the one."""
    some = pg.fuse(lambda x, w: np.any(x @ w.T > 5.5, axis=1).astype("f32"), name="some")
    x, w = np.random.default_rng(8).integers(-1, 2, (2, 40, 16))
    program, sizes = some.program("bf16[M,K]", "bf16[N,K]"), {"M": 40, "N": 40, "K": 16}
    (one,) = expected(program, {"x": x, "w": w}, sizes, 16)
    wanted = (x @ w.T > 5.5).any(axis=1)
    assert 0 < wanted.sum() < 40 and one.compare(wanted.astype("f4"))[2] == 0
    assert one.compare(1 - wanted.astype("f4"))[2] == 40


def test_a_term_that_is_lost_is_above_the_bound():
    sizes = {"M": 40, "N": 56, "K": 64}
    kernel = statistics.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=small(epilogue=Epilogue("registers"))
    )
    generator = np.random.default_rng(6)
    given = [generator.standard_normal((sizes[d], 64)) for d in "MN"]
    total, squares, logarithm, largest, index, _ = bounds(kernel, given, sizes)
    v = given[0] @ given[1].T
    for one, without in (
        (total, v[:, :-1].sum(1)),
        (squares, (v * v)[:-1].mean(0)),
        (logarithm, np.log(np.exp(np.sort(v, axis=1)[:, :-1]).sum(1))),
    ):
        assert one.compare(one.value)[2] == 0 and one.compare(without)[2] > 10
    assert np.isinf(index.allowed).all() and np.isfinite(largest.allowed).all()


def test_what_left_a_product_is_judged_as_it_is_multiplied():
    """Elements rounded before a row's factor, a variance of two sums: all inside of the bound."""
    normed = pg.fuse(lambda x, w, g, b: pg.layer_norm(x, g, b).astype("f16") @ w.T, name="normed")
    kernel = normed.compile("f16[M,K]", "f16[N,K]", "f16[K]", "f16[K]", arch="sm_80")
    generator = np.random.default_rng(5)
    shapes = {"x": (20, 40), "w": (24, 40), "g": (40,), "b": (40,)}
    arrays = {n: generator.standard_normal(s).astype("f2") for n, s in shapes.items()}
    (value,) = expected(kernel.program, arrays, {"M": 20, "N": 24, "K": 40}, 16)
    found = kernel.emulate(*arrays.values())
    _, ratio, above = value.compare(found)
    assert not above and ratio < 1
    assert value.compare(found * np.float16(1.01))[2] > 100


def test_checks_allow_what_terms_of_sums_are_off():
    """A sum of terms that cancel is off by what its terms are, not by a share of itself."""
    function = pg.fuse(lambda x, w, v: (pg.silu(x @ w.T) * v).sum(-1))
    kernel = function.compile("bf16[M,64]", "bf16[64,64]", "bf16[64]", arch="sm_80")
    assert kernel.check().ok
    assert list(folds_off(kernel.program).values()) == [2.0**-21]
    exact = pg.fuse(lambda x, w: (pg.relu(x @ w.T).sum(-1), pg.silu(x @ w.T).max(-1)))
    assert folds_off(exact.program("bf16[M,64]", "bf16[64,64]")) == {}
