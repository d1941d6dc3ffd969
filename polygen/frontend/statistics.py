"""Statistics as functions: on traced values they are folds, on arrays they are NumPy's.

    var(v)            deviations(v) / max(count - ddof, 0)      one fold, of three numbers a row
    ptp(v)            max(v) - min(v)
    average(v, w)     sum(v * w) / sum(w)
    log_softmax(v)    d - log(sum(exp(d))), d = v - max(v)

Arguments, their order and defaults are NumPy's. What NumPy takes beside them, for where results are
put and in which type they are computed, is refused unless it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from polygen.errors import DTypeError, ShapeError, TraceError, echo
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import BOOL, S32
from polygen.frontend.folding import axes_of, refuse_keywords
from polygen.frontend.folds import averaged, largest, smallest, summed
from polygen.frontend.functions import PUBLIC as POINTWISE
from polygen.frontend.shapes import dim_hint, shape_text
from polygen.frontend.symbolic import Symbolic, first_symbolic
from polygen.frontend.traced import Traced


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """The mean of squared deviations from the mean along axes, as ``np.var``.

    Args:
        a: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        dtype: of arrays, NumPy's; left out of traced values, as `out` and `where` are.
        out: of arrays.
        ddof: what the number of elements is less, which squares are divided by.
        keepdims: leave axes of size 1 where axes are folded.
        where: of arrays.
        mean: the mean, if it is there, with axes of size 1.
        correction: `ddof` by another name.

    Raises:
        ShapeError: the value has no such axis.
        TraceError: `ddof` is no number, or given twice.
    """
    if not isinstance(a, Traced):
        return _numpy(np.var, a, axis, dtype, out, ddof, keepdims, where, mean, correction)
    refuse_keywords("var", {"dtype": dtype, "out": out, "where": where})
    return _variance("var", a, axis, ddof, keepdims, mean, correction)


def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """The root of the variance along axes, as ``np.std``.

    Args:
        a: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        dtype: as `var` takes it, and all that follow.
        out: of arrays.
        ddof: what the number of elements is less.
        keepdims: leave axes of size 1 where axes are folded.
        where: of arrays.
        mean: the mean, if it is there.
        correction: `ddof` by another name.

    Raises:
        ShapeError: the value has no such axis.
        TraceError: `ddof` is no number, or given twice.
    """
    if not isinstance(a, Traced):
        return _numpy(np.std, a, axis, dtype, out, ddof, keepdims, where, mean, correction)
    refuse_keywords("std", {"dtype": dtype, "out": out, "where": where})
    return POINTWISE["sqrt"](_variance("std", a, axis, ddof, keepdims, mean, correction))


def _numpy(function: Callable[..., Any], a: Any, *given: Any) -> Any:
    """NumPy's function of an array; what is left out is left out."""
    axis, dtype, out, ddof, keepdims, where, mean, correction = given
    more = {"where": where, "mean": mean, "correction": correction}
    more = {name: value for name, value in more.items() if value is not None}
    return function(a, axis, dtype, out, ddof, keepdims, **more)


def _variance(
    name: str, a: Traced, axis: Any, ddof: Any, keepdims: Any, mean: Any, correction: Any
) -> Any:
    if correction is not None:
        if isinstance(ddof, Symbolic) or ddof != 0:
            raise TraceError(
                f"{name} with both ddof= and correction=", nearest="They are one: pass ddof="
            )
        ddof = correction
    if not isinstance(ddof, Real):
        raise TraceError(f"{name} with ddof={echo(ddof)}", nearest="It is a number: ddof=1")
    axes = axes_of(name, a.node, axis)
    if mean is None:
        squares = a.fold("deviations", axes, keepdims)
    else:
        apart = a - mean
        if isinstance(apart, Traced) and apart.ndim != a.ndim:
            raise ShapeError(
                f"{name} of {describe(a.node)} {shape_text(a.node.dims)} with a mean of more axes",
                nearest="Make it with keepdims=True",
            )
        squares = summed(apart * apart, axes, keepdims)
    return squares / _less(a, axes, float(ddof), squares)


def _less(a: Traced, axes: tuple[int, ...], ddof: float, like: Any = None) -> Any:
    """How many elements there are along axes, less a number; 0 where that is more.

    With a size that has no number that is computed beside every result of `like`: what follows a
    fold computes of results.
    """
    extents = tuple(a.node.dims[at] for at in axes)
    numbers = [extent for extent in extents if isinstance(extent, int)]
    if len(numbers) == len(extents):
        return max(math.prod(numbers) - ddof, 0.0)
    count = Traced(a.trace, a.trace.extent(*extents))
    if ddof == 0:
        return count
    return POINTWISE["maximum"](POINTWISE["where"](like == like, count, count) - ddof, 0.0)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The largest less the smallest along axes, as ``np.ptp``.

    Args:
        a: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        out: of arrays, NumPy's.
        keepdims: leave axes of size 1 where axes are folded.

    Raises:
        ShapeError: the value has no such axis.
        DTypeError: it is bool.
    """
    if not isinstance(a, Traced):
        return np.ptp(a, axis, out, keepdims)
    refuse_keywords("ptp", {"out": out})
    if a.dtype == BOOL:
        raise DTypeError(
            f"ptp of {describe(a.node)}, which is bool",
            why="truth values have no difference",
            nearest='Write .astype("f32") behind them',
        )
    axes = axes_of("ptp", a.node, axis)
    return largest(a, axes, keepdims) - smallest(a, axes, keepdims)


def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """How many elements along axes are not 0, as ``np.count_nonzero``; NaN is not.

    Args:
        a: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        keepdims: leave axes of size 1 where axes are folded.

    Returns:
        s32, exact up to 2^24.

    Raises:
        ShapeError: the value has no such axis.
    """
    if not isinstance(a, Traced):
        return np.count_nonzero(a, axis, keepdims=keepdims)
    axes = axes_of("count_nonzero", a.node, axis)
    differs = a if a.dtype == BOOL else a != 0.0
    return summed(differs, axes, keepdims).astype(S32)


def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    """The mean along axes, each element weighed, as ``np.average``.

    Args:
        a: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        weights: as many as there are elements along `axis`, or of the value's shape; None: 1 each.
            What their sum is, is not looked at: of 0 comes NaN or an infinity.
        returned: give the sum of the weights as well.
        keepdims: leave axes of size 1 where axes are folded.

    Raises:
        ShapeError: the value has no such axis, or the weights are others.
    """
    traced = first_symbolic((a, weights))
    if traced is None:
        numpys: Any = np.average
        return numpys(a, axis, weights, returned, keepdims=keepdims)
    if not isinstance(a, Traced):
        a = Traced(traced.trace, traced.trace.lift(a, "average"))
    axes = axes_of("average", a.node, axis)
    if weights is None:
        mean, total = averaged(a, axes, keepdims), _less(a, axes, 0.0)
    else:
        weighed = _beside(a, axes, weights, several=axis is None)
        # Where the value's elements are: a fold of the weights alone is in no product's kernel.
        weighed = POINTWISE["where"](a == a, weighed, weighed)
        total = summed(weighed, axes, keepdims)
        mean = summed(a * weighed, axes, keepdims) / total
    if not returned:
        return mean
    return mean, POINTWISE["where"](mean == mean, total, total)


def _beside(a: Traced, axes: tuple[int, ...], weights: Any, *, several: bool) -> Any:
    """Weights with an axis for each of the value's."""
    dims = a.node.dims
    own = weights.node.dims if isinstance(weights, Traced) else np.shape(weights)
    if own == dims:
        return weights
    along = tuple(dims[at] for at in axes)
    if several or own != along:
        text = f"average of {describe(a.node)} {shape_text(dims)} with weights {shape_text(own)}"
        wanted = shape_text(dims) + ("" if several else f" or {shape_text(along)}")
        hint = dim_hint(own[0], along[0], stretches=False) if len(own) == len(along) == 1 else ""
        raise ShapeError(
            text, nearest=f"Weights are {wanted}" + (f". {hint}" if hint and not several else "")
        )
    if not isinstance(weights, Traced):
        a.trace.lift(weights, "average")  # an array that is no argument: refused
    return weights[tuple(slice(None) if at in axes else None for at in range(len(dims)))]


def log_softmax(value: Any, axis: Any = -1) -> Any:
    """The logarithm of `softmax` along an axis, without its loss of digits.

    Args:
        value: a traced value, or an array.
        axis: a number, or several.

    Raises:
        ShapeError: the value has no such axis.
    """
    if isinstance(value, Traced):
        axes_of("log_softmax", value.node, axis)
    apart = value - largest(value, axis, True)
    return apart - POINTWISE["log"](summed(POINTWISE["exp"](apart), axis, True))


PUBLIC: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (var, std, ptp, count_nonzero, average, log_softmax)
}
