"""Which computed elements are computed in pairs: two of 16 bits in a word, by one instruction.

What is computed is said of elements in f32, rounded to the type that is multiplied. Arithmetic on
pairs of that type rounds after every operation. Both give the same bits where all values before the
last operation are numbers of that type, and the last one rounds once:

1. Stored numbers of 8 and 4 bits are whole, and so are their sums, differences and products; they
   are numbers of the type while they are small enough.
2. A whole number times a number of the type has as many digits as f32 holds. It is a multiple of
   the least number of the type, so that it has them all even below f32's normal numbers. Rounding
   it to the type, as the program does after it, is what one instruction on pairs does.

Anything else is computed element by element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polygen.frontend.dtypes import F32, DType
from polygen.hardware.conversion import meaning
from polygen.hardware.pair_conversion import pair_conversions
from polygen.poly.elements import Along, Compute

_NIBBLE = "nibble_"
_ENDS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is computed of pairs.

    Attributes:
        statements: in their order, each an instruction on pairs; casts are none.
        result: the value that is multiplied.
    """

    statements: tuple[Compute, ...]
    result: str


@dataclass(frozen=True, slots=True)
class _Value:
    """What is known of a value.

    Attributes:
        name: the statement, the element or the number that it is.
        ends: of whole numbers, the least and the largest; None: it is any number of the type.
        rounded: whether it is a number of the type; else it is one once it is rounded.
    """

    name: str | float
    ends: tuple[float, float] | None
    rounded: bool = True


def halves_of(
    statements: Sequence[Compute],
    coordinates: Sequence[tuple[str, Along]],
    name: str,
    packed: int,
) -> dict[str, str]:
    """Values that are taken out of a ring's bytes, two in each -> their type of four bits.

    Args:
        statements: that compute an element.
        coordinates: variable, and which number it holds.
        name: of the ring's element.
        packed: indices of k that one of them holds.
    """
    places = dict(coordinates)
    return {
        one.result: one.function.removeprefix(_NIBBLE)
        for one in statements
        if packed > 1
        and one.function.startswith(_NIBBLE)
        and one.args[0] == name
        and places.get(str(one.args[1])) == Along("k")
    }


def whole_of(halves: Mapping[str, str], name: str, stored: DType) -> dict[str, str]:
    """Elements and values that are stored numbers -> their type: halves of bytes, or bytes.

    Args:
        halves: values taken out of bytes.
        name: of the ring's element.
        stored: its type.
    """
    return dict(halves) or {name: stored.name}


def in_pairs(
    statements: Sequence[Compute],
    whole: Mapping[str, str],
    others: Mapping[str, DType],
    dtype: DType,
) -> Pairs | None:
    """What pairs of elements go through; None: elements are computed one by one.

    Args:
        statements: on one element, in their order.
        whole: elements and values that are stored numbers -> their type.
        others: elements beside them -> their type.
        dtype: what is multiplied.
    """
    if any((kind, dtype.name) not in pair_conversions() for kind in whole.values()):
        return None
    known = {name: _Value(name, None) for name, kind in others.items() if kind == dtype}
    for name, kind in whole.items():
        values = meaning(kind)
        known[name] = _Value(name, (float(values.min()), float(values.max())))
    kept: list[Compute] = []
    for one in statements:
        if one.result in whole:
            continue
        given = [value for argument in one.args if (value := _given(known, argument)) is not None]
        found = _result(one, given, dtype) if len(given) == len(one.args) else None
        if found is None:
            return None
        known[one.result] = found
        if found.name == one.result:
            kept.append(Compute(one.result, one.function, tuple(x.name for x in given), dtype))
    last = known[statements[-1].result]
    return Pairs(tuple(kept), str(last.name)) if last.rounded else None


def _given(known: Mapping[str, _Value], argument: str | float) -> _Value | None:
    if isinstance(argument, str):
        return known.get(argument)
    whole = float(argument).is_integer()
    return _Value(argument, (argument, argument)) if whole else None


def _result(one: Compute, given: Sequence[_Value], dtype: DType) -> _Value | None:
    """What a statement makes of values; None: who knows."""
    if one.function == "cast" and one.dtype in (dtype, F32):
        (value,) = given
        return _Value(value.name, value.ends, value.rounded or one.dtype == dtype)
    if one.function not in _ENDS or not all(value.rounded for value in given):
        return None
    first, second = (value.ends for value in given)
    if first is not None and second is not None:
        ends = [_ENDS[one.function](a, b) for a in first for b in second]
        small = max(map(abs, ends)) <= 2 << dtype.mantissa  # whole numbers that the type has
        return _Value(one.result, (min(ends), max(ends))) if small else None
    if one.function == "mul" and (first is not None or second is not None):
        return _Value(one.result, None, rounded=False)
    return None
