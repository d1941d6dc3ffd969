"""Two oracles in float64: the user's function on arrays, and an interpreter of Programs.

They share nothing but the vocabulary's NumPy functions and the rounding of casts, so that comparing
them tests the tracer: operators and broadcasting are NumPy's in the first, access indices in the
second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polygen.errors import ArgumentError
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.exact import exact
from polygen.frontend.forms import Form
from polygen.frontend.functions import TABLE
from polygen.frontend.grouping import apart_from_groups, one_group, rows_in_groups
from polygen.frontend.groups import bounds
from polygen.frontend.indexing import form_of
from polygen.frontend.indices import size_value
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.moved import NOTHING_MOVED, Moved
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Extent,
    Fold,
    Gathered,
    Pointwise,
    Program,
    Statement,
    Within,
)
from polygen.frontend.rounding import as_computed, round_to

Array = np.ndarray[Any, Any]


def reference(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Runs the undecorated function on float64 arrays.

    Args:
        function: plain array code.
        arrays: NumPy arrays or numbers in call order, any dtype; a cast inside the function rounds
            and stays float64.

    Returns:
        What the function returns, with plain float64 (for comparisons, bool) arrays: one, or a
        tuple.
    """
    result = function(*map(exact, arrays))
    if isinstance(result, (tuple, list)):
        return tuple(np.asarray(array) for array in result)
    return np.asarray(result)


def evaluate(
    program: Program,
    arrays: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    round_outputs: bool = True,
    single: int = 0,
    moved: Moved = NOTHING_MOVED,
) -> tuple[Array, ...]:
    """Interprets a Program's statements in float64.

    Args:
        program: what to run.
        arrays: per operand its NumPy array, of any dtype, in logical shape (column-major changes
            nothing here); a number for a run-time scalar. None of them is changed.
        sizes: values of the symbolic dims; those missing are read off the arrays.
        round_outputs: round and store each output in its dtype; otherwise leave it in float64. tf32
            operands are used as they are: rounding them is the tensor core's doing.
        single: 0: nothing; else round constants, and what each pointwise function gives, to f32 as
            kernels do; or nearly to f64, beside sums of it. How far that is from the float64 values
            says how much the program makes of a rounding. Above 1 users' folds go in other orders.
        moved: sums that are off: what the program makes of terms that are as far off.

    Returns:
        The outputs in order, each of its dims' shape.

    Raises:
        ArgumentError: an array is missing or its shape does not fit the dims.
    """
    values: dict[str, Array] = {}
    extents = dict(sizes or {})
    for tensor in program.operands:
        if tensor.name not in arrays:
            raise ArgumentError(f"no array for {tensor.name}", nearest=f"It is {tensor}")
        values[tensor.name] = np.asarray(arrays[tensor.name]).astype(np.float64)
        _bind_sizes(str(tensor), tensor.dims, values[tensor.name].shape, extents)
    if program.ends:
        found = _by_groups(program, values, extents, round_outputs, single, moved)
    else:
        found = _run(program, values, extents, round_outputs, single, moved)
    outputs = [(found[tensor.name], tensor.dtype.numpy) for tensor in program.outputs]
    return tuple(value.astype(dtype) if round_outputs else value for value, dtype in outputs)


def _run(
    program: Program,
    given: Mapping[str, Array],
    extents: Mapping[str, int],
    round_outputs: bool,
    single: int,
    moved: Moved = NOTHING_MOVED,
) -> dict[str, Array]:
    """All values, by name."""
    values = dict(given)
    names = {tensor.name for tensor in program.outputs}
    real = program.real if single else None
    for statement in program.statements:
        name = statement.write.name
        with np.errstate(all="ignore"):
            if isinstance(statement, Contraction):
                values[name] = _contraction(statement, values, extents)
                own = partial(_of_magnitudes, _contraction, statement, values, extents)
                values[name] = moved.sum(name, values[name], own)
                if program.rest is not None:  # of the only product
                    made = _run(program.rest.middle, values, extents, True, single)
                    more = _run(program.rest.last, {**values, **made}, extents, False, single)
                    values[name] = values[name] + more[program.rest.last.outputs[0].name]
            elif isinstance(statement, Fold):
                value = _fold(statement, values, extents, real, single - 1)
                own = partial(_of_magnitudes, _fold, statement, values, extents)
                value = moved.sum(name, value, own)
                values[name] = as_computed(value, real) if real else value
            else:
                keep = name in names and not round_outputs
                value = _pointwise(statement, values, extents, keep, real)
                whole = statement.function == "cast" and statement.dtype.kind == "int"
                value = as_computed(value, real) if real and not whole else value
                values[name] = _placed(program, statement, value, values, extents)
    return values


def _of_magnitudes(
    total: Callable[[Any, Mapping[str, Array], Mapping[str, int]], Array],
    statement: Contraction | Fold,
    values: Mapping[str, Array],
    extents: Mapping[str, int],
) -> Array:
    """A sum of its terms without their signs."""
    without = {a.name: np.abs(values[a.name]) for a in statement.reads}
    return total(statement, {**values, **without}, extents)


def _placed(
    program: Program,
    statement: Pointwise,
    value: Array,
    values: Mapping[str, Array],
    extents: Mapping[str, int],
) -> Array:
    """The array that a statement writes: as it is, a part of it, at sums of digits, or with axes of
    one index.
    """
    name, index = statement.write.name, statement.write.index
    if statement.write.indexed_by:
        return _by_index(statement, value, values, extents)
    apart = name in program.tensors and any(isinstance(one, Form | int) for one in index)
    if name not in program.in_parts and not apart:
        return value
    shape = program.tensors[name].shape(extents)
    found = values.get(name)
    found = np.full(shape, np.nan) if found is None else found.copy()
    ranges, kept = _extents(statement, extents), statement.write.iterators
    places = _grid({it: count for it, count in ranges.items() if it in kept})
    found[tuple(_at(one, places) for one in index)] = value
    return found


def _by_index(
    statement: Pointwise, value: Array, values: Mapping[str, Array], extents: Mapping[str, int]
) -> Array:
    """An array with rows stored into it; numbers that name no row store nothing."""
    write, ranges = statement.write, _extents(statement, extents)
    (named,) = write.indexed_by
    rows, found = _select(named, values, ranges).astype(np.int64), values[write.name].copy()
    inside = (rows >= 0) & (rows < len(found))
    found[rows[inside]] = value[inside]
    return found


def _by_groups(
    program: Program,
    given: Mapping[str, Array],
    extents: Mapping[str, int],
    round_outputs: bool,
    single: int,
    moved: Moved,
) -> dict[str, Array]:
    """The outputs, group after group: rows that have no group stay NaN."""
    shapes = {t.name: t.shape(extents) for t in program.outputs}
    found = {name: np.full(shape, np.nan) for name, shape in shapes.items() if name not in given}
    apart = replace(program, statements=apart_from_groups(program))
    known = _run(apart, given, extents, round_outputs, single)
    rows = size_value(rows_in_groups(program), extents)
    for group, (first, last) in enumerate(zip(*bounds(given[program.ends], rows), strict=True)):
        if last > first:
            alone = one_group(program, group, int(first), int(last - first))
            values = _run(alone, known, extents, round_outputs, single, moved)
            for name, array in found.items():
                array[first:last] = values[name]
            known |= {name: values[name] for name in shapes if name not in found}  # by index
    return found | {name: known[name] for name in shapes if name not in found}


def _bind_sizes(
    text: str, dims: tuple[Dim, ...], shape: tuple[int, ...], extents: dict[str, int]
) -> None:
    """Enters the sizes that an array gives to its symbolic dims."""
    fits = len(dims) == len(shape)
    for dim, size in zip(dims, shape, strict=False):
        fits &= (extents.setdefault(dim, size) if isinstance(dim, str) else dim) == size
    if not fits:
        known = ", ".join(f"{dim} = {extents[dim]}" for dim in dims if dim in extents)
        raise ArgumentError(f"an array of shape {shape} for {text}", why=known)


def _extents(statement: Statement, extents: Mapping[str, int]) -> dict[str, int]:
    """How far each iterator of a statement runs, in the domain's order."""
    return {it: size_value(e, extents) for it, e in statement.domain}


def _contraction(
    statement: Contraction, values: Mapping[str, Array], extents: Mapping[str, int]
) -> Array:
    """Sums over the iterators that the write does not use."""
    ranges = _extents(statement, extents)
    numbers = {iterator: axis for axis, iterator in enumerate(ranges)}
    operands: list[Any] = []
    for access in (*statement.reads, *statement.factors):
        along = [numbers[iterator] for iterator in access.axes]
        operands += [_select(access, values, ranges), along]
    read = {iterator for access in statement.reads for iterator in access.iterators}
    for iterator in [iterator for iterator in ranges if iterator not in read]:
        operands += [np.ones(ranges[iterator]), [numbers[iterator]]]
    out = [numbers[iterator] for iterator in statement.write.iterators]
    return np.asarray(np.einsum(*operands, out, optimize=True))


def _select(access: Access, values: Mapping[str, Array], ranges: Mapping[str, int]) -> Array:
    """What an access reads: one axis per iterator, in the order of the tensor's axes."""
    array = values[access.name]
    if any(isinstance(index, Form) for index in access.index):
        return _by_digits(access, values, ranges)
    for axis, index in reversed(tuple(enumerate(access.index))):
        if isinstance(index, int):
            array = array.take(index, axis)
            continue
        assert not isinstance(index, (Within, Form))  # of one group at a time; see above
        if isinstance(index, Gathered):  # numbers that name no row name one of the array's
            numbers = _select(Access(index.rows, index.places), values, ranges).astype(np.int64)
            array = array.take(np.clip(numbers, 0, array.shape[axis] - 1), axis)
            continue
        sliced = index if isinstance(index, Affine) else Affine(index, 1, 0)
        size = ranges[sliced.iterator]
        if sliced != Affine(sliced.iterator, 1, 0) or size != array.shape[axis]:
            array = array.take(sliced.at(np.arange(size)), axis)
    return array


def _pointwise(
    statement: Pointwise,
    values: Mapping[str, Array],
    extents: Mapping[str, int],
    keep: bool,
    real: DType | None,
) -> Array:
    """Applies the function over the whole domain; `keep` leaves out a cast's rounding."""
    ranges = _extents(statement, extents)
    iterators, shape = tuple(ranges), tuple(ranges.values())
    args = [_operand(arg, values, ranges, extents) for arg in statement.args]
    if real == F32:
        args = [round_to(a, F32) if isinstance(a, float) else a for a in args]
    if statement.function != "cast":
        result = TABLE[statement.function].reference(*args)
    else:
        result = args[0] if keep else round_to(args[0], statement.dtype)
    kept = statement.write.iterators
    alone = tuple(at for at, it in enumerate(iterators) if it not in kept)  # axes of one index
    whole = np.broadcast_to(result, shape).squeeze(alone)
    if any(isinstance(index, Form) for index in statement.write.index):
        return whole
    left = [it for it in iterators if it in kept]
    return whole.transpose([left.index(it) for it in kept])


def _grid(ranges: Mapping[str, int]) -> dict[str, Array]:
    """Every iterator's values, along an axis of its own."""
    grid = np.ogrid[tuple(slice(count) for count in ranges.values())]
    return dict(zip(ranges, grid, strict=True))


def _at(index: Any, places: Mapping[str, Array]) -> Any:
    """Where an index that no vector says is, on a grid."""
    assert not isinstance(index, (Within, Gathered))
    return form_of(index).at(places)


def _by_digits(access: Access, values: Mapping[str, Array], ranges: Mapping[str, int]) -> Array:
    """What an access reads at sums of digits; zeros outside of axes that are padded."""
    array = values[access.name]
    own = {it: ranges[it] for it in dict.fromkeys(access.iterators)}
    places = _grid(own)
    shape = tuple(own.values())
    inside: Any = True
    at = []
    for index, count in zip(access.index, array.shape, strict=True):
        if isinstance(index, Gathered):
            at_each = tuple(_at(one, places) for one in index.places)
            named = values[index.rows][at_each].astype(np.int64)
            at.append(np.broadcast_to(np.clip(named, 0, count - 1), shape))
            continue
        place = _at(index, places)
        if isinstance(index, Form) and index.padded:
            inside = inside & (place >= 0) & (place < count)
            place = np.clip(place, 0, count - 1)
        at.append(np.broadcast_to(place, shape))
    return np.where(inside, array[tuple(at)], 0.0)


def _fold(
    statement: Fold,
    values: Mapping[str, Array],
    extents: Mapping[str, int],
    real: DType | None = None,
    order: int = 0,
) -> Array:
    """Reduces the value as NumPy does; users' folds in `real`, if it is given, in some order."""
    ranges = _extents(statement, extents)
    term = _operand(statement.args[0], values, ranges, extents)
    whole = np.broadcast_to(term, tuple(ranges.values()))
    axes = [axis for axis, it in enumerate(ranges) if it in statement.folded]
    alone = [axis for axis in axes if whole.shape[axis] == 1][: len(axes) - 1]
    whole = whole.squeeze(tuple(alone))  # of an index one is left
    axes = [axis - sum(one < axis for one in alone) for axis in axes if axis not in alone]
    monoid = MONOIDS[statement.function]
    if real is not None and monoid.in_order is not None:
        return np.asarray(
            monoid.in_order(whole.astype(real.numpy), tuple(axes), order), dtype=np.float64
        )
    return np.asarray(monoid.reference(whole, tuple(axes)), dtype=np.float64)


def _operand(
    arg: Argument,
    values: Mapping[str, Array],
    ranges: Mapping[str, int],
    extents: Mapping[str, int],
) -> Any:
    """An argument with one axis per iterator, of size 1 where it does not depend on it."""
    if isinstance(arg, Constant):
        return arg.value
    if isinstance(arg, Extent):
        return float(math.prod(size_value(d, extents) for d in arg.dims))
    iterators = tuple(ranges)
    if isinstance(arg, Coordinate):
        at = arg.index
        if isinstance(at, int):
            return float(at)
        assert not isinstance(at, (Within, Gathered))
        if isinstance(at, Form):
            return np.asarray(at.at(_grid(ranges)), np.float64)
        along = at if isinstance(at, Affine) else Affine(at, 1, 0)
        numbers = along.at(np.arange(ranges[along.iterator], dtype=np.float64))
        return numbers.reshape([-1 if iterator == along.iterator else 1 for iterator in iterators])
    array, index = _select(arg, values, ranges), arg.axes
    used = [iterator for iterator in iterators if iterator in index]
    array = np.einsum(
        array, [iterators.index(i) for i in index], [iterators.index(i) for i in used]
    )
    return array.reshape([ranges[iterator] if iterator in used else 1 for iterator in iterators])
