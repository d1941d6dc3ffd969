"""A rewritten chain as two programs of one product each, that all other passes know.

The first has rows and keys, the second rows and columns. What the one makes and the other reads,
and states, are arrays that nobody stores. Statements of rows run at every key, or every column, of
their row: they are the same there.

Without folds over the keys what lies between the products is the same whenever it is made. Then
results that are made of the first product's sums alone are the first program's, and one value, what
the second product multiplies or what that is rounded of, may be read behind that, element by
element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.program import (
    Access,
    Argument,
    Contraction,
    Dim,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.read_by_index import renamed
from polygen.rewrite.values import Values


class TwoPrograms:
    """Makes the two programs.

    Attributes:
        program: the whole one.
        statements: of it, rewritten.
        values: the same by value.
        second: the second product.
        operand: what it reads of the first.
        folds: over the keys.
        late: values that the second product is in.
        rows: the second product's iterators along rows.
        extents: of these.
        keys: how many there are.
        outputs: names of the whole program's.
        returned: those of results with a row and a key, of the first product's sums alone.
        alike: values that were written at every key, and are the same for all of a row.
    """

    program: Program
    statements: list[Statement]
    values: Values
    second: Contraction
    operand: Access
    folds: list[Fold]
    late: frozenset[str]
    rows: tuple[str, ...]
    extents: tuple[Dim, ...]
    keys: Dim
    outputs: list[str]
    returned: list[str]
    alike: set[str]

    def other(self) -> Access:
        """The operand of the second product that is an argument."""
        return next(access for access in self.second.reads if access != self.operand)

    def middle(self, second: Contraction) -> Access:
        """What leads from the first product to the second one, as it is written now.

        Raises:
            UnsupportedProgram: its factors were all that did, and have left it.
        """
        found = [access for access in second.reads if access.name not in self.program.tensors]
        if not found:
            raise self.refusal(
                f"{second.name}: {second} multiplies arguments alone, when factors have left it",
                "a chain's second product multiplies what the first one gives",
                "Multiply its result by them",
            )
        return found[0]

    def firsts(self) -> tuple[Contraction, ...]:
        """The products that the second one's operand is made of: one, or several of one row."""
        return tuple(one for one in self.program.contractions if one.name != self.second.name)

    def behind_second(self) -> frozenset[str]:
        """The values of the whole program that the second product is in."""
        values, total = Values(self.program.statements), self.second.write.name
        return frozenset(name for name in values.writers if total in values.behind(name))

    def over_keys(self, statements: Sequence[Statement]) -> list[Fold]:
        """The folds that no sum of the second product is in."""
        folds = (one for one in statements if isinstance(one, Fold))
        return [one for one in folds if one.write.name not in self.late]

    def is_row(self, values: Values, arg: Argument) -> bool:
        """Whether an argument has one value a row."""
        if not isinstance(arg, Access):
            return False
        writer = values.writers.get(arg.name)
        return writer is not None and len(writer.write.index) == len(self.rows)

    def refusal(self, what: str, why: str, nearest: str) -> UnsupportedProgram:
        """What is refused of the whole program."""
        return UnsupportedProgram(what, where=self.program.name, why=why, nearest=nearest)

    def of_first(self) -> list[str]:
        """Results that are made of the first product's sums at every key, and of nothing behind."""
        values, total = Values(self.program.statements), self.second.write.name
        sums = {one.write.name for one in self.firsts()}
        late = {one.write.name for one in self.program.folds} | {total}
        found = []
        for name in self.outputs:
            behind = values.behind(name)
            whole = _along(values.writers[name]) == (*self.extents, self.keys)
            alone = behind & sums and not behind & late
            if whole and alone and values.written_once(name):
                found.append(name)
        return found

    def read_behind(self, after: Sequence[Statement]) -> str:
        """What lies between the products and is read behind the second; "": nothing is.

        Args:
            after: the second program.

        Raises:
            UnsupportedProgram: these are two values.
        """
        writer = self.values.writers[self.operand.name]
        rounded = isinstance(writer, Pointwise) and writer.function == "cast"
        sums = {one.write.name for one in self.program.contractions}
        of = [access.name for access in writer.reads] if rounded else []
        left = [self.operand.name, *(name for name in of if name not in sums)]
        read = {a.name for one in after if one is not self.second for a in one.reads}
        found = [name for name in left if name in read]
        if len(found) > 1:
            raise self.refusal(
                f"{' and '.join(found)} are read behind {self.second.name}",
                "one value stays in the registers of the first product's sums",
                f"Read {found[0]} in both places",
            )
        return found[0] if found else ""

    def scores(self, terms: Sequence[str], kept: str) -> Program:
        """The first product, and what is made of it at (row, key).

        Args:
            terms: of folds.
            kept: what is read behind the second one, as of `read_behind`.
        """
        states = {fold.write.name for fold in self.folds}
        wanted = [*terms, *([kept] if kept else []), self.operand.name, *self.returned]
        pairs = self.values.writers[self.operand.name].write.iterators
        domain = self.values.writers[self.operand.name].domain
        statements: list[Statement] = []
        lifted: set[str] = set()
        for one in needed(self.statements, wanted):
            if isinstance(one, Fold):
                continue
            if isinstance(one, Pointwise) and self._is_lifted(one):
                lifted.add(one.write.name)
                statements.append(self._lift(one, lifted, pairs, dict(domain)))
            elif isinstance(one, Pointwise):
                statements.append(self._reading_rows(one, lifted))
            else:
                statements.append(one)
        self._require_pairs(statements)
        whole = (*self.extents, self.keys)
        own = self.program.tensors
        outputs = tuple(
            own[name]
            if name in self.returned
            else self._array(name, whole, self.operand_type() if name == self.operand.name else F32)
            for name in dict.fromkeys(wanted)
        )
        return self._program(statements, states, outputs)

    def operand_type(self) -> DType:
        """The type that the second product multiplies."""
        return self.program.tensors[self.other().name].dtype

    def _require_pairs(self, statements: Sequence[Statement]) -> None:
        """Everything before the second product is at (row, key)."""
        for one in statements:
            along = _along(one)
            if along != (*self.extents, self.keys):
                raise self.refusal(
                    f"{one.name} over [{', '.join(map(str, along))}]",
                    f"before the second product everything has a row and a key, "
                    f"[{', '.join(map(str, (*self.extents, self.keys)))}]",
                    "Compute it before, and pass it",
                )

    def after(self, states: Sequence[str]) -> tuple[Program, tuple[Tensor, ...], str]:
        """The second product, and what is made of it and of the states, folds of that among it.

        Returns:
            The program; outputs of rows; what it reads of what lies between the products, or "".
        """
        pairs = self.values.behind(self.operand.name)
        statements: list[Statement] = []
        rows: list[Tensor] = []
        lifted: set[str] = set()
        outputs = [one for one in self.program.outputs if one.name not in self.returned]
        for one in self.statements:
            if one in self.folds or (one.write.name in pairs and not self._is_lifted(one)):
                continue
            if one is self.second:
                statements.append(one)
                continue
            if self._is_lifted(one):
                assert isinstance(one, Pointwise)
                lifted.add(one.write.name)
                columns = self.second.write.iterators
                statements.append(self._lift(one, lifted, columns, dict(self.second.domain)))
                tensor = self.program.tensors.get(one.write.name)
                if tensor is not None:
                    rows.append(tensor)
                    at = outputs.index(tensor)
                    whole = (
                        *tensor.dims,
                        dict(self.second.domain)[self.second.write.iterators[-1]],
                    )
                    outputs[at] = self._array(tensor.name, whole, tensor.dtype)
                continue
            behind = self.values.behind(one.write.name)
            if self.second.write.name not in behind and self._only_pairs(one):
                continue
            if isinstance(one, Contraction):
                raise self.refusal(
                    f"{one.name}: {one} multiplies what {self.second.name} has summed",
                    "the loop of a chain runs two products, and nothing behind it multiplies again",
                    f"Return what is made of {self.second.write.name} from one function, and "
                    "multiply it in a second",
                )
            statements.append(self._reading_rows(one, lifted))
        found = needed(statements, [one.name for one in outputs])
        missing = [t.name for t in outputs if t.name not in {s.write.name for s in found}]
        if missing:
            raise self.refusal(
                f"{missing[0]} is returned of what lies between the products",
                "what has a row and a key stays on chip",
                "Return it from a function of its own",
            )
        kept = "" if self.folds else self.read_behind(found)
        self._require_no_pairs(found, {*states, kept})
        inputs = {*states, self.operand.name, kept}
        made = self._program(found, inputs, tuple(outputs))
        return made, tuple(rows), kept

    def _require_no_pairs(self, after: Sequence[Statement], left: set[str]) -> None:
        """Nothing but the second product reads what has a row and a key, but for what is left."""
        known = {*left, *self.program.tensors, *(one.write.name for one in after)}
        for one in after:
            for access in one.reads:
                if one is not self.second and access.name not in known:
                    raise self.refusal(
                        f"{one.name} reads {access}, which lies between the products",
                        f"what has a row and a key stays on chip, for {self.second.name} alone, "
                        "which has seen all keys of a row when its results are there",
                        f"Return what {self.second.name} sums from one function, and add what "
                        f"comes of {access.name} in a second",
                    )

    def _only_pairs(self, one: Statement) -> bool:
        """Whether a statement runs over rows and keys, for the first program alone."""
        if self.second.write.name in self.values.behind(one.write.name):
            return False  # there may be as many columns as keys
        sizes = dict(one.domain)
        along = tuple(sizes[it] for it in one.write.iterators)
        wanted = {
            name
            for s in self.statements
            if self.second.write.name in self.values.behind(s.write.name)
            for access in s.reads
            if s is not self.second
            for name in (access.name, *self.values.behind(access.name))
        }
        return along == (*self.extents, self.keys) and one.write.name not in wanted

    def _is_lifted(self, one: Statement) -> bool:
        """Whether a statement has one value a row."""
        if not isinstance(one, Pointwise) or len(set(one.write.iterators)) != len(self.rows):
            return False
        if one.write.name in self.late:
            return False
        if one.write.name in self.alike:
            return True
        return self.values.depends(one.write, [fold.write.name for fold in self.folds])

    def _lift(
        self,
        one: Pointwise,
        lifted: set[str],
        iterators: tuple[str, ...],
        sizes: dict[str, Dim],
    ) -> Pointwise:
        """A statement of rows at every column of its row, or at every key."""
        *rows, column = iterators
        names = dict(zip(one.write.iterators, rows, strict=True))

        def argument(arg: Argument) -> Argument:
            if not isinstance(arg, Access):
                if getattr(arg, "iterators", ()):
                    raise self.refusal(
                        f"{one.name} reads where a row is", "rows have no coordinates here",
                        "Add what depends on the row outside",
                    )  # fmt: skip
                return arg
            index = tuple(renamed(i, names) for i in arg.index)
            if arg.name in lifted:
                index = (*index, column)
            return replace(arg, index=index)

        own = dict(one.domain)  # whose axes may be in another order than the product's
        extents = (*(own[it] for it in names), sizes[column])
        domain = tuple(zip(iterators, extents, strict=True))
        write = Access(one.write.name, iterators)
        return replace(one, domain=domain, write=write, args=tuple(map(argument, one.args)))

    def _reading_rows(self, one: Pointwise | Fold, lifted: set[str]) -> Pointwise | Fold:
        """A statement that reads values of rows, at every column."""

        def argument(arg: Argument) -> Argument:
            if not isinstance(arg, Access) or arg.name not in lifted:
                return arg
            columns = [it for it, _ in one.domain if it not in arg.iterators]
            if len(columns) != 1:
                raise self.refusal(
                    f"{one.name} reads {arg}, a row's, beside a fold of what "
                    f"{self.second.name} gives",
                    "states of rows are in the registers of the kernel, and what is folded is "
                    "known behind it",
                    f"Return {arg.name} as well, and combine both outside",
                )
            return replace(arg, index=(*arg.index, *columns))

        return replace(one, args=tuple(map(argument, one.args)))

    def _array(self, name: str, dims: tuple[Dim, ...], dtype: DType) -> Tensor:
        """A value as an array that nobody stores."""
        return Tensor(name, dtype, dims, tuple(range(len(dims))))

    def _program(
        self,
        statements: Sequence[Statement],
        made: set[str],
        outputs: tuple[Tensor, ...],
    ) -> Program:
        accesses = [access for s in statements for access in s.reads]
        read = {access.name for access in accesses}
        read |= {table.name for access in accesses for table in access.indexed_by}
        inputs = [t for t in self.program.inputs if t.name in read]
        for name in sorted(read & made):
            pairs = (*self.extents, self.keys)
            if name == self.operand.name:
                inputs.append(self._array(name, pairs, self.operand_type()))
            elif _along(self.values.writers[name]) == pairs:
                inputs.append(self._array(name, pairs, F32))
            else:
                inputs.append(self._array(name, self.extents, F32))
        return Program(
            self.program.name, self.program.source, tuple(inputs), outputs,
            tuple(statements),
        )  # fmt: skip


def _along(one: Statement) -> tuple[Dim, ...]:
    """The extents of what a statement writes, of axes that become several once."""
    sizes = dict(one.domain)
    return tuple(sizes[it] for it in dict.fromkeys(one.write.iterators))
