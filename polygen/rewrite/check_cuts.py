"""That both parts of a cut are the whole: whoever makes cuts is not trusted.

1. What a part computes is a statement of the whole, with arrays read for the values they hold.
2. An array between the parts holds one value of the whole, every element at its own place, in the
   type in which it is computed.
3. Every dependence is inside a part, or leads from the first to the second through such an array:
   what a part reads is an argument, an array that the first part stores, or its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace

from polygen.errors import VerifyError
from polygen.frontend.dtypes import F32, TF32
from polygen.frontend.indices import by_group
from polygen.frontend.program import (
    Access,
    Contraction,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
)


def check_cut(
    program: Program, before: Program, after: Program, between: tuple[Tensor, ...]
) -> None:
    """Refuse a cut whose parts are not the whole.

    Args:
        program: the whole.
        before: the first part.
        after: the second part.
        between: what the first stores for the second.

    Raises:
        VerifyError: with the statement, or with what nobody makes.
    """
    stored = {tensor.name: tensor for tensor in between}
    holds = {
        one.write.name: _held(program, one, stored[one.write.name])
        for one in before.statements
        if one.write.name in stored
    }
    for part, reads in ((before, {}), (after, holds)):
        made = {one.write.name for one in part.statements}
        known = made | {tensor.name for tensor in part.inputs}
        for one in part.statements:
            if one.write.name not in stored and not _is_of(program, one, reads):
                raise _refusal(program, f"{one} is no statement of the whole")
            for access in one.reads:
                given = access.name in program.tensors or access.name in reads
                if access.name not in known or not (access.name in made or given):
                    raise _refusal(program, f"{one} reads {access.name}, which nobody makes")
        missing = [tensor.name for tensor in part.outputs if tensor.name not in made]
        if missing:
            raise _refusal(program, f"nobody makes {', '.join(missing)}")
    outputs = {t.name for t in (*before.outputs, *after.outputs)} - set(stored)
    if outputs != {tensor.name for tensor in program.outputs} or set(holds) != set(stored):
        raise _refusal(program, "the parts have other results than the whole")


def _held(program: Program, store: Statement, tensor: Tensor) -> tuple[str, ...]:
    """The values of the whole that an array holds: several where one is a copy of another."""
    own = TF32 if tensor.dtype == TF32 else store.dtype
    found: list[str] = []
    if isinstance(store, Pointwise) and own == tensor.dtype and store.dtype in (own, F32):
        place = _place(store.write)
        for one in program.statements:
            last = replace(store, name=one.name, write=one.write) == one
            computed = one.dtype if one.dtype != F32 else program.real
            copied = (store.function, store.args, store.dtype) == ("cast", (one.write,), computed)
            if one.write.index == (place if one.write.index else _number(place)) and (
                last or copied
            ):
                found.append(one.write.name)
    if not found:
        raise _refusal(program, f"{store} stores no value of the whole as {tensor}")
    return tuple(found)


def _is_of(program: Program, one: Statement, holds: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether a statement of a part is one of the whole, with values in the place of arrays."""
    names = [name for name in dict.fromkeys(access.name for access in one.reads) if name in holds]
    numbers = {s.write.name for s in program.statements if not s.write.index}
    return any(
        _whole(one, dict(zip(names, values, strict=True)), numbers) in program.statements
        for values in itertools.product(*(holds[name] for name in names))
    )


def _whole(one: Statement, values: Mapping[str, str], numbers: Collection[str]) -> Statement:
    """A statement that reads values for arrays, some of which have no axes."""

    def back(access: Access) -> Access:
        if access.name not in values:
            return access
        value, place = values[access.name], _place(access)
        return Access(value, _number(place) if value in numbers else place)

    if isinstance(one, Contraction):
        return replace(one, lhs=back(one.lhs), rhs=back(one.rhs))
    args = (back(arg) if isinstance(arg, Access) else arg for arg in one.args)
    return replace(one, args=tuple(args))


def _place(access: Access) -> tuple[Index, ...]:
    """Where an element of an array is, rows of groups by group and row."""
    return tuple(place for index in access.index for place in by_group(index))


def _number(place: tuple[Index, ...]) -> tuple[Index, ...]:
    """The same of a value without axes, whose array has one, of one element."""
    return () if place == (0,) else place


def _refusal(program: Program, what: str) -> VerifyError:
    return VerifyError(what, where=f"{program.name}, cut in two")
