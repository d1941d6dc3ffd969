"""What is computed of scores with fewer instructions: factors that meet, powers of two, tangents.

1. exp(a - b) is 2 ** (a * log2(e) - b * log2(e)): one product-and-sum and one instruction. Where
   `b` is the same for a whole row its product is made once. It is off by the rounding of b *
   log2(e), which is the same for the whole row, so that quotients of two such terms have no part of
   it.
2. Products and quotients by numbers, one after another, are one product.
3. What becomes an exponent is precise enough if it is off by a small number, however small it is
   itself. Under a soft cap that is c * tanh(x / c): `tanh_of_power` has a bound of this kind, and
   takes fewer instructions than what is precise for small results as well.
4. Up to one half a tangent is a polynomial of half as many. Where all scores of a warp's tile are
   up to there it is the only one that is computed; else both are, and each score takes its own: so
   that what is computed of a score depends on no other.

Fast forms alone are written so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polygen.frontend.dtypes import F32
from polygen.poly.pointwise import Compute

_LOG2_E = 1.0 / math.log(2.0)
_EXPONENTIALS = ("exp", "exp2")
_TANGENT = "tanh_of_power"
_WITHIN = {"tanh_of_score": "tanh_within", "scaled_tanh": "scaled_tanh_within"}
_OF_SCORE, _SCALED = _WITHIN
_SCALES = (2.0**-16, 2.0**16)  # of scores: f32 holds seven of them, one after another


def by_powers_of_two(statements: Sequence[Compute]) -> tuple[Compute, ...]:
    """The statements, with the exponentials of differences that nothing else reads written so."""
    made = {s.result: s for s in statements}
    uses = Counter(arg for s in statements for arg in s.args if isinstance(arg, str))
    found: list[Compute] = []
    replaced: set[str] = set()
    for one in statements:
        (arg, *_) = one.args
        inner = made.get(arg) if one.function == "exp" and isinstance(arg, str) else None
        if inner is None or inner.function != "sub" or uses[inner.result] > 1:
            found.append(one)
            continue
        replaced.add(inner.result)
        sides: list[str | float] = []
        for side, operand in zip("ab", inner.args, strict=True):
            name = f"{inner.result}_{side}"
            if isinstance(operand, float):
                sides.append(operand * _LOG2_E)
                continue
            scaled = made.get(operand)
            factor = _LOG2_E
            if scaled is not None and scaled.function == "mul" and uses[scaled.result] == 1:
                other, number = scaled.args
                if isinstance(number, float):
                    operand, factor = other, number * _LOG2_E
                    replaced.add(scaled.result)
            found.append(Compute(name, "mul", (operand, factor), F32))
            sides.append(name)
        found.append(Compute(f"{inner.result}_d", "sub", tuple(sides), F32))
        found.append(Compute(one.result, "exp2", (f"{inner.result}_d",), one.dtype))
    return tuple(s for s in found if s.result not in replaced)


def with_factors_met(statements: Sequence[Compute], results: Sequence[str]) -> tuple[Compute, ...]:
    """The statements, with a product of a product by numbers that nothing else reads as one.

    Args:
        statements: in order.
        results: what is read behind them.
    """
    uses = Counter(arg for s in statements for arg in s.args if isinstance(arg, str))
    uses.update(results)
    made: dict[str, Compute] = {}
    for one in statements:
        outer = _factor(one)
        inner = made.get(outer[0]) if outer is not None else None
        both = _factor(inner) if inner is not None else None
        made[one.result] = one
        if outer is None or inner is None or both is None:
            continue
        number = outer[1] * both[1]
        if uses[inner.result] == 1 and inner.dtype == F32 and _normal(number):
            made[one.result] = replace(one, function="mul", args=(both[0], number))
            del made[inner.result]
    return tuple(made.values())


def _factor(one: Compute) -> tuple[str, float] | None:
    """What a statement multiplies, and by which number."""
    if one.function not in ("mul", "div") or len(one.args) != 2:
        return None
    value, number = one.args
    if one.function == "mul" and isinstance(value, float):
        value, number = number, value
    if not isinstance(value, str) or not isinstance(number, float) or not _normal(number):
        return None
    return value, number if one.function == "mul" else 1.0 / number


def _normal(number: float) -> bool:
    """Whether f32 holds a number and its reciprocal."""
    return float(np.finfo(np.float32).tiny) <= abs(number) <= 2.0**126


def with_short_tangents(
    statements: Sequence[Compute], score: str, results: Sequence[str], *, added: bool = True
) -> tuple[Compute, ...]:
    """The statements, with the tangents that become exponents in forms with an absolute bound.

    Args:
        statements: in order.
        score: what is given to them.
        results: of them.
        added: whether the first result becomes part of exponents alone, elsewhere. Otherwise the
            exponentials are among the statements.
    """

    def is_exponent(value: str) -> bool:
        if added:
            return _only_added(statements, value, results[0])
        return become_exponents(statements, value, results)

    made = {s.result: s for s in statements}
    uses = Counter(arg for s in statements for arg in s.args if isinstance(arg, str))
    found: list[Compute] = []
    gone: set[str] = set()
    for one in statements:
        if one.function != "tanh" or not is_exponent(one.result):
            found.append(one)
            continue
        (value,) = one.args
        inner = made.get(value) if isinstance(value, str) else None
        scaled = _factor(inner) if inner is not None else None
        alone = inner is not None and uses[inner.result] == 1
        value, scale = scaled if scaled is not None and alone else (value, 1.0)
        if value == score and _SCALES[0] <= abs(scale) <= _SCALES[1]:
            gone |= {inner.result} if inner is not None else set()
            found.append(replace(one, function=_OF_SCORE, args=(value, scale)))
            continue
        name = f"{one.result}_power"
        found.append(Compute(name, "mul", (one.args[0], 2.0 * _LOG2_E), F32))
        found.append(Compute(one.result, _TANGENT, (name,), one.dtype))
    return tuple(one for one in found if one.result not in gone)


def with_scaled_tangents(statements: Sequence[Compute]) -> tuple[Compute, ...]:
    """The statements, with products and sums with numbers behind tangents of scores in these.

    A choice whose other side is -inf may lie between: that side stays what it is.
    """
    found = list(statements)
    for one in statements:
        if one.function == _OF_SCORE:
            found = _with_scaled(found, one)
    return tuple(found)


def _with_scaled(statements: list[Compute], tangent: Compute) -> list[Compute]:
    """The statements with as much behind one tangent as can be in it."""
    value, factor, offset, choice = tangent.result, 1.0, 0.0, None
    gone: list[Compute] = []
    while True:
        readers = [s for s in statements if value in s.args]
        if len(readers) != 1 or readers[0].args.count(value) != 1 or readers[0].dtype != F32:
            break
        (reader,) = readers
        scaled, added = _factor(reader), _added(reader)
        if scaled is not None and (choice is None or scaled[1] > 0.0):
            factor, offset = factor * scaled[1], offset * scaled[1]
        elif added is not None:
            offset += added
        elif choice is None and _hides(reader, value):
            choice = reader
        elif reader.function != "cast":
            break
        gone.append(reader)
        value = reader.result
    if offset == 0.0 or not _normal(factor):
        return statements
    last = gone[-1]
    name = f"{last.result}_open" if choice is not None else last.result
    made = [replace(tangent, result=name, function=_SCALED, args=(*tangent.args, factor, offset))]
    if choice is not None:
        args = tuple(name if arg in (tangent.result, *(s.result for s in gone)) else arg
                     for arg in choice.args)  # fmt: skip
        made.append(replace(choice, result=last.result, args=args))
    kept: list[Compute] = []
    for one in statements:
        if one is last:
            kept += made
        elif one is not tangent and one not in gone:
            kept.append(one)
    return kept


def _added(one: Compute) -> float | None:
    """The number that a statement adds to a value."""
    if one.function not in ("add", "sub") or len(one.args) != 2:
        return None
    value, number = one.args
    if one.function == "add" and isinstance(value, float):
        value, number = number, value
    if not isinstance(value, str) or not isinstance(number, float) or not math.isfinite(number):
        return None
    return number if one.function == "add" else -number


def _hides(one: Compute, value: str) -> bool:
    """Whether a statement is a choice of a value and -inf."""
    return one.function == "where" and set(one.args[1:]) == {value, -math.inf}


def tangent_of(statements: Sequence[Compute], score: str) -> float | None:
    """By what a score is multiplied, whose tangent is taken; None if there is none, or several."""
    found = {one.args[:2] for one in statements if one.function in _WITHIN}
    ((value, scale),) = found if len(found) == 1 else {("", None)}
    return scale if value == score and isinstance(scale, float) else None


def within_limits(statements: Sequence[Compute]) -> tuple[Compute, ...]:
    """The statements where scores are small: tangents are polynomials."""
    return tuple(
        replace(one, function=_WITHIN.get(one.function, one.function)) for one in statements
    )


def _only_added(statements: Sequence[Compute], value: str, result: str) -> bool:
    """Whether a value becomes the result by sums, products with numbers and choices alone."""
    parts = _parts(statements, value)
    return parts is not None and not parts[1] and result in parts[0]


def become_exponents(statements: Sequence[Compute], value: str, results: Sequence[str]) -> bool:
    """Whether all that is made of a value is made of exponentials of it.

    Args:
        statements: in order.
        value: that is given to them.
        results: what is read behind them.
    """
    parts = _parts(statements, value)
    return parts is not None and not set(parts[0]) & set(results)


def _parts(statements: Sequence[Compute], value: str) -> tuple[set[str], set[str]] | None:
    """What a value is added into, and the exponentials of that; None: it is used otherwise."""
    sums, powers = {value}, set[str]()
    for one in statements:
        at = [n for n, arg in enumerate(one.args) if isinstance(arg, str) and arg in sums]
        if not at:
            continue
        if one.function in _EXPONENTIALS:
            powers.add(one.result)
            continue
        added = one.function in ("add", "sub", "neg") or _factor(one) is not None
        added = added or (one.function == "where" and 0 not in at)
        added = added or (one.function == "cast" and one.dtype == F32)
        if not added:
            return None
        sums.add(one.result)
    return sums, powers
