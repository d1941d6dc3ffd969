"""Folds beside a product: split into terms, which the kernel makes, and what comes of them.

    v1[i] = max over j of v0[i,j]           v1_0[i,j] = v0[i,j]          every element: a term
    y0[i] = cast(v1[i])             ->      part[t,i] = max of a warp's  parts of the fold
                                            v1[i] = max over t of part   the launch that follows
                                            y0[i] = cast(v1[i])

1. A fold is a monoid's (`polygen.frontend.monoids`): associative and commutative, so that it may be
   made of parts. That is the rewrite's side condition: after it no dependence connects the terms of
   a row, and the tiles of the kernel are those of the program without folds.
2. Terms are pointwise statements like others; the part of a tile is combined where its terms are
   made, and written once, to a place of its own.
3. Folds of what operands hold are made beside the products (`polygen.poly.operand_folds`).
4. What reads a fold's result runs in the launch that follows, when every part is there: pointwise
   work over the result's own axes, with what arguments have at its place, and whole rows of
   elements that use results of their own row, with the folds of these (`polygen.poly.whole_rows`).
   For those the kernel keeps what they read of its values. Anything else is refused, with the
   dependence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

from polygen.errors import InvarianceError, UnsupportedProgram
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import (
    Access,
    Constant,
    Contraction,
    Dim,
    Extent,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.poly.operand_folds import OperandFolds, beside_products, terms
from polygen.poly.row_operands import without_first
from polygen.poly.whole_rows import (
    Kept,
    Places,
    RowPasses,
    Rows,
    computed_again,
    kept,
    placed,
    without_ones,
)
from polygen.rewrite.programs import rewritten

_MOST_PROGRAMS = 16  # every pass asks how the program that it works on is split


@dataclass(frozen=True, slots=True)
class Split:
    """A program whose folds are made of parts.

    Attributes:
        main: the statements of the kernel, with a term for each component in a fold's place; its
            outputs are the matrices alone, and what is kept.
        folds: those whose parts the kernel makes, in program order.
        after: what is computed from results over their own axes, in program order.
        outputs: written by `after`.
        rows: what is done with whole rows, for each kind of row.
        kept: matrices of the workspace, which the kernel writes and `rows` reads.
        passes: of a kernel whose tiles cover rows (`polygen.poly.row_passes`).
        operands: folds of what operands hold, whose results elements read.
    """

    main: Program
    folds: tuple[Fold, ...]
    after: tuple[Pointwise, ...]
    outputs: tuple[Tensor, ...]
    rows: tuple[Rows, ...] = ()
    kept: tuple[Kept, ...] = ()
    passes: RowPasses | None = None
    operands: OperandFolds = field(default_factory=OperandFolds)

    def rows_of(self, result: str) -> Rows | None:
        """The rows whose result a value is; None where no element uses a result of such rows."""
        return next((one for one in self.rows if result in one.results), None)


@dataclass(frozen=True, slots=True)
class _Result:
    """A value that is known when all parts of a fold are: the fold's, or computed from it."""

    fold: Fold
    extents: tuple[Dim, ...]  # but for those of 1
    own: tuple[int, ...] | None  # the axes that tell its rows apart; None: nobody can say


@lru_cache(maxsize=_MOST_PROGRAMS)
def split_folds(program: Program) -> Split:
    """Separate what the kernel does from what follows it; a program without folds is its own.

    Raises:
        UnsupportedProgram: a result of a fold is used where it is not known yet; with the
            dependence.
    """
    _require_invariant(program)
    program = without_first(rewritten(program))
    program, operands = beside_products(program)
    of_tiles = {one.tensor.name: one.value for one in operands.results}
    return replace(split_results(program, of_tiles), operands=operands)


def split_results(program: Program, of_tiles: Mapping[str, str] = MappingProxyType({})) -> Split:
    """The same, of a program that is rewritten and folds nothing but results of products.

    Args:
        program: any.
        of_tiles: its inputs that the launch that follows does not read, as results of folds that
            tiles have of their operands -> what the program calls them.

    Raises:
        UnsupportedProgram: a result of a fold is used where it is not known yet.
    """
    if not program.folds:
        return Split(program, (), (), ())
    return _Splitting(program, of_tiles).split()


class _Splitting:
    """One walk over the statements, each of which is the kernel's, a result's or late."""

    def __init__(self, program: Program, of_tiles: Mapping[str, str]) -> None:
        self.program, self.places, self.of_tiles = program, Places(program), of_tiles
        self.along: dict[str, dict[str, int] | None] = {}
        self.results: dict[str, _Result] = {}
        self.late: dict[str, _Result] = {}  # values of elements, with a result that they need
        self.main: list[Statement] = []
        self.folds: list[Fold] = []
        self.after: list[Pointwise] = []
        self.after_rows: dict[tuple[int, ...], list[Pointwise | Fold]] = {}

    def split(self) -> Split:
        """The parts of the program."""
        for statement in self.program.statements:
            self.along[statement.name] = self.places.add(statement)
            self._place(statement)
        self._require_one_launch()
        outputs = {one.write.name for one in self.after}
        rows, keep, stored = self._rows()
        done = outputs | {name for one in rows for name in one.outputs}
        early = tuple(t for t in self.program.outputs if t.name not in done)
        return Split(
            replace(
                self.program,
                outputs=(*early, *(one.tensor for one in keep)),
                statements=(*self.main, *stored),
            ),
            tuple(self.folds),
            tuple(self.after),
            tuple(t for t in self.program.outputs if t.name in outputs),
            rows,
            keep,
        )

    def _require_one_launch(self) -> None:
        """Refuse outputs whose parts are stored by different launches, or are results of folds."""
        program, stored = self.program, dict[str, list[str]]()
        writes = [("the kernel", one) for one in self.main]
        writes += [("the launch that follows", one) for one in self.after]
        for own, statements in self.after_rows.items():
            rows = ", ".join(str(self.places.axes[at]) for at in own)
            writes += [(f"the launch that follows, of rows over {rows}", one) for one in statements]
        for who, one in writes:
            if one.write.name in {tensor.name for tensor in program.outputs}:
                stored.setdefault(one.write.name, []).append(who)
        together = {one.write.name for one in self.after}
        for name, every in stored.items():
            if len(set(every)) > 1 or (name in together and len(every) > 1):
                what = "results of folds" if name in together else "elements that use them"
                raise UnsupportedProgram(
                    f"{name} has parts: {what}, behind one another or beside others",
                    where=f"{program.name}, {name}",
                    why=f"its parts are stored by {' and '.join(dict.fromkeys(every))}"
                    if len(set(every)) > 1
                    else "whoever has a result stores it in an array of its own",
                    nearest="Return the parts, and put them behind one another outside",
                )

    def _place(self, statement: Statement) -> None:
        """Decide where one statement runs."""
        program = self.program
        read = [a.name for a in statement.reads if a.name in self.results or a.name in self.late]
        if not read:
            if isinstance(statement, Fold):
                self.folds.append(statement)
                self.main += terms(statement, self.program.real)
                self._add_result(statement, statement)
            else:
                self.main.append(statement)
            return
        first = self.late.get(read[0]) or self.results[read[0]]
        if isinstance(statement, Contraction):
            raise _refusal(program, statement, first.fold, "a product of what is folded")
        own = tuple(extent for _, extent in without_ones(statement.domain))
        whole = self.places.is_whole(statement)
        values = [a.name for a in statement.reads if a.name not in program.tensors]
        if isinstance(statement, Pointwise) and not any(name in self.late for name in read):
            alone = all(name in self.results for name in values)
            if not whole or (alone and own in [self.results[name].extents for name in read]):
                self._require_own_axes(statement, first.fold)
                self.after.append(statement)
                self._add_result(statement, first.fold)
                return
        if not whole:
            raise _refusal(program, statement, first.fold, "a fold of what is folded")
        self._add_late(statement, [self.late.get(name) or self.results[name] for name in read])

    def _require_own_axes(self, statement: Statement, fold: Fold) -> None:
        """Refuse what the launch that follows does not do: all but work over results' own axes."""
        program, results = self.program, self.results
        assert isinstance(statement, Pointwise)
        axes = [(iterator, extent) for iterator, extent in statement.domain if extent != 1]
        own = [iterator for iterator, _ in axes]
        for access in (one for one in statement.reads if one.name in results):
            found = results[access.name]
            if found.extents != tuple(extent for _, extent in axes):
                raise _refusal(program, statement, found.fold, _used(statement, found.fold))
            if [at for at in access.index if isinstance(at, str) and at in own] != own:
                what = "a result with its axes in another order"
                raise _refusal(program, statement, found.fold, what)
        if any(not isinstance(a, (Access, Constant, Extent)) for a in statement.args):
            raise _refusal(program, statement, fold, "coordinates beside a result of a fold")
        there = {*results, *given(program)} - {*self.of_tiles}
        for access in statement.reads:
            if access.name not in there or not all(
                isinstance(at, str | int) for at in access.index
            ):
                read = replace(access, name=self.of_tiles.get(access.name, access.name))
                raise UnsupportedProgram(
                    f"{statement.name} reads {read} beside the result {fold.write} of a fold",
                    where=f"{program.name}, {statement.name}: {statement}",
                    why="what follows a fold reads results of folds, numbers, and elements of "
                    "arguments along its own axes",
                    nearest=f"Return {fold.write.name} and combine it outside",
                )

    def _add_result(self, statement: Pointwise | Fold, fold: Fold) -> None:
        sizes = dict(statement.domain)
        extents = (sizes[it] for it in statement.write.iterators)
        places = self.places.values.get(statement.write.name)
        own = None if places is None else tuple(at for at in places if at is not None)
        if own != tuple(sorted(own or ())):
            own = None
        name = statement.write.name
        self.results[name] = _Result(fold, tuple(e for e in extents if e != 1), own)

    def _add_late(self, statement: Pointwise | Fold, needed: list[_Result]) -> None:
        """A statement over whole elements that needs results of their rows."""
        fold, own = needed[0].fold, needed[0].own
        other = next((one.fold for one in needed if one.own != own), None)
        if other is not None:
            what = f"results over different axes, {fold.write} and {other.write}, in one element"
            raise _refusal(self.program, statement, fold, what)
        if self.along[statement.name] is None or own is None:
            raise _refusal(self.program, statement, fold, _used(statement, fold))
        self.after_rows.setdefault(own, []).append(statement)
        if isinstance(statement, Pointwise):
            self.late[statement.write.name] = needed[0]
            return
        self._add_result(statement, statement)
        if self.results[statement.write.name].own != own:
            what = "a fold over other axes of what is folded"
            raise _refusal(self.program, statement, fold, what)

    def _rows(self) -> tuple[tuple[Rows, ...], tuple[Kept, ...], list[Statement]]:
        """What is done with whole rows, what that reads of the kernel's, and who stores it."""
        program, found, wanted_by_all = self.program, [], set[str]()
        writers = {s.write.name: s for s in program.statements}
        own_kind = {name: one.own for name, one in self.results.items()}
        for own, statements in self.after_rows.items():
            names, written = ({get(one) for one in statements} for get in (_name, _written))
            read = {a.name for one in statements for a in one.reads if a.name in writers}
            early = {v for v in read if v not in self.results and v not in self.late}
            keep, again = computed_again(program, early)
            wanted_by_all |= set(keep)
            for value in (*keep, *(s.write.name for s in program.statements if s.name in again)):
                if self.along[writers[value].name] is None:
                    what = f"a result used beside {value}, whose axes are not the row's,"
                    fold = next(r.fold for r in self.results.values() if r.own == own)
                    raise _refusal(program, writers[value], fold, what)
            done = tuple(
                placed(s, self.along[s.name] or {})
                for s in program.statements
                if (s.name in names or s.name in again) and not isinstance(s, Contraction)
            )
            found.append(
                Rows(
                    self.places.axes,
                    own,
                    done,
                    tuple(t.name for t in program.outputs if t.name in written),
                    tuple(name for name, kind in own_kind.items() if kind == own),
                )
            )
        made = [
            kept(program, value, self.along[one.name] or {})
            for value, one in writers.items()
            if value in wanted_by_all
        ]
        return tuple(found), tuple(k for k, _ in made), [stored for _, stored in made]


def require_rows_alone(program: Program) -> None:
    """Refuse rows in the launch behind a kernel that read folds of operands, which tiles have.

    Args:
        program: whose rows are not in tiles.

    Raises:
        UnsupportedProgram: some do; with the fold.
    """
    if not program.folds:
        return
    program = rewritten(program)
    split = split_folds(program)
    beside = {one.tensor.name: one.value for one in split.operands.results}
    for one in (statement for rows in split.rows for statement in rows.statements):
        for access in one.reads:
            if access.name in beside:
                fold = next(f for f in program.folds if f.write.name == beside[access.name])
                what = "a fold of an operand beside results of whole rows"
                raise _refusal(program, one, fold, what)


def _require_invariant(program: Program) -> None:
    """Refuse promises of bits that folds do not keep.

    Raises:
        InvarianceError: the order of a fold's terms depends on the tiles, which sizes choose.
    """
    for fold in program.folds if program.invariant else ():
        gone = [str(extent) for it, extent in fold.domain if it in fold.folded]
        over = sorted(set(gone) & set(program.invariant))
        if over or not MONOIDS[fold.function].selects:
            raise InvarianceError(
                f"{fold.write.name} is the {fold.function} over {', '.join(gone)}",
                where=f"{program.name}, invariant in {', '.join(program.invariant)}",
                why=f"it depends on all of {over[0]}"
                if over
                else "its terms are combined tile by tile, and tiles are chosen by the sizes",
                nearest="Fold with max, min, argmax or argmin over other dims, or fold outside",
            )


def given(program: Program) -> frozenset[str]:
    """The arguments that are read as they are given: those that the program does not store into."""
    stored = {name for name, _ in program.in_place}
    return frozenset(one.name for one in program.inputs if one.name not in stored)


def scalars(program: Program) -> frozenset[str]:
    """The arguments that are single numbers."""
    return frozenset(name for name, tensor in program.tensors.items() if not tensor.dims)


def _name(statement: Statement) -> str:
    return statement.name


def _written(statement: Statement) -> str:
    return statement.write.name


def _used(statement: Statement, fold: Fold) -> str:
    """By what a result is used: by elements of which it has not all, or others than it has."""
    of, by = ([str(e) for _, e in without_ones(one.domain)] for one in (fold, statement))
    if sorted(of) == sorted(by):
        return "a result used by elements of other rows than its own"
    return f"a result of elements [{', '.join(of)}] used by elements [{', '.join(by)}]"


def _refusal(program: Program, statement: Statement, fold: Fold, what: str) -> UnsupportedProgram:
    """The dependence: who needs a result, and when that is known."""
    return UnsupportedProgram(
        f"{statement.name} reads what comes of {fold.write}: {what} is not generated yet",
        where=f"{program.name}, dependence {fold.name} -> {statement.name}",
        why=f"{fold.name}: {fold}; it is known when all tiles have run, and the elements that it "
        "is of are computed with it then, row by row, and no others",
        nearest=f"Return {fold.write.name} beside the matrix, and use it outside of the kernel",
    )
