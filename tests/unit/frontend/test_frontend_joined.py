"""Concatenations, stacks and parts: on traced values they mean what NumPy's mean on arrays."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.parse import parse_expression

X, W, U = "bf16[6,5]", "bf16[4,5]", "bf16[3,5]"


def rotated(x, w, c, s):
    left, right = pg.split(x @ w.T, 2, axis=-1)
    return np.concatenate([left * c - right * s, right * c + left * s], axis=-1)


def places(x, w, u):
    value = np.concatenate([x @ w.T, x @ u.T], axis=1)
    i, j = pg.indices(value)
    return pg.where(i >= j, value, -1.0)


def blocks(x, w, u):
    top = np.concatenate([x[:2] @ w.T, x[:2] @ u.T], axis=1)
    return np.concatenate([top, np.concatenate([x[2:] @ w.T, x[2:] @ u.T], axis=1)])


PROGRAMS = {
    "weights": (lambda x, w, u: x @ np.concatenate([w, u]).T, (X, W, U)),
    "one array's weights twice": (
        lambda x, w, u: x @ np.concatenate([w, w, u])[1:].T, (X, W, U),
    ),
    "weights as columns": (
        lambda x, w, u: x @ np.concatenate([w.T, u.T], axis=1), (X, W, U),
    ),
    "weights and what goes with them": (
        lambda x, w, u, b: pg.relu(x @ np.concatenate([w, u]).T + b), (X, W, U, "f32[7]"),
    ),
    "results": (
        lambda x, w, u: np.concatenate([x @ w.T, pg.relu(x @ u.T)], axis=-1), (X, W, U),
    ),
    "results with a matrix": (
        lambda x, w, u, r: np.concatenate([x @ w.T, x @ u.T], axis=1) * 2 + r,
        (X, W, U, "f32[6,7]"),
    ),
    "results with a column": (
        lambda x, w, u, s: np.concatenate([x @ w.T, x @ u.T], axis=1) * s[:, None],
        (X, W, U, "f32[6]"),
    ),
    "results below each other": (
        lambda x, w, y: np.concatenate([x @ w.T, y @ w.T]), (X, W, "bf16[2,5]"),
    ),
    "operands along what is summed": (
        lambda x, h, w: np.concatenate([x, h], -1) @ w.T, (X, "bf16[6,3]", "bf16[4,8]"),
    ),
    "both operands along what is summed": (
        lambda x, h, w, u: np.concatenate([x, h], 1) @ np.concatenate([w, u], 1).T,
        (X, "bf16[6,3]", "bf16[4,2]", "bf16[4,6]"),
    ),
    "of three": (lambda x, w, u: np.concatenate([x @ w.T, x @ u.T, x @ w.T], 1), (X, W, U)),
    "of a concatenation": (
        lambda x, w, u: np.concatenate([np.concatenate([x @ w.T, x @ u.T], 1), x @ w.T], 1),
        (X, W, U),
    ),
    "transposed": (lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1).T, (X, W, U)),
    "a part across": (
        lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1)[:, 2:6], (X, W, U),
    ),
    "every other": (lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1)[:, ::2], (X, W, U)),
    "backwards": (lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1)[:, ::-1], (X, W, U)),
    "blocks": (blocks, (X, W, U)),
    "places": (places, (X, W, U)),
    "stack": (lambda x, w: np.stack([x @ w.T, pg.relu(x @ w.T)]), (X, W)),
    "stack behind": (lambda x, w: np.stack([x @ w.T, pg.relu(x @ w.T)], axis=-1), (X, W)),
    "batched weights": (
        lambda x, w, u: x @ np.stack([w, u]).mT, ("bf16[2,6,5]", W, "bf16[4,5]"),
    ),
    "thirds": (lambda x, w: tuple(np.split(x @ w.T, 3, axis=-1)), (X, "bf16[12,5]")),
    "uneven parts": (
        lambda x, w, b: tuple(np.exp(p) for p in np.split(x @ w.T + b, [2, 3], axis=1)),
        (X, W, "f32[4]"),
    ),
    "a part of rows": (lambda x, w: (x @ w.T)[1:4] * 2, (X, W)),
    "a part of places": (
        lambda x, w: (lambda v: v + pg.indices(v)[1])(x @ w.T)[:, 1::2], (X, W),
    ),
    "a part of a sum over rows": (lambda x, w: (x @ w.T).sum(axis=1)[2:4], (X, W)),
    "a part of a part": (lambda x, w: (x @ w.T)[:, 1:][:, ::2], (X, W)),
    "rotated halves": (rotated, (X, W, "f32[6,2]", "f32[6,2]")),
}  # fmt: skip


def drawn(program, seed=0):
    generator = np.random.default_rng(seed)
    return {t.name: generator.integers(-3, 4, t.dims).astype(float) for t in program.inputs}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_means_what_numpy_means(name):
    function, signature = PROGRAMS[name]
    fused = pg.fuse(function)
    program = fused.program(*signature)
    arrays = drawn(program)
    found = evaluate(program, arrays, round_outputs=False)
    wanted = fused.reference(*arrays.values())
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(found) == len(wanted)
    for one, other, tensor in zip(found, wanted, program.outputs, strict=True):
        assert one.shape == tensor.dims
        np.testing.assert_array_equal(one, other)


def test_a_concatenation_along_what_is_summed_is_a_sum_of_products():
    program = pg.fuse(lambda x, h, w: np.concatenate([x, h], -1) @ w.T).program(
        "bf16[M,64]", "bf16[M,128]", "bf16[N,192]"
    )
    assert [str(s) for s in program.statements] == [
        "v0[i,j] += x[i,k] * w[j,k]",
        "v1[i,j] += h[i,k] * w[j,k+64]",
        "v2[i,j] = add(v0[i,j], v1[i,j])",
        "y0[i,j] = cast(v2[i,j])",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "concatenate([x @ w.T, relu(x @ u.T)], axis=-1)",
        "np.concatenate((x @ w.T, relu(x @ u.T)), axis=1)",
        "np.concat([x @ w.T, relu(x @ u.T)], axis=1)",
    ],
)
def test_expressions_have_them(text):
    fused = pg.fuse(parse_expression(text, ("x", "w", "u")), name="f")
    same = pg.fuse(PROGRAMS["results"][0], name="f")
    assert fused.program(X, W, U).statements == same.program(X, W, U).statements


def test_expressions_have_parts():
    names = ("x", "w")
    whole = pg.fuse(parse_expression("split(x @ w.T, 2, axis=1)", names), name="f")
    second = pg.fuse(parse_expression("split(x @ w.T, [2], axis=1)[1]", names), name="f")
    assert [t.dims for t in whole.program(X, W).outputs] == [(6, 2), (6, 2)]
    assert [str(s) for s in second.program(X, W).contractions] == ["v0[i,j] += x[i,k] * w[j+2,k]"]


def test_on_arrays_they_are_numpys():
    a, b = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    np.testing.assert_array_equal(pg.concatenate([a, b], axis=1), np.concatenate([a, b], axis=1))
    np.testing.assert_array_equal(pg.stack([a, b], axis=-1), np.stack([a, b], axis=-1))
    for one, other in zip(pg.split(a, [1], axis=1), np.split(a, [1], axis=1), strict=True):
        np.testing.assert_array_equal(one, other)


def test_pytorch_means_the_same():
    torch = pytest.importorskip("torch")
    meaning = pytest.importorskip("polygen.adapters.torch.meaning")
    for name in ("results with a matrix", "blocks", "stack", "rotated halves", "thirds"):
        program = pg.fuse(PROGRAMS[name][0]).program(*PROGRAMS[name][1])
        arrays = drawn(program)
        found = meaning.run(program, [torch.from_numpy(a) for a in arrays.values()], {})
        wanted = evaluate(program, arrays, round_outputs=False)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)


def test_jax_means_the_same():
    meaning = pytest.importorskip("polygen.adapters.jax.meaning")
    for name in ("results with a matrix", "blocks", "stack", "rotated halves", "thirds"):
        program = pg.fuse(PROGRAMS[name][0]).program(*PROGRAMS[name][1], out_dtype="f32")
        arrays = drawn(program)
        found = meaning.run(program, [np.asarray(a, "f4") for a in arrays.values()])
        wanted = evaluate(program, arrays, round_outputs=False)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other)
