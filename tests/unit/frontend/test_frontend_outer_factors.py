"""Factors of a computed operand that the sum does not index multiply the sum."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate

X, W, Q = "bf16[M,8]", "bf16[N,8]", "s8[N,8]"
ROW, COLUMN, ALONG = "f32[M]", "f32[N]", "f32[8]"


def made(function, *signature):
    return pg.fuse(function, name="sample").program(*signature)


def statements(function, *signature):
    return [str(one) for one in made(function, *signature).statements]


OF_THE_ROWS = [
    "v0[i,j] += x[i,k] * w[j,k]",
    "v1[i,j] = mul(v0[i,j], s[i])",
    "y0[i,j] = cast(v1[i,j])",
]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, s: (x * s[:, None]) @ w.T,
        lambda x, w, s: (s[:, None] * x) @ w.T,
        lambda x, w, s: (x.T * s).T @ w.T,
        lambda x, w, s: pg.einsum("mk,nk->mn", x * s[:, None], w),
        lambda x, w, s: (x.astype("f32") * s[:, None]) @ w.T,
    ],
)
def test_a_factor_of_the_rows_leaves_the_sum(function):
    assert statements(function, X, W, ROW) == OF_THE_ROWS


def test_factors_leave_one_after_the_other_and_of_both_operands():
    found = statements(
        lambda x, w, s, t: (x / s[:, None] * 0.5) @ (w * t[:, None]).T, X, W, ROW, COLUMN
    )
    assert found == [
        "v0[i,j] += x[i,k] * w[j,k]",
        "v1[i,j] = div(v0[i,j], s[i])",
        "v2[i,j] = mul(v1[i,j], 0.5)",
        "v3[i,j] = mul(v2[i,j], t[j])",
        "y0[i,j] = cast(v3[i,j])",
    ]


def test_a_batch_has_factors_of_its_own():
    found = statements(
        lambda x, w, s: (x * s[:, None, None]) @ w, "bf16[B,M,8]", "bf16[B,8,N]", "f32[B]"
    )
    assert found[:2] == ["v0[b,i,j] += x[b,i,k] * w[b,k,j]", "v1[b,i,j] = mul(v0[b,i,j], s[b])"]


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_whole_numbers_are_multiplied_as_they_are(kind):
    found = statements(lambda x, q, s: x @ (q.astype(kind) * s[:, None]).T, X, Q, COLUMN)
    assert found[:3] == [
        "v0[i,j] = cast(q[i,j])",
        "v1[i,j] += x[i,k] * v0[j,k]",
        "v2[i,j] = mul(v1[i,j], s[j])",
    ]
    assert made(lambda x, q, s: x @ (q * s[:, None]).T, X, Q, COLUMN).statements[0].dtype.name == (
        "bf16"
    )


@pytest.mark.parametrize(
    ("function", "signature", "why"),
    [
        (lambda x, w, s: (x * s) @ w.T, (X, W, ALONG), "another one for every k"),
        (lambda x, w, s: (x * s[:, None]).astype("bf16") @ w.T, (X, W, ROW), "rounded as written"),
        (lambda x, w, s: (x + s[:, None]) @ w.T, (X, W, ROW), "no factor"),
        (lambda x, w, s: (s[:, None] / x) @ w.T, (X, W, ROW), "what is divided is the sum's"),
        (
            lambda x, w, s: (x * s[:, None]) @ w.T,
            ("bf16[1,8]", W, ROW),
            "the factor alone has rows",
        ),
    ],
)
def test_what_stays_in_the_sum(function, signature, why):
    found = made(function, *signature)
    (product,) = found.contractions
    assert any(one.write.name in {a.name for a in product.reads} for one in found.statements), why
    assert found.statements[-2] is product, why


def test_factors_that_are_folds_stay_for_the_rewrites_that_know_them():
    found = made(lambda x, w: (x / pg.sum(x, axis=1, keepdims=True)) @ w.T, X, W)
    (product,) = found.contractions
    assert product.lhs.name != "x"


def test_nothing_is_rounded_that_is_whole():
    """Rounded to bf16 as an operand, 2/3 times a weight would be off by 2^-9 of itself."""
    x, q, s = np.eye(8), np.arange(-8, 8).reshape(2, 8), np.full(2, 2 / 3)
    program = made(lambda x, q, s: (x @ (q * s[:, None]).T).astype("f32"), X, Q, COLUMN)
    (found,) = evaluate(program, {"x": x, "q": q, "s": s}, round_outputs=False)
    np.testing.assert_allclose(found, (q * s[:, None]).T, rtol=1e-12)
