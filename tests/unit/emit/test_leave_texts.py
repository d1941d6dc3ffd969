"""Texts that store numbers of rows: those of another tile, row or place are refused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from matrix import roles, small
from text_mutants import tried

import polygen as pg
from polygen.emit.leaf.table import kind_of, prove, proved
from polygen.errors import VerifyError
from polygen.schedule.model import Epilogue

X_W = ("bf16[M,K]", "bf16[N,K]")


def rows(x, w):
    squares = np.sum(x * x, axis=1)
    return squares[:, None] - x @ w.T, np.max(x, axis=1), squares


def columns(x, w):
    return x @ w.T, np.sum(w, axis=1).astype("bf16")


def matrices(x, w):
    return x @ w, np.sum(w, axis=-2), np.sum(x, axis=-1)


CASES = {
    "rows": (rows, X_W, "sm_80", small(epilogue=Epilogue(through="registers"))),
    "columns": (columns, X_W, "sm_90a", roles("two", through="lines")),
    "turns": (columns, X_W, "sm_90a", roles("pingpong", n=160)),
    "matrices": (matrices, ("bf16[M,K]", "bf16[B,K,N]"), "sm_80", small()),
}


@cache
def leaf_of(name):
    function, signature, arch, schedule = CASES[name]
    plan = pg.fuse(function).compile(*signature, arch=arch, schedule=schedule).passes.plan
    return plan, next(one for one in plan.leaves if one.op == "leave" and proved(one))


def text(name):
    plan, leaf = leaf_of(name)
    return kind_of(leaf).text(plan, leaf).code


@pytest.mark.parametrize("name", CASES)
def test_every_mistake_is_refused_or_stores_the_same(name):
    found = tried(*leaf_of(name), 1)
    wrong = [one for one, same in found.accepted if not same]
    assert not wrong, wrong
    assert not found.undecided
    assert found.refused > 2 * len(found.accepted)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        # Every block along n stores, or none does, or another one.
        ("rows", "if (b_n == 0) {", "if (b_n >= 0) {", "elements are written besides"),
        ("rows", "if (b_n == 0) {", "if (b_n < 0) {", "y1[0] is not written"),
        ("rows", "if (b_n == 0) {", "if (b_n == 1) {", "y1[0] is not written"),
        ("columns", "if (b_m == 0) {", "if (b_n == 0) {", "y1["),
        # Every matrix of a batch that the rows are the same in.
        ("matrices", "b_n == 0 && z0 == 0", "b_n == 0", "elements are written besides"),
        # Another row, another result, rows outside, a row twice.
        ("rows", "y1 + row_of_all", "y1 + own_row", "y1[16] is not written"),
        ("rows", "read_sum(norms_a_at + (16 + own_row)", "read_sum(norms_a_at + (own_row)", "y1["),
        ("rows", " && row_of_all < M", "", "elements are written besides"),
        ("rows", "own_row < 16 && ", "", "elements are written besides"),
        ("columns", "thread % 128 + ", "thread % 64 + ", "y1["),
        ("columns", "to_bf16(", "to_f32(", "is not made of its own numbers"),
    ],
)
def test_where_results_do_not_belong(name, old, new, message):
    plan, leaf = leaf_of(name)
    given = text(name)
    assert old in given
    prove(plan, leaf, (given,))
    with pytest.raises(VerifyError) as error:
        prove(plan, leaf, (given.replace(old, new),))
    assert message in str(error.value)
