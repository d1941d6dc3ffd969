"""Passes over the sums of a tile leave what those behind them need in registers.

Exact on integers on the PTX machine, rows that end inside words and instructions among them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matrix import roles, tiled

import polygen as pg
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.poly.row_passes import split_for
from polygen.schedule.model import Epilogue

X_W_R = ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]")
WHOLE = tiled((32, 96, 32), (16, 96), epilogue=Epilogue(through="registers", rows="tile"))


def with_roles(form, cluster=(1, 1), through="registers"):
    made = roles(form, through=through, cluster=cluster)
    return replace(made, epilogue=replace(made.epilogue, through=through, rows="tile"))


def levels(x, w, r):
    """Each pass reads what the one before has left: a matrix is read once."""
    v = x @ w.T + r
    u = v - np.max(v, axis=1, keepdims=True)
    return u - np.sum(u, axis=1, keepdims=True)


def sums_too(x, w, r):
    """The last pass needs the sums besides."""
    v = x @ w.T + r
    return (v - np.max(v, axis=1, keepdims=True)) * (x @ w.T)


def leaves_too(x, w, r):
    """What is held leaves as well."""
    v = x @ w.T + r
    return v - np.max(v, axis=1, keepdims=True), v


def two_products(x, w, r, u):
    v = pg.relu(x @ w.T) + x @ u.T + r
    return v - np.min(v, axis=1, keepdims=True)


def masked(x, w, r):
    i, j = pg.indices(r)
    v = pg.where(j <= i, x @ w.T + r, -9)
    return v - np.max(v, axis=1, keepdims=True)


def truths(x, w, r):
    """A truth value takes nobody's place."""
    above = (x @ w.T) > r
    return pg.where(above, np.sum(above, axis=1, keepdims=True), -1.0)


def rounded(x, w, r):
    v = (x @ w.T + r).astype("bf16")
    return v - np.max(v, axis=1, keepdims=True)


HELD = {
    levels: ("held_v1", "held_v3"),
    sums_too: ("",),
    leaves_too: ("held_v1",),
    masked: ("held_",),
    truths: ("",),
    rounded: ("held_v2",),
}


@pytest.mark.parametrize("function", HELD, ids=lambda one: one.__name__)
def test_what_passes_leave(function):
    split = split_for(pg.fuse(function).program(*X_W_R), in_tile=True)
    assert split.passes is not None
    held = split.passes.held
    assert len(held) == split.passes.count
    assert all(
        a == b or (b.endswith("_") and a.startswith(b))
        for a, b in zip(held, HELD[function], strict=True)
    )


def test_sums_of_other_types_keep_their_place():
    function = pg.fuse(lambda x, w: (x @ w.T + 1) - np.max(x @ w.T + 1, axis=1, keepdims=True))
    signature = ("f16[M,K]", "f16[N,K]")
    held = {
        kind: split_for(function.program(*signature, acc_dtype=kind), in_tile=True).passes.held
        for kind in ("f32", "f16")
    }
    assert held["f32"] != ("",) and held["f16"] == ("",)


@cache
def by_warps(function):
    return pg.fuse(function).compile(*X_W_R, arch="sm_80", schedule=WHOLE)


@pytest.mark.parametrize("function", HELD, ids=lambda one: one.__name__)
@pytest.mark.parametrize("n", [1, 87, 96])
def test_by_warps(function, n):
    report = by_warps(function).check({"M": 40, "N": n, "K": 40})
    assert report.ok, str(report)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_is_read_in_words_beside_what_is_not(arch):
    """A row of biases lies in words, a matrix that is read across does not."""
    schedule = WHOLE if arch == "sm_80" else with_roles("one")
    kernel = pg.fuse(lambda x, w, b, r: levels(x, w, r.T) + b).compile(
        *X_W_R[:2], "bf16[N]", "f32[N,M]", arch=arch, schedule=schedule
    )
    mixed = pg.fuse(lambda x, w, b, r: levels(x, w, b + r.T)).compile(
        *X_W_R[:2], "bf16[N]", "f32[N,M]", arch=arch, schedule=schedule
    )
    for made in (kernel, mixed):
        report = made.check({"M": 40, "N": 62, "K": 40})
        assert report.ok, str(report)


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_a_matrix_of_any_type_is_read_in_words(kind):
    kernel = pg.fuse(levels).compile(
        *X_W_R[:2], f"{kind}[M,N]", arch="sm_90a", schedule=with_roles("one")
    )
    # Of a thread's two rows, of a tile inside and of one at the end: by one pass alone.
    assert kernel.source.count("read_words<") == 4
    for n in (1, 33, 64):
        report = kernel.check({"M": 70, "N": n, "K": 64})
        assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("function", [levels, leaves_too, rounded, two_products])
@pytest.mark.parametrize(
    ("form", "cluster", "n"), [("two", (1, 2), 127), ("pingpong", (1, 4), 250)]
)
def test_by_clusters(function, form, cluster, n):
    operands = (*X_W_R, X_W_R[1])[: function.__code__.co_argcount]
    kernel = pg.fuse(function).compile(*operands, arch="sm_90a", schedule=with_roles(form, cluster))
    report = kernel.check({"M": 200, "N": n, "K": 64})
    assert report.ok, str(report)


def test_panels_have_no_operand_that_a_pass_has_read():
    """It is brought near while the products run instead."""
    kernel = pg.fuse(levels).compile(
        *X_W_R, arch="sm_90a", schedule=with_roles("one", through="tma"), out_dtype="bf16"
    )
    plan = kernel.passes.plan
    assert not any(one.name.startswith("panel_") for one in plan.buffers)
    assert {"held_r0", "held_r1"} <= {one.name for one in plan.tile_program.buffers}
    assert "near(r" in kernel.source
    report = kernel.check({"M": 70, "N": 64, "K": 64})
    assert report.ok, str(report)


# --- mistakes ------------------------------------------------------------------------------------
def plan_of() -> KernelPlan:
    return pg.fuse(levels).compile(*X_W_R, arch="sm_80", schedule=WHOLE).passes.plan


@pytest.mark.parametrize("number", [0, 1])
def test_a_pass_that_leaves_nothing_is_refused(number):
    plan = plan_of()
    terms = f"terms_r{number}"
    leaves = tuple(
        replace(one, work=replace(one.work, holds=None)) if one.statement == terms else one
        for one in plan.leaves
    )
    with pytest.raises(VerifyError, match=f"{terms} works on"):
        verify(replace(plan, leaves=leaves))


def test_results_of_what_a_pass_has_not_left_are_refused():
    plan = plan_of()
    out = replace(plan.epilogue, sums=plan.epilogue.before[0].sums)
    leaves = tuple(
        replace(one, work=out) if one.work == plan.epilogue else one for one in plan.leaves
    )
    with pytest.raises(VerifyError, match="sums are read as"):
        verify(replace(plan, leaves=leaves))
