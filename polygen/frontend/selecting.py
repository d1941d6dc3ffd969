"""Chosen elements of a value as functions: folds of what is masked, on arrays NumPy's.

    trace(v)                      sum over i, j of where(i == j, v, -0.0)
    diagonal(v)                   the same sum over j alone
    take_along_axis(v, t, 1)      sum over j of where(j == t, v, -0.0), t a number for each row

-0.0 is what a sum begins with: the one element that is chosen comes out bit for bit, and what
stands elsewhere, NaN and infinities included, is selected against, not multiplied by 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import ml_dtypes
import numpy as np

from polygen.errors import DTypeError, ShapeError, TraceError, UnsupportedProgram, echo
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.exact import Exact
from polygen.frontend.folding import refuse_keywords
from polygen.frontend.folds import summed
from polygen.frontend.functions import PUBLIC as POINTWISE
from polygen.frontend.nodes import ApplyNode, InputNode, Node, ScalarNode, ViewNode
from polygen.frontend.shapes import dim_hint, shape_text
from polygen.frontend.symbolic import first_symbolic
from polygen.frontend.traced import Traced

# Functions that make whole numbers of whole numbers.
_WHOLE = ("add", "sub", "mul", "neg", "abs", "minimum", "maximum", "where", "clip", "relu", "cast")


def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    """The sum of the elements on a diagonal, as ``np.trace``.

    Args:
        a: a traced value, or an array, of two axes or more.
        offset: of the diagonal from the main one; positive ones are above it.
        axis1: along which rows are counted.
        axis2: along which columns are.
        dtype: of arrays, NumPy's.
        out: of arrays.

    Raises:
        ShapeError: the value has no two such axes.
        TraceError: the offset is no whole number.
    """
    if not isinstance(a, Traced):
        return np.trace(a, offset, axis1, axis2, dtype, out)
    refuse_keywords("trace", {"dtype": dtype, "out": out})
    axes = _two("trace", a, axis1, axis2)
    return summed(_masked(a, offset, *axes), axes)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements on a diagonal, along the last axis, as ``np.diagonal``.

    The whole product is computed for it: ``np.diagonal(x @ y.T)`` beside other folds of it costs
    little, alone it is a sum of products of rows.

    Args:
        a: a traced value, or an array, of two axes or more.
        offset: of the diagonal from the main one, which is 0.
        axis1: along which rows are counted.
        axis2: along which columns are, as many as there are rows.

    Raises:
        ShapeError: the value has no two such axes, or other sizes along them.
        UnsupportedProgram: another diagonal than the main one.
        TraceError: the offset is no whole number.
    """
    if not isinstance(a, Traced):
        return np.diagonal(a, offset, axis1, axis2)
    rows, columns = _two("diagonal", a, axis1, axis2)
    first, second = a.node.dims[rows], a.node.dims[columns]
    text = f"the diagonal of {describe(a.node)} {shape_text(a.node.dims)}"
    if first != second and not (isinstance(first, int) and isinstance(second, int)):
        raise ShapeError.between(
            first, second, text, why="how many elements it has is not known",
            nearest=dim_hint(first, second),
        )  # fmt: skip
    masked = _masked(a, offset, rows, columns)
    if index(offset) != 0:
        there = f"j == i {'-' if offset < 0 else '+'} {abs(offset)}"
        raise UnsupportedProgram(
            f"{text} from {offset} on",
            why="its elements lie in other rows than their numbers",
            nearest=f"Write `np.sum(np.where({there}, v, 0), axis=1)` with `i, j = pg.indices(v)`: "
            "0 in rows without an element",
        )
    more_rows = isinstance(first, int) and isinstance(second, int) and first > second
    longer = rows if more_rows else columns
    found = summed(masked, longer)
    kept = columns if longer == rows else rows
    own = [at for at in range(a.ndim) if at != longer].index(kept)
    order = [at for at in range(found.ndim) if at != own]
    return found.transpose(*order, own) if found.ndim > 1 else found


def _two(name: str, a: Traced, axis1: Any, axis2: Any) -> tuple[int, int]:
    """Two axes, counted from 0."""
    text, rank = f"{name} of {describe(a.node)} {shape_text(a.node.dims)}", a.ndim
    if rank < 2:
        raise ShapeError(text, why="a diagonal is of two axes")
    try:
        found = index(axis1), index(axis2)
    except (TypeError, TraceError):
        raise TraceError(
            f"{text} along the axes {echo(axis1)} and {echo(axis2)}",
            nearest="Axes are whole numbers",
        ) from None
    if not all(-rank <= axis < rank for axis in found) or len({axis % rank for axis in found}) < 2:
        raise ShapeError(
            f"{text} along axes {found[0]} and {found[1]}",
            nearest=f"Name two of them, from {-rank} to {rank - 1}",
        )
    return found[0] % rank, found[1] % rank


def _masked(a: Traced, offset: Any, rows: int, columns: int) -> Any:
    """The value where it is on a diagonal."""
    try:
        distance = index(offset)
    except (TypeError, TraceError):
        raise TraceError(
            f"the diagonal {echo(offset)}", nearest="Write a whole number: np.trace(v, 1)"
        ) from None
    own = a.indices()
    i, j = own[rows], own[columns]
    inside = j == (i + distance if distance else i)
    return POINTWISE["where"](inside, a, -0.0)


def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    """One element of each row, at the column that a number says: ``np.take_along_axis``.

    ``pg.logsumexp(z, axis=1) - np.take_along_axis(z, t[:, None], axis=1)[:, 0]`` is the cross
    entropy of rows whose right column is `t`.

    Args:
        arr: a traced value, or an array.
        indices: whole numbers, an axis for each of the value's, of which the one along `axis` has
            size 1. They count from 0, negative ones from the end. Of a number that names no
            element comes NaN, where NumPy raises an error.
        axis: along which elements are chosen.

    Returns:
        The elements, with an axis of size 1 where they were chosen.

    Raises:
        ShapeError: other numbers of axes, or sizes.
        DTypeError: indices that are no whole numbers.
        UnsupportedProgram: several indices a row, or no axis.
    """
    traced = first_symbolic((arr, indices))
    if traced is None:
        return np.take_along_axis(arr, _whole(indices), axis)
    value, named = (
        one if isinstance(one, Traced) else Traced(traced.trace, traced.trace.lift(one, "indices"))
        for one in (arr, indices)
    )
    text = f"take_along_axis of {describe(value.node)} {shape_text(value.node.dims)}"
    if axis is None:
        raise UnsupportedProgram(
            f"{text} along no axis", why="its elements would be in one row", nearest="Pass axis=-1"
        )
    rank = value.ndim
    try:
        place = index(axis)
    except (TypeError, TraceError):
        raise TraceError(f"{text} along the axis {echo(axis)}", nearest="Pass a number") from None
    if not -rank <= place < rank:
        raise ShapeError(f"{text} along axis {place}", nearest=f"Axes are {-rank} to {rank - 1}")
    place %= rank
    _require_indices(text, value, named, place)
    extent = Traced(value.trace, value.trace.extent(value.node.dims[place]))
    where = POINTWISE["where"]
    column, numbers = value.indices()[place], named.astype(F32)
    counted = where(numbers < 0.0, numbers + extent, numbers)
    known = POINTWISE["logical_and"](counted >= 0.0, counted < extent)
    others = where(known, -0.0, math.nan)
    return summed(where(column == counted, value, others), place, True)


def _require_indices(text: str, value: Traced, named: Traced, place: int) -> None:
    dims, own = value.node.dims, named.node.dims
    by = f"{text} by {describe(named.node)} {shape_text(own)}"
    if not _is_whole(named.node):
        source = named.node.source if isinstance(named.node, ViewNode) else named.node
        raise DTypeError(
            f"{by}, which is {named.dtype}",
            why="indices are whole numbers",
            nearest="Say s32 for them in the signature, and pass int32"
            if isinstance(source, InputNode)
            else f'Write ({describe(source)}).astype("s32")',
        )
    if len(own) != len(dims):
        new = ", ".join("None" if at == place else ":" for at in range(len(dims)))
        raise ShapeError(
            by,
            why="indices have an axis for each of the value's",
            nearest=f"Write {describe(named.node)}[{new}]" if len(own) + 1 == len(dims) else "",
        )
    if own[place] != 1:
        raise UnsupportedProgram(
            by,
            why="of each row one element is chosen, by a fold of the row",
            nearest="Take one column of indices at a time, as in t[:, :1]",
        )
    for at, (extent, other) in enumerate(zip(dims, own, strict=True)):
        if at != place and other not in (1, extent):
            raise ShapeError.between(extent, other, by, nearest=dim_hint(extent, other))


def _is_whole(node: Node) -> bool:
    """Whether a value is a whole number by what it is computed of: s32 and other numbers."""
    if isinstance(node, ViewNode):
        return _is_whole(node.source)
    if isinstance(node, ScalarNode):
        return float(node.value).is_integer()
    if isinstance(node, ApplyNode) and node.dtype == F32:
        args = node.args[1:] if node.function == "where" else node.args
        return node.function in _WHOLE and all(map(_is_whole, args))
    return node.dtype.kind == "int"


def _whole(indices: Any) -> Any:
    """Indices of arrays on which the user's function runs as it is written."""
    return np.asarray(indices).astype(np.int64) if isinstance(indices, Exact) else indices


def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """Numbers in the place of NaN and of infinities, as ``np.nan_to_num``.

    Args:
        x: a traced value, or an array.
        copy: of no account to a traced value, which is never changed.
        nan: what NaN becomes.
        posinf: what inf becomes; None: the largest number of the value's type, which is f32 for all
            that is computed.
        neginf: what -inf becomes; None: the same, negative.
    """
    if not isinstance(x, Traced):
        return np.nan_to_num(x, copy, nan, posinf, neginf)
    if x.dtype.kind != "float":
        return x  # whole numbers and truth values are numbers
    where, most = POINTWISE["where"], _largest(x.dtype)
    above, below = most if posinf is None else posinf, -most if neginf is None else neginf
    finite = where(x == math.inf, above, where(x == -math.inf, below, x))
    return where(POINTWISE["isnan"](x), nan, finite)


def _largest(kind: DType) -> float:
    """The largest number of a type."""
    largest: float = float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]
    return largest


def picked(v: Any, key: Any) -> Any:
    """One element of each row, as NumPy's ``v[np.arange(M), t]``; None: the subscript is another.

    Args:
        v: a traced value.
        key: a subscript.

    Raises:
        UnsupportedProgram: an array of numbers beside one of indices that does not name all rows in
            their order.
    """
    if not isinstance(key, tuple) or not any(isinstance(one, np.ndarray) for one in key):
        return None
    if not any(isinstance(one, Traced) for one in key):
        return None
    rows, columns = key if len(key) == 2 else (None, None)
    dims = v.node.dims
    if isinstance(rows, np.ndarray) and isinstance(columns, Traced) and len(dims) == 2:
        every = (len(rows),) == dims[:1] and np.array_equal(rows, np.arange(len(rows)))
        if every and columns.ndim == 1:
            return take_along_axis(v, columns[:, None], axis=1)[:, 0]
    raise UnsupportedProgram(
        f"{describe(v.node)} {shape_text(dims)} by arrays of numbers and of indices",
        why="elements are chosen one of each row, in the order of rows",
        nearest="Write np.take_along_axis(v, t[:, None], axis=1)[:, 0]",
    )


PUBLIC: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (trace, diagonal, take_along_axis, nan_to_num)
}
