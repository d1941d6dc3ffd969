"""Some rows of a program's outputs on integers, in float64: what the anchor is checked against.

A row is what one index along the output's first axis has: of batches, a matrix.

1. On the device, rows of the sums as sums of products in f32, exact because everything is a small
   integer.
2. On the host, the pointwise statements one by one over those rows, each as a program of its own.
   The fused band says which iterator of a statement runs over rows.

The array module is an argument: CuPy where this is used, NumPy where it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.frontend.dtypes import F32, DType
from polygen.frontend.evaluate import evaluate
from polygen.frontend.forms import Form
from polygen.frontend.grouping import apart_from_groups, one_group, rows_in_groups
from polygen.frontend.groups import bounds
from polygen.frontend.indices import Place, size_value
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Gathered,
    Pointwise,
    Program,
    Statement,
    Tensor,
    Within,
)
from polygen.poly.fusion import fuse
from polygen.poly.prologue import multiplied, prologues, without_prologues
from polygen.poly.rows import with_rows
from polygen.poly.scop import scop
from polygen.poly.sections import sections
from polygen.rewrite.kept_axes import with_kept_axes
from polygen.rewrite.programs import rewritten

Array = np.ndarray[Any, Any]


def as_f32(xp: Any, array: Any, dtype: DType) -> Any:
    """The values of a stored array in f32, on the device where it is."""
    if dtype.storage == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype.kind == "float" and dtype.bits == 8:
        table = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
        return xp.asarray(table)[array.view(np.uint8)]
    return array.view(np.dtype(dtype.storage)).astype(np.float32)


def bits(array: Any) -> Any:
    """The same memory as unsigned integers, which every version of CuPy can copy and compare."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def host(array: Any) -> Array:
    """A NumPy array of either module's array."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def by_rows(program: Program) -> bool:
    """Whether rows of the outputs can be computed alone, as `sampled` does."""
    several = len(sections(rewritten(program))) > 1  # which have no rows in common
    numbers = any(not tensor.dims for tensor in program.outputs)
    indexed = with_kept_axes(program) is not program  # axes that rows have, and results have not
    return not (program.folds or program.by_digits or several or numbers or indexed)


def row_axes(program: Program) -> dict[str, int]:
    """Of every output, the axis along which rows lie."""
    if program.ends:
        return {t.name: 0 for t in program.outputs}
    program = without_prologues(program)
    rows = _rows(program)
    written = {s.write.name: s for s in program.statements}
    return {
        t.name: written[t.name].write.index.index(rows[written[t.name].name])
        for t in program.outputs
    }


def _rows(program: Program) -> dict[str, str]:
    """Of every statement, the iterator along the first axis that the program's own arrays have."""
    program = without_prologues(program)
    statements = with_rows(program)
    fusion = fuse(statements, scop(statements))
    own = {it for s in program.statements for it, _ in s.domain}
    first = next(n for n, it in enumerate(fusion.axes) if it in own)
    return {s.name: fusion.iterators(s.name)[first] for s in program.statements}


def sampled(
    xp: Any, program: Program, operands: Mapping[str, Any], rows: Sequence[int]
) -> dict[str, Array]:
    """Rows of the outputs, in float64 and not rounded.

    Args:
        xp: the array module of the operands.
        program: its products read arguments, or what is computed of them.
        operands: stored arrays, or numbers, by name; small integers.
        rows: which rows.

    Returns:
        Outputs by name, with only those rows; of groups, NaN in rows that have none.
    """
    if program.ends:
        return _of_groups(xp, program, operands, rows)
    made = prologues(program)
    operands = {**operands, **{name: _made(xp, program, operands, name) for name in made}}
    program = without_prologues(program, made)
    along = _rows(program)
    tensors = program.tensors
    chosen = xp.asarray(np.asarray(rows, dtype=np.int64))
    names = {t.name for t in program.outputs}
    sizes = {
        dim: size
        for tensor in program.inputs
        if tensor.dims
        for dim, size in zip(tensor.dims, operands[tensor.name].shape, strict=True)
        if isinstance(dim, str)
    }
    values: dict[str, Array] = {}

    def by_number(vector: Any, place: Place, statement: Statement) -> Any:
        """What stands in a vector of indices for the rows."""
        assert not isinstance(place, int | Form | Within)  # of keys in pages: chains are not tuned
        at = place if isinstance(place, Affine) else Affine(place, 1, 0)
        extent = dict(statement.domain)[at.iterator]
        count = size_value(extent, sizes)
        own = at.iterator == along[statement.name]
        return xp.take(vector, at.at(chosen if own else xp.arange(count)), axis=0)

    def part(access: Access, statement: Statement) -> Any:
        """What a statement reads of an array for the rows, in f32, an axis for every iterator."""
        array, extents = bits(operands[access.name]), dict(statement.domain)
        for axis, index in reversed(list(enumerate(access.index))):
            if isinstance(index, int):
                array = xp.take(array, index, axis=axis)
                continue
            assert not isinstance(index, (Within, Form))  # of one group at a time; not tuned
            if isinstance(index, Gathered):
                rows = by_number(operands[index.rows], index.place, statement)
                array = xp.take(array, xp.clip(rows, 0, array.shape[axis] - 1), axis=axis)
                continue
            at = index if isinstance(index, Affine) else Affine(index, 1, 0)
            extent = extents[at.iterator]
            if at.iterator == along[statement.name]:
                array = xp.take(array, at.at(chosen), axis=axis)
            elif isinstance(extent, int) and not (
                at == Affine(at.iterator, 1, 0) and extent == array.shape[axis]
            ):
                array = xp.take(array, at.at(xp.arange(extent)), axis=axis)
        return as_f32(xp, array, tensors[access.name].dtype)

    for statement in program.statements:
        if isinstance(statement, Contraction):
            values[statement.write.name] = _sums(xp, statement, part)
            continue
        assert isinstance(statement, Pointwise)  # programs that fold are not tuned
        given: list[Array | None] = []
        for arg in statement.args:
            if isinstance(arg, Coordinate):
                given.append(_places(arg, statement, along[statement.name], rows, sizes))
            elif not isinstance(arg, Access):
                given.append(None)
            elif arg.name in values:
                given.append(values[arg.name])
            elif not arg.index:
                given.append(np.asarray(operands[arg.name], dtype=np.float64))
            else:
                given.append(host(part(arg, statement)).astype(np.float64))
        final = statement.write.name in names
        values[statement.write.name] = _apply(
            statement, given, len(rows), along[statement.name], final
        )
    return {name: values[name] for name in names}


def _made(xp: Any, program: Program, operands: Mapping[str, Any], value: str) -> Any:
    """A computed operand, whole, as its type stores it: computed on the host."""
    statements = prologues(program)[value]
    dims = without_prologues(program).tensors[value].dims
    kind = multiplied(program, statements[-1])
    arrays = {
        t.name: host(bits(operands[t.name])).view(t.dtype.numpy) if t.dims else operands[t.name]
        for t in program.inputs
    }
    alone = replace(program, outputs=(Tensor(value, F32, dims),), statements=statements)
    (found,) = evaluate(alone, arrays)
    return xp.asarray(bits(np.ascontiguousarray(found.astype(kind.numpy))))


def _of_groups(
    xp: Any, program: Program, operands: Mapping[str, Any], rows: Sequence[int]
) -> dict[str, Array]:
    """Every row alone, as the only one of its group."""
    apart = {one.write.name for one in apart_from_groups(program)}
    made = {name: own for name, own in prologues(program).items() if name in apart}
    operands = {**operands, **{name: _made(xp, program, operands, name) for name in made}}
    program = without_prologues(program, made)
    sizes = {
        dim: count
        for tensor in program.inputs
        for dim, count in zip(tensor.dims, np.shape(operands[tensor.name]), strict=True)
        if isinstance(dim, str)
    }
    _, last = bounds(host(operands[program.ends]), size_value(rows_in_groups(program), sizes))
    found: dict[str, list[Array]] = {t.name: [] for t in program.outputs}
    for row in rows:
        group = int(np.searchsorted(last, row, side="right"))
        known = group < len(last)
        alone = one_group(program, group if known else 0, row, 1)
        for name, values in sampled(xp, alone, operands, [0]).items():
            found[name].append(values if known else np.full_like(values, np.nan))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _places(
    place: Coordinate,
    statement: Statement,
    row: str,
    rows: Sequence[int],
    sizes: Mapping[str, int],
) -> Array | None:
    """The values of a coordinate along its one axis, of the rows alone if that is theirs."""
    if not place.iterators:
        return None
    (iterator,) = place.iterators
    extent = dict(statement.domain)[iterator]
    numbers = np.arange(size_value(extent, sizes))
    at = place.index if isinstance(place.index, Affine) else Affine(iterator, 1, 0)
    chosen = np.asarray(rows) if iterator == row else numbers
    return np.asarray(at.at(chosen), np.float64)


def _sums(xp: Any, contraction: Contraction, part: Callable[[Access, Statement], Any]) -> Array:
    """The sums of a product for the rows."""
    letters = {it: chr(ord("a") + n) for n, (it, _) in enumerate(contraction.domain)}

    def subscript(access: Access) -> str:
        return "".join(letters[iterator] for iterator in access.iterators)

    left, right = (subscript(access) for access in contraction.reads)
    arrays = (part(access, contraction) for access in contraction.reads)
    found = xp.einsum(f"{left},{right}->{subscript(contraction.write)}", *arrays)
    return host(found).astype(np.float64)


def _apply(
    statement: Pointwise,
    given: Sequence[Array | None],
    rows: int,
    row: str,
    final: bool,
) -> Array:
    """One statement as a program of its own, over the rows alone."""
    extents: dict[str, int] = {row: rows}
    for arg, array in zip(statement.args, given, strict=True):
        if not isinstance(arg, Constant) and array is not None:
            for index, extent in zip(arg.iterators, array.shape, strict=True):
                if index != row:
                    extents[index] = max(extent, extents.get(index, 1))
    args: list[Argument] = []
    inputs, arrays = [], {}
    for at, (arg, array) in enumerate(zip(statement.args, given, strict=True)):
        if isinstance(arg, Constant) or array is None:
            args.append(arg)
            continue
        name = f"argument{at}"
        args.append(Access(name, arg.iterators))  # what is read is already taken
        inputs.append(Tensor(name, F32, array.shape))
        arrays[name] = array
    # A statement that reads no matrix runs over an extent that only its domain tells: one column
    # stands for all of them.
    domain = tuple((it, extents.get(it, 1)) for it, _ in statement.domain)
    shape = tuple(dict(domain)[i] if isinstance(i, str) else 1 for i in statement.write.index)
    output = Tensor("result", statement.dtype, shape)
    written = replace(statement.write, name="result")
    alone = Program(
        "alone",
        "",
        tuple(inputs),
        (output,),
        (replace(statement, domain=domain, write=written, args=tuple(args)),),
    )
    # Casts between statements round, as they do in the whole program; nothing else does.
    rounds = statement.function == "cast" and not final
    (result,) = evaluate(alone, arrays, {}, round_outputs=rounds)
    return result.astype(np.float64) if result.dtype != np.bool_ else result
