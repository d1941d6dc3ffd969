"""Which computed elements are computed in pairs: two of 16 bits in a word, by one instruction.

What is computed is said of elements in f32, rounded to the type that is multiplied. Arithmetic on
pairs of that type rounds after every operation. Both give the same bits where all values before the
last operation are numbers of that type, and the last one rounds once:

1. Stored numbers of 8 and 4 bits are whole, and so are their sums, differences and products; they
   are numbers of the type while they are small enough. Those of 16 bits are of the type if it is
   theirs.
2. The sum, the difference and the product of two numbers of p digits, rounded to 2 p + 2 digits or
   more and then to p, are what they are if rounded to p at once (S. Figueroa, "When is double
   rounding innocuous?", 1995): f32 has 24 digits, f16 11 and bf16 8. Below f32's normal numbers
   sums of bf16 are exact, as all numbers of f16 are. Products of two bf16 below 2^-126 need not be:
   where f32 has rounded one to the middle between two numbers of bf16, its last bit is another than
   an instruction on pairs gives it, which is the product's.

Anything else is computed element by element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polygen.frontend.dtypes import F32, DType
from polygen.hardware.conversion import meaning
from polygen.hardware.pair_conversion import TYPES, pair_conversions
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
    known = {name: _Value(name, None) for name, kind in others.items() if kind == dtype}
    for name, kind in whole.items():
        if kind == dtype.name and kind in TYPES:
            known[name] = _Value(name, None)
            continue
        if (kind, dtype.name) not in pair_conversions():
            return None
        values = meaning(kind)
        known[name] = _Value(name, (float(values.min()), float(values.max())))
    kept: list[Compute] = []
    for one in statements:
        if one.result in whole:
            continue
        found = (_given(known, argument, dtype) for argument in one.args)
        given = [value for value in found if value is not None]
        result = _result(one, given, dtype) if len(given) == len(one.args) else None
        if result is None:
            return None
        known[one.result] = result
        if result.name == one.result:
            kept.append(Compute(one.result, one.function, tuple(x.name for x in given), dtype))
    last = known[statements[-1].result]
    return Pairs(tuple(kept), str(last.name)) if last.rounded else None


def _given(known: Mapping[str, _Value], argument: str | float, dtype: DType) -> _Value | None:
    if isinstance(argument, str):
        return known.get(argument)
    with np.errstate(over="ignore"):
        if float(np.array(argument, dtype.numpy)) != argument:
            return None
    return _Value(argument, (argument, argument) if float(argument).is_integer() else None)


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
        if max(map(abs, ends)) <= 2 << dtype.mantissa:  # whole numbers that the type has
            return _Value(one.result, (min(ends), max(ends)))
    return _Value(one.result, None, rounded=False)
