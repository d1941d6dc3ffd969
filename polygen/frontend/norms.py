"""Norms of vectors and matrices as functions: on traced values folds, on arrays NumPy's.

    of 2            sqrt(sum(v * v)), of all elements of vectors, or of matrices
    of 1, inf, -inf sum, max, min of |v|
    of 0            how many are not 0
    of p            sum(|v| ** p) ** (1 / p)

Of matrices, those of order 1 and inf are folds of folds, which are kernels of their own
(`polygen.rewrite.folds_alone`); 2 and 'nuc' are of singular values: refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.errors import TraceError, UnsupportedProgram, echo
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import BOOL
from polygen.frontend.folding import axes_of
from polygen.frontend.folds import largest, smallest, summed
from polygen.frontend.functions import PUBLIC as POINTWISE
from polygen.frontend.traced import Traced

_SINGULAR = "Use ord='fro', the root of the sum of all squares"


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors or matrices, as ``np.linalg.norm``.

    Args:
        x: a traced value, or an array.
        ord: of vectors None or 2, 1, inf, -inf, 0 or another number; of matrices None or 'fro', 1,
            -1, inf or -inf.
        axis: a number for vectors, two for matrices; None: of all elements, as one vector or, with
            an order, as the vector or matrix that they are.
        keepdims: leave axes of size 1 where axes are folded.

    Raises:
        ShapeError: the value has no such axis.
        TraceError: there is no such order, or it is not for so many axes.
        UnsupportedProgram: an order of matrices that is no fold.
    """
    if not isinstance(x, Traced):
        return np.linalg.norm(x, ord, axis, keepdims)
    axes = axes_of("norm", x.node, axis)
    if axis is None and ord is None:
        return _vector_norm(x, 2.0, axes, keepdims)
    if len(axes) == 1:
        return _vector_norm(x, 2.0 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        if axis is not None:  # rows and columns are told apart by the order of the axes
            axes = (axis[0] % x.ndim, axis[1] % x.ndim)
        return _matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)
    raise TraceError(
        f"norm of {describe(x.node)} along {len(axes)} axes",
        why="an order is of vectors or of matrices",
        nearest="Pass axis=, one number or two",
    )


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm of vectors, whose elements may lie along several axes: ``np.linalg.vector_norm``.

    Args:
        x: a traced value, or an array.
        axis: a number, a tuple of them, or None for all axes.
        keepdims: leave axes of size 1 where axes are folded.
        ord: 2, 1, inf, -inf, 0 or another number.

    Raises:
        ShapeError: the value has no such axis.
        TraceError: there is no such order.
    """
    if not isinstance(x, Traced):
        return np.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    return _vector_norm(
        x, 2.0 if ord is None else ord, axes_of("vector_norm", x.node, axis), keepdims
    )


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices in the last two axes, as ``np.linalg.matrix_norm``.

    Args:
        x: a traced value, or an array.
        keepdims: leave axes of size 1 where axes are folded.
        ord: 'fro', 1, -1, inf or -inf.

    Raises:
        ShapeError: the value has fewer than two axes.
        TraceError: there is no such order.
        UnsupportedProgram: an order that is no fold.
    """
    if not isinstance(x, Traced):
        return np.linalg.matrix_norm(x, keepdims=keepdims, ord=ord)
    axes = axes_of("matrix_norm", x.node, (-2, -1))
    return _matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)


def _vector_norm(x: Traced, order: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    if not isinstance(order, (int, float, np.integer, np.floating)):
        raise TraceError(
            f"the norm of order {echo(order)} of vectors",
            nearest="Orders of vectors are numbers: 2, 1, np.inf, -np.inf, 0",
        )
    order = float(order)
    size = POINTWISE["abs"](x.astype("f32") if x.dtype == BOOL else x)
    if order == 2:
        return POINTWISE["sqrt"](summed(size * size, axes, keepdims))
    if math.isinf(order):
        return (largest if order > 0 else smallest)(size, axes, keepdims)
    if order == 0:
        return summed(x if x.dtype == BOOL else x != 0.0, axes, keepdims)
    if order == 1:
        return summed(size, axes, keepdims)
    return summed(size**order, axes, keepdims) ** (1.0 / order)


def _matrix_norm(x: Traced, order: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    if isinstance(order, str) and order in ("fro", "f"):
        return _vector_norm(x, 2.0, axes, keepdims)
    text = f"the norm of order {echo(order)} of matrices"
    if isinstance(order, str) and order == "nuc":
        raise UnsupportedProgram(text, why="it is of singular values", nearest=_SINGULAR)
    if not isinstance(order, (int, float, np.integer, np.floating)):
        raise TraceError(text, nearest=_SINGULAR)
    order = float(order)
    if abs(order) == 2:
        raise UnsupportedProgram(text, why="it is a singular value", nearest=_SINGULAR)
    if abs(order) != 1 and not math.isinf(order):
        raise TraceError(text, why="there is no such norm of matrices", nearest=_SINGULAR)
    along = axes[0] if abs(order) == 1 else axes[1]
    size = POINTWISE["abs"](x.astype("f32") if x.dtype == BOOL else x)
    sums = summed(size, (along,), True)
    return (largest if order > 0 else smallest)(sums, axes, keepdims)


PUBLIC: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (norm, vector_norm, matrix_norm)
}
