"""Statistics, norms, selections and einsums that are refused, and what each refusal suggests."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.errors import DTypeError, PolygenError, ShapeError, TraceError, UnsupportedProgram

V = ("bf16[M,K]", "bf16[N,K]")


def compiled(function, *signature):
    return pg.fuse(function, name="f").compile(*signature, arch="sm_80", single=True).source


@pytest.mark.parametrize(
    ("kind", "wrong", "fragments", "right"),
    [
        (TraceError, lambda v: np.var(v, ddof=1, correction=1), ("both", "pass ddof="),
         lambda v: np.var(v, ddof=1)),
        (TraceError, lambda v: np.std(v, 1, ddof="1"), ("ddof='1'", "ddof=1"),
         lambda v: np.std(v, 1, ddof=1)),
        (TraceError, lambda v: np.var(v, 1, dtype="f4"), ("np.var with dtype=", "Leave it out"),
         lambda v: np.var(v, 1)),
        (TraceError, lambda v: np.std(v, 1, where=v > 0), ("np.std with where=",),
         lambda v: np.std(v, 1)),
        (ShapeError, lambda v: np.ptp(v, 2), ("ptp of x @ w.T", "no axis 2", "-2 to 1"),
         lambda v: np.ptp(v, -2)),
        (DTypeError, lambda v: np.ptp(v > 0, 1), ("which is bool", '.astype("f32")'),
         lambda v: np.ptp((v > 0).astype("f32"), 1)),
        (UnsupportedProgram, lambda v: np.linalg.norm(v, 2), ("singular value", "ord='fro'"),
         lambda v: np.linalg.norm(v, ord="fro")),
        (UnsupportedProgram, lambda v: np.linalg.matrix_norm(v, ord="nuc"), ("singular values",),
         lambda v: np.linalg.matrix_norm(v, ord="fro")),
        (TraceError, lambda v: np.linalg.norm(v, 3), ("no such norm of matrices",),
         lambda v: np.linalg.norm(v, "fro")),
        (TraceError, lambda v: np.linalg.norm(v, "fro", axis=1), ("order 'fro' of vectors",),
         lambda v: np.linalg.norm(v, -np.inf, axis=1)),
        (ShapeError, lambda v: np.trace(v, 0, 1, 1), ("axes 1 and 1", "from -2 to 1"),
         lambda v: np.trace(v, 0, -2, 1)),
        (TraceError, lambda v: np.trace(v, 0.5), ("the diagonal 0.5", "np.trace(v, 1)"),
         lambda v: np.trace(v, 1)),
        (TraceError, lambda v: v.trace(), ("`np.trace(v)`",), lambda v: np.trace(v)),
    ],
)  # fmt: skip
def test_words(kind, wrong, fragments, right):
    with pytest.raises(kind) as caught:
        pg.fuse(lambda x, w: wrong(x @ w.T), name="f").program(*V)
    assert all(part in str(caught.value) for part in fragments), str(caught.value)
    assert compiled(lambda x, w: right(x @ w.T), *V)


SQUARE = ("bf16[M,K]", "bf16[M,K]")


@pytest.mark.parametrize(
    ("kind", "wrong", "fragments", "right"),
    [
        (
            ShapeError, (lambda x, w: np.diagonal(x @ w.T), *V),
            ("[M, N]", "not known", "give both dims one name"),
            (lambda x, w: np.diagonal(x @ w.T), *SQUARE),
        ),
        (
            UnsupportedProgram, (lambda x, w: np.diagonal(x @ w.T, -1), *SQUARE),
            ("from -1 on", "`np.sum(np.where(j == i - 1, v, 0), axis=1)`", "pg.indices(v)"),
            (lambda x, w: _below(x @ w.T), *SQUARE),
        ),
        (
            ShapeError, (lambda x, w, t: np.take_along_axis(x @ w.T, t, 1), *V, "s32[M]"),
            ("by t [M]", "Write t[:, None]"),
            (lambda x, w, t: np.take_along_axis(x @ w.T, t[:, None], 1), *V, "s32[M]"),
        ),
        (
            ShapeError, (lambda x, w, t: np.take_along_axis(x @ w.T, t, 0), *V, "s32[N]"),
            ("by t [N]", "Write t[None, :]"),
            (lambda x, w, t: np.take_along_axis(x @ w.T, t[None, :], 0), *V, "s32[N]"),
        ),
        (
            DTypeError, (lambda x, w, t: np.take_along_axis(x @ w.T, t, 1), *V, "f32[M,1]"),
            ("which is f32", "Say s32"),
            (lambda x, w, t: np.take_along_axis(x @ w.T, t, 1), *V, "s32[M,1]"),
        ),
        (
            UnsupportedProgram, (lambda x, w, t: np.take_along_axis(x @ w.T, t, 1), *V, "s32[M,3]"),
            ("one element is chosen", "t[:, :1]"),
            (lambda x, w, t: np.take_along_axis(x @ w.T, t[:, :1], 1), *V, "s32[M,3]"),
        ),
        (
            UnsupportedProgram,
            (lambda x, w, t: np.take_along_axis(x @ w.T, t, None), *V, "s32[M,1]"),
            ("along no axis", "axis=-1"),
            (lambda x, w, t: np.take_along_axis(x @ w.T, t, axis=-1), *V, "s32[M,1]"),
        ),
        (
            ShapeError, (lambda x, w, c: np.average(x @ w.T, 1, c), *V, "f32[M]"),
            ("with weights [M]", "Weights are [M, N] or [N]"),
            (lambda x, w, c: np.average(x @ w.T, 1, c), *V, "f32[N]"),
        ),
        (
            ShapeError, (lambda x, w, c: np.average(x @ w.T, weights=c), *V, "f32[N]"),
            ("with weights [N]", "Weights are [M, N]"),
            (lambda x, w, c: np.average(x @ w.T, weights=c), *V, "f32[M,N]"),
        ),
        (
            ShapeError, (lambda x, w, r: np.vecdot(x @ w.T, r), *V, "f32[M,1]"),
            ("vecdot of x @ w.T", "not stretched along a sum"),
            (lambda x, w, r: np.vecdot(x @ w.T, r), *V, "f32[M,N]"),
        ),
        (
            ShapeError, (lambda x, w, c: x @ w.T + np.linalg.outer(x @ w.T, c), *V, "f32[N]"),
            ("with 2 and 1 axes", "np.outer"),
            (lambda x, w, c, d: x @ w.T + np.outer(c, d), *V, "f32[M]", "f32[N]"),
        ),
        (
            UnsupportedProgram,
            (lambda x, w, r: np.einsum("mk,nk,mj->mn", x, w, r), *V, "bf16[M,J]"),
            ("step 2", "a sum over j, an axis of r alone", "Keep j in the output"),
            (lambda x, w, r: np.einsum("mk,nk,m->mn", x, w, r), *V, "bf16[M]"),
        ),
    ],
)  # fmt: skip
def test_words_of_several_arrays(kind, wrong, fragments, right):
    with pytest.raises(kind) as caught:
        compiled(*wrong)
    assert all(part in str(caught.value) for part in fragments), str(caught.value)
    assert compiled(*right)


def _below(v):
    i, j = pg.indices(v)
    return np.sum(np.where(j == i - 1, v, 0), axis=1)


def test_a_chain_of_an_einsum_is_refused_as_any_chain_is():
    """Where its middle has no number, and where there is no type for it; else it is one."""
    three = ("bf16[M,{0}]", "bf16[N,{0}]", "bf16[N,{1}]")

    def chain(x, w, v):
        return np.einsum("ij,kj,kl->il", x, w, v)

    for wrong, part in ((("K", "64"), "Give K as a number"), (("64", "L"), "Give L as a number")):
        with pytest.raises(PolygenError, match=part):
            compiled(chain, *(one.format(*wrong) for one in three))
    assert compiled(chain, *(one.format("64", "64") for one in three))


@pytest.mark.parametrize("columns", ["", ",N"])
def test_a_product_with_what_another_one_makes_turned_is_two_kernels(columns):
    """A gradient of a logistic regression: no chain, whatever its types."""

    def gradient(x, w, y):
        return x.T @ (pg.sigmoid(x @ w) - y)

    signature = ("f32[M,K]", f"f32[K{columns}]", f"f32[M{columns}]")
    with pytest.raises(PolygenError, match=r"is not a matrix product|does not multiply the rows"):
        compiled(gradient, *signature)
    assert len(pg.fuse(gradient).compile(*signature, arch="sm_80").kernels) == 2
    assert compiled(lambda x, w, y: pg.sigmoid(x @ w) - y, *signature)
    assert compiled(lambda x, e: x.T @ e, signature[0], signature[2])
