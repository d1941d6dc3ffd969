"""Where the elements of a value are: numbers that its functions may depend on, and repetition."""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.errors import TraceError, echo
from polygen.frontend.symbolic import Size
from polygen.frontend.traced import Traced


def repeat(value: Any, repeats: int, axis: int) -> Any:
    """Every element along an axis `repeats` times, one after the other, as ``np.repeat``.

    ``q.astype("bf16") * pg.repeat(s, 128, axis=1)`` scales every group of 128 elements of a row by
    one number; the repeated array is never made.

    Args:
        value: a traced value, or an array, of any shape with at least one axis, of which `axis` has
            a number as its size.
        repeats: how often, a whole number from 1 on.
        axis: along which.

    Returns:
        The value with `repeats` times as many elements along the axis.

    Raises:
        ShapeError: another number of times, no axis, or one whose size has no number.
    """
    if isinstance(value, Traced):
        return value.repeat(repeats, axis)
    return np.repeat(value, repeats, axis)


def indices(value: Any) -> tuple[Any, ...]:
    """Where every element of a value is, as ``np.indices(value.shape)`` says it.

    ``i, j = pg.indices(x @ w)`` are the row and the column of every element, counted from 0, for
    masks (``pg.where(i >= j, …, -np.inf)``), biases that depend on the distance, checkerboards. No
    array is read for them.

    Args:
        value: a traced value, or an array, of any shape with at least one axis.

    Returns:
        A value per axis, each of the shape of `value`, f32: whole numbers, exact up to 2^24.

    Raises:
        ShapeError: the value is a number, without axes.
    """
    if isinstance(value, Traced):
        return value.indices()
    if isinstance(value, tuple | list) and all(isinstance(one, int | str | Size) for one in value):
        raise TraceError(
            f"coordinates of {echo(value)}",
            why="they are those of a value, of whatever shape that has",
            nearest="Pass the value, as in pg.indices(x @ w), or np.zeros of that shape",
        )
    array = np.asarray(value)
    kind = type(value) if isinstance(value, np.ndarray) else np.ndarray
    return tuple(one.view(kind) for one in np.indices(array.shape, dtype=np.float64))


def tril(value: Any, k: int = 0) -> Any:
    """The elements on and below a diagonal, zeros above it, as ``np.tril``.

    Args:
        value: a traced value, or an array, of two axes or more; the last two are rows and columns.
        k: the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        A value of the same shape.

    Raises:
        ShapeError: the value has fewer axes.
        TraceError: the diagonal is no whole number.
    """
    return value.triangle(k, below=True) if isinstance(value, Traced) else np.tril(value, k)


def triu(value: Any, k: int = 0) -> Any:
    """The elements on and above a diagonal, zeros below it, as ``np.triu``.

    Args:
        value: a traced value, or an array, of two axes or more; the last two are rows and columns.
        k: the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        A value of the same shape.

    Raises:
        ShapeError: the value has fewer axes.
        TraceError: the diagonal is no whole number.
    """
    return value.triangle(k, below=False) if isinstance(value, Traced) else np.triu(value, k)
