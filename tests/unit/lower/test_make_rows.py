"""Operands that are made row by row, in a plan: its leaves, what is shown, and broken ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from matrix import roles

import polygen as pg
from polygen.errors import ScheduleError, UnsupportedProgram, VerifyError
from polygen.lower import block_plan
from polygen.lower.plan import KernelPlan, MakeRowsPlan
from polygen.lower.realign_work import RowMake
from polygen.lower.verify_made import check_preceding
from polygen.lower.verify_made_rows import check_made_rows
from polygen.poly import block_tree
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.emitted import Emitted
from polygen.schedule.model import Launches, Schedule

X_W = ("bf16[M,K]", "bf16[N,K]")


def first(schedule: Schedule | None = None) -> Schedule:
    found = schedule or roles("one", 64, 64)
    own = replace(found.roles, computes="before")
    return replace(found, roles=own, launch=Launches(dependent=True))


@pg.fuse
def normed(x, w):
    return pg.layer_norm(x).astype("bf16") @ w.T


@pg.fuse
def softmax(x, w):
    return pg.softmax(x).astype("bf16") @ w.T


@cache
def compiled() -> pg.Kernel:
    return normed.compile(*X_W, arch="sm_90a", schedule=first())


def rows_of(plan: KernelPlan) -> MakeRowsPlan:
    (found,) = (one for one in plan.copies if isinstance(one, MakeRowsPlan))
    return found


def test_every_stage_shows_it() -> None:
    kernel = compiled()
    title = "the launch that goes before, which makes rows of v11"
    assert f"# {title}\ndomain:" in kernel.show("tree")
    assert f"# {title}\nwait_grids_warps()\n" in kernel.show("ast")
    plan = kernel.show("plan")
    assert f"{title}:\n  8 warps of a block\n" in plan
    assert "v0 (sum), v4 (sum) in 2 pass(es) over the row, then its elements" in plan
    assert "bar_take_2: all warps of the block, before each take_2; enforces" in plan
    plain = softmax.compile(*X_W, arch="sm_90a", schedule=first())
    assert "# v5: rows are made by a launch that goes before" in plain.show("rewrite")
    proofs = "\n".join(map(str, kernel.passes.plan.proofs))
    assert "every element of a row visited once" in proofs
    assert "every element of an operand that is made by rows is one of a row" in proofs


def test_what_is_the_same_for_a_row_is_computed_once() -> None:
    settled = {
        leaf.statement: [one.function for one in leaf.work.statements]
        for leaf in rows_of(compiled().passes.plan).leaves
        if leaf.op == "finish_folds"
    }
    assert settled == {"finish_1": ["div"], "finish_2": ["div", "add", "rsqrt"]}


def changed(statement: str, **changes: Any) -> Callable[[MakeRowsPlan], MakeRowsPlan]:
    """A leaf with other fields of its record."""

    def change(of: MakeRowsPlan) -> MakeRowsPlan:
        leaves = tuple(
            replace(one, work=replace(one.work, **changes)) if one.statement == statement else one
            for one in of.leaves
        )
        return replace(of, leaves=leaves)

    return change


def without(statement: str) -> Callable[[MakeRowsPlan], MakeRowsPlan]:
    def change(of: MakeRowsPlan) -> MakeRowsPlan:
        return replace(of, leaves=tuple(one for one in of.leaves if one.statement != statement))

    return change


def of_rows(**changes: Any) -> Callable[[MakeRowsPlan], MakeRowsPlan]:
    def change(of: MakeRowsPlan) -> MakeRowsPlan:
        return replace(of, made=replace(of.made, rows=replace(of.made.rows, **changes)))

    return change


MISTAKES: dict[str, tuple[Callable[[MakeRowsPlan], MakeRowsPlan], str]] = {
    "a barrier": (without("bar_take_1"), "leaves are"),
    "a shuffle": (changed("give_1", shared=False), "give_1 is of other folds or warps"),
    "a warp's result": (changed("take_2", warps=7), "take_2 is of other folds or warps"),
    "a fold is not begun": (changed("begin_2", folds=()), "begin_2 is of other folds"),
    "a fold is not made": (changed("walk_1", folds=()), "walk_1 makes nothing"),
    "terms of another level": (changed("walk_2", number=1), "walk_2 goes through other rows"),
    "terms know nothing": (changed("walk_2", known=()), "walk_2 goes through other rows, or knows"),
    "elements one by one": (changed("elements", wide=1), "elements goes through other rows"),
    "what is computed of results": (changed("finish_2", statements=()), "leaves what it has not"),
    "results that elements read": (changed("finish_2", lasting=()), "elements goes through other"),
    "a result read too early": (changed("finish_1", known=("v4",)), "finish_1 is of other folds"),
    "another row": (of_rows(own=(1,)), "rows of v11: .* are computed otherwise"),
    "a statement": (
        lambda of: of_rows(statements=of.made.rows.statements[1:])(of), "are computed otherwise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_leaves_that_make_something_else_are_refused(name: str) -> None:
    plan = compiled().passes.plan
    of = rows_of(plan)
    check_made_rows(plan, of)
    change, message = MISTAKES[name]
    with pytest.raises(VerifyError, match=message):
        check_made_rows(plan, change(of))


HELD = {
    "other words": (changed("hold", words=3), "lanes hold"),
    "another array": (changed("hold", reads=()), "lanes hold"),
    "nothing": (without("hold"), "leaves are"),
    "a walk over nothing": (without("walk_1_held"), "leaves are"),
    "elements of nothing": (changed("elements_held", held=None), "elements_held goes through"),
    "a walk of other warps": (changed("take_1", warps=8), "take_1 is of other folds or warps"),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_words_that_lanes_hold_are_those_that_folds_read(name: str) -> None:
    one = first()
    one = replace(one, epilogue=replace(one.epilogue, row_warps=2, row_words=2))
    plan = normed.compile(*X_W, arch="sm_90a", schedule=one).passes.plan
    of = rows_of(plan)
    check_made_rows(plan, of)
    assert plan.realign is not None and plan.realign.threads == 64
    change, message = HELD[name]
    with pytest.raises(VerifyError, match=message):
        check_made_rows(plan, change(of))


def test_a_launch_that_leaves_an_operand_out_is_refused() -> None:
    plan = compiled().passes.plan
    check_preceding(plan)
    with pytest.raises(VerifyError, match="arrays before the kernel are not"):
        check_preceding(replace(plan, copies=()))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fold_w <= 7", "fold_w <= 6", r"take_1.* is never executed"),
        ("give_1[]; bar_take_1[]", "give_1[]", r"bar_take_1.* in no tree"),
        ("mod 2048 = 0", "mod 1024 = 0", r"walk_1|elements|walk_2"),
    ],
)
def test_no_kernel_is_made_of_a_broken_tree(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    plain = block_tree.emitted_of

    def broken(made: Synchronised) -> Emitted:
        (place,) = plain(made).trees
        assert old in place.text
        return replace(plain(made), trees=(replace(place, text=place.text.replace(old, new)),))

    monkeypatch.setattr(block_tree, "emitted_of", broken)
    block_plan.forget()
    with pytest.raises(VerifyError, match=message):
        softmax.compile("bf16[M,128]", "bf16[N,128]", arch="sm_90a", schedule=first())
    block_plan.forget()


def test_beside_chunks_each_operand_has_its_place() -> None:
    both = pg.fuse(lambda x, g, w: pg.softmax(x).astype("bf16") @ (w * g).T)
    plan = both.compile(X_W[0], "bf16[K]", X_W[1], arch="sm_90a", schedule=first()).passes.plan
    chunks, rows = plan.copies
    assert isinstance(rows, MakeRowsPlan) and not isinstance(chunks, MakeRowsPlan)
    assert any(isinstance(leaf.work, RowMake) for leaf in chunks.leaves)
    assert plan.realign is not None and plan.realign.by_rows == (rows.tensor.name,)


def test_workspaces_and_blocks_are_counted_by_rows() -> None:
    realign = compiled().passes.source.realign
    assert realign is not None
    sizes = {"M": 67, "N": 48, "K": 136}
    (tensor,) = realign.made
    assert realign.blocks(tensor, sizes) == 67
    assert realign.workspace(sizes) == 67 * 384  # rows of 272 bytes start at lines
    assert "rows_0" in compiled().passes.source.text


def test_the_schedule_says_where_norms_go() -> None:
    given = roles("one", 64, 64)
    behind = normed.compile(*X_W, arch="sm_90a", schedule=given).passes
    assert behind.source.realign is None and not behind.plan.whole.first
    assert compiled().passes.plan.whole.first == ("v11",)


def test_roles_that_would_have_parts_of_rows_are_refused() -> None:
    message = 'made by the kernel that multiplies it .*roles.computes = "before"'
    with pytest.raises(ScheduleError, match=message):
        softmax.compile(*X_W, arch="sm_90a", schedule=roles("one", 64, 64))
    assert softmax.compile(*X_W, arch="sm_90a", schedule=first()).passes.source.realign is not None


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_without_roles_the_launch_makes_them_under_every_schedule(arch: str) -> None:
    found = pg.fuse(lambda x, w: pg.softmax(x).astype("f16") @ w.T, name="softmax")
    kernel = found.compile("f16[M,K]", "f16[N,K]", arch=arch)
    assert kernel.passes.source.realign is not None and not kernel.schedule.makes_first
    assert "are made first, in a launch before the kernel" in kernel.schedule_origin
    assert [tensor.name for tensor in kernel.passes.plan.program.inputs][-1] == "v5"


def test_folds_behind_the_product_keep_their_launch() -> None:
    found = pg.fuse(lambda x, w: pg.max(pg.softmax(x).astype("bf16") @ w.T, axis=1))
    with pytest.raises(UnsupportedProgram, match=r"over its rows, beside v7, a fold of"):
        found.compile(*X_W, arch="sm_90a", schedule=replace(first(), launch=Launches()))
