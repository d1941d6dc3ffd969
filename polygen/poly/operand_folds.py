"""Folds of what a product's operands hold, beside the product: as tiles pass through rings.

    P1[i,k]  v1[i,k] = mul(x[i,k], x[i,k])        in the kernel: x passes through a ring, and who
    F2[i]    v2[i] = sum over k of v1[i,k]   ->   multiplies its tiles folds them as well
    P5[i,j]  v5[i,j] = add(v2[i], v0[i,j])        P5 reads v2 like an array that is there

1. A fold is one of an operand if no product is in what it folds, none reads what comes of it, and
   elements behind products use it, or an output is made of it. Its terms are computed from
   arguments, which never change, so that whoever has an element may compute the term again; a
   monoid's terms may be combined in any order. So no dependence is left but that of the result's
   readers on all terms of their row: these are tiles of the same block, which sums over all of k.
2. What is left is a program whose elements read an array of the result's name. The passes after it
   see no difference between that and an argument; that it lies in shared memory, and what fills it,
   is said by `ring_folds`: for every ring the folds, in the dims of the instruction.
3. What is computed of results of one row alone is computed once for the row, where it is shared.
4. The ring's element is what the term reads in the place of the operand's own array or value; all
   else that it reads is read beside it.
5. Outputs that are such numbers of rows leave from there (`polygen.poly.row_values`): they are none
   of the program whose elements are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import DType
from polygen.frontend.monoids import INDEX, MONOIDS
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.poly.row_values import (
    RowOutput,
    RowValue,
    Source,
    of_rows,
    row_output,
    sources_of,
)


@dataclass(frozen=True, slots=True)
class OperandFold:
    """A fold of what an operand is made of.

    Attributes:
        fold: the statement.
        statements: from arguments, or an operand's value, to terms; in order, over the fold's
            iterators.
        terms: of an element, a component each.
        tensors: the arguments that these read.
        sources: which of their elements, and of those that an operand's value is computed from.
    """

    fold: Fold
    statements: tuple[Pointwise, ...]
    terms: tuple[str | float, ...]
    tensors: tuple[Tensor, ...]
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class RowResult:
    """A number of each row that elements read, or outputs: a fold's result, or computed of such.

    Attributes:
        value: what the program calls it.
        tensor: as which the kernel's elements read it, if they do.
        folds: the results that it is computed of; those of one have its iterators.
        statements: that compute it, in order; none of a fold's result.
    """

    value: str
    tensor: Tensor
    folds: tuple[str, ...]
    statements: tuple[Pointwise, ...]


@dataclass(frozen=True, slots=True)
class OperandFolds:
    """All folds of operands, what elements read of them, and what leaves."""

    folds: tuple[OperandFold, ...] = ()
    results: tuple[RowResult, ...] = ()
    outputs: tuple[RowOutput, ...] = ()


def term(fold: str, component: int) -> str:
    """The value that an element contributes to a fold, by the name of the result."""
    return f"{fold}_{component}"


def terms(fold: Fold, real: DType) -> list[Pointwise]:
    """What every element contributes, as values; numbers that all contribute are no values.

    Args:
        fold: of the program.
        real: in what it computes: terms are not rounded.
    """
    own = tuple(iterator for iterator, _ in fold.domain)
    return [
        Pointwise(
            f"{fold.name}_{at}", fold.domain, Access(term(fold.write.name, at), own), "cast",
            (arg,), real,
        )
        for at, arg in enumerate(fold.args)
        if not isinstance(arg, Constant)
    ]  # fmt: skip


def beside_products(program: Program) -> tuple[Program, OperandFolds]:
    """The program whose elements read results of its operands' folds, and these folds.

    Raises:
        UnsupportedProgram: such a fold is of an index, or reads a value at another point; or an
            output that no product has a part in is nothing of rows of an operand.
    """
    if not program.contractions or not program.folds:
        return program, OperandFolds()
    writers = {s.write.name: s for s in program.statements}
    products = {one.write.name for one in program.contractions}
    operands = {a.name for one in program.contractions for a in one.reads}
    within = {
        name: {one.write.name for one in needed(program.statements, [name])} for name in writers
    }
    multiplied = {name for value in operands & set(writers) for name in within[value]}
    late = {name for name, behind in within.items() if behind & products}
    sources = _read(multiplied, writers)
    alone = tuple(tensor for tensor in program.outputs if tensor.name not in late)
    used = {name for value in late for name in within[value]}
    used |= {name for tensor in alone for name in within[tensor.name]}
    chosen = [
        fold
        for fold in program.folds
        if fold.write.name not in late | multiplied
        and fold.write.name in used
        and _read(within[fold.write.name], writers) & (operands | sources)
    ]
    if not chosen and not alone:
        return program, OperandFolds()
    rows = of_rows(program, {fold.write.name: fold for fold in chosen}, late)
    leaving = tuple(row_output(program, tensor, rows) for tensor in alone)
    folds = tuple(_operand_fold(program, fold, writers, operands) for fold in chosen)
    stored = {tensor.name for tensor in alone}
    read = _read_by_elements(program, rows, stored)
    results = tuple(
        _result(program, rows[name], writers)
        for name in rows
        if name in read or any(one.value == name for one in leaving)
    )
    names = {one.value: (one.tensor.name, rows[one.value].places) for one in results}
    outputs = tuple(tensor for tensor in program.outputs if tensor.name not in stored)
    kept = needed(program.statements, [tensor.name for tensor in outputs], rows)
    statements = tuple(_renamed(one, names) for one in kept)
    inputs = (*program.inputs, *(one.tensor for one in results if one.value in read))
    return (
        replace(program, inputs=inputs, outputs=outputs, statements=statements),
        OperandFolds(folds, results, leaving),
    )


def _read_by_elements(program: Program, rows: Mapping[str, RowValue], stored: set[str]) -> set[str]:
    """What of rows others than rows read, and than what stores them."""
    others = (s for s in program.statements if s.write.name not in (*rows, *stored))
    return {access.name for s in others for access in s.reads if access.name in rows}


def _result(program: Program, row: RowValue, writers: Mapping[str, Statement]) -> RowResult:
    name = f"of_{row.value}"
    while name in program.tensors or name in program.sizes or name in writers:
        name += "_"
    real = program.real
    tensor = Tensor(name, real, row.dims, tuple(range(len(row.dims))), real.bytes)
    return RowResult(row.value, tensor, row.folds, row.statements)


def _read(values: set[str], writers: Mapping[str, Statement]) -> set[str]:
    """What values are computed from."""
    return {a.name for name in values for a in writers[name].reads}


def _renamed(statement: Statement, names: Mapping[str, tuple[str, tuple[int, ...]]]) -> Statement:
    """A statement that reads what is of rows as arrays, at the places of the row."""

    def argument(one: Argument) -> Argument:
        if not isinstance(one, Access) or one.name not in names:
            return one
        name, places = names[one.name]
        return Access(name, tuple(one.index[place] for place in places))

    if isinstance(statement, (Pointwise, Fold)):
        return replace(statement, args=tuple(map(argument, statement.args)))
    return statement  # a product reads no result


def _operand_fold(
    program: Program, fold: Fold, writers: Mapping[str, Statement], operands: set[str]
) -> OperandFold:
    """One fold, with the statements that make its terms."""
    if INDEX in MONOIDS[fold.function].terms:
        raise _refusal(program, fold, "an index of an operand's elements")
    own = tuple(iterator for iterator, _ in fold.domain)
    wanted = {a.name for a in fold.reads}
    statements: list[Pointwise] = []
    for statement in reversed(program.statements):
        name = statement.write.name
        if name not in wanted or name in operands:  # an operand's value is what its ring has
            continue
        if not isinstance(statement, Pointwise):
            raise _refusal(program, fold, f"a fold of what comes of {statement.write}")
        wanted |= {a.name for a in statement.reads}
        statements.append(statement)
    made = [*reversed(statements), *terms(fold, program.real)]
    for one in made:
        for access in one.reads:
            at_own_point = access.name in program.tensors or access.index == own
            if not at_own_point or access.indexed_by:
                raise _refusal(program, fold, f"{access}, of another element or by index,")
    return OperandFold(
        fold,
        tuple(made),
        tuple(
            arg.value if isinstance(arg, Constant) else term(fold.write.name, at)
            for at, arg in enumerate(fold.args)
        ),
        tuple(t for t in program.inputs if t.name in wanted),
        sources_of(program, fold),
    )


def _refusal(program: Program, fold: Fold, what: str) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{fold.write.name}: {what} is not folded beside a product",
        where=f"{program.name}, {fold.name}: {fold}",
        why="terms of an operand's folds are computed from one element of its tile, in the threads "
        "that multiply it",
        nearest=f"Compute {fold.write.name} in a function before, and pass it",
    )
