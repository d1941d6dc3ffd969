"""Tiles that cover rows: elements use results of their own row in the kernel that makes them.

    pass 0   row_v1[i] = max over j of v0[i,j]                      registers, then lanes that meet
    pass 1   v3_r1[i,j] = exp(v0[i,j] - row_v1[i]), row_v4[i] = sum over j of v3_r1[i,j]
    last     y0[i,j] = exp(v0[i,j] - row_v1[i]) / row_v4[i]         results are stored

1. The sums stay in registers; each pass computes from them, and from what earlier passes have
   folded, what it folds, and the last one what is stored. So every pass has statements of its own:
   copies of the program's, under names of their own. That a statement is computed again changes no
   value: it is a function of what it reads. But where one value of a pass is all that those behind
   it need of the sums, it takes their place in registers (`v3_r1` above, as `held_v3`, which the
   last pass then reads): nothing in front of it is computed, or read, again.
2. Results of rows are arrays to the statements that read them, which no statement writes. What
   connects passes is said apart, and exactly: all terms of a row come before every element that
   uses its result (`between_passes`). It is proved like any other dependence: inside one block if
   the tile is as wide as the row, and in order by the trees that are emitted.
3. A fold that is an output as well makes its parts in the last pass, like folds that no element
   uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from polygen import isl
from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.program import (
    Access,
    Argument,
    Contraction,
    Coordinate,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.poly.folds import Split, split_folds
from polygen.poly.operand_folds import beside_products, terms
from polygen.poly.prologue import without_prologues
from polygen.poly.scop import Scop, space
from polygen.poly.supported import require_rows_known
from polygen.poly.whole_rows import Alike, Places, RowPasses, computed_index, iterator
from polygen.rewrite.programs import rewritten


def result_of(value: str) -> str:
    """What the kernel calls a result of a row."""
    return f"row_{value}"


def held_of(value: str) -> str:
    """What the kernel calls a value that a pass leaves to those behind it."""
    return f"held_{value}"


def split_for(program: Program, *, in_tile: bool, alike: Alike | None = None) -> Split:
    """The parts of a program as a schedule has them: with rows in a tile, or behind the kernel.

    Args:
        program: what to compute.
        in_tile: whether its rows are in tiles.
        alike: of a section whose kernel has others, what all of them do; None: what it needs.

    Raises:
        UnsupportedProgram: a result of a fold is used where it is not known; with the dependence.
            Or rows are read by index behind a product, beside folds.
    """
    if program.gathered and program.folds:
        require_rows_known(without_prologues(program))
    split = split_folds(program)
    passes = alike.passes if alike is not None else None
    if not in_tile or not (split.rows or passes):
        return split
    if not split.rows:
        return replace(split, passes=_no_passes(len(passes or ())))
    inside = in_passes(beside_products(rewritten(program))[0], split, passes)
    return replace(inside, operands=split.operands)


def in_passes(program: Program, split: Split, alike: tuple[bool, ...] | None = None) -> Split:
    """The parts of a program whose rows are in a tile.

    Args:
        program: without folds of operands.
        split: its parts with rows behind the kernel; there are some.
        alike: of a section whose kernel has others, what their passes do; None: what it needs.

    Raises:
        UnsupportedProgram: a tile does not cover what its elements use results of.
    """
    return _Covering(program, split, alike).split()


def _no_passes(count: int) -> RowPasses:
    """Passes that fold nothing: all statements are in the last one."""
    return RowPasses((), ((),) * count, (), ("",) * count)


class _Covering:
    """Statements pass by pass."""

    def __init__(
        self, program: Program, behind: Split, alike: tuple[bool, ...] | None = None
    ) -> None:
        self.program, self.behind, self.alike = program, behind, alike
        self.writers = {s.write.name: s for s in program.statements}
        self.pointwise: dict[str, list[Pointwise]] = {}  # per value; of a joined output several
        for one in program.pointwise:
            self.pointwise.setdefault(one.write.name, []).append(one)
        self.places = Places(program)
        self.along = {s.name: self.places.add(s) for s in program.statements}
        self.late = {s.name for rows in behind.rows for s in rows.statements}
        self.over_results = {s.name for s in behind.after}
        self.operands = self._operands()
        self.level = self._levels()
        self.held: list[str] = []  # of each pass so far, as it calls it; "": none
        self.holding = ""  # the value that is in registers in place of the sums

    def split(self) -> Split:
        """The kernel's statements, and what follows."""
        program, behind = self.program, self.behind
        if len(behind.rows) > 1:
            raise _refusal(program, "results of rows over several axes")
        rows = behind.rows[0]
        used = self._used()
        folds = [self.writers[name] for name in self.writers if name in used]
        count = max(self.level[fold.write.name] for fold in folds)
        count = max(count, len(self.alike or ()))  # what folds nothing does nothing
        made: list[Pointwise] = []
        of: dict[str, int] = {}
        by_pass = []
        over_results = {t.name for t in behind.outputs}
        outer = self._behind(over_results)
        stored = [t.name for t in program.outputs if t.name not in over_results]
        last = [*stored, *(a.name for fold in outer for a in fold.reads)]
        for number in range(count):
            own = [f for f in folds if self.level[f.write.name] - 1 == number]
            wanted = [a.name for fold in own for a in fold.reads]
            mine = self._copies(wanted, number, last=False)
            row_folds = [self._row_fold(f, number) for f in own if isinstance(f, Fold)]
            mine += [one for fold in row_folds for one in terms(fold, program.real)]
            by_pass.append(tuple(row_folds))
            later = [f for f in folds if self.level[f.write.name] - 1 > number]
            mine += self._hold(wanted, [*last, *(a.name for f in later for a in f.reads)], number)
            of |= {one.name: number for one in mine}
            made += mine
        mine = self._copies(last, count, last=True)
        outer = [self._renamed_fold(fold, count) for fold in outer]
        mine += [one for fold in outer for one in terms(fold, program.real)]
        of |= {one.name: count for one in mine}
        needed_after = self._after(over_results)
        results = [
            Tensor(
                result_of(f.write.name),
                program.real,
                tuple(dict(f.domain)[it] for it in f.write.iterators),
            )
            for f in folds
        ]
        results = [replace(t, order=tuple(range(len(t.dims)))) for t in results]
        main = replace(
            program,
            inputs=(*program.inputs, *results),
            outputs=tuple(t for t in program.outputs if t.name in stored),
            statements=(*self._kept_first(), *made, *mine),
        )
        return Split(
            main, tuple(outer), needed_after, behind.outputs,
            passes=RowPasses(tuple(of.items()), tuple(by_pass), rows.own, tuple(self.held)),
        )  # fmt: skip

    def _kept_first(self) -> list[Statement]:
        """Products, and what computes their operands."""
        return [
            s
            for s in self.program.statements
            if isinstance(s, Contraction) or s.write.name in self.operands
        ]

    def _operands(self) -> set[str]:
        """Values that operands of products are computed from, and those themselves."""
        read = [a.name for c in self.program.contractions for a in c.reads]
        return {one.write.name for one in needed(self.program.statements, read)}

    def _levels(self) -> dict[str, int]:
        """Per value, how many folds of rows lie one behind the other before it."""
        level: dict[str, int] = {}
        for one in self.program.statements:
            read = max((level.get(a.name, 0) for a in one.reads), default=0)
            level[one.write.name] = read + isinstance(one, Fold)
        return level

    def _used(self) -> set[str]:
        """The results of folds that elements use, by themselves or through work over results."""
        late = [a.name for s in self.program.statements if s.name in self.late for a in s.reads]
        over = [s for s in self.program.statements if s.name in self.over_results]
        return {fold.write.name for fold in self._read(late, over)}

    def _behind(self, outputs: Iterable[str]) -> list[Fold]:
        """The folds that outputs over results are computed from."""
        return self._read(outputs, self._between())

    def _after(self, outputs: Iterable[str]) -> tuple[Pointwise, ...]:
        """The statements over results that outputs are computed by."""
        found = {one.name for one in needed(self._between(), outputs)}
        return tuple(s for s in self.behind.after if s.name in found)

    def _between(self) -> list[Statement]:
        """All statements but folds."""
        return [one for one in self.program.statements if not isinstance(one, Fold)]

    def _read(self, values: Iterable[str], by: Sequence[Statement]) -> list[Fold]:
        """The folds that are among some values, and what statements compute these of."""
        wanted = set(values)
        wanted.update(a.name for one in needed(by, wanted) for a in one.reads)
        return [fold for fold in self.program.folds if fold.write.name in wanted]

    # --- copies ----------------------------------------------------------------------------------
    def _copies(self, wanted: list[str], number: int, *, last: bool) -> list[Pointwise]:
        """The statements that a pass computes values by, in program order."""
        return [self._copy(s, number, last) for s in self._computed(wanted, self.holding)]

    def _computed(self, wanted: Iterable[str], held: str) -> list[Pointwise]:
        """The statements that values are computed by, in program order.

        Args:
            wanted: the values.
            held: one that is there.
        """
        found: set[str] = set()
        stack = list(wanted)
        while stack:
            name = stack.pop()
            by = self.pointwise.get(name)
            if by is not None and name not in found and name != held:
                found.add(name)
                stack += [a.name for writer in by for a in writer.reads]
        pointwise = self.program.pointwise
        return [s for s in pointwise if s.write.name in found]

    def _hold(self, own: list[str], later: list[str], number: int) -> list[Pointwise]:
        """What leaves a value in the place of the sums: all that passes behind need of them.

        Args:
            own: values that the pass computes, to fold them.
            later: that passes behind it need.
            number: of the pass.
        """
        may = self.alike is None or self.alike[number]
        made = [s for s in self._computed(own, self.holding) if may and self._holdable(s)]
        for one in reversed(made):
            value = one.write.name
            rest = self._computed(later, value)
            read = {a.name for s in rest for a in s.reads} | set(later)
            if value in read and not read & {*self._sums, self.holding}:
                given = Access(self._name(value, number, last=False), self._whole())
                self.holding = value
                self.held.append(held_of(value))
                domain = tuple((iterator(at), extent) for at, extent in enumerate(self.places.axes))
                return [
                    Pointwise(
                        f"{one.name}_h{number}", domain, Access(held_of(value), self._whole()),
                        "cast", (given,), self.program.real,
                    )
                ]  # fmt: skip
        self.held.append("")
        return []

    @property
    def _sums(self) -> set[str]:
        return {one.write.name for one in self.program.contractions}

    def _holdable(self, one: Pointwise) -> bool:
        """Whether a value may be in the place of sums, which have what is computed behind them."""
        name = one.write.name
        real = self.program.real
        wide = all(product.dtype == real for product in self.program.contractions)
        own = name not in self.program.tensors and name not in self.operands
        return wide and own and one.dtype.kind == "float"

    def _copy(self, statement: Pointwise, number: int, last: bool) -> Pointwise:
        """A statement over all axes, under a name of its pass."""
        along = self._along(statement)
        name = statement.write.name
        whole = self._whole()
        return replace(
            statement,
            name=f"{statement.name}_r{number}",
            domain=tuple((iterator(at), extent) for at, extent in enumerate(self.places.axes)),
            write=Access(self._name(name, number, last), whole)
            if name not in self.program.tensors
            else self._stored(statement, along),
            args=tuple(self._argument(a, along, number, last) for a in statement.args),
        )

    def _stored(self, statement: Pointwise, along: Mapping[str, int]) -> Access:
        """Where an output is written."""
        names = {it: iterator(at) for it, at in along.items()}
        index = (computed_index(one, names) for one in statement.write.index)
        return Access(statement.write.name, tuple(index))

    def _along(self, statement: Statement) -> dict[str, int]:
        found = self.along[statement.name]
        if found is None:
            raise _refusal(self.program, f"{statement.name}, whose axes are not the products',")
        return found

    def _whole(self) -> tuple[str, ...]:
        return tuple(iterator(at) for at in range(len(self.places.axes)))

    def _name(self, value: str, number: int, last: bool) -> str:
        """What a pass calls a value; the last one as the program does, unless operands are."""
        return value if last and value not in self.operands else f"{value}_r{number}"

    def _argument(
        self, argument: Argument, along: Mapping[str, int], number: int, last: bool
    ) -> Argument:
        names = {it: iterator(at) for it, at in along.items()}
        if isinstance(argument, Coordinate):
            return Coordinate(computed_index(argument.index, names))
        if not isinstance(argument, Access):
            return argument
        writer = self.writers.get(argument.name)
        if isinstance(writer, Contraction):
            return Access(argument.name, self._of_product(argument.name))
        if isinstance(writer, Fold):
            index = tuple(computed_index(one, names) for one in argument.index)
            return Access(result_of(argument.name), index)
        if argument.name == self.holding:
            return Access(next(one for one in reversed(self.held) if one), self._whole())
        if writer is not None:
            return Access(self._name(argument.name, number, last), self._whole())
        return Access(argument.name, tuple(computed_index(i, names) for i in argument.index))

    def _of_product(self, value: str) -> tuple[str | int, ...]:
        """Where a product's value is read: at its own point, along axes of one index as well."""
        ones = (at for at, extent in enumerate(self.places.axes) if extent == 1)
        axes = (next(ones, None) if at is None else at for at in self.places.values[value])
        return tuple(0 if at is None else iterator(at) for at in axes)

    def _row_fold(self, fold: Fold, number: int) -> Fold:
        """A fold of a pass, whose result elements use."""
        return self._placed_fold(fold, number, result_of(fold.write.name), last=False)

    def _renamed_fold(self, fold: Fold, number: int) -> Fold:
        """A fold of the last pass, whose parts leave."""
        return self._placed_fold(fold, number, fold.write.name, last=True)

    def _placed_fold(self, fold: Fold, number: int, name: str, *, last: bool) -> Fold:
        along, sizes = self._along(fold), dict(fold.domain)
        ones = (at for at, extent in enumerate(self.places.axes) if extent == 1)
        of_one = zip((it for it in fold.write.iterators if sizes[it] == 1), ones, strict=False)
        names = {it: iterator(at) for it, at in (*along.items(), *of_one)}
        return replace(
            fold,
            name=f"{fold.name}_r{number}",
            domain=tuple((iterator(at), extent) for at, extent in enumerate(self.places.axes)),
            write=Access(name, tuple(computed_index(one, names) for one in fold.write.index)),
            args=tuple(self._argument(a, along, number, last) for a in fold.args),
        )


def _refusal(program: Program, what: str) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{what} in a tile that covers rows",
        where=f"{program.name}, epilogue.rows",
        why="elements use results of their own row from registers, which a warp has of its rows",
        nearest='Use epilogue.rows = "after"',
    )


def between_passes(scop: Scop, passes: RowPasses) -> isl.UnionMap:
    """Every element of a row depends on all elements of the row in the passes before its own."""
    of = dict(passes.statements)
    groups = [(of[g.members[0]], g) for g in scop.groups if g.members[0] in of]
    texts = []
    for number, one in groups:
        for later, other in groups:
            if later <= number:
                continue
            left = [f"a{at}" for at in range(len(one.domain))]
            right = [f"b{at}" for at in range(len(other.domain))]
            shift = len(one.domain) - _rank(passes, scop)
            same = " and ".join(f"a{at + shift} = b{at + shift}" for at in passes.own) or "1 = 1"
            texts.append(
                f"{one.name}[{','.join(left)}] -> {other.name}[{','.join(right)}] : {same}"
            )
    found = isl.UnionMap(space(scop.parameters) + "{ " + "; ".join(texts) + " }")
    return found.intersect_domain(scop.domain).intersect_range(scop.domain)


def _rank(passes: RowPasses, scop: Scop) -> int:
    """Axes of a value; a vector's statements have one more, of extent 1, in front."""
    of = dict(passes.statements)
    one = next(g for g in scop.groups if g.members[0] in of)
    return sum(it.startswith(iterator(0)[:-1]) for it, _ in one.domain)
