"""A product that goes on with the sums of another: which programs are, and what they become."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.rewrite.programs import rewritten

TYPES = {
    "x": "bf16[M,K]", "w": "bf16[N,K]", "a": "bf16[16,K]", "b": "bf16[N,16]", "c": "bf16[N]",
    "s": "f32",
}  # fmt: skip


def _signature(function: Callable) -> list[str]:
    return [TYPES[name] for name in inspect.signature(function).parameters]


def _program(function: Callable) -> Program:
    return pg.fuse(function).program(*_signature(function))


SAME = {
    "plain": lambda x, w, a, b: x @ w.T + (x @ a.T) @ b.T,
    "the other way round": lambda x, w, a, b: (x @ a.T) @ b.T + x @ w.T,
    "a number": lambda x, w, a, b: x @ w.T + 2.0 * ((x @ a.T) @ b.T),
    "a number that is passed": lambda x, w, a, b, s: x @ w.T + (x @ a.T) @ b.T * s,
    "divided": lambda x, w, a, b: x @ w.T + ((x @ a.T) @ b.T) / 4.0,
    "subtracted": lambda x, w, a, b: x @ w.T - (x @ a.T) @ b.T,
    "what it is taken from": lambda x, w, a, b, c: c - (x @ a.T) @ b.T + x @ w.T,
    "less something": lambda x, w, a, b, c: x @ w.T + ((x @ a.T) @ b.T - c) * 0.5,
    "a bias": lambda x, w, a, b, c, s: pg.relu(x @ w.T + c + (x @ a.T) @ b.T * s),
    "between them": lambda x, w, a, b, c: x @ w.T + (pg.relu(x @ a.T) * 0.5) @ b.T + c,
}


@pytest.mark.parametrize("name", SAME)
def test_sums_with_more_terms_are_what_the_program_says(name: str) -> None:
    program = _program(SAME[name])
    found = rewritten(program)
    assert len(found.contractions) == 1 and found.rest is not None
    assert found.inputs == program.inputs and rewritten(found) == found
    rng = np.random.default_rng(0)
    shapes = ((5, 12), (7, 12), (16, 12), (7, 16), (7,))
    arrays = [rng.integers(-2, 3, shape).astype(np.float64) for shape in shapes]
    given = dict(zip("xwabc", arrays, strict=True)) | {"s": np.float64(2.0)}
    given = {tensor.name: given[tensor.name] for tensor in program.inputs}
    ((one,), (other,)) = (evaluate(each, given) for each in (program, found))
    np.testing.assert_array_equal(one, other)
    text = str(found)
    assert "besides, in the sums of" in text


def test_other_products_stay_as_they_are() -> None:
    for function in (
        lambda x, w: x @ w.T + x @ w.T * 2.0,
        lambda x, a, b: (x @ a.T) @ b.T,
    ):
        program = _program(function)
        assert rewritten(program).rest is None


REFUSED = {
    "rounded sums": (
        lambda x, w, a, b: (x @ w.T).astype("bf16") + (x @ a.T) @ b.T,
        "rounded to bf16 before it is added",
    ),
    "rounded terms": (
        lambda x, w, a, b: x @ w.T + ((x @ a.T) @ b.T).astype("bf16"),
        "rounded to bf16 before it is added",
    ),
    "terms that are read besides": (
        lambda x, w, a, b: (lambda t: (x @ w.T + t, pg.relu(t)))((x @ a.T) @ b.T),
        "is read by",
    ),
    "a middle that is returned": (
        lambda x, w, a, b: (lambda t: (x @ w.T + t @ b.T, t))(x @ a.T),
        "is read besides",
    ),
    "scaled by columns": (
        lambda x, w, a, b, c: x @ w.T + (x @ a.T) @ b.T * c,
        "differs from element to element",
    ),
    "scaled sums": (
        lambda x, w, a, b: (x @ w.T) * 2.0 + (x @ a.T) @ b.T,
        "each worth what it is",
    ),
    "multiplied": (
        lambda x, w, a, b: (x @ w.T) * ((x @ a.T) @ b.T),
        "takes mul of what comes of",
    ),
    "through a function": (
        lambda x, w, a, b: x @ w.T + pg.gelu((x @ a.T) @ b.T),
        "takes gelu",
    ),
    "other rows": (
        lambda x, w, a, b: x @ w.T + ((x + 2) @ a.T) @ b.T,
        "which is computed",
    ),
    "folds": (
        lambda x, w, a, b: pg.softmax(x @ w.T + (x @ a.T) @ b.T),
        "beside folds or groups",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_nearly_so_is_refused_by_name(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(UnsupportedProgram) as found:
        pg.fuse(function).compile(*_signature(function), arch="sm_90a", single=True)
    assert said in str(found.value), str(found.value)
    assert str(found.value).count(". ") >= 1  # and what would do
