"""How far a correct kernel may be from the float64 value: a bound from dtypes and K, per element.

1. The sum. Products of two f16, bf16 or tf32 values are exact in f32; each addition loses at most
   one unit u of the sums' type, tensor cores truncating rather than rounding. An MMA adds its k
   products at once, so an element sees about K / k additions in a chain and k inside one:
   delta = (K / k + k) * u * sum |a| |b|. f32 values that are multiplied as tf32 are rounded to
   the nearest one first, as every kernel does; where two are as near, kernels differ, and
   delta grows by what the other one would change.
   f32 operands that are split leave out less than 3 * 2^-22 of a product.
2. Fast functions. Of what outputs of 16 bits or fewer alone are made, some are written in a short
   form whose error is recorded beside it (`polygen/emit/functions.py`).
3. The pointwise part. The program is evaluated in float64 with the sum moved by +delta and -delta,
   then with the result of each fast function moved by its error; the largest change of each is how
   the functions that follow magnify that error.
4. Folds. A sum of L terms, in any order, is that of terms moved by L units u of themselves; a
   log-sum-exp that of terms moved by some u for each. Of f64 the reference's own loses as much, and
   u is twice the unit. Which of two terms is the larger may be changed by the smallest error, so
   that indices are not compared.
5. f32 arithmetic of the pointwise part, and rounding to the output's type, are added; behind sums
   of f64 it is that of f64, and what the reference's own sums lose is added too.
6. Operands that are computed are evaluated first, and rounded. Where an element lies so near to the
   middle between two numbers of the operand's type that the errors above may round it to the other
   one, delta grows by what that would change.

7. Sums that another product goes on with have its terms, and their errors: the operand that is made
   of sums itself is an output like others.
8. What is rewritten before it is generated (`polygen.rewrite.programs`) is judged as it is then.

Where that is not finite (a logarithm at its pole), elements are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.cli.sum_error import Array, alone, dims_of, least_of, nearest_tf32, sum_error
from polygen.emit.function_errors import fast_error
from polygen.emit.functions import FAST_BITS, expanded
from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import made_of
from polygen.frontend.dtypes import F32, F64, TF32, DType
from polygen.frontend.evaluate import evaluate
from polygen.frontend.grouping import apart_from_groups, one_group, rows_in_groups
from polygen.frontend.groups import bounds
from polygen.frontend.indices import size_value
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Fold,
    Pointwise,
    Program,
    Rest,
    Statement,
    Tensor,
)
from polygen.frontend.rounding import round_to
from polygen.poly.prologue import multiplied as multiplied_as
from polygen.poly.prologue import prologues, without_prologues
from polygen.poly.row_operands import row_operands, without_first
from polygen.rewrite.programs import rewritten

_POINTWISE = 2.0**-18  # relative error of a chain of f32 functions, as `Kernel.check` takes it
_IN_DOUBLE = 2.0**-46  # of f64 functions
_EXPONENTIAL = 8  # units that are lost when two sums of exponentials are added up


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output should be."""

    tensor: Tensor
    value: Array  # float64
    allowed: Array  # largest error of each element, float64; not finite: not compared

    def compare(self, found: Array) -> tuple[float, float, int]:
        """Compare an output with it.

        Args:
            found: any float type, the shape of `value`.

        Returns:
            The largest error, the largest error as a fraction of what is allowed there, and the
            number of elements above it.
        """
        with np.errstate(invalid="ignore"):
            compared = np.isfinite(self.value) & np.isfinite(self.allowed)
            error = np.abs(found.astype(np.float64) - self.value)
            error = np.where(compared, np.where(np.isnan(error), np.inf, error), 0.0)
            ratio = np.where(compared, error / np.where(compared, self.allowed, 1.0), 0.0)
        return (
            float(error.max(initial=0.0)),
            float(ratio.max(initial=0.0)),
            int((ratio > 1.0).sum()),
        )


def expected(
    program: Program, arrays: Mapping[str, Any], sizes: Mapping[str, int], atom_k: int
) -> tuple[Expected, ...]:
    """The outputs in float64, each with the error allowed per element.

    Args:
        program: has one contraction.
        arrays: inputs by name.
        sizes: of every symbolic dim.
        atom_k: products that one MMA adds.

    Raises:
        UnsupportedProgram: the program has not exactly one contraction.
    """
    if program.ends:
        return _of_groups(program, arrays, sizes, atom_k)
    return _expected(program, arrays, sizes, atom_k, {})


def _expected(
    program: Program,
    arrays: Mapping[str, Any],
    sizes: Mapping[str, int],
    atom_k: int,
    rounded: Mapping[str, Any],
) -> tuple[Expected, ...]:
    """The same; `rounded`: how far arrays may be from what they are taken for."""
    program = rewritten(program)
    rest, program = program.rest, replace(program, rest=None)
    given = {t.name: np.asarray(arrays[t.name]).astype(np.float64) for t in program.operands}
    operands = (*prologues(program), *row_operands(program))
    made = {value: _operand(program, value, given, sizes) for value in operands}
    program = without_prologues(without_first(program))
    contraction = _contraction(program)
    inputs = given | {value: rounded for value, (rounded, _) in made.items()}
    multiplied = dict(inputs)
    ties = {**rounded, **{value: error for value, (_, error) in made.items()}}
    for tensor in program.inputs:
        if tensor.dtype == TF32:
            multiplied[tensor.name], tie = nearest_tf32(inputs[tensor.name])
            ties[tensor.name] = ties.get(tensor.name, 0.0) + tie
    after, moves = _after_the_sum(program, contraction, sizes)
    (total,) = evaluate(alone(program, contraction), multiplied, sizes, round_outputs=False)
    lost = sum_error(program, contraction, multiplied, ties, sizes, atom_k)
    if rest is not None:
        more, further = _rest(rest, arrays, sizes, atom_k)
        total, lost = total + more, lost + further
    still = {move.by.name: np.zeros(move.by.shape(sizes)) for move in moves}
    given = {**inputs, **still, contraction.write.name: total}
    watched = replace(after, outputs=(*after.outputs, *(move.exact for move in moves)))
    runs = _numbers(evaluate(watched, given, sizes, round_outputs=False))
    values, results_of_fast = runs[: len(program.outputs)], runs[len(program.outputs) :]
    errors = {contraction.write.name: lost}
    for move, result in zip(moves, results_of_fast, strict=True):
        errors[move.by.name] = move.size(result)
    changes = [np.zeros(value.shape) for value in values]
    for name, error in errors.items():
        up, down = (
            _numbers(evaluate(after, {**given, name: moved}, sizes, round_outputs=False))
            for moved in (given[name] + error, given[name] - error)
        )
        with np.errstate(invalid="ignore"):
            for change, value, high, low in zip(changes, values, up, down, strict=True):
                change += np.maximum(np.abs(high - value), np.abs(low - value))
    results = []
    with np.errstate(all="ignore"):
        for tensor, value, change in zip(program.outputs, values, changes, strict=True):
            rounding = 2.0**-tensor.dtype.mantissa * np.abs(value) + least_of(tensor)
            step = _IN_DOUBLE if contraction.dtype == F64 else _POINTWISE
            allowed = change + rounding + step * np.maximum(np.abs(value), 1.0)
            largest = float(np.finfo(np.float64 if tensor.dtype == F64 else np.float32).max)
            if tensor.dtype.name == "f16":
                largest = float(np.finfo(np.float16).max)
            compared = tensor.dtype.kind == "float" and np.abs(value) + allowed < largest
            allowed = np.where(compared, allowed, np.inf)
            results.append(Expected(tensor, value, allowed))
    return tuple(results)


def _numbers(values: Sequence[Array]) -> list[Array]:
    """What is stored of truth values, 0 and 1, which have differences."""
    return [value.astype(np.float64) if value.dtype == bool else value for value in values]


def _rest(
    rest: Rest, arrays: Mapping[str, Any], sizes: Mapping[str, int], atom_k: int
) -> tuple[Array, Array]:
    """The further terms of sums, and how far a kernel's may be from them."""
    (made,) = expected(rest.middle, arrays, sizes, atom_k)
    last, name = rest.last, made.tensor.name
    given = {t.name: np.asarray(arrays[t.name]) for t in last.inputs if t.name != name}
    inputs = {name: made.value} | {n: a.astype(np.float64) for n, a in given.items()}
    contraction = _contraction(last)
    (total,) = evaluate(alone(last, contraction), inputs, sizes, round_outputs=False)
    ties = {name: made.allowed}
    return total, sum_error(last, contraction, inputs, ties, sizes, atom_k)


def _of_groups(
    program: Program, arrays: Mapping[str, Any], sizes: Mapping[str, int], atom_k: int
) -> tuple[Expected, ...]:
    """The outputs group after group; rows that have none may hold anything, and stay as they are
    where rows are stored by index.
    """
    given = {t.name: np.asarray(arrays[t.name]) for t in program.operands}
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    apart = {one.write.name for one in apart_from_groups(program)}
    shared = {name: own for name, own in prologues(program).items() if name in apart}
    made = {value: _operand(program, value, wide, sizes) for value in shared}
    program = without_prologues(program, shared)
    given |= {value: found for value, (found, _) in made.items()}
    ties = {value: error for value, (_, error) in made.items()}
    shapes = [tensor.shape(sizes) for tensor in program.outputs]
    values = [wide.get(t.name, np.full(s, np.nan)) for t, s in _pairs(program, shapes)]
    allowed = [np.full(s, 0.0 if t.name in wide else np.inf) for t, s in _pairs(program, shapes)]
    writes = {s.write.name: s.write for s in program.statements}
    table = bounds(given[program.ends], size_value(rows_in_groups(program), sizes))
    for group, (first, last) in enumerate(zip(*table, strict=True)):
        if last <= first:
            continue
        alone = one_group(program, group, int(first), int(last - first))
        for number, one in enumerate(_expected(alone, given, sizes, atom_k, ties)):
            rows: Any = slice(first, last)
            for by in writes[one.tensor.name].indexed_by:
                rows = given[by.name][first:last]
                rows = rows[(rows >= 0) & (rows < len(one.value))]
            own = one.value[rows] if one.tensor.name in wide else one.value
            error = one.allowed[rows] if one.tensor.name in wide else one.allowed
            values[number][rows], allowed[number][rows] = own, error
    return tuple(map(Expected, program.outputs, values, allowed))


def _pairs(program: Program, shapes: Sequence[tuple[int, ...]]) -> list[tuple[Tensor, Any]]:
    """The outputs, each with its shape."""
    return list(zip(program.outputs, shapes, strict=True))


def _contraction(program: Program) -> Contraction:
    if len(program.contractions) != 1:
        raise UnsupportedProgram(
            f"{len(program.contractions)} contractions", where=program.name, nearest="One"
        )
    return program.contractions[0]


@dataclass(frozen=True, slots=True)
class _Move:
    """Something added to the result of a fast function."""

    exact: Tensor  # the result
    by: Tensor  # what is added
    absolute: float
    relative: float

    def size(self, exact: Array) -> Array:
        """The largest error of the function where its result is `exact`."""
        error = self.absolute + self.relative * np.abs(exact)
        return np.where(np.isfinite(exact), error, 0.0)


def _after_the_sum(
    program: Program, contraction: Contraction, sizes: Mapping[str, int]
) -> tuple[Program, tuple[_Move, ...]]:
    """The program with the sum as an input, and an input added to the result of each fast function,
    and to the terms of folds that round.

    Composites are expanded as the emitter expands them.
    """
    wide = [tensor.name for tensor in program.outputs if tensor.dtype.bits > FAST_BITS]
    rest = [s for s in program.statements if not isinstance(s, Contraction)]
    exact = made_of(((s.write.name, [a.name for a in s.reads]) for s in rest), wide)
    if wide and any(isinstance(s, Fold) for s in rest):
        exact = frozenset(s.write.name for s in rest)
    statements, moves = _moved(rest, sizes, program.real, accurate=exact)
    total = Tensor(contraction.write.name, F32, dims_of(contraction))
    inputs = (*program.inputs, total, *(move.by for move in moves))
    return replace(program, inputs=inputs, statements=statements), moves


def _operand(
    program: Program, value: str, inputs: Mapping[str, Array], sizes: Mapping[str, int]
) -> tuple[Array, Array]:
    """A computed operand, rounded, and how far a kernel's element may be from that."""
    by_rows = row_operands(program).get(value)
    own: Sequence[Pointwise | Fold] = prologues(program)[value] if by_rows is None else by_rows.own
    last = own[-1]
    assert isinstance(last, Pointwise)
    kind, extents = multiplied_as(program, last), dict(last.domain)
    dims = tuple(extents[i] if isinstance(i, str) else 1 for i in last.write.index)
    names = frozenset(s.write.name for s in own) if kind.bits > FAST_BITS else frozenset()
    statements, moves = _moved(own, sizes, program.real, accurate=names)
    alone = replace(
        program,
        inputs=(*program.inputs, *(move.by for move in moves)),
        outputs=(Tensor(value, F32, dims), *(move.exact for move in moves)),
        statements=statements,
        first=(),
    )
    given = {**inputs, **{move.by.name: np.zeros(move.by.shape(sizes)) for move in moves}}
    exact, *results = evaluate(alone, given, sizes, round_outputs=False)
    step = _IN_DOUBLE if program.real == F64 else _POINTWISE
    change = step * np.maximum(np.abs(exact), 1.0)
    for move, result in zip(moves, results, strict=True):
        error = move.size(result)
        shifted = (
            evaluate(alone, {**given, move.by.name: one}, sizes, round_outputs=False)[0]
            for one in (error, -error)
        )
        change = change + np.maximum(*(np.abs(one - exact) for one in shifted))
    near = [round_to(exact + step, kind) for step in (0.0, change, -change)]
    if kind == TF32:
        near = [nearest_tf32(one)[0] for one in near]
    with np.errstate(invalid="ignore"):
        apart = np.maximum(np.abs(near[1] - near[0]), np.abs(near[2] - near[0]))
    return near[0], np.where(np.isfinite(apart), apart, np.inf)


def _moved(
    given: Sequence[Pointwise | Fold],
    sizes: Mapping[str, int],
    real: DType,
    *,
    accurate: Collection[str],
) -> tuple[tuple[Statement, ...], tuple[_Move, ...]]:
    """Statements with something added to the result of each fast function, and to terms of folds
    that round; `accurate` ones have no fast form.
    """
    statements: list[Statement] = []
    moves: list[_Move] = []
    for statement in given:
        if isinstance(statement, Fold):
            folded, moved = _folded(statement, sizes, real)
            statements += folded
            moves += moved
            continue
        parts = _expanded(statement)
        for part in parts:
            last = part.args[-1]
            constant = last.value if isinstance(last, Constant) else None
            fast = statement.write.name not in accurate
            error = fast_error(part.function, constant) if fast else (0.0, 0.0)
            if not any(error):
                statements.append(part)
                continue
            extents = dict(part.domain)
            dims = tuple(extents[i] if isinstance(i, str) else 1 for i in part.write.index)
            names = [f"{part.write.name}.{what}" for what in ("exact", "moved_by")]
            exact, by = (replace(part.write, name=name) for name in names)
            statements += [
                replace(part, write=exact),
                replace(part, function="add", args=(exact, by)),
            ]
            moves.append(_Move(Tensor(exact.name, F32, dims), Tensor(by.name, F32, dims), *error))
    return tuple(statements), tuple(moves)


def _folded(
    fold: Fold, sizes: Mapping[str, int], real: DType
) -> tuple[list[Statement], list[_Move]]:
    """A fold whose terms are moved by what combining them may lose."""
    own = tuple(iterator for iterator, _ in fold.domain)
    length = tuple(size_value(e, sizes) for i, e in fold.domain if i in fold.folded)
    lost = float(np.prod(length)) * 2.0**-real.mantissa * (2 if real == F64 else 1)
    errors = dict.fromkeys(("sum", "prod", "deviations"), (0.0, lost))
    errors["logsumexp"] = (_EXPONENTIAL * lost, 0.0)
    if fold.function not in errors:
        return [fold], []
    exact, by, moved = (
        Access(f"{fold.write.name}.{what}", own) for what in ("exact", "moved_by", "moved")
    )
    first, *others = fold.args
    one = Pointwise(f"{fold.name}.exact", fold.domain, exact, "mul", (first, Constant(1.0)), F32)
    two = Pointwise(f"{fold.name}.moved", fold.domain, moved, "add", (exact, by), F32)
    dims = tuple(extent for _, extent in fold.domain)
    tensors = (Tensor(exact.name, F32, dims), Tensor(by.name, F32, dims))
    statements: list[Statement] = [one, two, replace(fold, args=(moved, *others))]
    return statements, [_Move(*tensors, *errors[fold.function])]


def _expanded(statement: Pointwise) -> list[Pointwise]:
    """A statement as the statements of what the emitter writes as one expression each."""
    parts: list[Pointwise] = []

    def primitive(function: str, *args: Argument | float) -> Access:
        write = replace(statement.write, name=f"{statement.write.name}.{len(parts)}")
        values = tuple(Constant(arg) if isinstance(arg, (int, float)) else arg for arg in args)
        parts.append(replace(statement, write=write, function=function, args=values))
        return write

    expanded(statement.function, statement.args, primitive)
    parts[-1] = replace(parts[-1], write=statement.write)
    return parts
