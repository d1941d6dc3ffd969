"""Reductions as functions: on traced values they are recorded, on arrays they are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.frontend.folding import METHODS, axes_of
from polygen.frontend.functions import PUBLIC as POINTWISE
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.traced import Traced


def _function(name: str, meaning: str) -> Callable[..., Any]:
    def fold(value: Any, axis: Any = None, keepdims: bool = False) -> Any:
        if isinstance(value, Traced):
            return value.fold(name, axis, keepdims)
        if name in METHODS:
            return getattr(np, name)(value, axis=axis, keepdims=keepdims)
        array = np.asarray(value)
        rank = array.ndim
        given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = tuple(sorted(one % rank for one in given))
        found = np.asarray(MONOIDS[name].reference(array.view(np.ndarray), axes))
        found = np.expand_dims(found, axes) if keepdims else found
        return found.view(type(value)) if isinstance(value, np.ndarray) else found

    fold.__name__ = fold.__qualname__ = name
    fold.__doc__ = f"""{meaning}, as NumPy's function of that name reduces an array.

    Args:
        value: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        keepdims: leave axes of size 1 where axes are folded.

    Raises:
        ShapeError: the value has no such axis.
        TraceError: `axis` is no number, or an index along several axes is asked for.
    """
    return fold


summed = _function("sum", "The sum along axes")
multiplied = _function("prod", "The product along axes")
largest = _function("max", "The largest along axes, NaN if there is one")
smallest = _function("min", "The smallest along axes, NaN if there is one")
averaged = _function("mean", "The mean along axes")
every = _function("all", "Whether all along axes are true")
some = _function("any", "Whether any along axes is true")
index_of_largest = _function("argmax", "The index of the first of the largest along an axis")
index_of_smallest = _function("argmin", "The index of the first of the smallest along an axis")
logsumexp = _function("logsumexp", "The logarithm of the sum of exponentials along axes")


def _require_axes(name: str, value: Any, axis: Any) -> None:
    """Refuse what has no such axis under the name that was called, before it is taken apart."""
    if isinstance(value, Traced):
        axes_of(name, value.node, axis)


def softmax(value: Any, axis: Any = -1) -> Any:
    """Exponentials along an axis, divided by their sum.

    Args:
        value: a traced value, or an array.
        axis: a number, or several.
    """
    _require_axes("softmax", value, axis)
    raised = POINTWISE["exp"](value - largest(value, axis, True))
    return raised / summed(raised, axis, True)


def rms_norm(value: Any, weight: Any = 1.0, axis: Any = -1, eps: float = 1e-6) -> Any:
    """Values divided by the root of their mean square along an axis.

    Args:
        value: a traced value, or an array.
        weight: what the result is multiplied by.
        axis: a number, or several.
        eps: added to the mean square.
    """
    _require_axes("rms_norm", value, axis)
    return value * POINTWISE["rsqrt"](averaged(value * value, axis, True) + eps) * weight


def layer_norm(
    value: Any, weight: Any = 1.0, bias: Any = 0.0, axis: Any = -1, eps: float = 1e-5
) -> Any:
    """Values less their mean, divided by their deviation.

    Args:
        value: a traced value, or an array.
        weight: what the result is multiplied by.
        bias: what is added.
        axis: a number, or several.
        eps: added to the variance.
    """
    _require_axes("layer_norm", value, axis)
    return rms_norm(value - averaged(value, axis, True), weight, axis, eps) + bias


PUBLIC: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        summed, multiplied, largest, smallest, averaged, every, some, index_of_largest,
        index_of_smallest, logsumexp, softmax, rms_norm, layer_norm,
    )
}  # fmt: skip
