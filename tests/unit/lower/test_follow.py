"""The launch that follows in a plan: its leaves, what is shown of it, and broken ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import small

import polygen as pg
from polygen.errors import VerifyError
from polygen.kernel import Kernel
from polygen.lower import block_plan
from polygen.lower.follow_work import Settle
from polygen.lower.plan import KernelPlan
from polygen.lower.verify_blocks import check_block
from polygen.lower.verify_follow import check_following
from polygen.poly import block_tree
from polygen.schedule.model import Epilogue

PAIRS = small(epilogue=Epilogue(through="registers"))
X_W = ("bf16[M,K]", "bf16[N,K]")


@pg.fuse
def softmax(x, w):
    v = x @ w.T
    return pg.softmax(v), np.max(v, axis=0), np.sum(v, axis=0)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return softmax.compile(*X_W, arch="sm_80", schedule=PAIRS)


def test_every_stage_shows_it(kernel):
    tree, loops, plan = (kernel.show(stage) for stage in ("tree", "ast", "plan"))
    assert "proved: every part is combined once, and every warp's result taken once" in tree
    assert tree.count("begin_0[]; ") >= 2 and "walk_1[fold_e]" in tree
    assert "# the launch that follows, N result(s) of v" in loops
    assert "combine_0(fold_q)" in loops and "elements(fold_e)" in loops
    of_rows = plan.partition("the launch that follows, M result(s)")[2]
    assert "bar_take_1: all warps of the block, before each take_1; enforces" in of_rows
    assert "give_1 -> take_1 (flow through given_1)" in of_rows
    assert "every result is stored once" in "\n".join(map(str, kernel.passes.plan.proofs))


def test_barriers_in_the_text_are_those_of_the_plan(kernel):
    after = kernel.source.partition("_folds(")[2]
    bars = [one for group in kernel.passes.plan.groups for one in group.syncs]
    assert after.count("__syncthreads") == len(bars) == 3
    assert all(f"// {one.name}: {one.reason}" in after for one in bars)


def test_folds_with_as_many_parts_are_combined_together(kernel):
    columns = next(g for g in kernel.passes.plan.groups if not g.group.rows)
    assert len(columns.group.folds) == 2
    assert [leaf.statement for leaf in columns.leaves if leaf.op == "combine_parts"] == [
        "combine_0"
    ]


def test_calls_without_a_leaf_are_refused(kernel):
    plan = kernel.passes.plan
    group = plan.groups[0]
    check_block(plan.entry, group, "the launch that follows")
    with pytest.raises(VerifyError, match=r"leaves are .*, of .*take_0"):
        few = tuple(leaf for leaf in group.leaves if leaf.statement != "take_0")
        check_block(plan.entry, replace(group, leaves=few), "the launch that follows")


def changed(statement, **changes):
    """A leaf with other fields of its record."""

    def change(group):
        leaves = tuple(
            replace(one, work=replace(one.work, **changes)) if one.statement == statement else one
            for one in group.leaves
        )
        return replace(group, leaves=leaves)

    return change


MISTAKES = {
    "results of other lanes": changed("store", shared=False),
    "a result is not stored": changed("store", outputs=()),
    "a fold is not begun": changed("begin_0", folds=()),
    "warps are left out": changed("take_0", warps=7),
    "lanes do not meet": changed("give_0", shared=False),
    "parts of another count": changed("combine_0", count="fold_parts_1"),
    "a fold is not combined": changed("combine_0", folds=()),
    "statements over results are left out": changed("finish_0", statements=()),
    "results are of other axes": changed("finish_0", extents=("N",)),
    "combined folds are not known": changed("finish_0", folds=()),
    "an output is not computed": changed("finish_1", outputs=("y0",)),
    "terms of another level": changed("walk_1", number=2),
    "a fold of elements is left out": changed("walk_1", folds=()),
    "elements know other results": changed("elements", known=()),
    "elements one by one": changed("elements", wide=1),
    "terms of narrower words": changed("walk_1", wide=2),
}


@pytest.fixture(scope="module")
def rows() -> KernelPlan:
    """With results of rows, what is computed of them, and rows that use others of their own."""

    def both(x, w):
        v = x @ w.T
        return pg.softmax(v), np.max(v, axis=1) + 1

    return pg.fuse(both).compile(*X_W, arch="sm_80", schedule=PAIRS).passes.plan


@pytest.mark.parametrize("name", MISTAKES)
def test_leaves_that_do_something_else_are_refused(rows, name):
    plan = rows
    (group,) = plan.groups
    other = MISTAKES[name](group)
    assert other != group
    check_following(plan)
    with pytest.raises(VerifyError):
        check_following(replace(plan, groups=(other,)))


def test_arguments_beside_results_are_in_the_tile_program(monkeypatch):
    function = pg.fuse(lambda x, w, b: np.max(x @ w.T, axis=1) + b)
    plan = function.compile(*X_W, "f32[M]", arch="sm_80", schedule=PAIRS).passes.plan
    check_following(plan)
    (group,) = plan.groups
    finish = group.tree.synchronised.program.statement("finish_0")
    assert any(cells.startswith("argument[") for cells in finish.reads)
    monkeypatch.setattr(Settle, "reads", ())
    with pytest.raises(VerifyError, match="blocks do not do"):
        check_following(plan)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fold_q < fold_parts_0", "fold_q < -1 + fold_parts_0", "is never executed"),
        ("fold_w <= 15", "fold_w <= 14", r"take_0.* is never executed"),
        ("give_0[]; bar_take_0[]", "give_0[]", r"bar_take_0.* in no tree"),
    ],
)
def test_no_kernel_is_made_of_a_broken_tree(monkeypatch, old, new, message):
    plain = block_tree.emitted_of

    def broken(made):
        (place,) = plain(made).trees
        assert old in place.text
        return replace(plain(made), trees=(replace(place, text=place.text.replace(old, new)),))

    monkeypatch.setattr(block_tree, "emitted_of", broken)
    block_plan.forget()
    rows = pg.fuse(lambda x, w: np.sum(x @ w.T, axis=1))
    with pytest.raises(VerifyError, match=message):
        rows.compile(*X_W, arch="sm_80", schedule=PAIRS)
    block_plan.forget()
