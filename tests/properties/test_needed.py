"""What is said to be read of a product is no less than what is: NaN anywhere else changes nothing.

Programs are made at random of masks, masks in masks, and work around them; POLYGEN_RANDOM_COUNT
says how many.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen import isl
from polygen.analysis import analysed
from polygen.frontend.dtypes import F32
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Tensor
from polygen.poly.needed import needed

COUNT = int(os.environ.get("POLYGEN_RANDOM_COUNT", "4"))
M, N = 23, 31


class Drawn:
    """A function of a product and an array, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(self, x, w, b):
        v = x @ w
        self.i, self.j = pg.indices(v)
        self.v, self.b = v, b
        return self.masked(3) + b

    def one_of(self, *choices):
        return choices[self.random.integers(len(choices))]()

    def number(self):
        return int(self.random.integers(-12, 13))

    def form(self, depth=2):
        if not depth:
            return self.one_of(lambda: self.i, lambda: self.j)
        inner = lambda: self.form(depth - 1)  # noqa: E731
        return self.one_of(
            inner,
            lambda: inner() + self.number(),
            lambda: inner() - inner(),
            lambda: inner() + inner(),
            lambda: inner() * int(self.random.integers(1, 4)),
            lambda: -inner(),
            lambda: abs(inner() - inner()),
            lambda: pg.minimum(inner(), inner() + self.number()),
            lambda: inner() + 0.5,  # none that is known
        )

    def condition(self, depth=2):
        plain = (
            lambda: self.form() >= self.form(1),
            lambda: self.form() < self.number(),
            lambda: self.form(1) > self.form(1),
            lambda: self.form(1) <= self.form(),
            lambda: self.form(1) == self.form(1),
            lambda: self.form(1) != self.form(1),
        )
        if not depth:
            return self.one_of(*plain, lambda: self.b > 0)
        inner = lambda: self.condition(depth - 1)  # noqa: E731
        return self.one_of(*plain, lambda: inner() & inner(), lambda: inner() | inner(),
                           lambda: ~inner())  # fmt: skip

    def masked(self, depth):
        if not depth:
            return self.one_of(lambda: self.v, lambda: pg.relu(self.v) + self.b, lambda: self.v * 2)
        inner = lambda: self.masked(depth - 1)  # noqa: E731
        other = lambda: self.one_of(lambda: 0.0, lambda: self.b, lambda: self.i - self.j)  # noqa: E731
        return self.one_of(
            lambda: pg.where(self.condition(), inner(), other()),
            lambda: pg.where(self.condition(), other(), inner()),
            lambda: np.tril(inner(), self.number()),
            lambda: np.triu(inner(), self.number()) + 1,
            lambda: pg.where(self.condition(), inner(), inner()),
            lambda: pg.where(self.condition(1), inner(), 1) + np.tril(self.v, self.number()),
        )


@pytest.mark.parametrize("seed", range(COUNT))
def test_nothing_else_is_read(seed):
    signature = ("bf16[M,K]", "bf16[K,N]", "f32[M,N]")
    program = pg.fuse(Drawn(seed)).program(*signature, out_dtype="f32")
    read = needed(program)
    if not read:
        return
    ((name, elements),) = read.items()
    box = isl.Set(f"{{ [m, n] : 0 <= m < {M} and 0 <= n < {N} }}")
    there = np.zeros((M, N), bool)
    for point in isl.points(elements.intersect(box).identity()):
        there[point[:2]] = True
    # The same statements, with the product as an argument.
    product = Tensor(name, F32, ("M", "N"), (0, 1))
    behind = replace(
        program, inputs=(product, program.inputs[-1]), statements=tuple(program.pointwise)
    )
    random = np.random.default_rng(seed)
    sums, b = (random.integers(-9, 10, (M, N)).astype("f4") for _ in range(2))
    sizes = {"M": M, "N": N}
    (wanted,) = evaluate(behind, {name: sums, program.inputs[-1].name: b}, sizes)
    poisoned = np.where(there, sums, np.nan).astype("f4")
    (found,) = evaluate(behind, {name: poisoned, program.inputs[-1].name: b}, sizes)
    np.testing.assert_array_equal(found, wanted)
    planes = analysed(program).prospect.matched.domain
    rows, columns = np.indices((M, N))
    for a, c, number in planes:
        assert ((a * rows + c * columns + number >= 0) | ~there).all()


def test_coordinates_that_cancel_are_no_affine_form():
    """In f32 they do not: rounding tells on rows that fit a memory."""
    row = np.arange(2**21).astype("f4")
    assert not (row * 9 - row * 8 >= row).all()

    def cancelling(x, w):
        v = x @ w
        i, _ = pg.indices(v)
        return pg.where(i * 9 - i * 8 >= i, 0.0, v)

    def once(x, w):
        v = x @ w
        return pg.where(pg.indices(v)[0] * 9 >= 40, 0.0, v)

    signature = ("bf16[M,K]", "bf16[K,N]")
    assert needed(pg.fuse(cancelling).program(*signature)) == {}
    assert needed(pg.fuse(once).program(*signature))


@pytest.mark.slow
def test_masks_at_random_leave_something_out():
    signature = ("bf16[M,K]", "bf16[K,N]", "f32[M,N]")
    programs = (pg.fuse(Drawn(seed)).program(*signature) for seed in range(40))
    found = [analysed(one).prospect.matched.domain for one in programs]
    assert 8 < sum(map(bool, found)) < 32
