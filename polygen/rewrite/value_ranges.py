"""In which interval the values of a program lie, whatever its arrays hold.

1. An interval [low, high] and single values beside it, such as the -inf of a mask. Arrays and sums
   may have any value.
2. Functions that grow everywhere are taken at the ends, and at the single values: `tanh` of
   anything lies in [-1, 1]. Sums, differences and products by numbers are of the ends.
3. What no rule bounds may have any value. NaN is left out: what is made of it is NaN in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from polygen.frontend.functions import TABLE
from polygen.frontend.program import Access, Argument, Constant, Pointwise
from polygen.rewrite.values import Values

_GROWING = frozenset({"tanh", "sigmoid", "erf", "exp", "exp2"})
_WITHIN_ONE = frozenset({"sin", "cos"})


@dataclass(frozen=True, slots=True)
class Range:
    """The values that something may have.

    Attributes:
        low: least of the interval.
        high: greatest of it.
        alone: values beside it.
    """

    low: float
    high: float
    alone: frozenset[float] = frozenset()

    @property
    def bounded(self) -> bool:
        """Whether the interval is."""
        return math.isfinite(self.low) and math.isfinite(self.high)


ANY = Range(-math.inf, math.inf)


def range_of(values: Values, arg: Argument) -> Range:
    """The range of an argument of a program's statements."""
    if isinstance(arg, Constant):
        return Range(arg.value, arg.value) if math.isfinite(arg.value) else _alone(arg.value)
    writer = values.writers.get(arg.name) if isinstance(arg, Access) else None
    if not isinstance(writer, Pointwise):
        return ANY
    if writer.function == "where":
        return _either(*(_choice(values, one) for one in writer.args[1:]))
    return _applied(writer, [range_of(values, one) for one in writer.args])


def _choice(values: Values, arg: Argument) -> Range:
    """One side of a choice, of which a number lies beside the interval of the other."""
    return _alone(arg.value) if isinstance(arg, Constant) else range_of(values, arg)


def _alone(value: float) -> Range:
    """A single value, and no interval."""
    return Range(math.inf, -math.inf, frozenset({value}))


def _applied(writer: Pointwise, given: list[Range]) -> Range:
    """A function of ranges."""
    name = writer.function
    first = given[0]
    if name == "cast":
        return first if writer.dtype.kind == "float" else ANY
    if name in _WITHIN_ONE:
        return Range(-1.0, 1.0)
    if name in _GROWING:
        return _at_ends(lambda x: _number(name, x), first)
    if name == "neg":
        return _at_ends(lambda x: -x, first)
    if name in ("minimum", "maximum"):
        return _picked(name, given)
    if name == "clip":
        return _picked("minimum", [_picked("maximum", given[:2]), given[2]])
    if name in ("add", "sub", "mul", "div") and len(given) == 2:
        return _of_two(name, *given)
    return ANY


def _picked(name: str, given: Sequence[Range]) -> Range:
    """The least or the greatest of values."""
    if any(one.alone for one in given):
        return ANY
    pick = min if name == "minimum" else max
    return Range(pick(one.low for one in given), pick(one.high for one in given))


def _of_two(name: str, left: Range, right: Range) -> Range:
    """Sums and differences; products and quotients by numbers."""
    if name in ("add", "sub"):
        if not right.alone and right.low == right.high:
            return _at_ends(lambda x: _number(name, x, right.low), left)
        if not left.alone and left.low == left.high:
            return _at_ends(lambda x: _number(name, left.low, x), right)
        if left.alone or right.alone:
            return ANY
        ends = (right.low, right.high) if name == "add" else (-right.high, -right.low)
        return Range(left.low + ends[0], left.high + ends[1])
    if name == "mul" and not left.alone and left.low == left.high:
        left, right = right, left
    if right.alone or right.low != right.high or right.low == 0.0:
        return ANY
    return _at_ends(lambda x: _number(name, x, right.low), left)


def _at_ends(function: Callable[[float], float], given: Range) -> Range:
    """A function that grows, or falls, everywhere."""
    if given.low > given.high:
        return Range(math.inf, -math.inf, frozenset(map(function, given.alone)))
    low, high = sorted((function(given.low), function(given.high)))
    return _either(Range(low, high), *(_alone(function(one)) for one in given.alone))


def _either(*given: Range) -> Range:
    """One of several ranges; what is alone and inside of the interval is not alone."""
    low, high = min(one.low for one in given), max(one.high for one in given)
    alone = frozenset(value for one in given for value in one.alone)
    finite = [v for v in alone if math.isfinite(v) and v != 0.0]
    low, high = min([low, *finite]), max([high, *finite])
    return Range(low, high, frozenset(v for v in alone if not low <= v <= high))


def _number(name: str, *args: float) -> float:
    """A function at a point."""
    with np.errstate(all="ignore"):
        return float(TABLE[name].reference(*map(np.float64, args)))
