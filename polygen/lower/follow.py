"""The launch that follows, group by group of its results: a tile program, and the leaves of it.

1. What a block of a group does is a shape: how many numbers of parts and levels of folds there are,
   and who shares results. Its tile program is synchronised and proved like a kernel's
   (`polygen.poly.follow_program`, `polygen.poly.follow_map`).
2. Each statement gets its leaf. A level settles what is computed of its results alone; what later
   statements read of that lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from polygen.errors import VerifyError
from polygen.frontend.dtypes import BOOL
from polygen.frontend.program import Fold, Pointwise
from polygen.lower.cover import is_covering
from polygen.lower.follow_work import (
    CombineParts,
    Held,
    Meet,
    Settle,
    StoreResults,
    Walk,
)
from polygen.lower.launch import Following, Parts, Results
from polygen.lower.plan import GroupPlan, KernelPlan, Leaf, Place
from polygen.lower.synchronise import placed
from polygen.lower.verify import calls
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.folds import Split
from polygen.poly.follow_map import FollowTree, map_follow
from polygen.poly.follow_program import (
    ELEMENT,
    OTHER,
    PART,
    WARP,
    FollowShape,
    combining,
    parts_of,
)
from polygen.poly.row_passes import split_for
from polygen.poly.tile_program import TileProgram
from polygen.poly.tile_tree import leaves as tree_leaves
from polygen.poly.whole_rows import Rows

Derive = Callable[[TileProgram], Synchronised]


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
    wanted = [] if after is None else [group for group in after.groups if not group.merged]
    if after is None or not wanted:
        return plan
    split = split_for(plan.program, in_tile=is_covering(plan.schedule))
    groups = tuple(_Group(plan, after, group, split).plan(derived) for group in wanted)
    for group in groups:
        check_calls(plan, group)
    proofs = dict.fromkeys(proof for group in groups for proof in group.tree.proofs)
    return replace(plan, groups=groups, proofs=(*plan.proofs, *proofs))


def check_calls(plan: KernelPlan, group: GroupPlan) -> None:
    """Every statement that the loops call has a leaf with as many iterators.

    Raises:
        VerifyError: one has none.
    """
    known = {leaf.statement: leaf for leaf in group.leaves}
    for call in calls(group.place.loops):
        leaf = known.get(call.statement)
        if leaf is None or len(leaf.loops) != len(call.arguments):
            raise VerifyError(
                f"{call.statement} with {len(call.arguments)} arguments has no leaf",
                where=f"{plan.entry}, the launch that follows",
            )


@lru_cache(maxsize=64)
def _mapped(shape: FollowShape, derived: Derive) -> FollowTree:
    """Blocks of one shape have one tree, in whatever kernel: it is proved once in a process."""
    return map_follow(shape, derived)


def forget() -> None:
    """Forget the trees that were proved in this process."""
    _mapped.cache_clear()


class _Group:
    """One group of results."""

    def __init__(self, plan: KernelPlan, after: Following, group: Results, split: Split) -> None:
        self.plan_of, self.after, self.group = plan, after, group
        self.shared = group.lanes > 1
        self.rows: Rows | None = None
        if group.rows:
            names = group.rows
            self.rows = next(r for r in split.rows if tuple(s.name for s in r.statements) == names)
        self.statements = [s for s in split.after if s.name in group.after]
        made = {one.value: one for one in plan.epilogue.folds}
        self.parts: dict[object, list[tuple[Held, Parts]]] = {}
        for fold in group.folds:
            one = made[fold]
            found = self.parts.setdefault(one.parts.counts, [])
            found.append((Held(fold, one.monoid), one.parts))
        self.later = _levels(self.rows) if self.rows else ()

    def plan(self, derived: Derive) -> GroupPlan:
        """Its tree, its leaves, and who runs them."""
        warps = self.after.threads // self.after.lanes
        shape = FollowShape(
            len(self.parts),
            len(self.later),
            warps,
            self.after.lanes,
            self.shared,
            rows=self.rows is not None,
            written=self.rows is not None and bool(self.rows.outputs),
            stored=bool(self.group.outputs),
        )
        tree = _mapped(shape, derived)
        loops = tree.place.loops()
        place = Place(tree.place.place.name, 0, warps, warps, False, WARP, 0, loops)
        syncs = placed(tree.synchronised, {})
        own = {one.sync.wait: one for one in syncs}
        bars = [
            Leaf(leaf.name, "bar", "block", leaf.loops, own[leaf.name], place.name)
            for leaf in tree.synchronised.leaves
        ]
        order = tree_leaves(tree.synchronised.tree)
        found = (*self._leaves(place.name, warps), *bars)
        leaves = tuple(sorted(found, key=lambda leaf: order.index(leaf.statement)))
        return GroupPlan(self.group, tree, leaves, place, syncs)

    def _leaves(self, place: str, warps: int) -> list[Leaf]:
        found: list[Leaf] = []

        def add(statement: str, op: str, loops: tuple[str, ...], work: object) -> None:
            found.append(Leaf(statement, op, "threads", loops, work, place))  # type: ignore[arg-type]

        known: tuple[str, ...] = ()
        every = [tuple(held for same in self.parts.values() for held, _ in same)]
        every += [tuple(Held(f.write.name, f.function) for f in folds) for folds in self.later]
        for level, folds in enumerate(every):
            meet = Meet(folds, warps, self.shared)
            add(f"begin_{level}", "begin_folds", (), meet)
            if level:
                assert self.rows is not None
                walk = Walk(self.rows, self.later[level - 1], known, level)
                add(f"walk_{level}", "walk_row", (ELEMENT,), walk)
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
            add("elements", "walk_row", (ELEMENT,), Walk(self.rows, (), known, 0))
        if self.group.outputs:
            stores = StoreResults(self.group.outputs, self.group.extents, self.shared)
            add("store", "store_results", (), stores)
        return found

    def _settle(self, folds: tuple[Held, ...], known: tuple[str, ...]) -> Settle:
        """What can be computed when a level is there, of the statements that are left."""
        there = {*known, *(held.value for held in folds)}
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


def _levels(rows: Rows) -> tuple[tuple[Fold, ...], ...]:
    """Folds of elements, by how many walks have to be over before their terms are known."""
    level: dict[str, int] = {}
    for one in rows.statements:
        read = max((level.get(access.name, 0) for access in one.reads), default=0)
        level[one.write.name] = read + isinstance(one, Fold)
    numbers = sorted({level[fold.write.name] for fold in rows.folds})
    return tuple(tuple(f for f in rows.folds if level[f.write.name] == n) for n in numbers)
