"""A mask that is an affine condition on row and key is a domain: which keys a row has at all.

    x[i,j] = where(i >= j, y[i,j], -inf)      ->      x[i,j] = y[i,j] for j <= i, no other keys

1. The condition is taken apart into those that hold together, each as a linear form of row and key,
   or a key beside a whole number that an array holds for the row: where a sequence begins and ends.
2. Keys outside contribute nothing: what is multiplied there is 0, and all terms are what combines
   to nothing. That is the side condition; it is decided on the terms of the program, with -inf (or
   0) in the mask's place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Access, Affine, Argument, Constant, Coordinate, Pointwise
from polygen.rewrite.values import Values

_TRIED = (0.7310, 1.3717, 0.2913)  # numbers for what a key outside is computed with
_COMPARISONS = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}  # sign, less for strict


@dataclass(frozen=True, slots=True)
class RowBound:
    """A bound that an array holds: the least or the greatest key of a row, less a number.

    Attributes:
        side: "lower" or "upper".
        array: its name, of whole numbers.
        offset: what is added to its element.
    """

    side: str
    array: str
    offset: int

    def __str__(self) -> str:
        return f"{self.array}[i]" + (f" {_signed(self.offset)}" if self.offset else "")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys of row i: from i + lower on, up to i + upper; None: no such bound.

    Attributes:
        lower: least key less the row.
        upper: greatest key less the row.
        value: what the mask makes.
        inside: what that is where it does not mask; "" where more is masked than the range says.
        arrays: bounds that arrays hold, beside these.
    """

    lower: int | None
    upper: int | None
    value: str
    inside: str
    arrays: tuple[RowBound, ...] = ()

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return self.lower is not None or self.upper is not None or bool(self.arrays)

    def held(self, side: str) -> tuple[RowBound, ...]:
        """The bounds of one side that arrays hold."""
        return tuple(one for one in self.arrays if one.side == side)

    def __str__(self) -> str:
        lower = [] if self.lower is None else [_offset(self.lower)]
        upper = [] if self.upper is None else [_offset(self.upper)]
        lower += [str(one) for one in self.arrays if one.side == "lower"]
        upper += [str(one) for one in self.arrays if one.side == "upper"]
        first = f"{_several('max', lower)} <= " if lower else ""
        return f"{first}j" + (f" <= {_several('min', upper)}" if upper else "")


def _several(function: str, texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{function}({', '.join(texts)})"


def _signed(number: int) -> str:
    return f"{'+' if number > 0 else '-'} {abs(number)}"


def _offset(number: int) -> str:
    return f"i {_signed(number)}" if number else "i"


def key_range(
    values: Values,
    masked: str,
    states: Sequence[tuple[str, str]],
    weight: str,
    whole: Collection[str] = (),
) -> KeyRange | None:
    """The range of keys that a mask leaves; None if it is no such mask.

    Args:
        values: of the program.
        masked: the value that a mask may make.
        states: (term, monoid) of what is folded over the keys.
        weight: what is multiplied.
        whole: arrays of whole numbers.
    """
    writer = values.writers.get(masked)
    while isinstance(writer, Pointwise) and writer.function == "cast":
        (arg,) = writer.args
        masked = arg.name if isinstance(arg, Access) else masked
        writer = values.writers.get(masked) if isinstance(arg, Access) else None
    if not isinstance(writer, Pointwise) or writer.function != "where":
        return None
    condition, inside, outside = writer.args
    if not isinstance(outside, Constant) or not _contributes_nothing(
        values, {masked: outside.value}, states, weight
    ):
        return None
    lower: int | None = None
    upper: int | None = None
    parts = _together(values, condition)
    known = 0
    arrays: list[RowBound] = []
    for part in parts:
        held = _held(values, part, whole)
        if held is not None:
            arrays.append(held)
            continue
        found = _bound(values, part)
        if found is None:
            continue
        known += 1
        side, number = found
        if side == "upper":
            upper = number if upper is None else min(upper, number)
        else:
            lower = number if lower is None else max(lower, number)
    if not known and not arrays:
        return None
    all_known = known == len(parts) and isinstance(inside, Access)
    name = inside.name if all_known else ""  # type: ignore[union-attr]
    return KeyRange(lower, upper, masked, name, tuple(arrays))


def _contributes_nothing(
    values: Values, given: Mapping[str, float], states: Sequence[tuple[str, str]], weight: str
) -> bool:
    """Whether a key outside is nothing to all that is summed and folded."""
    for reference in _TRIED:
        known = dict(given)
        for name in values.behind(weight).union(*(values.behind(t) for t, _ in states)):
            writer = values.writers.get(name)
            if writer is not None and not isinstance(writer, Pointwise) and name not in known:
                known[name] = reference
        if values.number(weight, known, {}) != 0.0:
            return False
        for term, monoid in states:
            nothing = MONOIDS[monoid].identity[0]
            number = values.number(term, known, {})
            if not (number == nothing or (math.isinf(number) and number == nothing)):
                return False
    return True


def _together(values: Values, condition: Argument) -> list[Argument]:
    """Conditions that hold together."""
    writer = values.writers.get(condition.name) if isinstance(condition, Access) else None
    if isinstance(writer, Pointwise) and writer.function == "logical_and":
        return [part for arg in writer.args for part in _together(values, arg)]
    return [condition]


def _bound(values: Values, condition: Argument) -> tuple[str, int] | None:
    """One bound on the key, of a comparison of linear forms."""
    writer = values.writers.get(condition.name) if isinstance(condition, Access) else None
    if not isinstance(writer, Pointwise) or writer.function not in _COMPARISONS:
        return None
    forms = [_linear(values, arg, writer) for arg in writer.args]
    if any(form is None for form in forms):
        return None
    sign, less = _COMPARISONS[writer.function]
    row, key, number = (sign * (a - b) for a, b in zip(*forms, strict=True))
    # row * i + key * j + number >= 0, in whole numbers
    number = math.floor(number) if not less else math.ceil(number) - 1
    if (row, key) == (1, -1):
        return "upper", number
    return ("lower", -number) if (row, key) == (-1, 1) else None


def _held(values: Values, condition: Argument, whole: Collection[str]) -> RowBound | None:
    """A key beside an element of an array of whole numbers, which does not vary along the keys."""
    writer = values.writers.get(condition.name) if isinstance(condition, Access) else None
    if not isinstance(writer, Pointwise) or writer.function not in _COMPARISONS:
        return None
    key, array = writer.args
    sign, less = _COMPARISONS[writer.function]
    if isinstance(key, Access) and key.name in whole:
        key, array, sign = array, key, -sign
    form = _linear(values, key, writer)
    own = writer.write.iterators[-1]
    if form is None or form[:2] != (0.0, 1.0) or not form[2].is_integer():
        return None
    if not isinstance(array, Access) or array.name not in whole or own in array.iterators:
        return None
    # key + number >= element, or <= with the sign turned; where they must differ, one further
    side = "lower" if sign > 0 else "upper"
    return RowBound(side, array.name, -int(form[2]) - sign * less)


def _linear(values: Values, arg: Argument, at: Pointwise) -> tuple[float, float, float] | None:
    """An argument as ``a * row + b * key + c``; None if it is none, or a row of another axis."""
    if isinstance(arg, Constant):
        return (0.0, 0.0, arg.value) if math.isfinite(arg.value) else None
    if isinstance(arg, Coordinate):
        index = arg.index
        if isinstance(index, int):
            return (0.0, 0.0, float(index))
        form = index if isinstance(index, Affine) else None
        name = form.iterator if form else str(index)
        if form is not None and form.per != 1:
            return None
        scale, number = (form.scale, form.offset) if form else (1, 0)
        if dict(at.domain).get(name) == 1:  # one index: rows are told apart by another axis
            return (0.0, 0.0, float(number))
        axes = [it for it, _ in at.domain]
        if name == axes[-1]:
            return (0.0, float(scale), float(number))
        return (float(scale), 0.0, float(number)) if name == axes[-2] else None
    writer = values.writers.get(arg.name) if isinstance(arg, Access) else None
    if not isinstance(writer, Pointwise) or writer.function not in ("add", "sub", "cast"):
        return None
    parts = [_linear(values, one, writer) for one in writer.args]
    if any(part is None for part in parts):
        return None
    if writer.function == "cast":
        return parts[0]
    sign = 1 if writer.function == "add" else -1
    left, right = parts
    assert left is not None and right is not None
    return (left[0] + sign * right[0], left[1] + sign * right[1], left[2] + sign * right[2])
