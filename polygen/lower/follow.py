"""The launch that follows, group by group of its results: a tile program, and the leaves of it.

1. What a block of a group does is a shape: how many numbers of parts and levels of folds there are,
   and who shares results. Its tile program is synchronised and proved like a kernel's
   (`polygen.poly.follow_program`, `polygen.poly.follow_map`).
   Rows whose keys are in parts have one of their own (`polygen.lower.follow_keys`).
2. Each statement gets its leaf. A level settles what is computed of its results alone; what later
   statements read of that lasts.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.dtypes import BOOL
from polygen.frontend.program import Fold, Pointwise
from polygen.lower.block_plan import block_parts
from polygen.lower.follow_keys import keys_launch
from polygen.lower.follow_work import (
    CombineParts,
    Held,
    HoldRow,
    Meet,
    Settle,
    StoreResults,
    Walk,
    kept_of,
    row_width,
)
from polygen.lower.launch import Following, Parts, Results
from polygen.lower.plan import GroupPlan, KernelPlan, Leaf, Work
from polygen.lower.verify_follow import check_following
from polygen.poly.block_tree import Derive, block_tree
from polygen.poly.folds import Split, scalars
from polygen.poly.follow_map import WHERE, check_visits
from polygen.poly.follow_program import (
    ELEMENT,
    OTHER,
    PART,
    WORD,
    FollowShape,
    combining,
    follow_program,
    over_held,
    parts_of,
)
from polygen.poly.row_passes import split_for
from polygen.poly.whole_rows import Rows


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
        own = _Group(plan, group, split_for(plan.program, in_tile=plan.schedule.covers_rows))
        shape, found = own.shape(warps, after.lanes), own.leaves(warps)
        tree = block_tree(shape, follow_program, check_visits, WHERE, derived)
    return GroupPlan(tree, *block_parts(tree, found), group)


class _Group:
    """One group of results."""

    def __init__(self, plan: KernelPlan, group: Results, split: Split) -> None:
        self.group = group
        self.shared = group.lanes > 1
        self.rows: Rows | None = None
        if group.rows:
            names = group.rows
            self.rows = next(r for r in split.rows if tuple(s.name for s in r.statements) == names)
        self.wide = row_width(self.rows, split, plan.program) if self.rows else 1
        self.hold = held_row(plan, self.rows, split)
        self.statements = [s for s in split.after if s.name in group.after]
        self.scalars = scalars(plan.program)
        made = {one.value: one for one in plan.epilogue.folds}
        self.parts: dict[object, list[tuple[Held, Parts]]] = {}
        for fold in group.folds:
            one = made[fold]
            found = self.parts.setdefault(one.parts.counts, [])
            found.append((Held(fold, one.monoid), one.parts))
        self.later = _levels(self.rows) if self.rows else ()

    def shape(self, warps: int, lanes: int) -> FollowShape:
        """What a block does."""
        return FollowShape(
            len(self.parts),
            len(self.later),
            warps,
            lanes,
            self.shared,
            rows=self.rows is not None,
            written=self.rows is not None and bool(self.rows.outputs),
            stored=bool(self.group.outputs),
            wide=self.wide,
            words=self.hold.words if self.hold else 0,
        )

    def leaves(self, warps: int) -> list[Leaf]:
        """Of its statements."""
        found: list[Leaf] = []

        def add(statement: str, op: str, loops: tuple[str, ...], work: Work) -> None:
            found.append(Leaf(statement, op, "threads", loops, work))

        def walk(statement: str, work: Walk) -> None:
            if self.hold is not None:
                held = replace(work, held=self.hold)
                add(over_held(statement), "walk_row", (WORD,), held)
            add(statement, "walk_row", (ELEMENT,), work)

        if self.hold is not None:
            add("hold", "hold_row", (WORD,), self.hold)
        known: tuple[str, ...] = ()
        every = [tuple(held for same in self.parts.values() for held, _ in same)]
        every += [tuple(Held(f.write.name, f.function) for f in folds) for folds in self.later]
        for level, folds in enumerate(every):
            meet = Meet(folds, warps, self.shared)
            add(f"begin_{level}", "begin_folds", (), meet)
            if level:
                assert self.rows is not None
                walk(
                    f"walk_{level}",
                    Walk(self.rows, self.later[level - 1], known, level, self.wide),
                )
            else:
                for number, same in enumerate(self.parts.values()):
                    work = CombineParts(tuple(same), parts_of(number), self.shared)
                    add(combining(number), "combine_parts", (PART,), work)
            add(f"give_{level}", "give_folds", (), meet)
            add(f"take_{level}", "take_folds", (OTHER,), meet)
            settle = self._settle(folds, known)
            add(f"finish_{level}", "finish_folds", (), settle)
            known = (*known, *(name for name, _ in settle.lasting))
        assert not self.statements
        if self.rows is not None and self.rows.outputs:
            walk("elements", Walk(self.rows, (), known, 0, self.wide))
        if self.group.outputs:
            stores = StoreResults(self.group.outputs, self.group.extents, self.shared)
            add("store", "store_results", (), stores)
        return found

    def _settle(self, folds: tuple[Held, ...], known: tuple[str, ...]) -> Settle:
        """What can be computed when a level is there, of the statements that are left."""
        there = {*known, *self.scalars, *(held.value for held in folds)}
        run: list[Pointwise] = []
        for one in list(self.statements):
            if all(access.name in there for access in one.reads):
                there.add(one.write.name)
                run.append(one)
                self.statements.remove(one)
        outputs = tuple(s.write.name for s in run if s.write.name in self.group.outputs)
        values = [(held.value, False) for held in folds]
        values += [(s.write.name, s.dtype == BOOL) for s in run if s.write.name not in outputs]
        late = self.rows.statements if self.rows else ()
        later = {access.name for s in (*self.statements, *late) for access in s.reads}
        lasting = tuple((name, truth) for name, truth in values if name in later)
        return Settle(folds, tuple(run), known, lasting, outputs)


def held_row(plan: KernelPlan, rows: Rows | None, split: Split) -> HoldRow | None:
    """What lanes hold of a row: nothing of one that they do not read in words."""
    words, after = plan.schedule.epilogue.row_words, plan.following
    if rows is None or after is None or not words:
        return None
    wide, values = row_width(rows, split, plan.program), kept_of(rows, split)
    if wide == 1 or not values:
        return None
    return HoldRow(rows, values, words, after.threads // after.lanes, wide)


def _levels(rows: Rows) -> tuple[tuple[Fold, ...], ...]:
    """Folds of elements, by how many walks have to be over before their terms are known."""
    level: dict[str, int] = {}
    for one in rows.statements:
        read = max((level.get(access.name, 0) for access in one.reads), default=0)
        level[one.write.name] = read + isinstance(one, Fold)
    numbers = sorted({level[fold.write.name] for fold in rows.folds})
    return tuple(tuple(f for f in rows.folds if level[f.write.name] == n) for n in numbers)
