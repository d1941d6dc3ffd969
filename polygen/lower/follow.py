"""The launch that follows, group by group of its results: a tile program, and the leaves of it.

1. What a block of a group does is a shape: how many numbers of parts and levels of folds there are,
   and who shares results. Its tile program is synchronised and proved like a kernel's
   (`polygen.poly.follow_program`, `polygen.poly.follow_map`).
   Rows whose keys are in parts have one of their own (`polygen.lower.follow_keys`).
2. Each statement gets its leaf (`polygen.lower.row_leaves`).
"""

from __future__ import annotations

from dataclasses import replace

from polygen.lower.block_plan import block_parts
from polygen.lower.folds import split_of
from polygen.lower.follow_keys import keys_launch
from polygen.lower.follow_work import (
    Held,
    HoldRow,
    kept_of,
    row_width,
)
from polygen.lower.launch import Following, Parts, Results
from polygen.lower.plan import GroupPlan, KernelPlan
from polygen.lower.row_leaves import RowLeaves
from polygen.lower.sync_work import Grids
from polygen.lower.verify_follow import check_following
from polygen.poly.block_tree import Derive, block_tree
from polygen.poly.folds import Split, given, scalars
from polygen.poly.follow_map import WHERE, check_visits
from polygen.poly.follow_program import (
    follow_program,
)
from polygen.poly.whole_rows import Rows, levels


def follow(plan: KernelPlan, derived: Derive) -> KernelPlan:
    """The plan with the tile programs of the launch that follows, if there is one.

    Args:
        plan: a kernel that has been verified.
        derived: what synchronises a tile program, derived or kept from before.

    Raises:
        VerifyError: a part or a result is left out, or what would be emitted does not do what the
            program says.
    """
    after = plan.following
    if after is None:
        return plan
    groups = tuple(_group(plan, after, group, derived) for group in after.groups)
    proofs = dict.fromkeys(proof for group in groups for proof in group.tree.proofs)
    plan = replace(plan, groups=groups, proofs=(*plan.proofs, *proofs))
    check_following(plan)
    return plan


def _group(plan: KernelPlan, after: Following, group: Results, derived: Derive) -> GroupPlan:
    """The tree of a group, its leaves, and who runs them."""
    warps = after.threads // after.lanes
    if group.merged:
        tree, found = keys_launch(plan, after, derived)
    else:
        split = split_of(plan)
        own = _rows_of(plan, group, split)
        shape = own.shape(warps, after.lanes, dependent=after.dependent)
        found = own.leaves(warps)
        tree = block_tree(shape, follow_program, check_visits, WHERE, derived)
    return GroupPlan(tree, *block_parts(tree, found, Grids(follows=True)), group)


def _rows_of(plan: KernelPlan, group: Results, split: Split) -> RowLeaves:
    """What a block of one group of results does, and by what leaves."""
    rows: Rows | None = None
    if group.rows:
        names = group.rows
        rows = next(r for r in split.rows if tuple(s.name for s in r.statements) == names)
    made = {one.value: one for one in plan.epilogue.folds}
    parts: dict[object, list[tuple[Held, Parts]]] = {}
    for fold in group.folds:
        one = made[fold]
        found = parts.setdefault(one.parts.counts, [])
        found.append((Held(fold, one.monoid), one.parts))
    return RowLeaves(
        rows=rows,
        parts=tuple(map(tuple, parts.values())),
        later=levels(rows) if rows else (),
        after=tuple(s for s in split.after if s.name in group.after),
        outputs=group.outputs,
        extents=group.extents,
        given=given(plan.program),
        shared=group.lanes > 1,
        wide=row_width(rows, split, plan.program) if rows else 1,
        hold=held_row(plan, rows, split),
        arrays=given(plan.program) - scalars(plan.program),
    )


def held_row(plan: KernelPlan, rows: Rows | None, split: Split) -> HoldRow | None:
    """What lanes hold of a row: nothing of one that they do not read in words."""
    words, after = plan.schedule.epilogue.row_words, plan.following
    if rows is None or after is None or not words:
        return None
    wide, values = row_width(rows, split, plan.program), kept_of(rows, split)
    if wide == 1 or not values:
        return None
    return HoldRow(rows, values, words, after.threads // after.lanes, wide)
