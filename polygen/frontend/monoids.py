"""The vocabulary of folds: monoids over tuples of numbers, with what goes in and what comes out.

A *fold* combines terms, one tuple for every element of an axis, in some order. What it takes for
that to mean something is a monoid: an associative, commutative `combine` with an identity. One
definition over the pointwise vocabulary serves code generation; NumPy's own reduction is what it
means (`reference`), so that comparing both tests the definition.

    max         (v,)      -inf           maximum(a, b), which propagates NaN
    argmax      (v, i)    (-inf, inf)    the larger; of equal ones (or NaN) the first
    logsumexp   (v, 1)    (-inf, 0)      (max, sums rescaled to it); exponentials: that sum
    deviations  (v, 0, 1, 0)  zeros      (the mean of both in two parts, counts, squares about it)

Sums of floats are rounded, so that their bits depend on the order of combination: it is fixed by
the schedule (`polygen.schedule.sums`), never by who comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from polygen.errors import TraceError
from polygen.frontend.dtypes import F32, S32, DType
from polygen.frontend.functions import PUBLIC

Array = np.ndarray[Any, Any]
_INF = float("inf")
VALUE, INDEX = "value", "index"  # what a component is made of, beside numbers


@dataclass(frozen=True, slots=True)
class Monoid:
    """One kind of fold.

    Attributes:
        name: its key in `MONOIDS` and in `Fold.function`.
        terms: per component what an element contributes: its value, its index along the axis, or a
            number.
        identity: per component, of nothing.
        combine: of two tuples' components, the components; associative and commutative.
        finish: of all components, the result.
        reference: NumPy's, of an array and the folded axes.
        result: type of the result.
        selects: whether results are some of the terms, so that no rounding can change one.
        later: the same where the second tuple is a term behind all of the first one's, if that is
            less work.
        extreme: of terms that are all at hand, the function whose result over their values is the
            first component: "maximum" or "minimum"; "": they are combined one after the other.
        relative: what a value adds to the second component, beside that extreme; None: the second
            component is the index of the first value that is the extreme, or of the first NaN.
        of_many: of values that are all at hand, the components of all of them, if that is less work
            than to combine one after the other.
        short: whether `combine` calls functions in their short forms: an exponential of what is not
            positive loses no more than some units of 1 in it, however large the argument.
        in_order: of users' monoids, `reference` in an order of some number, in its array's type.
    """

    name: str
    terms: tuple[str | float, ...]
    identity: tuple[float, ...]
    combine: Callable[..., tuple[Any, ...]]
    finish: Callable[..., Any]
    reference: Callable[[Array, tuple[int, ...]], Any]
    result: DType = F32
    selects: bool = False
    short: bool = False
    in_order: Callable[[Array, tuple[int, ...], int], Array] | None = None
    later: Callable[..., tuple[Any, ...]] | None = None
    extreme: str = ""
    relative: Callable[[Any, Any], Any] | None = None
    of_many: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None


def _first(*components: Any) -> Any:
    return components[0]


def _second(*components: Any) -> Any:
    return components[1]


def _is_nan(value: Any) -> Any:
    return value != value


def _index_of(beats: Callable[[Any, Any], Any]) -> Callable[..., tuple[Any, ...]]:
    """Of two (value, index): the one whose value beats the other's; NaN beats numbers, and of
    equal ones the first wins.
    """

    def combine(a: Any, i: Any, b: Any, j: Any) -> tuple[Any, ...]:
        both, neither = PUBLIC["logical_and"], PUBLIC["logical_not"]
        either, where = PUBLIC["logical_or"], PUBLIC["where"]
        better = either(beats(b, a), both(_is_nan(b), neither(_is_nan(a))))
        equal = either(b == a, both(_is_nan(a), _is_nan(b)))
        taken = either(better, both(equal, j < i))
        return where(taken, b, a), where(taken, j, i)

    return combine


def _later_index(kept: Callable[[Any, Any], Any]) -> Callable[..., tuple[Any, ...]]:
    """The same where j is behind i: an equal value stays where it was first, and so does a NaN.

    The first term replaces nothing, an index of infinity, even where it is no better.
    """

    def combine(a: Any, i: Any, b: Any, j: Any) -> tuple[Any, ...]:
        both, neither = PUBLIC["logical_and"], PUBLIC["logical_not"]
        better = both(neither(kept(b, a)), a == a)  # a NaN in b is never kept out by a number
        taken = PUBLIC["logical_or"](better, i == _INF)
        return PUBLIC["where"](taken, b, a), PUBLIC["where"](taken, j, i)

    return combine


def _add_exponentials(a: Any, p: Any, b: Any, q: Any) -> tuple[Any, ...]:
    """Of two (max, sum of exp(v - max)): one exponential, since the larger max keeps its sum."""
    where, exp = PUBLIC["where"], PUBLIC["exp"]
    factor = exp(where(a == b, 0.0, -abs(a - b)))  # of equal infinities, too
    return PUBLIC["maximum"](a, b), where(a >= b, p + q * factor, p * factor + q)


def _exponential_beside(value: Any, largest: Any) -> Any:
    """exp(value - largest); of nothing but infinities exp(value), so that no NaN comes of them."""
    where, exp = PUBLIC["where"], PUBLIC["exp"]
    return exp(value - where(abs(largest) < _INF, largest, 0.0))


def _meet_means(*both: Any) -> tuple[Any, ...]:
    """Of two (mean, what its rounding left out, count, sum of squares of deviations from it).

    Chan, Golub and LeVeque's way: nothing is squared but the distance of two means, so that no
    digit is lost to a mean that is large. In one number a mean would be off by its rounding, and
    so would every distance from it. A count of 0 takes the other side as it is: its share is 0 or
    1, exactly.
    """
    a, more_a, n, s, b, more_b, k, t = both
    total, between, more = n + k, b - a, more_b - more_a
    share, apart = k / PUBLIC["maximum"](total, 1.0), between + more
    step = between * share
    mean = a + step
    # In this order the distance of an empty side's mean, which means nothing, becomes 0 before it
    # is squared.
    squares = s + t + apart * (apart * (n * share))
    return mean, (a - mean) + step + (more_a + more * share), total, squares


def _mean_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """Their mean, what its rounding left out, their count, and squares of deviations from it.

    Differences from a mean that is rounded are of numbers near each other, and so is their own
    mean, which is what the first one is off by.
    """
    count = len(values)
    mean = _added(values) * (1.0 / count)
    apart = [value - mean for value in values]
    more = _added(apart) * (1.0 / count)
    return mean, more, float(count), _added([d * d for d in apart]) - more * more * float(count)


def _added(values: Sequence[Any]) -> Any:
    """Two by two."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [*(a + b for a, b in pairs), *values[len(values) // 2 * 2 :]]
    return values[0]


def _squares(mean: Any, more: Any, count: Any, squares: Any) -> Any:
    """NaN where a term is an infinity, from whose mean nothing has a distance."""
    return squares + (mean - mean)


def _squares_about_mean(array: Array, axes: tuple[int, ...]) -> Array:
    apart = array - np.mean(array, axis=axes, keepdims=True)
    return np.asarray(np.sum(apart * apart, axis=axes))


def _log_of_sum(largest: Any, total: Any) -> Any:
    finite = abs(largest) < np.inf
    return PUBLIC["where"](finite, largest + PUBLIC["log"](total), largest)


def _log_sum_exp(array: Array, axes: tuple[int, ...]) -> Array:
    largest = np.max(array, axis=axes, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    total = np.sum(np.exp(array - shift), axis=axes)
    return np.asarray(np.log(total) + np.squeeze(shift, axis=axes))


def _relative_sum(largest: Any, total: Any) -> Any:
    """NaN where an infinity is the largest, from which nothing has a distance."""
    return total + (largest - largest)


def _sum_relative_to_largest(array: Array, axes: tuple[int, ...]) -> Array:
    largest = np.max(array, axis=axes, keepdims=True)
    return np.asarray(np.sum(np.exp(array - largest), axis=axes))


def _along(function: Callable[..., Any]) -> Callable[[Array, tuple[int, ...]], Any]:
    return lambda array, axes: function(array, axis=axes)


def _along_one(function: Callable[..., Any]) -> Callable[[Array, tuple[int, ...]], Any]:
    return lambda array, axes: function(array, axis=axes[0])


def _of(*functions: str) -> Callable[..., tuple[Any, ...]]:
    """The components' own functions of two, side by side."""

    def combine(*both: Any) -> tuple[Any, ...]:
        half = len(functions)
        sides = zip(functions, both[:half], both[half:], strict=True)
        return tuple(_apply(name, a, b) for name, a, b in sides)

    return combine


def _apply(name: str, a: Any, b: Any) -> Any:
    if name == "add":
        return a + b
    return a * b if name == "mul" else PUBLIC[name](a, b)


class _Table(dict[str, Monoid]):
    """By name: those below, and those that users define (`polygen.frontend.user_monoids`)."""

    def __missing__(self, name: str) -> NoReturn:
        raise TraceError(
            f"no monoid is called {name}",
            why="those of users are known in processes that define them",
            nearest="Define it by pg.monoid(…), as where the kernel was made",
        )


# -0.0 + v is v, bit for bit, which 0.0 + v is not where v is -0.0.
MONOIDS: dict[str, Monoid] = _Table(
    (one.name, one)
    for one in (
        Monoid("sum", (VALUE,), (-0.0,), _of("add"), _first, _along(np.sum)),
        Monoid("prod", (VALUE,), (1.0,), _of("mul"), _first, _along(np.prod)),
        Monoid(
            "max", (VALUE,), (-_INF,), _of("maximum"), _first, _along(np.max), selects=True
        ),
        Monoid("min", (VALUE,), (_INF,), _of("minimum"), _first, _along(np.min), selects=True),
        Monoid(
            "argmax", (VALUE, INDEX), (-_INF, _INF), _index_of(lambda b, a: b > a), _second,
            _along_one(np.argmax), S32, selects=True, later=_later_index(lambda b, a: b <= a),
            extreme="maximum",
        ),
        Monoid(
            "argmin", (VALUE, INDEX), (_INF, _INF), _index_of(lambda b, a: b < a), _second,
            _along_one(np.argmin), S32, selects=True, later=_later_index(lambda b, a: b >= a),
            extreme="minimum",
        ),
        Monoid(
            "logsumexp", (VALUE, 1.0), (-_INF, 0.0), _add_exponentials, _log_of_sum, _log_sum_exp,
            short=True, extreme="maximum", relative=_exponential_beside,
        ),
        Monoid(
            "exponentials", (VALUE, 1.0), (-_INF, 0.0), _add_exponentials, _relative_sum,
            _sum_relative_to_largest, short=True, extreme="maximum",
            relative=_exponential_beside,
        ),
        Monoid(
            "deviations", (VALUE, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 0.0), _meet_means, _squares,
            _squares_about_mean, of_many=_mean_of,
        ),
    )
)  # fmt: skip
