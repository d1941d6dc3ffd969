"""Operands with folds over their own rows: which of them a launch before the kernel can make.

    F0[i]    v0[i] = max over k of x[i,k]
    P1[i,k]  v1[i,k] = exp(x[i,k] - v0[i])         all of these are statements of the launch
    F2[i]    v2[i] = sum over k of v1[i,k]         before; v3 is an array of the kernel's
    P3[i,k]  v3[i,k] = cast(v1[i,k] / v2[i])
    S4[i,j]  v4[i,j] += v3[i,k] * w[j,k]

1. What computes such an operand reads arguments and values of its own row alone, at their own
   points: every axis of every value is one of the operand's, which its readers say, from the
   product backwards. The axis that is folded is the one that the product sums over: a row. Rows of
   chains may run along another axis, as those of values with a norm do: they are stored along it.
2. Nobody else reads what folds are in: the values live where the row is made.

Whether the launch makes them is then said by the program (`Program.first`). Where factors and terms
of a row leave the sum as well (`polygen.rewrite.norms`), the schedule says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.dtypes import BF16, F16, F32, DType
from polygen.frontend.forms import Form
from polygen.frontend.program import (
    Access,
    Affine,
    Contraction,
    Dim,
    Fold,
    Pointwise,
    Program,
    Statement,
)

_TYPES = (BF16, F16, F32)  # in which such an operand is multiplied; f32 as tf32, or in parts
_BYTE = 8  # bits
_ALONE = "Compute the operand before the call, and pass it as an argument"
_IN_16_BITS = f'{_ALONE}; or multiply 16-bit numbers, v.astype("bf16") @ w.astype("bf16")'


@dataclass(frozen=True, slots=True)
class RowOperand:
    """An operand with folds over its own rows.

    Attributes:
        value: what the program calls it.
        dtype: in which it is multiplied.
        dims: of its axes.
        along: the axis along which its rows run.
        statements: that compute it, in order, each with the axis that every iterator is.
    """

    value: str
    dtype: DType
    dims: tuple[Dim, ...]
    along: int
    statements: tuple[tuple[Pointwise | Fold, tuple[tuple[str, int], ...]], ...]


def rows_first(program: Program) -> Program | None:
    """The program whose operands with folds over their own rows are made before the kernel.

    Args:
        program: no chain.

    Returns:
        None if no operand has folds in it.

    Raises:
        UnsupportedProgram: an operand with folds cannot be made so; with the statement.
    """
    values = tuple(dict.fromkeys(_with_folds(program)))
    if not values:
        return None
    if program.invariant or program.rest is not None:
        what = "rows of all sizes" if program.invariant else "what goes on with a product's sums"
        raise _refusal(program, program.contractions[0], what)
    for value in values:
        row_operand(program, value)
    _require_own(program, values)
    return replace(program, first=values)


def _with_folds(program: Program) -> list[str]:
    """The values that products multiply and that folds are behind, but no product."""
    late: set[str] = set()
    summed: set[str] = set()
    found = []
    for one in program.statements:
        names = {access.name for access in one.reads}
        if isinstance(one, Contraction):
            found += [access.name for access in one.reads if access.name in late - summed]
        if isinstance(one, Contraction) or names & summed:
            summed.add(one.write.name)
        if isinstance(one, Fold) or names & late:
            late.add(one.write.name)
    return found


def row_operand(program: Program, value: str) -> RowOperand:
    """How an operand with folds over its own rows is computed.

    Raises:
        UnsupportedProgram: it reads what is none of its own row, or is of another type.
    """
    writers: dict[str, Statement] = {s.write.name: s for s in program.statements}
    own = {s.write.name for s in needed(program.statements, [value])}
    last = writers[value]
    index = last.write.index
    own_axes = [one for one in index if one != 0]
    if not isinstance(last, Pointwise) or len(set(last.write.iterators)) < len(own_axes):
        raise _refusal(program, last, f"{last.write}, none of whose elements are computed alone,")
    chained = multiplies_sums(program)
    if last.dtype not in _TYPES:
        named = ", ".join(map(str, _TYPES))
        what = f"{value} of {last.dtype}, which is none of {named},"
        nearest = _IN_16_BITS if last.dtype.bits < F32.bits else _ALONE
        raise _refusal(program, last, what, nearest)
    sizes = dict(last.domain)
    dims = tuple(sizes.get(str(one), 1) for one in index)
    summed = _summed(program, value, dims)
    along = None if chained else next(iter(summed))
    axes: dict[str, tuple[int | None, ...]] = {value: tuple(range(len(dims)))}
    found = []
    for one in reversed(program.statements):
        if one.write.name not in own:
            continue
        assert not isinstance(one, Contraction)
        if along is None and isinstance(one, Fold):
            along = _folded(program, one, axes[one.write.name], dims)
        at = _along(program, one, axes[one.write.name], dims, along)
        found.append((one, tuple(at.items())))
        for access in one.reads:
            if access.name in writers:
                _read(program, one, access, at, axes)
            else:
                _require_plain(program, one, access)
    along = max(summed) if along is None else along  # without folds either one does
    return RowOperand(value, last.dtype, dims, along, tuple(reversed(found)))


def _folded(program: Program, fold: Fold, places: Sequence[int | None], dims: Sequence[Dim]) -> int:
    """The axis of an operand along which a fold of a chain's runs: the one that it leaves out."""
    found = [axis for axis, dim in enumerate(dims) if axis not in places and dim != 1]
    if len(found) != 1:
        raise _refusal(program, fold, f"{fold.write}, over several axes of the operand,")
    return found.pop()


def _summed(program: Program, value: str, dims: Sequence[Dim]) -> set[int]:
    """The axes of an operand that products sum over: two of keys that are values, else one."""
    found = set()
    for product in program.contractions:
        summed = product.summed[len(product.again) :]  # parts of f32 are rows of their own
        for access in product.reads:
            if access.name != value:
                continue
            places = [at for at, one in enumerate(access.index) if one in summed]
            plain = all(
                isinstance(one, str)
                or (one == 0 and dim == 1)
                or (isinstance(one, Form) and set(one.iterators) <= set(product.again))
                for one, dim in zip(access.index, dims, strict=True)
            )
            if not plain or len(places) != 1 or len(summed) != 1:
                raise _refusal(program, product, f"{access}, read at other points than its own,")
            found.update(places)
    if len(found) != 1 and not multiplies_sums(program):
        raise _refusal(program, program.contractions[0], f"{value}, summed along several axes,")
    return found


def _along(
    program: Program,
    one: Statement,
    places: tuple[int | None, ...],
    dims: tuple[Dim, ...],
    along: int | None,
) -> dict[str, int]:
    """Which of the operand's axes every iterator of a statement is."""
    found: dict[str, int] = {}
    for index, axis in zip(one.write.index, places, strict=True):
        if isinstance(index, str) and axis is not None:
            found[index] = axis
    rest = [it for it, extent in one.domain if it not in found and extent != 1]
    if isinstance(one, Fold) and len(rest) == 1 and along is not None:
        found |= {rest.pop(): along} if along not in found.values() else {}
    if rest:
        raise _refusal(program, one, f"{one.write}, over another axis than the one that is summed,")
    sizes = dict(one.domain)
    if any(sizes[it] != dims[axis] for it, axis in found.items()):
        raise _refusal(program, one, f"{one.write}, of another extent than the operand,")
    return found


def _read(
    program: Program,
    one: Statement,
    access: Access,
    at: Mapping[str, int],
    axes: dict[str, tuple[int | None, ...]],
) -> None:
    """A value that is read at its own point lies along the axes of who reads it."""
    if not all(isinstance(index, (str, int)) for index in access.index):
        raise _refusal(program, one, f"{access}, a part of what is computed,")
    places = tuple(at.get(str(index)) for index in access.index)
    known = axes.setdefault(access.name, places)
    if known != places:
        raise _refusal(program, one, f"{access}, which is read at several points,")


def _require_plain(program: Program, one: Statement, access: Access) -> None:
    tensor = program.tensors[access.name]
    plain = all(isinstance(index, (str, int, Affine, Form)) for index in access.index)
    padded = any(isinstance(index, Form) and index.padded for index in access.index)
    if not plain or padded:
        raise _refusal(program, one, f"{access}, read by index or beside an array's end,")
    if tensor.dtype.bits < _BYTE:
        raise _refusal(program, one, f"{access} of {tensor.dtype}, several in a byte,")


def _require_own(program: Program, values: tuple[str, ...]) -> None:
    """Nobody but the rows reads what folds are in."""
    late: set[str] = set()
    for one in program.statements:
        names = {access.name for access in one.reads}
        if isinstance(one, Fold) or names & late:
            late.add(one.write.name)
    inside = {s.write.name for s in needed(program.statements, values)} & late
    stored = {tensor.name for tensor in program.outputs} & inside
    for one in program.statements:
        mine = one.write.name in inside and not isinstance(one, Contraction)
        read = {access.name for access in one.reads} & inside
        if isinstance(one, Contraction):
            read -= set(values)
        if (read and not mine) or one.write.name in stored:
            name = min(read or stored)
            raise _refusal(program, one, f"{name}, which is used beside the operand,")


def _refusal(
    program: Program, statement: Statement, what: str, nearest: str = _ALONE
) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{what} is not made before the kernel",
        where=f"{program.name}, {statement.name}",
        why="a launch before the kernel makes an operand row by row: of folds over the axis that "
        "is summed, of arguments, and of values of the same row",
        nearest=nearest,
    )
