"""Products as functions: on traced values they are recorded, on arrays they are NumPy's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from polygen.errors import ShapeError, TraceError
from polygen.frontend.describing import describe
from polygen.frontend.folds import summed
from polygen.frontend.shapes import shape_text, sum_hint
from polygen.frontend.symbolic import first_symbolic
from polygen.frontend.traced import Traced

_LETTERS = "abcdefghijlmnopqrstuvwxyz"  # k is the axis that is summed
Best = tuple[int, int]  # how many products, and where they are parted


def matmul(x: Any, y: Any) -> Any:
    """``x @ y``: matrices in the last two axes, batches before them; a vector is no batch.

    Raises:
        ShapeError: an operand is a scalar, inner dims differ, or batch dims do not broadcast.
        DTypeError: no tensor core multiplies these dtypes.
    """
    return np.matmul(x, y)


def einsum(subscripts: str, *operands: Any) -> Any:
    """A transposition of one operand or a contraction of several, as np.einsum's subscripts say.

    Of three operands or more, those that the others only scale become one with them, so that one
    product is left if there is one: ``bi,oij,bj->bo`` multiplies ``x[b,i] * y[b,j]`` by ``w``.
    Otherwise pairs are multiplied from the left, which makes a chain.

    Args:
        subscripts: a letter per axis, as in ``bmk,kn->bmn``; ``...`` stands for leading axes.
        operands: one or more.

    Raises:
        TraceError: the subscripts are malformed.
        ShapeError: they do not fit the operands' dims.
        UnsupportedProgram: a diagonal, or a sum over an axis of one operand alone.
    """
    traced = first_symbolic(operands)
    return (np if traced is None else traced).einsum(subscripts, *operands)


def inner(a: Any, b: Any) -> Any:
    """Sums over the last axes of both, as ``np.inner``: of matrices ``a @ b.T``.

    Args:
        a: a traced value, an array or a number.
        b: the same; as long along its last axis.

    Raises:
        ShapeError: last axes that differ.
    """
    if first_symbolic((a, b)) is None:
        return np.inner(a, b)
    if not np.ndim(a) or not np.ndim(b):
        return a * b
    if np.ndim(a) == np.ndim(b) == 1:
        _require_equal("inner", a, b, -1)
        return summed(a * b)
    left = _LETTERS[: np.ndim(a) - 1]
    right = _LETTERS[np.ndim(a) - 1 :][: np.ndim(b) - 1]
    return einsum(f"{left}k,{right}k->{left}{right}", a, b)


def vdot(a: Any, b: Any) -> Any:
    """The sum of products of all elements, as ``np.vdot``.

    Args:
        a: a traced value, or an array, of any shape.
        b: the same, with as many elements.

    Raises:
        ShapeError: another number of elements.
    """
    if first_symbolic((a, b)) is None:
        return np.vdot(a, b)
    if tuple(np.shape(a)) != tuple(np.shape(b)):
        a, b = (one if np.ndim(one) == 1 else one.reshape(-1) for one in (a, b))
        _require_equal("vdot", a, b, -1)
    product = a * b
    return summed(product) if product.ndim else product


def outer(a: Any, b: Any) -> Any:
    """Every element of one times every one of the other, as ``np.outer``: both are made vectors.

    Args:
        a: a traced value, or an array.
        b: the same.
    """
    if first_symbolic((a, b)) is None:
        return np.outer(a, b)
    first, second = (one if np.ndim(one) == 1 else one.reshape(-1) for one in (a, b))
    return first[:, None] * second[None, :]


def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    """The sum of products along an axis, as ``np.vecdot``.

    Args:
        x1: a traced value, or an array; of more axes than `x2`, or fewer, only along the last.
        x2: the same; other axes broadcast.
        axis: along which vectors lie.

    Raises:
        ShapeError: there is no such axis, or vectors of other lengths.
    """
    if first_symbolic((x1, x2)) is None:
        return np.sum(np.conj(x1) * x2, axis=axis)
    if not np.ndim(x1) or not np.ndim(x2) or (np.ndim(x1) != np.ndim(x2) and axis != -1):
        raise ShapeError(
            f"vecdot of values with {np.ndim(x1)} and {np.ndim(x2)} axes along axis {axis}",
            nearest="Vectors lie along the last axis of both: axis=-1",
        )
    _require_equal("vecdot", x1, x2, axis)
    return summed(x1 * x2, axis)


def matvec(x1: Any, x2: Any) -> Any:
    """Matrices times vectors, as ``np.matvec``: axes before these broadcast.

    Args:
        x1: a traced value, or an array, ``[..., M, N]``.
        x2: the same, ``[..., N]``.

    Raises:
        ShapeError: too few axes, or sizes that differ.
    """
    return einsum("...mn,...n->...m", x1, x2)


def vecmat(x1: Any, x2: Any) -> Any:
    """Vectors times matrices, as ``np.vecmat``: axes before these broadcast.

    Args:
        x1: a traced value, or an array, ``[..., N]``.
        x2: the same, ``[..., N, M]``.

    Raises:
        ShapeError: too few axes, or sizes that differ.
    """
    return einsum("...n,...nm->...m", x1, x2)


def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """The product of several matrices, as ``np.linalg.multi_dot``.

    Where all sizes are numbers the pair is multiplied first that makes fewest operations, as NumPy
    does; else they are multiplied from the left.

    Args:
        arrays: two or more; the first and the last one may be vectors, all others are matrices.
        out: must be None.

    Raises:
        ShapeError: fewer than two, an array in between that is no matrix, or inner dims differ.
        TraceError: `out` is given.
    """
    every = list(arrays)
    if out is not None:
        raise TraceError("multi_dot with out=", nearest="Pass out= to the call of the function")
    if len(every) < 2:
        raise ShapeError(
            f"multi_dot of {len(every)} array(s)", nearest="It takes two or more: [a, b]"
        )
    shapes = [one.node.dims if isinstance(one, Traced) else np.shape(one) for one in every]
    for at, shape in enumerate(shapes):
        if len(shape) != 2 and not (len(shape) == 1 and at in (0, len(every) - 1)):
            raise ShapeError(
                f"array {at} of multi_dot has {len(shape)} axes",
                nearest="The first and the last one may be vectors, the others are matrices; "
                "stacks of matrices are multiplied by @",
            )
    first, last = shapes[0], shapes[-1]
    sizes = [first[0] if len(first) == 2 else 1, *(shape[0] for shape in shapes[1:])]
    sizes.append(last[1] if len(last) == 2 else 1)
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        return functools.reduce(lambda a, b: a @ b, every)
    return _multiplied(every, _fewest(tuple(known)), 0, len(every))


def _multiplied(arrays: list[Any], best: dict[tuple[int, int], Best], first: int, end: int) -> Any:
    """The product of some neighbours."""
    if end == first + 1:
        return arrays[first]
    _, middle = best[first, end]
    return _multiplied(arrays, best, first, middle) @ _multiplied(arrays, best, middle, end)


def _fewest(sizes: tuple[int, ...]) -> dict[tuple[int, int], Best]:
    """Of neighbouring matrices how many products their product takes at least, and where it is
    parted.

    Args:
        sizes: rows of each, and the columns of the last.
    """
    count = len(sizes) - 1
    best: dict[tuple[int, int], Best] = {(at, at + 1): (0, at) for at in range(count)}
    for length in range(2, count + 1):
        for first in range(count - length + 1):
            end = first + length
            best[first, end] = min(
                (best[first, at][0] + best[at, end][0] + sizes[first] * sizes[at] * sizes[end], at)
                for at in range(first + 1, end)
            )
    return best


def matrix_power(a: Any, n: Any) -> Any:
    """A square matrix times itself, as ``np.linalg.matrix_power``, by the same products.

    Args:
        a: a traced value, or an array, ``[..., N, N]``.
        n: how often it is multiplied, a positive number of Python.

    Raises:
        ShapeError: it is not square.
        TraceError: `n` is no positive number.
    """
    if first_symbolic((a, n)) is None:
        return np.linalg.matrix_power(a, n)
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise TraceError(
            f"matrix_power to {n}",
            why="matrices are multiplied n times; the inverse and the identity are no products",
            nearest="A positive number, as matrix_power(a, 3)",
        )
    dims = a.node.dims
    if len(dims) < 2 or dims[-1] != dims[-2]:
        raise ShapeError(
            f"matrix_power of {shape_text(dims)}", nearest="Its last two axes have one size"
        )
    power, found = a, None
    while True:
        if n % 2:
            found = power if found is None else found @ power
        n //= 2
        if not n:
            return found
        power = power @ power


def _require_equal(name: str, a: Any, b: Any, axis: int) -> None:
    """Refuse vectors of other lengths: 1 is not stretched along what is summed."""
    shapes = [one.node.dims if isinstance(one, Traced) else np.shape(one) for one in (a, b)]
    texts = [describe(one.node) if isinstance(one, Traced) else "an array" for one in (a, b)]
    if any(not -len(shape) <= axis < len(shape) for shape in shapes):
        raise ShapeError(
            f"{name} of {texts[0]} {shape_text(shapes[0])} along axis {axis}",
            nearest=f"Axes are {-len(shapes[0])} to {len(shapes[0]) - 1}",
        )
    first, second = (shape[axis] for shape in shapes)
    if first != second:
        raise ShapeError.between(
            first,
            second,
            f"{name} of {texts[0]} {shape_text(shapes[0])} and {texts[1]} {shape_text(shapes[1])}",
            nearest=sum_hint(first, second),
        )


PUBLIC = {one.__name__: one for one in (inner, vdot, outer, vecdot, matvec, vecmat)}
