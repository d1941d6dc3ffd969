"""Concatenations and parts that are refused: the sentence, its reason, and what to do instead."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.errors import DTypeError, ShapeError, TraceError, UnsupportedProgram

X, W, U = "bf16[M,K]", "bf16[64,K]", "bf16[32,K]"

REFUSED = {
    "a size without a number": (
        lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1), (X, "bf16[N,K]", U), ShapeError,
        ("x @ w.T behind others along N", "known only at run time", "make N static"),
    ),
    "other sizes": (
        lambda x, y, w: np.concatenate([x @ w.T, y @ w.T], 1), (X, "bf16[P,K]", W), ShapeError,
        ("behind one another along axis 1", "[M, 64] and [P, 64]", "axis 1 have the same size"),
    ),
    "reshaped": (
        lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1).reshape(-1, 3, 32), (X, W, U),
        UnsupportedProgram, ("split or merged along axis 1", "Take them of the parts"),
    ),
    "other types": (
        lambda x, w, u: x @ np.concatenate([w, u]).T, (X, W, "f16[32,K]"), DTypeError,
        ("w is bf16, u is f16", 'Write .astype("bf16")'),
    ),
    "stored as other types": (
        lambda x, w, u: np.concatenate([x @ w.T, (x @ u.T).astype("f16")], 1), (X, W, U),
        DTypeError, ("x @ w.T is f32", ".astype"),
    ),
    "other numbers of axes": (
        lambda x, w, b: np.concatenate([x @ w.T, b]), (X, W, "f32[64]"), ShapeError,
        ("with other numbers of axes", "b [64]", "x[None]"),
    ),
    "no such axis": (
        lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 2), (X, W, U), ShapeError,
        ("concatenate along axis 2", "there are 2 axes", "-2 to 1"),
    ),
    "one value": (
        lambda x, w: pg.concatenate(x @ w.T), (X, W), TraceError,
        ("concatenate of x @ w.T", "Pass a list of values"),
    ),
    "a part without product": (
        lambda x, w, r: np.concatenate([x @ w.T, r], 1), (X, W, "f32[M,32]"), UnsupportedProgram,
        ("output 0, r, reads no contraction",),
    ),
    "a fold": (
        lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1).sum(axis=1), (X, W, U),
        UnsupportedProgram,
        ("sum of concatenate([x @ w.T, x @ u.T], axis=1)", "Fold each part"),
    ),
    "groups of rows": (
        lambda x, w, u, e: pg.grouped_matmul(x, np.concatenate([w, u], 2), e),
        (X, "bf16[E,K,64]", "bf16[E,K,32]", "s32[E]"), UnsupportedProgram,
        ("concatenate([w, u], axis=2) in a product by groups of rows", "part by part"),
    ),
    "repeated elements": (
        lambda x, w, u: np.repeat(np.concatenate([x @ w.T, x @ u.T], 1), 2, 1), (X, W, U),
        UnsupportedProgram, ("repeated along axis 1", "Take them of the parts"),
    ),
    "sums of whole numbers": (
        lambda x, h, w: np.concatenate([x, h], 1) @ w.T,
        ("s8[M,64]", "s8[M,64]", "s8[N,128]"), DTypeError,
        ("are s8, in parts along what is summed", "Multiply part by part"),
    ),
    "stack of other shapes": (
        lambda x, w, u: np.stack([x @ w.T, x @ u.T]), (X, W, U), ShapeError,
        ("[1, M, 64] and [1, M, 32]",),
    ),
    "parts that do not divide": (
        lambda x, w: tuple(np.split(x @ w.T, 3, axis=1)), (X, W), ShapeError,
        ("x @ w.T in 3 parts of the same size", "64 elements", "Use 2 parts"),
    ),
    "parts of a size without a number": (
        lambda x, w: tuple(np.split(x @ w.T, 2)), (X, W), ShapeError,
        ("parts of x @ w.T along M", "make M static"),
    ),
    "parts out of order": (
        lambda x, w: tuple(np.split(x @ w.T, [40, 8], axis=1)), (X, W), ShapeError,
        ("from 0, 40, 8 on", "ascending order"),
    ),
    "parts that are no numbers": (
        lambda x, w: tuple(np.split(x @ w.T, 1.5, axis=1)), (X, W), TraceError,
        ("parts of x @ w.T by 1.5", "a list of whole numbers"),
    ),
    "NumPy's other keywords": (
        lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1, dtype="f4"), (X, W, U), TraceError,
        ("np.concatenate is called with arguments it does not take here",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_concatenation_or_part(name):
    function, signature, error, fragments = REFUSED[name]
    with pytest.raises(error) as caught:
        pg.fuse(function).program(*signature)
    for fragment in fragments:
        assert fragment in str(caught.value), caught.value
