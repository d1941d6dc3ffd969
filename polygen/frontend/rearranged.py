"""Axes that come, go and change places, and elements that are repeated along them: views by NumPy's
functions. No array is made for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from polygen.errors import ShapeError, shortened
from polygen.frontend.describing import describe
from polygen.frontend.nodes import Reach
from polygen.frontend.reshaping import dim_of
from polygen.frontend.shapes import shape_text
from polygen.frontend.traced import Traced


def expand_dims(a: Any, axis: Any) -> Any:
    """A value with axes of one index more, as ``np.expand_dims``.

    Args:
        a: a traced value, or an array.
        axis: where they are in the result: a number, or several.

    Raises:
        ShapeError: there is no such axis, or one twice.
    """
    if not isinstance(a, Traced):
        return np.expand_dims(a, axis)
    count = a.ndim + (1 if np.ndim(axis) == 0 else len(axis))
    new = _axes("expand_dims", a, axis, count)
    return a[tuple(None if at in new else slice(None) for at in range(count))]


def squeeze(a: Any, axis: Any = None) -> Any:
    """A value without axes of one index, as ``np.squeeze``.

    Args:
        a: a traced value, or an array.
        axis: which: a number, or several; None: all whose size is the number 1.

    Raises:
        ShapeError: there is no such axis, or one with more than one index.
    """
    if not isinstance(a, Traced):
        return np.squeeze(a, axis)
    dims = a.node.dims
    if axis is None:
        gone = {at for at, dim in enumerate(dims) if dim == 1}
    else:
        gone = _axes("squeeze", a, axis, a.ndim)
    long = [at for at in sorted(gone) if dims[at] != 1]
    if long:
        raise ShapeError(
            f"np.squeeze of {describe(a.node)} along axis {long[0]}",
            where=f"it is {shape_text(dims)}",
            why="only an axis of one index can be left out",
            nearest="Index it, as in v[:, 0], or give the size 1 in the signature",
        )
    return a[tuple(0 if at in gone else slice(None) for at in range(a.ndim))] if gone else a


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """A value with axes in other places, as ``np.moveaxis``.

    Args:
        a: a traced value, or an array.
        source: which axes: a number, or several.
        destination: where they go; the others keep their order.

    Raises:
        ShapeError: there is no such axis, one twice, or not as many places as axes.
    """
    if not isinstance(a, Traced):
        return np.moveaxis(a, source, destination)
    given = [[one] if np.ndim(one) == 0 else [*one] for one in (source, destination)]
    if len(given[0]) != len(given[1]):
        raise ShapeError(
            f"np.moveaxis of {describe(a.node)} from {source} to {destination}",
            nearest="Name a place for every axis that moves",
        )
    places = [_in_order("moveaxis", a, one) for one in given]
    order = [at for at in range(a.ndim) if at not in places[0]]
    for to, at in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, at)
    return a.transpose(order)


def flip(m: Any, axis: Any = None) -> Any:
    """A value with its elements in the opposite order along axes, as ``np.flip``.

    Args:
        m: a traced value, or an array.
        axis: along which: a number, or several; None: all.

    Raises:
        ShapeError: there is no such axis.
        TraceError: its size has no number.
    """
    if not isinstance(m, Traced):
        return np.flip(m, axis)
    turned = _axes("flip", m, range(m.ndim) if axis is None else axis, m.ndim)
    return m[tuple(slice(None, None, -1 if at in turned else None) for at in range(m.ndim))]


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """A value whose axes of one index are as long as those of a shape, as ``np.broadcast_to``.

    Args:
        array: a traced value, or an array.
        shape: numbers, or sizes as ``x.shape`` has them.
        subok: of arrays, NumPy's.

    Raises:
        ShapeError: an axis of several indices has another size there, or there are fewer axes.
    """
    if not isinstance(array, Traced):
        return np.broadcast_to(array, shape, subok)
    node, whole = array.node, shape if isinstance(shape, (tuple, list)) else (shape,)
    dims = [dim_of(one, f"np.broadcast_to of {describe(node)}") for one in whole]
    before = len(dims) - len(node.dims)
    fits = [
        own in (1, wanted) for own, wanted in zip(node.dims, dims[max(before, 0) :], strict=False)
    ]
    if before < 0 or not all(fits):
        raise ShapeError(
            f"np.broadcast_to of {describe(node)} from {shape_text(node.dims)} to "
            f"{shape_text(tuple(dims))}",
            why="axes of one index are repeated, others keep their sizes",
            nearest="Add axes with [:, None] where they come in between",
        )
    reaches = [
        Reach(before + at if own == dims[before + at] else None) for at, own in enumerate(node.dims)
    ]
    return Traced(array.trace, array.trace.reach(node, reaches, dims))


def _axes(name: str, value: Traced, axis: Any, count: int) -> set[int]:
    """Which of so many axes are meant."""
    every = (axis,) if np.ndim(axis) == 0 else tuple(axis)
    try:
        return {*normalize_axis_tuple(tuple(map(index, every)), count)}
    except (TypeError, ValueError) as reason:
        raise _no_axis(name, value, axis, count) from reason


def _in_order(name: str, value: Traced, axes: Sequence[Any]) -> list[int]:
    """The same, in the order in which they are named."""
    _axes(name, value, axes, value.ndim)
    return [normalize_axis_index(index(axis), value.ndim) for axis in axes]


def _no_axis(name: str, value: Traced, axis: Any, count: int) -> ShapeError:
    return ShapeError(
        f"np.{name} of {describe(value.node)} with axis {shortened(repr(axis))}",
        where=f"it is {shape_text(value.node.dims)}",
        nearest=f"Axes are numbers from {-count} to {count - 1}, each once"
        if count
        else "It has no axes",
    )


PUBLIC: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (expand_dims, squeeze, moveaxis, flip, broadcast_to)
}
