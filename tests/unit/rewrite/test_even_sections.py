"""Sections with as many products each: what is cut into parts of its columns, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Contraction
from polygen.poly.sections import sections
from polygen.rewrite.even_sections import even_sections
from polygen.rewrite.programs import made_first, rewritten

X, A, B = "bf16[M,K]", "bf16[8,K]", "bf16[8,K]"


def pair(x, a, b):
    return pg.maximum(x @ a.T, 0) * (x @ b.T)


def written(program):
    """Per section, what its products are over."""
    return [
        [tuple(dict(s.domain)[it] for it in s.write.iterators) for s in one.contractions]
        for one in sections(program)
    ]


def alone(x, a, b, c, r, v):
    """Everything that is computed of the columns is cut: matrices, vectors, coordinates."""
    y = x @ c.T
    return pair(x, a, b), pg.where(pg.indices(y)[1] < 5, y + r, y * v).reshape(-1, 2, 6)


def computed_columns(x, a, b, c, v):
    return pair(x, a, b), x @ (c * 2 + 1).astype("bf16").T + v * 3


def beside_names(x, a, b, c, v1_1):
    return pair(x, a, b), x @ c.T * v1_1


CUT = {
    alone: ((X, A, B, "bf16[12,K]", "f32[M,12]", "f32[12]"), [[("M", 8)] * 2, [("M", 6)] * 2]),
    computed_columns: (
        (X, A, B, "bf16[12,K]", "f32[12]"), [[("M", 8)] * 2, [("M", 6)] * 2],
    ),
    beside_names: ((X, A, B, "bf16[20,K]", "f32[20]"), [[("M", 8)] * 2, [("M", 10)] * 2]),
    lambda x, a, b, e, f, c, d: (pair(x, a, b) + pair(x, e, f), x @ c.T, x @ d.T): (
        (X, A, B, A, B, "bf16[4,K]", "bf16[4,K]"),  # those over one domain are together before
        [[("M", 8)] * 4, [("M", 2)] * 4],
    ),
    lambda x, a, b, c: (pair(x, a, b), (x @ c.T)[:, None]): (
        (X, A, B, "bf16[6,K]"), [[("M", 8)] * 2, [("M", 3)] * 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("function", CUT)
def test_a_product_alone_becomes_as_many_as_a_pair_is(function):
    signature, wanted = CUT[function]
    program = pg.fuse(function, name="even").program(*signature)
    found = even_sections(program)
    assert written(found) == wanted and even_sections(found) is found
    assert rewritten(program) == found
    names = [s.name for s in found.statements] + [s.write.name for s in found.statements]
    values = [name for name in names if name not in found.tensors]
    assert len(values) == len(set(values))
    random = np.random.default_rng(0)
    sizes = {"M": 5, "K": 7}
    arrays = {
        t.name: random.integers(-3, 4, [sizes.get(d, d) for d in t.dims]) for t in program.inputs
    }
    for one, other in zip(evaluate(found, arrays), evaluate(program, arrays), strict=True):
        np.testing.assert_array_equal(one.astype("f4"), other.astype("f4"))


WHOLE = {
    "columns of no number": (
        lambda x, a, b, c: (pair(x, a, b), x @ c.T), (X, A, B, "bf16[N,K]"),
    ),
    "an odd number": (lambda x, a, b, c: (pair(x, a, b), x @ c.T), (X, A, B, "bf16[9,K]")),
    "folds": (
        lambda x, a, b, c: (pair(x, a, b), pg.softmax(x @ c.T)), (X, A, B, "bf16[16,K]"),
    ),
    "what another section reads, too": (
        lambda x, a, b, c, d, v: (pair(x, a, b), x @ c.T + (v * 2), x @ d.T + (v * 2).sum()),
        (X, A, B, "bf16[16,K]", "bf16[32,K]", "f32[16]"),
    ),
    "three beside two": (
        lambda x, a, b, c, d, e: (pair(x, a, b), pair(x, c, d) + x @ e.T),
        (X, A, B, *["bf16[16,K]"] * 3),
    ),
    "a reshape that parts would cut": (
        lambda x, a, b, c: (pair(x, a, b), (x @ c.T).reshape(-1, 3, 8)), (X, A, B, "bf16[24,K]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_has_no_such_parts_stays_whole(name):
    function, signature = WHOLE[name]
    program = pg.fuse(function, name="even").program(*signature)
    assert even_sections(program) is program
    assert len({len(one.contractions) for one in sections(program)}) > 1


def test_norms_that_are_made_before_are_no_folds_of_a_section():
    def function(x, g, a, b, c):
        n = pg.rms_norm(x, g)
        return pair(n, a, b), n @ c.T

    program = pg.fuse(function, name="even").program(X, "bf16[K]", A, B, "bf16[24,K]")
    assert even_sections(program) is program  # a norm that leaves the product folds beside it
    made = made_first(program)
    assert made is not None
    found = even_sections(made)
    assert {len(one.contractions) for one in sections(found)} == {2}
    random = np.random.default_rng(0)
    arrays = {
        t.name: random.integers(-3, 4, [{"M": 5, "K": 7}.get(d, d) for d in t.dims])
        for t in program.inputs
    }
    for one, other in zip(evaluate(found, arrays), evaluate(program, arrays), strict=True):
        np.testing.assert_array_equal(one.astype("f4"), other.astype("f4"))


def test_programs_whose_sections_are_even_are_their_own():
    for function, signature in (
        (lambda x, a, b: (x @ a.T, x @ b.T), (X, A, "bf16[16,K]")),
        (lambda x, a, b: (x @ a.T, x @ b.T), (X, A, B)),
        (
            lambda x, a, b, c, d: (pair(x, a, b), x @ c.T, x @ d.T),
            (X, A, B, "bf16[4,K]", "bf16[4,K]"),
        ),
        (lambda x, a: x @ a.T, (X, A)),
    ):
        program = pg.fuse(function, name="even").program(*signature)
        assert even_sections(program) is program
    assert any(isinstance(s, Contraction) for s in program.statements)
