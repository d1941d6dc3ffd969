"""Numbers of rows of operands: results of folds, what is computed of these alone, and what leaves.

    v2[i] = sum over k of v1[i,k]        a result: a number of the row i
    v3[i] = mul(v2[i], 0.5)              computed of numbers of that row alone: once for the row
    y1[i] = cast(v3[i])                  an output, which is nothing but such a number

1. A value is one of rows if it is computed of results of folds at one index, numbers and scalars.
2. An output that no product has a part in has to be such a value, cast, and stored once for every
   row: its axes are those of the folds' results, in any order, and axes of one element.
3. Where rows are those of an operand's tiles is found from what the terms are read from
   (`Source`): the arguments that the operand is, or is computed from, at the same elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Dim,
    Extent,
    Fold,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.poly.elements import Along

Source = tuple[str, tuple[Along, ...]]  # an argument, and per axis what of a fold's iterators


@dataclass(frozen=True, slots=True)
class RowValue:
    """A value that is the same along all but some axes of its statement's domain.

    Attributes:
        value: what the program calls it.
        places: of what it is indexed by, among the axes of the value.
        dims: extents of these, in the order of the axes of the results that it is computed of.
        folds: these results.
        statements: that compute it of them, in order.
    """

    value: str
    places: tuple[int, ...]
    dims: tuple[Dim, ...]
    folds: tuple[str, ...]
    statements: tuple[Pointwise, ...]


@dataclass(frozen=True, slots=True)
class RowOutput:
    """An output that has a number of every row.

    Attributes:
        tensor: the array.
        value: that is stored in it, as its type.
        axes: per axis of the array, which of the row's axes it is; -1: it has one element.
    """

    tensor: Tensor
    value: str
    axes: tuple[int, ...]


def of_rows(program: Program, folds: Mapping[str, Fold], late: set[str]) -> dict[str, RowValue]:
    """Results of folds, and what is computed of results of one row alone."""
    found: dict[str, RowValue] = {}
    numbers: dict[str, tuple[Pointwise, ...]] = {}
    for statement in program.statements:
        name = statement.write.name
        if name in folds:
            sizes = dict(statement.domain)
            own = tuple(sizes[it] for it in statement.write.iterators)
            found[name] = RowValue(name, tuple(range(len(own))), own, (name,), ())
        elif isinstance(statement, Pointwise) and name not in (*late, *program.tensors):
            row = _row(statement, found, numbers)
            if row is not None:
                found[name] = row
            elif all(_is_number(one, numbers) for one in statement.args):
                numbers[name] = (*_before(statement, numbers), statement)
    return found


def _row(
    statement: Pointwise,
    known: Mapping[str, RowValue],
    numbers: Mapping[str, tuple[Pointwise, ...]],
) -> RowValue | None:
    """What a statement computes of results of one row; None if it reads anything else."""
    made = [a for a in statement.args if isinstance(a, Access) and a.name in known]
    others = [a for a in statement.args if not (isinstance(a, Access) and a.name in known)]
    if not made or not all(_is_number(one, numbers) for one in others):
        return None
    read = {tuple(a.index[place] for place in known[a.name].places) for a in made}
    own = [it for it, _ in statement.domain]
    if len(read) > 1 or not all(isinstance(it, str) and it in own for it in next(iter(read))):
        return None
    (index,) = read
    if statement.write.index != tuple(own):
        return None
    rows = [known[a.name] for a in made]
    before = [s for row in rows for s in row.statements]
    before += _before(statement, numbers)
    return RowValue(
        statement.write.name,
        tuple(own.index(str(it)) for it in index),
        rows[0].dims,
        tuple(dict.fromkeys(name for row in rows for name in row.folds)),
        (*dict.fromkeys(before), statement),
    )


def _is_number(one: Argument, numbers: Mapping[str, tuple[Pointwise, ...]]) -> bool:
    """Whether an argument is the same everywhere: a number, an extent, or made of such alone."""
    if isinstance(one, Access):
        return not one.index or one.name in numbers
    return isinstance(one, (Constant, Extent))


def _before(
    statement: Pointwise, numbers: Mapping[str, tuple[Pointwise, ...]]
) -> tuple[Pointwise, ...]:
    """What makes the numbers that a statement reads."""
    read = (a.name for a in statement.reads if a.name in numbers)
    return tuple(one for name in read for one in numbers[name])


def row_output(program: Program, tensor: Tensor, rows: Mapping[str, RowValue]) -> RowOutput:
    """How an output that no product has a part in leaves.

    Args:
        program: its statements.
        tensor: the output.
        rows: values of rows of operands.

    Raises:
        UnsupportedProgram: it is no value of rows, or not stored once for every row.
    """
    stores = [s for s in program.statements if s.write.name == tensor.name]
    (read, *others) = stores[0].reads or (Access("", ()),)
    own = rows.get(read.name)
    cast = isinstance(stores[0], Pointwise) and stores[0].function == "cast"
    if len(stores) > 1 or others or own is None or not cast:
        raise _refusal(program, tensor, stores[-1])
    sizes = dict(stores[0].domain)
    row = [read.index[place] for place in own.places]
    axes = []
    for index, extent in zip(stores[0].write.index, tensor.dims, strict=True):
        at = row.index(index) if index in row and isinstance(index, str) else -1
        if at >= 0 and sizes[str(index)] == own.dims[at] == extent:
            axes.append(at)
        elif extent == 1 and (index == 0 or isinstance(index, str)):
            axes.append(-1)
        else:
            raise _refusal(program, tensor, stores[0])
    left = [extent for at, extent in enumerate(own.dims) if at not in axes]
    named = [at for at in axes if at >= 0]
    if any(extent != 1 for extent in left) or len(set(named)) != len(named):
        raise _refusal(program, tensor, stores[0])
    return RowOutput(tensor, own.value, tuple(axes))


def _refusal(program: Program, tensor: Tensor, statement: Statement) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"the output {tensor.name} is no result of a product, and no number of each row of what "
        "one multiplies",
        where=f"{program.name}, {statement.name}: {statement}",
        why="arrays are folded as a product's operands pass by, along the axis that it sums, and "
        "what leaves of that is computed of results of the same rows, numbers and scalars",
        nearest=f"Compute {tensor.name} in a call of its own",
    )


def sources_of(program: Program, fold: Fold) -> tuple[Source, ...]:
    """The elements of arguments that go with a term, by the iterators of its fold.

    What is read at sums of digits or by index is left out.
    """
    writers = {s.write.name: s for s in program.statements}
    found: dict[Source, None] = {}
    own = {iterator: Along(iterator) for iterator, _ in fold.domain}
    stack = [(access, own) for access in fold.reads]
    while stack:
        access, at = stack.pop()
        index = tuple(_along(one, at) for one in access.index)
        if None in index:
            continue
        places = tuple(one for one in index if one is not None)
        if access.name not in writers:
            found[access.name, places] = None
            continue
        writer = writers[access.name]
        written = writer.write.index
        known = {it: one for it, one in zip(written, places, strict=True) if isinstance(it, str)}
        if isinstance(writer, Pointwise) and len(known) == len(written):
            stack += [(one, known) for one in writer.reads]
    return tuple(found)


def _along(index: Index, at: Mapping[str, Along]) -> Along | None:
    """An index by what iterators are; None where it is none of these, in equal steps."""
    if isinstance(index, int):
        return Along("", 0, index)
    if isinstance(index, str):
        return at.get(index)
    inner = at.get(index.iterator) if isinstance(index, Affine) else None
    if isinstance(index, Affine) and inner is not None and inner == Along(inner.dim):
        return Along(inner.dim, index.scale, index.offset, index.per)
    return None
