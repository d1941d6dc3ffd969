"""Concatenation and parts as functions: on traced values they are recorded, on arrays NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from polygen.errors import PolygenError, ShapeError, TraceError, shortened, without_number
from polygen.frontend.describing import describe
from polygen.frontend.joining import concatenated, part
from polygen.frontend.shapes import shape_text
from polygen.frontend.symbolic import first_symbolic
from polygen.frontend.traced import Traced


def concatenate(values: Sequence[Any], axis: int = 0) -> Any:
    """Values behind one another along an axis, as ``np.concatenate``.

    No array is made for it: ``x @ pg.concatenate([u, v]).T`` multiplies by two weights, and
    ``pg.concatenate([x @ u.T, pg.gelu(x @ v.T)], axis=1)`` stores two products beside each other.

    Args:
        values: traced values or arrays of one type, whose sizes along the axis are numbers and
            along all others the same.
        axis: along which; -1 is the last.

    Returns:
        The value, as long along the axis as all of them together.

    Raises:
        ShapeError: no such axis, other sizes, or a size along it that has no number.
        DTypeError: values of different types.
        TraceError: values that are no sequence of arrays.
    """
    traced = _traced(values, "concatenate")
    if traced is None:
        return np.concatenate(values, axis)
    nodes = [traced.trace.lift(_plain(value), "concatenate") for value in values]
    ranks = {len(node.dims) for node in nodes}
    if len(ranks) > 1 or 0 in ranks:
        shapes = ", ".join(f"{describe(node)} {shape_text(node.dims)}" for node in nodes)
        raise ShapeError(
            "values behind one another with other numbers of axes",
            why=shapes,
            nearest="Add axes of size 1: x[None]",
        )
    place = _axis(axis, ranks.pop(), "concatenate")
    return Traced(traced.trace, concatenated(traced.trace, nodes, place))


def stack(values: Sequence[Any], axis: int = 0) -> Any:
    """Values along a new axis, as ``np.stack``.

    Args:
        values: traced values or arrays of one shape and type.
        axis: the place of the new axis; -1 is the last.

    Returns:
        The value, with as many elements along the new axis as there are values.

    Raises:
        ShapeError: no such axis, or other sizes.
        DTypeError: values of different types.
        TraceError: values that are no sequence of arrays.
    """
    traced = _traced(values, "stack")
    if traced is None:
        return np.stack(values, axis)
    nodes = [traced.trace.lift(_plain(value), "stack") for value in values]
    each = [Traced(traced.trace, node) for node in nodes]
    ranks = {value.ndim for value in each}
    place = _axis(axis, max(ranks) + 1, "stack")
    if len(ranks) > 1:
        raise ShapeError(
            "values along a new axis with other numbers of axes",
            why=", ".join(f"{describe(v.node)} {shape_text(v.node.dims)}" for v in each),
            nearest="Stack values of one shape",
        )
    return concatenate([value[(slice(None),) * place + (None,)] for value in each], place)


def split(value: Any, sections: Any, axis: int = 0) -> list[Any]:
    """Parts of a value along an axis, as ``np.split``.

    ``q, k, v = pg.split(x @ w.T, 3, axis=-1)`` are three products with parts of w.

    Args:
        value: a traced value or an array, whose size along the axis is a number.
        sections: how many parts of the same size; or where each part but the first begins.
        axis: along which; -1 is the last.

    Returns:
        The parts.

    Raises:
        ShapeError: no such axis, a size along it that has no number, a number of parts that does
            not divide it, or parts without elements.
        TraceError: sections that are no whole numbers.
    """
    if not isinstance(value, Traced):
        return list(np.split(value, sections, axis))
    dims, text = value.node.dims, describe(value.node)
    place = _axis(axis, len(dims), "split")
    extent = dims[place]
    if isinstance(extent, str):
        _bounds(sections, None, text)  # what no number in its place would mend
        what = f"parts of {text} along {extent}"
        raise without_number(ShapeError, what, extent, "where they begin")
    bounds = [0, *_bounds(sections, extent, text), extent]
    pairs = list(pairwise(bounds))
    if any(not 0 <= start < end <= extent for start, end in pairs):
        raise ShapeError(
            f"parts of {text} from {', '.join(map(str, bounds[:-1]))} on",
            why=f"each has at least one of its {extent} elements",
            nearest="Say where parts begin in ascending order",
        )
    trace = value.trace
    return [Traced(trace, part(trace, value.node, place, *pair)) for pair in pairs]


def _bounds(sections: Any, extent: int | None, text: str) -> list[int]:
    """Where parts begin, but the first; None: of an axis whose size has no number."""
    if isinstance(sections, (tuple, list, np.ndarray)):
        return [_whole(one, text) for one in sections]
    count = _whole(sections, text)
    if extent is None and count < 1:
        raise ShapeError(f"{text} in {count} parts", nearest="Use 1 part, or more")
    if extent is None:
        return []
    if count < 1 or extent % count:
        near = next(n for n in range(min(max(count, 1), extent), 0, -1) if extent % n == 0)
        raise ShapeError(
            f"{text} in {count} parts of the same size",
            why=f"it has {extent} elements along the axis",
            nearest=f"Use {near} parts, or say where each begins",
        )
    return [extent // count * at for at in range(1, count)]


def _whole(value: Any, text: str) -> int:
    try:
        if not isinstance(value, bool):
            return index(value)
    except (TypeError, PolygenError):
        pass
    raise TraceError(
        f"parts of {text} by {shortened(repr(value))}",
        nearest="Say how many, or a list of whole numbers: where parts begin",
    )


def _axis(axis: Any, rank: int, what: str) -> int:
    try:
        place = index(axis)
    except (TypeError, PolygenError):
        place = rank
    if isinstance(axis, bool) or not -rank <= place < rank:
        raise ShapeError(
            f"{what} along axis {shortened(repr(axis))}",
            why=f"there are {rank} axes",
            nearest=f"Axes are {-rank} to {rank - 1}",
        )
    return place % rank


def _traced(values: Any, what: str) -> Traced | None:
    """The first traced value among several."""
    if isinstance(values, Traced):
        raise TraceError(
            f"{what} of {describe(values.node)}", nearest=f"Pass a list of values: {what}([a, b])"
        )
    found: Traced | None = first_symbolic(values)
    return found


def _plain(value: Any) -> Any:
    return value.node if isinstance(value, Traced) else value
