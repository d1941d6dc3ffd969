"""The leaves of blocks that fold and finish rows, or combine parts: level by level of their folds.

Launches behind a kernel have such blocks (`polygen.lower.follow`), and launches before one that
make operands row by row (`polygen.lower.make_rows`). Each statement of the tile program gets its
leaf. A level settles what is computed of its results alone; what later statements read of that
lasts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from polygen.frontend.dtypes import BOOL
from polygen.frontend.program import Dim, Fold, Pointwise
from polygen.lower.follow_work import (
    CombineParts,
    Held,
    HoldRow,
    Meet,
    Settle,
    StoreResults,
    Walk,
)
from polygen.lower.launch import Parts
from polygen.lower.plan import Leaf, Work
from polygen.poly.follow_program import (
    ELEMENT,
    OTHER,
    PART,
    WORD,
    FollowShape,
    combining,
    over_held,
    parts_of,
)
from polygen.poly.whole_rows import Rows


@dataclass(frozen=True, slots=True)
class RowLeaves:
    """What a block does for its results, or for its row.

    Attributes:
        rows: its row; None: elements use no results.
        parts: folds that are made of parts, those of which there are equally many together.
        later: folds of elements, level by level.
        after: what is computed of results alone, in order.
        outputs: results that are stored.
        extents: of the results.
        given: arguments that are read.
        shared: whether the lanes of a warp share a result; else each has its own.
        wide: elements of a row that a lane has beside each other.
        hold: what lanes hold of the row; None: nothing.
        arrays: of the arguments those that are no single numbers.
    """

    rows: Rows | None
    parts: tuple[tuple[tuple[Held, Parts], ...], ...]
    later: tuple[tuple[Fold, ...], ...]
    after: tuple[Pointwise, ...]
    outputs: tuple[str, ...]
    extents: tuple[Dim, ...]
    given: Collection[str]
    shared: bool
    wide: int = 1
    hold: HoldRow | None = None
    arrays: Collection[str] = ()

    def shape(self, warps: int, lanes: int, *, dependent: bool = False) -> FollowShape:
        """What a block does."""
        return FollowShape(
            len(self.parts),
            len(self.later),
            warps,
            lanes,
            self.shared,
            rows=self.rows is not None,
            written=self.rows is not None and bool(self.rows.outputs),
            stored=bool(self.outputs),
            wide=self.wide,
            words=self.hold.words if self.hold else 0,
            dependent=dependent,
            given=any(a.name in self.arrays for one in self.after for a in one.reads),
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
        left = self.after
        every = [tuple(held for same in self.parts for held, _ in same)] if self.parts else []
        every += [tuple(Held(f.write.name, f.function) for f in folds) for folds in self.later]
        for level, folds in enumerate(every, int(not self.parts)):
            meet = Meet(folds, warps, self.shared)
            add(f"begin_{level}", "begin_folds", (), meet)
            if level:
                assert self.rows is not None
                walk(
                    f"walk_{level}",
                    Walk(self.rows, self.later[level - 1], known, level, self.wide),
                )
            else:
                for number, same in enumerate(self.parts):
                    work = CombineParts(same, parts_of(number), self.shared)
                    add(combining(number), "combine_parts", (PART,), work)
            add(f"give_{level}", "give_folds", (), meet)
            add(f"take_{level}", "take_folds", (OTHER,), meet)
            settle, left = self._settle(folds, known, left)
            add(f"finish_{level}", "finish_folds", (), settle)
            known = (*known, *(name for name, _ in settle.lasting))
        assert not left
        if self.rows is not None and self.rows.outputs:
            walk("elements", Walk(self.rows, (), known, 0, self.wide))
        if self.outputs:
            stores = StoreResults(self.outputs, self.extents, self.shared)
            add("store", "store_results", (), stores)
        return found

    def _settle(
        self, folds: tuple[Held, ...], known: tuple[str, ...], left: tuple[Pointwise, ...]
    ) -> tuple[Settle, tuple[Pointwise, ...]]:
        """What can be computed when a level is there, and which statements then are left."""
        there = {*known, *self.given, *(held.value for held in folds)}
        run: list[Pointwise] = []
        waiting: list[Pointwise] = []
        for one in left:
            if all(access.name in there for access in one.reads):
                there.add(one.write.name)
                run.append(one)
            else:
                waiting.append(one)
        written = {one.write.name for one in run}
        outputs = tuple(name for name in self.outputs if name in written)
        values = [(held.value, False) for held in folds]
        values += [(s.write.name, s.dtype == BOOL) for s in run if s.write.name not in outputs]
        late = self.rows.statements if self.rows else ()
        later = {access.name for s in (*waiting, *late) for access in s.reads}
        lasting = tuple((name, truth) for name, truth in values if name in later)
        settle = Settle(folds, tuple(run), known, lasting, outputs, self.extents)
        return settle, tuple(waiting)
