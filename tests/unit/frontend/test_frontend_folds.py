"""Reductions of traced values: axes, dtypes and meaning are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, F32, S32
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.folding import METHODS
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Fold, Tensor

X, W = Tensor("x", BF16, ("M", "K")), Tensor("w", BF16, ("N", "K"))
STACK = Tensor("x", BF16, ("B", "M", "K")), Tensor("w", BF16, ("B", "K", "N"))


def program(function, tensors=(X, W)):
    return build_program(function, "f", "f", tensors)


def data(*shapes):
    generator = np.random.default_rng(5)
    return [generator.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def agree(function, tensors, *shapes):
    """The statements say what NumPy says of the function."""
    made, arrays = program(function, tensors), data(*shapes)
    found = evaluate(made, {"x": arrays[0], "w": arrays[1]})
    wanted = reference(function, arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for tensor, one, other in zip(made.outputs, found, wanted, strict=True):
        assert one.shape == other.shape == tuple(dict(M=5, N=6, B=2).get(d, d) for d in tensor.dims)
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=1e-6)
    return made


@pytest.mark.parametrize("name", [*METHODS, "logsumexp"])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_every_function_along_an_axis(name, axis, keepdims):
    def folded(x, w):
        found = getattr(pg, name)(x @ w.T - 1, axis=axis, keepdims=keepdims)
        return found.astype("f32") if name in ("all", "any") else found

    agree(folded, (X, W), (5, 8), (6, 8))


@pytest.mark.parametrize(
    "axis", [0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2), None, (-1, -3), [1, 2]]
)
def test_axes_of_batches(axis):
    if isinstance(axis, list):
        axis = tuple(axis)
    agree(lambda x, w: np.sum(x @ w, axis=axis, keepdims=True), STACK, (2, 5, 8), (2, 8, 6))


def test_spellings_of_one_fold_are_one_statement():
    def folded(x, w):
        v = x @ w.T
        return (
            np.max(v, axis=1), v.max(axis=1), pg.max(v, -1), np.amax(v, 1),
            np.maximum.reduce(v, axis=-1),
        )  # fmt: skip

    made = agree(folded, (X, W), (5, 8), (6, 8))
    assert len(made.folds) == 1 and made.folds[0].function == "max"


def test_ufunc_reduce_takes_the_first_axis_by_default():
    made = program(lambda x, w: np.add.reduce(x @ w.T))
    assert made.outputs[0].dims == ("N",)


def test_dtypes_of_results():
    def folded(x, w):
        v = x @ w.T
        return v.sum(1), v.argmax(1), v.max(0).astype("bf16"), v.sum(axis=1, keepdims=True) * 2, v

    kinds = [tensor.dtype for tensor in program(folded).outputs]
    assert kinds == [F32, S32, BF16, F32, BF16]


def test_results_are_stored_one_by_one():
    made = program(lambda x, w: ((x @ w.T).sum(1, keepdims=True), x @ w.T))
    assert [tensor.alignment for tensor in made.outputs] == [4, 16]


def test_a_fold_of_a_view_and_work_on_results():
    def folded(x, w):
        v = (x @ w.T) * 2.0
        return v.T.sum(axis=0), 1.0 / (np.mean(v * v, axis=1) + 1e-5)

    made = agree(folded, (X, W), (5, 8), (6, 8))
    assert "size(N)" in str(made)


@pytest.mark.parametrize("axis", [0, -1])
def test_norms_are_what_they_are_on_arrays(axis):
    agree(lambda x, w: pg.softmax(x @ w.T, axis=axis).astype("f32"), (X, W), (5, 8), (6, 8))
    agree(
        lambda x, w: (pg.rms_norm(x @ w.T, 3.0, axis), pg.layer_norm(x @ w.T, 2.0, 1.0, axis)),
        (X, W), (5, 8), (6, 8),
    )  # fmt: skip
    (v,) = data((4, 6))
    np.testing.assert_allclose(pg.softmax(v, axis).sum(axis), 1.0, rtol=1e-6)
    normal = pg.layer_norm(v.astype(np.float64), axis=axis)
    np.testing.assert_allclose(normal.mean(axis), 0.0, atol=1e-12)


def test_comparisons_are_counted():
    agree(lambda x, w: np.sum(x @ w.T > 0, axis=1), (X, W), (5, 8), (6, 8))


def test_on_arrays_the_functions_are_numpys():
    (v,) = data((4, 6))
    for name in METHODS:
        np.testing.assert_array_equal(getattr(pg, name)(v, axis=1), getattr(np, name)(v, axis=1))
    wanted = np.log(np.exp(v.astype(np.float64)).sum(0, keepdims=True))
    np.testing.assert_allclose(pg.logsumexp(v, axis=0, keepdims=True), wanted, rtol=1e-6)


def test_expressions_have_them():
    text = "(x @ w.T).sum(axis=1, keepdims=True), max(x @ w.T, -1), np.mean(x @ w.T, axis=(0, 1))"
    x, w = data((5, 8), (6, 8))
    total, most, mean = parse_expression(text, ("x", "w"))(x, w)
    np.testing.assert_array_equal(total, (x @ w.T).sum(1, keepdims=True))
    np.testing.assert_array_equal(most, (x @ w.T).max(1))
    assert mean == (x @ w.T).mean()


# --- monoids -------------------------------------------------------------------------------------
SPECIAL = [
    [1.0, 5.0, 5.0, -2.0], [-np.inf] * 4, [3.0, np.inf, np.inf, 0.0], [np.nan, 9.0, np.nan, 1.0],
    [2.0, np.nan, 7.0, 8.0], [-np.inf, 4.0, -np.inf, 90.0], [-100.0, -90.0, -95.0, -np.inf],
    [0.0, -0.0, 0.0, -0.0], [np.inf, -np.inf, 1.0, 2.0],
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(MONOIDS))
@pytest.mark.parametrize("row", SPECIAL)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_definitions_say_what_numpy_says(name, row, order):
    """Combined in any order, in pairs or one by one, with the identity among them."""
    monoid = MONOIDS[name]

    def components(at):
        terms = {"value": row[at], "index": float(at)}
        return tuple(np.float64(terms[t] if isinstance(t, str) else t) for t in monoid.terms)

    identity = tuple(map(np.float64, monoid.identity))
    with np.errstate(all="ignore"):
        one = identity
        for at in order:
            one = tuple(monoid.combine(*one, *components(at)))
        halves = [
            monoid.combine(*monoid.combine(*components(a), *identity), *components(b))
            for a, b in (order[:2], order[2:])
        ]
        two = tuple(monoid.combine(*halves[0], *halves[1]))
        made = [one, two]
        if monoid.of_many is not None:
            made.append(monoid.of_many([np.float64(row[at]) for at in order]))
        wanted = monoid.reference(np.array(row), (0,))
        for found in made:
            result = np.float64(monoid.finish(*found))
            np.testing.assert_allclose(result, wanted, rtol=1e-12)


def test_a_fold_says_what_it_is():
    (fold,) = program(lambda x, w: np.argmax(x @ w.T, axis=1)).folds
    assert isinstance(fold, Fold) and fold.folded == ("j",)
    assert str(fold) == "v1[i] = argmax over j of v0[i,j], j"
