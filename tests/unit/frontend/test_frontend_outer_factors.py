"""Factors of a computed operand that the sum does not index multiply the sum."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.outer_factors import HOLDS

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


@pytest.mark.parametrize("kind", HOLDS)
def test_a_type_has_every_number_of_those_that_it_is_said_to_hold(kind):
    for one in HOLDS[kind]:
        if one.bits > 16:
            assert one.bits <= kind.bits and one.mantissa <= kind.mantissa
            continue
        every = np.arange(1 << one.bits).astype(f"u{one.bytes}").view(one.numpy)
        with np.errstate(invalid="ignore"):
            there = every.astype(kind.numpy).astype(np.float64)
            np.testing.assert_array_equal(there, every.astype(np.float64))


@pytest.mark.parametrize(
    ("x", "w", "s"),
    [
        ("f16[M,8]", "s8[N,8]", "f32[N]"),
        ("f16[M,8]", "f16[N,8]", "f32[N]"),
        ("bf16[M,8]", "u8[N,8]", "bf16[N]"),
        ("bf16[M,8]", "e4m3[N,8]", "f32[N]"),
        ("f32[M,8]", "f32[N,8]", "f32[N]"),
        ("f32[M,8]", "bf16[N,8]", "f32[N]"),
        ("tf32[M,8]", "tf32[N,8]", "f32[N]"),
        ("f64[M,8]", "f64[N,8]", "f64[N]"),
    ],
)
def test_what_is_left_is_held_by_the_type_that_is_multiplied(x, w, s):
    found = made(lambda x, w, s: x @ (w * s[:, None]).T, x, w, s)
    (product,) = found.contractions
    behind = found.statements[found.statements.index(product) + 1]
    assert (behind.function, behind.reads[1].name) == ("mul", "s")
    assert product.lhs.name == "x"


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        # another one for every k; rounded as written; no factor; divided by what is summed
        (lambda x, w, s: (x * s) @ w.T, (X, W, ALONG)),
        (lambda x, w, s: (x * s[:, None]).astype("bf16") @ w.T, (X, W, ROW)),
        (lambda x, w, s: (x + s[:, None]) @ w.T, (X, W, ROW)),
        (lambda x, w, s: (s[:, None] / x) @ w.T, (X, W, ROW)),
        # the factor alone has rows
        (lambda x, w, s: (x * s[:, None]) @ w.T, ("bf16[1,8]", W, ROW)),
        # what is left would be rounded, f16 out of its range
        (lambda x, w, s: (pg.exp(x) * s[:, None]) @ w.T, (X, W, ROW)),
        (lambda x, w, s: (x * s[:, None]) @ w.T, ("f32[M,8]", W, ROW)),
        (lambda x, w, s: (x * s[:, None]) @ w.T, ("s32[M,8]", "f16[N,8]", ROW)),
        # what is left would be repeated, which only what is computed is
        (lambda x, w, s: (pg.repeat(x, 2, axis=1) * s[:, None]) @ w.T, (X, "bf16[N,16]", ROW)),
        # sizes, rows by index
        (lambda x, w: (x / x.shape[1]) @ w.T, ("bf16[M,K]", "bf16[N,K]")),
        (lambda x, w, s, r: (x * s[r][:, None]) @ w.T, (X, W, "f32[S]", "s32[M]")),
        # rows by groups
        (
            lambda x, w, s, e: pg.grouped_matmul(x * s[:, None], w, e),
            ("bf16[T,8]", "bf16[E,8,N]", "f32[T]", "s32[E]"),
        ),
    ],
)
def test_what_stays_in_the_operand(function, signature):
    found = made(function, *signature)
    (product,) = found.contractions
    assert product.lhs.name not in found.tensors
    assert found.statements[-2] is product


@pytest.mark.parametrize(
    "parts",
    [
        lambda x, h: [x * 2, h * 3],
        lambda x, h: [(x * 2).reshape(16, 2, 32).reshape(32, 32), h * 3],
        lambda x, h: [np.concatenate([x[:16] * 2, x[16:] * 4], axis=0), h * 3],
    ],
)
def test_terms_of_one_sum_keep_their_factors(parts):
    """They may be one product, of an operand in parts."""
    found = made(
        lambda x, h, w: np.concatenate(parts(x, h), axis=1) @ w.T,
        "bf16[32,32]", "bf16[32,32]", "bf16[64,64]",
    )  # fmt: skip
    sums = {product.write.name for product in found.contractions}
    behind = [one for one in found.pointwise if sums & {a.name for a in one.reads}]
    assert {one.function for one in behind} <= {"add", "cast"}


def test_parts_of_rows_have_factors_of_their_own():
    found = made(
        lambda x, h, w: np.concatenate([x * 2, h * 3], axis=0) @ w.T,
        "bf16[32,32]", "bf16[32,32]", "bf16[64,32]",
    )  # fmt: skip
    assert {one.name for one in found.inputs} == {"x", "h", "w"}
    assert {product.lhs.name for product in found.contractions} == {"x", "h"}


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


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_multiply_the_sums(arch):
    """On the PTX machine, of whole numbers."""
    function = pg.fuse(lambda x, q, s, a: (x * a) @ (q * s[:, None]).T, name="sample")
    kernel = function.compile("bf16[M,64]", "s8[N,64]", "f32[N]", "f32", arch=arch)
    assert kernel.check(sizes={"M": 20, "N": 24}).ok
