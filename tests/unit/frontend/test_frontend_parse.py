"""Signatures and expressions given as text."""

import numpy as np
import pytest

from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, F32
from polygen.frontend.evaluate import reference
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Tensor
from polygen.frontend.signature import parse_signature


@pytest.mark.parametrize(
    ("text", "tensor"),
    [
        ("x:bf16[M,K]", Tensor("x", BF16, ("M", "K"), (0, 1))),
        ("bf16[M, K]", Tensor("", BF16, ("M", "K"), (0, 1))),
        (" x : bfloat16 [ 128 , K ] ", Tensor("x", BF16, (128, "K"), (0, 1))),
        ("bf16[M,K]:col", Tensor("", BF16, ("M", "K"), (1, 0))),
        ("bf16[M,K]:row@2", Tensor("", BF16, ("M", "K"), (0, 1), 2)),
        ("x:bf16[M,K]:col@4", Tensor("x", BF16, ("M", "K"), (1, 0), 4)),
        ("b:f32[N]", Tensor("b", F32, ("N",), (0,))),
        ("b:f32[N]@4", Tensor("b", F32, ("N",), (0,), 4)),
        ("f32", Tensor("", F32, ())),
        ("s:f32[]", Tensor("s", F32, ())),
        ("x:bf16[B,M,K]", Tensor("x", BF16, ("B", "M", "K"), (0, 1, 2))),
        ("x:bf16[B,M,K]:row", Tensor("x", BF16, ("B", "M", "K"), (0, 1, 2))),
        ("x:bf16[B,M,K]:col", Tensor("x", BF16, ("B", "M", "K"), (0, 2, 1))),
        ("x:bf16[B,1,N]:201@4", Tensor("x", BF16, ("B", 1, "N"), (2, 0, 1), 4)),
        ("q:bf16[B,S,H,D]:0213", Tensor("q", BF16, ("B", "S", "H", "D"), (0, 2, 1, 3))),
        ("x:bf16[M,K]:10", Tensor("x", BF16, ("M", "K"), (1, 0))),
        ("b:f32[N]:row", Tensor("b", F32, ("N",), (0,))),
        ("bf16[A,B,C,D,E,F]", Tensor("", BF16, tuple("ABCDEF"), (0, 1, 2, 3, 4, 5))),
    ],
)
def test_signatures(text, tensor):
    assert parse_signature(text) == tensor


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x:bf16[M,K]", "x: bf16[M, K]"),
        ("x:bf16[M,K]:col", "x: bf16[M, K] column-major"),
        ("x:bf16[B,M,K]", "x: bf16[B, M, K]"),
        ("x:bf16[B,M,K]:col", "x: bf16[B, M, K] column-major"),
        ("x:bf16[B,M,K]:102", "x: bf16[B, M, K] stored 1,0,2"),
        ("x:f32[N]", "x: f32[N]"),
        ("x:f32", "x: f32[]"),
    ],
)
def test_tensors_print_their_layout(text, shown):
    assert str(parse_signature(text)) == shown


RANKS = ("x", "w", "y")
RANK_SIGNATURES = ("x:bf16[2,4,6]", "w:bf16[2,6,3]", "y:bf16[4,6]")
RANK_EXPRESSIONS = {
    "x @ w + y[:, ::2]": lambda x, w, y: x @ w + y[:, ::2],
    "x @ w + y[:, -3:]": lambda x, w, y: x @ w + y[:, -3:],
    "x @ w + y[..., 5:2:-1]": lambda x, w, y: x @ w + y[..., 5:2:-1],
    "(x @ w)[:, None] * y[-1, 0]": lambda x, w, y: (x @ w)[:, None] * y[-1, 0],
    "w.mT @ x.mT + y.T[1:4]": lambda x, w, y: w.mT @ x.mT + y.T[1:4],
    "w.swapaxes(1, -1) @ x.transpose(0, 2, 1) * y[0, 0]": lambda x, w, y: w.mT @ x.mT * y[0, 0],
    "w.transpose((0, 2, 1)) @ np.swapaxes(x, 1, 2) * y[0, 0]": lambda x, w, y: (
        w.mT @ x.mT * y[0, 0]
    ),
    "transpose(w, (0, 2, 1)) @ np.permute_dims(x, (0, 2, 1)) + transpose(y)[:3]": (
        lambda x, w, y: w.mT @ x.mT + y.T[:3]
    ),
    "einsum('bmk,bkn->bmn', x, w) + y[:, :3]": lambda x, w, y: x @ w + y[:, :3],
    "np.einsum('...k,bkn->b...n', y, w) * x[:, :, :3]": lambda x, w, y: y @ w * x[:, :, :3],
    "pg.matmul(x, w), np.matmul(y, w)": lambda x, w, y: (x @ w, y @ w),
}


@pytest.mark.parametrize("text", sorted(RANK_EXPRESSIONS))
def test_expressions_of_any_rank_mean_what_python_means(text):
    function, parsed = RANK_EXPRESSIONS[text], parse_expression(text, RANKS)
    tensors = [parse_signature(signature) for signature in RANK_SIGNATURES]
    assert build_program(parsed, "k", "", tensors) == build_program(function, "k", "", tensors)
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, tensor.dims) for tensor in tensors]
    got, expected = reference(parsed, arrays), reference(function, arrays)
    for one, other in zip(
        got if isinstance(got, tuple) else (got,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


ARGUMENTS = ("x", "w", "b", "r")
SIGNATURES = ("x:bf16[M,K]", "w:bf16[N,K]", "b:f32[N]", "r:f32[M,N]")
EXPRESSIONS = {
    "gelu(x @ w.T + b) * r": lambda x, w, b, r: pg.gelu(x @ w.T + b) * r,
    "np.maximum(x @ w.T, 0) + b - r": lambda x, w, b, r: np.maximum(x @ w.T, 0) + b - r,
    "pg.relu(matmul(x, transpose(w))) + b[None, :] / 3 ** 2 * r": lambda x, w, b, r: (
        pg.relu(x @ w.T) + b[None, :] / 9 * r
    ),
    "where(b > 0, x @ w.T, -r)": lambda x, w, b, r: np.where(b > 0, x @ w.T, -r),
    "(x @ w.T + b, r * (x @ w.T))": lambda x, w, b, r: (x @ w.T + b, r * (x @ w.T)),
    "x @ w.T + b, (r + x @ w.T).T.astype('f16')": lambda x, w, b, r: (
        x @ w.T + b,
        (r + x @ w.T).T.astype("f16"),
    ),
    "(x @ w.T).astype(np.float16) * b + r": lambda x, w, b, r: (x @ w.T).astype("f16") * b + r,
    "clip(x @ w.T, lo=-1, hi=2.5) + leaky_relu(r, slope=0.1) + b": lambda x, w, b, r: (
        pg.clip(x @ w.T, -1, 2.5) + pg.leaky_relu(r, 0.1) + b
    ),
    "gelu(x @ w.T, approximate='tanh') * b + r": lambda x, w, b, r: pg.gelu_tanh(x @ w.T) * b + r,
    "(x @ w.T).T * b[:, np.newaxis] + r.T": lambda x, w, b, r: (x @ w.T).T * b[:, None] + r.T,
    "(x @ w.T > 0) & ~(b <= r) | (b == 1)": lambda x, w, b, r: (x @ w.T > 0) & ~(b <= r) | (b == 1),
    "where(x @ w.T > b, np.sin(r), np.nan) + round(r) * sign(b)": lambda x, w, b, r: (
        np.where(x @ w.T > b, pg.sin(r), np.nan) + np.round(r) * np.sign(b)
    ),
    "power(abs(x @ w.T), 2.5) - elu(r, alpha=0.5) + arctan2(b, np.inf)": lambda x, w, b, r: (
        abs(x @ w.T) ** 2.5 - pg.elu(r, 0.5) + np.arctan2(b, np.inf)
    ),
    "np.pi * (x @ w.T) - np.reciprocal(4) * b + r - -1": lambda x, w, b, r: (
        np.pi * (x @ w.T) - 0.25 * b + r - (-1)
    ),
}


@pytest.mark.parametrize("text", sorted(EXPRESSIONS))
def test_expressions_mean_what_python_means(text):
    function, parsed = EXPRESSIONS[text], parse_expression(text, ARGUMENTS)
    tensors = [parse_signature(signature) for signature in SIGNATURES]
    boolean = text.endswith("(b == 1)")
    dtypes = "s8" if boolean else None
    assert build_program(parsed, "k", "", tensors, dtypes) == build_program(
        function, "k", "", tensors, dtypes
    )
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, shape) for shape in ((4, 6), (5, 6), (5,), (4, 5))]
    got, expected = reference(parsed, arrays), reference(function, arrays)
    for one, other in zip(
        got if isinstance(got, tuple) else (got,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_every_public_function_is_known_to_expressions():
    for name, function in pg.PUBLIC.items():
        values = [np.full((2, 2), 0.5)] * pg.TABLE[name].arity[0]
        names = [f"a{i}" for i in range(len(values))]
        for prefix in ("", "np.", "pg."):
            parsed = parse_expression(f"{prefix}{name}({', '.join(names)})", names)
            assert np.array_equal(parsed(*values), function(*values))


def test_parsed_function_knows_its_parameters():
    program = build_program(
        parse_expression("x @ w", ["x", "w"]),
        "k",
        "x @ w",
        [parse_signature("f16[M,K]"), parse_signature("f16[K,N]")],
    )
    assert [t.name for t in program.inputs] == ["x", "w"]


def test_an_argument_may_be_called_like_a_module():
    assert parse_expression("np.T @ pg", ["np", "pg"])(np.ones((3, 2)), np.ones((3, 4))).shape == (
        2,
        4,
    )
