"""Checks of operands that a launch before the kernel makes by rows: leaves do what rows ask for.

Blocks run the tree that was proved of their shape (`polygen.lower.verify_blocks`). Beside it:

1. The rows are those of the program, whose elements are all of the operand's, and the kernel
   multiplies the array that they are written to.
2. Every fold of elements is begun, made in one walk, given, taken and settled, in one level, behind
   what its terms read; each value of a row's results is computed once, behind what it reads.
3. What lanes hold of a row is what its folds read, and every walk goes through it first.
4. What walks read is there: arguments, elements that are computed again, and what levels before
   them have left. The operand is what the last walk writes.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import VerifyError
from polygen.frontend.dtypes import BOOL
from polygen.frontend.program import Fold, Pointwise
from polygen.lower.follow_work import Held, HoldRow, Meet, Settle, Walk
from polygen.lower.make_rows import arrays, held_row, width
from polygen.lower.plan import KernelPlan, MakeRowsPlan
from polygen.lower.sync_work import Grids
from polygen.lower.verify_blocks import check_block
from polygen.poly.folds import scalars
from polygen.poly.follow_program import FollowShape, follow_program, over_held
from polygen.poly.realign_program import WHERE
from polygen.poly.row_operands import row_operands


def check_made_rows(plan: KernelPlan, of: MakeRowsPlan) -> None:
    """Check one operand.

    Args:
        plan: the kernel that multiplies it.
        of: what makes it.

    Raises:
        VerifyError: with what differs.
    """
    _Check(plan, of).check()


class _Check:
    """One walk over the leaves of a block."""

    def __init__(self, plan: KernelPlan, of: MakeRowsPlan) -> None:
        self.plan, self.of = plan, of
        self.rows, self.after = of.made.rows, of.made.after
        self.work = {leaf.statement: leaf.work for leaf in of.leaves}
        kinds = (Meet, Settle, Walk, HoldRow)
        self.left = {name for name, work in self.work.items() if isinstance(work, kinds)}
        assert plan.realign is not None
        self.warps = plan.realign.warps
        words = plan.schedule.epilogue.row_words
        self.hold = held_row(of.made, plan.program, self.warps, words)
        self.known: tuple[str, ...] = ()
        self.wide = width(of.made, plan.program)

    def refuse(self, what: str) -> VerifyError:
        """A mistake."""
        return VerifyError(what, where=f"{self.plan.entry}, {WHERE}, {self.of.tensor.name}")

    def check(self) -> None:
        """All of it."""
        made, tensor = self.of.made, self.of.tensor
        if row_operands(self.plan.whole).get(tensor.name) != made:
            raise self.refuse(f"rows of {tensor} are computed otherwise")
        if tensor not in self.plan.program.inputs or made.tensor != tensor:
            raise self.refuse(f"{made.tensor} is made, and {tensor} multiplied")
        if self.rows.axes != tensor.dims or self.rows.inner not in ((tensor.order[-1],), ()):
            raise self.refuse(f"rows of {tensor} run along {self.rows.inner}")
        check_block(self.plan.entry, self.of, WHERE, Grids(arrays=arrays(made, self.plan.program)))
        self.check_shape()
        ran: list[str] = []
        folded: list[str] = []
        level = 1
        while f"begin_{level}" in self.work:
            folded += self.check_level(level, ran)
            level += 1
        if sorted(folded) != sorted(fold.write.name for fold in self.rows.folds):
            raise self.refuse(f"folds {folded} are made")
        if sorted(ran) != sorted(one.name for one in self.after):
            raise self.refuse(f"{ran} run")
        self.check_walk("elements", 0, ())
        if self.left:
            raise self.refuse(f"{sorted(self.left)} belong to no level")

    def check_shape(self) -> None:
        """The tile program is that of the rows."""
        count = sum(name.startswith("begin_") for name in self.work)
        if self.work.get("hold") != self.hold:
            raise self.refuse(f"lanes hold {self.work.get('hold')}")
        self.left.discard("hold")
        lanes = self.plan.device.warp_size
        dependent = self.plan.realign is not None and self.plan.realign.dependent
        shape = FollowShape(
            0, count, self.warps, lanes, True, rows=True, written=True, stored=False,
            wide=self.wide, words=self.hold.words if self.hold else 0, dependent=dependent,
        )  # fmt: skip
        if follow_program(shape) != self.of.tree.synchronised.program:
            raise self.refuse(f"blocks do not do {shape}")

    def check_level(self, level: int, ran: list[str]) -> list[str]:
        """One level of folds: its walk, how warps meet, and what it leaves."""
        walk = self.work[f"walk_{level}"]
        folds = walk.folds if isinstance(walk, Walk) else ()
        self.check_walk(f"walk_{level}", level, folds)
        held = tuple(Held(fold.write.name, fold.function) for fold in folds)
        for name in (f"begin_{level}", f"give_{level}", f"take_{level}"):
            self.left.discard(name)
            if self.work[name] != Meet(held, self.warps, shared=True):
                raise self.refuse(f"{name} is of other folds or warps: {self.work[name]}")
        settle = self.work[f"finish_{level}"]
        self.left.discard(f"finish_{level}")
        if not isinstance(settle, Settle) or (settle.folds, settle.known) != (held, self.known):
            raise self.refuse(f"finish_{level} is of other folds than {held}")
        there = {*self.known, *scalars(self.plan.program), *(one.value for one in held)}
        for one in settle.statements:
            if one not in self.after or not {access.name for access in one.reads} <= there:
                raise self.refuse(f"{one.name} reads what is not there yet")
            there.add(one.write.name)
            ran.append(one.name)
        if settle.outputs or not {name for name, _ in settle.lasting} <= there:
            raise self.refuse(f"finish_{level} leaves what it has not")
        truths = {one.write.name for one in settle.statements if one.dtype == BOOL}
        if any(truth != (name in truths) for name, truth in settle.lasting):
            raise self.refuse(f"finish_{level} leaves numbers and truths as {settle.lasting}")
        self.known = (*self.known, *(name for name, _ in settle.lasting))
        return [one.value for one in held]

    def check_walk(self, name: str, number: int, folds: tuple[Fold, ...]) -> None:
        """A walk through the row, whose reads are all there."""
        self.left.discard(name)
        wanted_walk = Walk(self.rows, folds, self.known, number, self.wide)
        if self.work.get(name) != wanted_walk:
            raise self.refuse(f"{name} goes through other rows, or knows other results")
        if self.hold is not None:
            self.left.discard(over_held(name))
            if self.work.get(over_held(name)) != replace(wanted_walk, held=self.hold):
                raise self.refuse(f"{over_held(name)} goes through other words than lanes hold")
        if any(fold not in self.rows.folds for fold in folds) or bool(number) != bool(folds):
            raise self.refuse(f"{name} makes {', '.join(f.write.name for f in folds) or 'nothing'}")
        writers = {s.write.name: s for s in self.rows.statements if isinstance(s, Pointwise)}
        wanted = [a.name for fold in folds for a in fold.reads] if folds else [self.of.tensor.name]
        there = {*self.known, *(one.name for one in self.plan.whole.inputs)}
        seen: set[str] = set()
        while wanted:
            value = wanted.pop()
            if value in there or value in seen:
                continue
            if value not in writers:
                raise self.refuse(f"{name} reads {value}, which is not there yet")
            seen.add(value)
            wanted += [access.name for access in writers[value].reads]
