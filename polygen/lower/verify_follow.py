"""Checks of the leaves of the launch that follows: they combine, compute and store what is said.

1. Blocks run the tree that was proved of their shape (`polygen.lower.verify_blocks`), and the shape
   is that of the folds, or of the parts of keys, that the kernel leaves.
2. Every fold of a group is begun, combined of its own parts, given, taken and settled, in one
   level; those of later levels are made in the walk of that level.
3. Statements over results run once, in order, behind what they read; every output is stored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from polygen.errors import VerifyError
from polygen.frontend.dtypes import BOOL
from polygen.frontend.program import Fold
from polygen.lower.folds import split_of
from polygen.lower.follow_keys import keys_shape
from polygen.lower.follow_work import (
    CombineParts,
    Held,
    HoldRow,
    Meet,
    MergeKeys,
    Settle,
    StoreResults,
    Walk,
    kept_of,
    row_width,
)
from polygen.lower.launch import Following, KeptRows, Results
from polygen.lower.plan import GroupPlan, KernelPlan
from polygen.lower.scan_work import PartStore, Scan
from polygen.lower.sync_work import Grids
from polygen.lower.tally import Leave
from polygen.lower.verify_blocks import check_block
from polygen.poly.folds import given, scalars
from polygen.poly.follow_keys import keys_program
from polygen.poly.follow_map import WHERE
from polygen.poly.follow_program import (
    ELEMENT,
    FollowShape,
    combining,
    element_of,
    follow_program,
    over_held,
    parts_of,
)
from polygen.poly.whole_rows import Rows


def check_following(plan: KernelPlan) -> None:
    """Check the launch that follows; nothing where none does.

    Raises:
        VerifyError: with what is left out, or is another's.
    """
    after, warp = plan.following, plan.device.warp_size
    if after is None:
        return
    where, merged = f"{plan.entry}, {WHERE}", bool(plan.of(PartStore))
    if after.entry != f"{plan.entry}_{'parts' if merged else 'folds'}":
        raise VerifyError(f"it is called {after.entry}", where=where)
    if tuple(one.group for one in plan.groups) != after.groups:
        raise VerifyError("blocks make other results than are asked for", where=where)
    if after.lanes != warp or after.threads % warp:
        raise VerifyError(f"{after.threads} threads in warps of {after.lanes}", where=where)
    if after.dependent != plan.device.has("griddepcontrol"):
        raise VerifyError("it waits for the kernel where it need not, or does not", where=where)
    if merged:
        _check_rows_of_keys(plan, after)
    else:
        _check_results(plan, after)
    for group in plan.groups:
        check_block(plan.entry, group, WHERE, Grids(follows=True))
        if merged:
            _check_keys(plan, after, group)
        else:
            _Group(plan, after, group).check()


def _check_rows_of_keys(plan: KernelPlan, after: Following) -> None:
    """Of parts of keys, every row of all matrices is a result that a warp's lanes share."""
    rows = (*(extent for _, extent in plan.batches), plan.match.m)
    if after.groups != (Results(rows, after.lanes, (), (), (), merged=True),) or after.kept:
        raise VerifyError(f"results are {after.groups}", where=f"{plan.entry}, {WHERE}")


def _check_keys(plan: KernelPlan, after: Following, group: GroupPlan) -> None:
    """Parts are merged as the scan says, from where the kernel stores them."""
    (store,), (scan, *_) = plan.of(PartStore), plan.of(Scan)
    shape = keys_shape(scan, after)
    if keys_program(shape) != group.tree.synchronised.program:
        raise VerifyError(f"blocks do not do {shape}", where=f"{plan.entry}, {WHERE}")
    named = {one.name for one in group.tree.synchronised.program.statements}
    for leaf in (one for one in group.leaves if one.statement in named):
        what = leaf.statement.partition("_")[2] or "sum"
        if leaf.work != MergeKeys(store, scan, what):
            raise VerifyError(f"{leaf.statement} merges other parts than of {what}", where=WHERE)


def _check_results(plan: KernelPlan, after: Following) -> None:
    """Results have the extents of their folds, and every output is made once; rows are kept."""
    where = f"{plan.entry}, {WHERE}"
    split = split_of(plan)
    folds = {one.value: one for one in plan.epilogue.folds}
    for group in after.groups:
        if not set(group.folds) <= set(folds):
            raise VerifyError(f"{group.folds} are combined of {', '.join(folds)}", where=where)
        extents = {tuple(e for e in folds[one].parts.results if e != 1) for one in group.folds}
        if extents != {group.extents} or group.merged or group.lanes not in (1, after.lanes):
            raise VerifyError(f"results over {group.extents} are of {extents}", where=where)
    made = [name for group in after.groups for name in group.outputs]
    made += [name for rows in split.rows for name in rows.outputs]
    kept = {one.tensor.name for one in split.kept}
    parts = [one.tensor.name for one in plan.epilogue.writes if one.tensor.name not in kept]
    made += dict.fromkeys(parts)  # of an output that is put together, several
    made += [one.tensor.name for work in plan.of(Leave) for one in work.outputs]
    scans = dict.fromkeys(plan.of(Scan))  # of layers, and what is between a chain's products
    made += [one.tensor.name for scan in scans for one in scan.returned]
    if sorted(made) != sorted(one.name for one in plan.program.outputs):
        raise VerifyError(f"{', '.join(made)} are stored", where=where)
    wanted = tuple(KeptRows(one.tensor) for one in split.kept)
    if after.kept != wanted:
        raise VerifyError(f"rows are kept as {after.kept}, and are {wanted}", where=where)


class _Group:
    """The leaves of one group."""

    def __init__(self, plan: KernelPlan, after: Following, group: GroupPlan) -> None:
        self.plan, self.after, self.group = plan, after, group.group
        self.tree = group.tree.synchronised
        self.work = {leaf.statement: leaf.work for leaf in group.leaves}
        self.shared = self.group.lanes > 1
        self.warps = after.threads // after.lanes

    def refuse(self, what: str) -> VerifyError:
        """A mistake."""
        return VerifyError(what, where=f"{self.plan.entry}, the launch that follows")

    def check(self) -> None:
        """All of it."""
        self.check_shape()
        kinds = (Meet, CombineParts, Settle, HoldRow, Walk, StoreResults)
        left = {name for name, work in self.work.items() if isinstance(work, kinds)}
        known: tuple[str, ...] = ()
        ran: list[str] = []
        outputs: list[str] = []
        level, walked, after = 0, 0, split_of(self.plan).after
        while f"begin_{level}" in self.work:
            folds = self.made(level, known, left) if level else self.combined(left)
            walked += len(folds) if level else 0
            for name in (f"begin_{level}", f"give_{level}", f"take_{level}"):
                left.discard(name)
                if self.work[name] != Meet(folds, self.warps, self.shared):
                    raise self.refuse(f"{name} is of other folds, warps or lanes: {folds}")
            settle = self.work[f"finish_{level}"]
            left.discard(f"finish_{level}")
            if not isinstance(settle, Settle) or (settle.folds, settle.known) != (folds, known):
                raise self.refuse(f"finish_{level} is of other folds than {folds}")
            if settle.extents != self.group.extents:
                raise self.refuse(f"finish_{level} is of results over {settle.extents}")
            there = {*known, *given(self.plan.program), *(one.value for one in folds)}
            for one in settle.statements:
                if not {access.name for access in one.reads} <= there:
                    raise self.refuse(f"{one.name} reads what is not there yet")
                there.add(one.write.name)
                ran.append(one.name)
            if not {name for name, _ in settle.lasting} | set(settle.outputs) <= there:
                raise self.refuse(f"finish_{level} leaves what it has not")
            truths = {one.write.name for one in settle.statements if one.dtype == BOOL}
            if any(truth != (name in truths) for name, truth in settle.lasting):
                raise self.refuse(f"finish_{level} leaves numbers and truths as {settle.lasting}")
            statements = tuple(one for one in after if one in settle.statements)
            if (settle.statements, settle.outputs) != (statements, self.in_order(settle.outputs)):
                raise self.refuse(f"finish_{level} goes in another order than the program")
            outputs += settle.outputs
            known = (*known, *(name for name, _ in settle.lasting))
            level += 1
        self.check_rows(walked, known, left)
        # Each once, in the order of levels: what it reads is there. They are named as the program
        # has them.
        names, made = tuple(s.name for s in after if s.name in ran), self.in_order(outputs)
        once = (len(ran), len(outputs)) == (len(names), len(made))
        if not once or (names, made) != (self.group.after, self.group.outputs):
            raise self.refuse(f"{ran} run, and {outputs} are made")
        wanted = StoreResults(self.group.outputs, self.group.extents, self.shared)
        if self.group.outputs and self.work.get("store") != wanted:
            raise self.refuse("other results are stored")
        if left - {"store"}:
            raise self.refuse(f"{sorted(left)} belong to no level")

    def in_order(self, outputs: Collection[str]) -> tuple[str, ...]:
        """Outputs as the program has them."""
        return tuple(one.name for one in self.plan.program.outputs if one.name in outputs)

    def check_shape(self) -> None:
        """The tile program is that of the group's folds and rows."""
        split = split_of(self.plan)
        rows = [r for r in split.rows if tuple(s.name for s in r.statements) == self.group.rows]
        if bool(rows) != bool(self.group.rows):
            raise self.refuse(f"no row has the statements {self.group.rows}")
        counts = {p.counts for p in self.after.parts if p.value in self.group.folds}
        wide = max((row_width(one, split, self.plan.program) for one in rows), default=1)
        settles = [one for one in self.work.values() if isinstance(one, Settle)]
        arrays = given(self.plan.program) - scalars(self.plan.program)
        hold, walks = self.work.get("hold"), {n for n in self.work if n.startswith("walk_")}
        shape = FollowShape(
            len(counts),
            len(walks - {over_held(name) for name in walks}),
            self.warps,
            self.after.lanes,
            self.shared,
            rows=bool(rows),
            written=any(one.outputs for one in rows),
            stored=bool(self.group.outputs),
            wide=wide,
            words=hold.words if isinstance(hold, HoldRow) else 0,
            dependent=self.after.dependent,
            given=any(a.name in arrays for settle in settles for _, a in settle.reads),
        )
        if follow_program(shape) != self.tree.program:
            raise self.refuse(f"blocks do not do {shape}")

    def combined(self, left: set[str]) -> tuple[Held, ...]:
        """The folds that are combined of parts, in the order of the leaves."""
        monoids = {one.value: one.monoid for one in self.plan.epilogue.folds}
        parts = {one.value: one for one in self.after.parts}
        found: list[Held] = []
        number = 0
        while combining(number) in self.work:
            work = self.work[combining(number)]
            left.discard(combining(number))
            if not isinstance(work, CombineParts):
                raise self.refuse(f"{combining(number)} combines nothing")
            counts = {own.counts for _, own in work.folds}
            if (work.count, work.shared, len(counts)) != (parts_of(number), self.shared, 1):
                raise self.refuse(f"{combining(number)} goes through {work.count} parts")
            for held, own in work.folds:
                if (held.monoid, own) != (monoids.get(held.value), parts.get(held.value)):
                    raise self.refuse(f"{held.value} is combined of {own}")
                found.append(held)
            number += 1
        alike = dict.fromkeys(parts[one].counts for one in self.group.folds)
        wanted = [f for own in alike for f in self.group.folds if parts[f].counts == own]
        if [one.value for one in found] != wanted:
            raise self.refuse(f"{self.group.folds} are combined as {found}")
        return tuple(found)

    def made(self, level: int, known: tuple[str, ...], left: set[str]) -> tuple[Held, ...]:
        """The folds that are made of elements in a walk."""
        work = self.work.get(f"walk_{level}")
        left -= {f"walk_{level}", over_held(f"walk_{level}")}
        if not isinstance(work, Walk) or (work.known, work.number) != (known, level):
            raise self.refuse(f"walk_{level} knows other results than {known}")
        return tuple(Held(one.write.name, one.function) for one in work.folds)

    def visits(self, wide: int) -> bool:
        """Whether the tile program's walks are of lanes with so many elements beside each other."""
        own = f"p = {element_of(wide).format(ELEMENT)} and"
        walks = [one for one in self.tree.program.statements if ELEMENT in one.loops]
        return all(own in cells for one in walks for cells in one.reads if cells[:4] == "row[")

    def check_rows(self, walked: int, known: tuple[str, ...], left: set[str]) -> None:
        """Rows of elements: every fold of theirs is made in one walk, and elements are written."""
        every = {name: work for name, work in self.work.items() if isinstance(work, Walk)}
        walks = [work for work in every.values() if work.held is None]
        split = split_of(self.plan)
        rows = [r for r in split.rows if tuple(s.name for s in r.statements) == self.group.rows]
        if any(work.rows not in rows for work in walks) or bool(walks) != bool(self.group.rows):
            raise self.refuse(f"rows of {self.group.rows} are walked through")
        for one in rows if self.group.rows else []:
            folds = [s.write.name for s in one.statements if isinstance(s, Fold)]
            made = [f.write.name for work in walks for f in work.folds]
            if sorted(folds) != sorted(made) or len(made) != walked:
                raise self.refuse(f"folds {folds} of elements are made as {made}")
            wide = row_width(one, split, self.plan.program)
            if one.outputs and self.work.get("elements") != Walk(one, (), known, 0, wide):
                raise self.refuse("other elements are written")
            if any(work.wide != wide for work in walks) or not self.visits(wide):
                raise self.refuse(f"lanes do not visit {wide} elements beside each other")
            self.check_held(one, wide, every, kept_of(one, split))
            left -= {"elements", over_held("elements"), "hold"}

    def check_held(
        self, rows: Rows, wide: int, walks: dict[str, Walk], kept: tuple[str, ...]
    ) -> None:
        """What lanes hold of a row is all that is kept of it, and every walk goes through it."""
        hold, plain = self.work.get("hold"), {n: w for n, w in walks.items() if w.held is None}
        through = {n: w for n, w in walks.items() if n not in plain}
        if hold is None:
            if through:
                raise self.refuse(f"{min(through)} goes through what nobody holds")
            return
        if not isinstance(hold, HoldRow):
            raise self.refuse("hold holds no row")
        if hold != HoldRow(rows, kept, hold.words, self.warps, wide):
            raise self.refuse(f"{hold.values} are held by {hold.warps} warps, {hold.wide} each")
        if through != {over_held(n): replace(w, held=hold) for n, w in plain.items()}:
            raise self.refuse(f"{', '.join(through) or 'nothing'} goes through what lanes hold")
