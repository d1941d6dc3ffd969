"""Outputs without a product that are no folds of what one multiplies, or not of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles, small

import polygen as pg
from polygen.errors import InvarianceError, ScheduleError, UnsupportedProgram, VerifyError
from polygen.lower.tallies import check_tallies
from polygen.lower.tally import Leave
from polygen.schedule.model import Epilogue

X_W = ("bf16[M,K]", "bf16[N,K]")
NO_ROWS = "is no result of a product, and no number of each row of what one multiplies"
NOT_THERE = "no product sums that axis of an operand"


def _into(x, w, g, y, r):
    g[r], y[r] = np.sum(x, axis=1), x @ w.T
    return g, y


def compile_(function, *signature, arch="sm_80", **options):
    return pg.fuse(function, name="f").compile(*signature, arch=arch, **options)


@pytest.mark.parametrize(
    ("function", "signature", "message", "nearest"),
    [
        (lambda x: x.sum(0), X_W[:1], "sum(x, axis=0), reads no contraction", "Use x @ w in it"),
        (lambda x, w: (x @ w.T, np.sum(x, axis=0)), X_W, NOT_THERE, "in a function of its own"),
        (lambda x, w: (x @ w.T, np.sum(x)), X_W, "it is folded over 2 axes", "of its own"),
        (
            lambda x, w, z: (x @ w.T, np.sum(z, axis=1)), (*X_W, "bf16[M,K]"), NO_ROWS,
            "Compute y1 in a call of its own",
        ),
        (
            lambda x, w, g: (x @ w.T, np.sum(x, axis=1) + g), (*X_W, "bf16[M]"), NO_ROWS,
            "Compute y1 in a call of its own",
        ),
        (
            lambda x, w: (x @ w.T, np.sum(x, axis=1)[:, None] + np.sum(w, axis=1)), X_W, NO_ROWS,
            "Compute y1 in a call of its own",
        ),
        (
            lambda x, w: (x @ w.T, np.sum(x, axis=1)[:8]), ("bf16[64,K]", "bf16[N,K]"), NO_ROWS,
            "Compute y1 in a call of its own",
        ),
        (
            _into, (*X_W, "f32[S]", "bf16[S,N]", "s32[M]"), "g is stored into by index",
            "one that stores into g",
        ),
        (  # of more rows than the product multiplies, of fewer, and of none of its rows
            lambda x, w: (x[:32] @ w.T, np.sum(x, axis=1)), ("bf16[64,K]", "bf16[N,K]"), NOT_THERE,
            "in a function of its own",
        ),
        (
            lambda x, w: (x @ w.T, np.sum(x[:32], axis=1)), ("bf16[64,K]", "bf16[N,K]"), NOT_THERE,
            "in a function of its own",
        ),
        (
            lambda x, w, g: ((x * g).astype("bf16") @ w.T, np.sum(g)), (*X_W, "bf16[K]"), NOT_THERE,
            "in a function of its own",
        ),
        (
            lambda x, w: (x @ w.T, np.max(np.sum(x, axis=1))), X_W, "a fold of what comes of v2",
            "Compute v3 in a function before",
        ),
        (
            lambda x, w: (x @ w.T, np.argmax(x, axis=1)), X_W, "an index of an operand's elements",
            "Compute v2 in a function before",
        ),
        (
            lambda x, w, u, v: (x @ w.T, u @ v.T, np.sum(x, axis=1)),
            (*X_W, "bf16[P,Q]", "bf16[R,Q]"),
            "products over different output domains, and folds of results",
            "one output domain per fused function",
        ),
        (
            lambda x, w, e: (pg.grouped_matmul(x, w, e), np.sum(x, axis=1)),
            ("bf16[T,K]", "bf16[E,K,N]", "s32[E]"), "in a function with rows in groups",
            "fold it outside of the kernel",
        ),
        (
            lambda q, k, v: (pg.softmax(q @ k.mT) @ v, np.sum(q, axis=-1)), ("bf16[2,S,64]",) * 3,
            "the loop of a chain folds over its keys", "in a function before",
        ),
    ],
)  # fmt: skip
def test_what_does_not_leave_is_refused(function, signature, message, nearest):
    with pytest.raises(UnsupportedProgram) as error:
        compile_(function, *signature, single=True)
    assert message in str(error.value) and nearest in str(error.value)


def test_a_part_of_an_output():
    def joined(x, w):
        return np.concatenate([x @ w.T, np.sum(x, axis=1, keepdims=True)], axis=1)

    with pytest.raises(UnsupportedProgram, match=r"sum\(x, axis=1\).*reads no contraction"):
        compile_(joined, "bf16[M,K]", "bf16[64,K]")


def leaving(x, w):
    return x @ w.T, np.sum(x, axis=1)


@pytest.mark.parametrize(
    ("schedule", "arch", "message"),
    [
        (roles("one", cluster=(1, 1, 2)), "sm_90a", "cluster.k = 2 with v2, a fold of an operand"),
        (roles("one", cluster=(2, 1)), "sm_90a", "a cluster of 2 x 1 with v2, a fold of an"),
        (replace(small(), exchange=True), "sm_80", "exchange with v2, a fold of an operand"),
    ],
)
def test_schedules_that_fold_no_operands(schedule, arch, message):
    with pytest.raises(ScheduleError, match=message):
        compile_(leaving, *X_W, arch=arch, schedule=schedule)


def test_invariant_dims():
    with pytest.raises(InvarianceError, match="v2 is the sum over K"):
        compile_(leaving, *X_W, invariant=("M",))
    largest = compile_(lambda x, w: (x @ w.T, np.max(x, axis=1)), *X_W, invariant=("M",))
    assert largest.sums.invariant == ("M",)


def test_results_that_leave_otherwise():
    """The plan says where results go: other outputs, dims or leaves are refused."""
    schedule = small(epilogue=Epilogue(through="registers"))
    plan = compile_(leaving, *X_W, schedule=schedule).passes.plan

    def with_(change):
        leaves = (change(leaf) if isinstance(leaf.work, Leave) else leaf for leaf in plan.leaves)
        return replace(plan, leaves=tuple(leaf for leaf in leaves if leaf is not None))

    def changed(**fields):
        def change(leaf):
            (one,) = leaf.work.outputs
            return replace(leaf, work=replace(leaf.work, outputs=(replace(one, **fields),)))

        return change

    for change in (
        lambda leaf: None,
        changed(first=()),
        changed(first=("b_m",)),
        changed(number=1),
        changed(step="0"),
    ):
        with pytest.raises(VerifyError, match="leave as numbers of rows otherwise"):
            check_tallies(with_(change))
