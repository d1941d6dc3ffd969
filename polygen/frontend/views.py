"""Subscripts and permutations of axes: what an array's indexing keeps, as reaches into its source.

A slice needs the number of elements it keeps, so an axis of symbolic size can only be taken whole,
or at its first element, which every size has.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from polygen.errors import PolygenError, ShapeError, TraceError, echo, shortened, without_number
from polygen.frontend.names import INDEX_HINT
from polygen.frontend.nodes import Dims, Reach
from polygen.frontend.program import Dim
from polygen.frontend.shapes import shape_text

_ROWS_AND_COLUMNS = 2


def subscript(key: Any, text: str, dims: Dims) -> tuple[list[Reach], list[Dim]]:
    """What indexing by `key` reads, and the dims that remain.

    Args:
        key: a slice with constant bounds, a whole number, None for a new axis, an ellipsis, or a
            tuple of them.
        text: how the value reads, for messages.
        dims: its dims.

    Returns:
        Per axis of the value where it is read, and the view's dims.

    Raises:
        TraceError: an index that is none of those, too many of them, or one that needs the number
            behind a symbolic size.
        ShapeError: nothing is left, or an index is out of range.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    where = f"indexing of {text} {shape_text(dims)}"
    taken = sum(item is not None and item is not Ellipsis for item in keys)
    dots = [position for position, item in enumerate(keys) if item is Ellipsis]
    if taken > len(dims) or len(dots) > 1:
        given = f"{taken} indices" if taken > len(dims) else "several ellipses"
        raise TraceError(f"{where} with {given}", nearest=f"It has {len(dims)} axes")
    place = dots[0] if dots else len(keys)
    keys[place : place + 1] = [slice(None)] * (len(dims) - taken)
    reaches: list[Reach] = []
    kept: list[Dim] = []
    for item in keys:
        if item is None:
            kept.append(1)
            continue
        reach, size = _axis(item, len(kept), dims[len(reaches)], where)
        reaches.append(reach)
        if size is not None:
            kept.append(size)
    return reaches, kept


def _axis(item: Any, axis: int, dim: Dim, where: str) -> tuple[Reach, Dim | None]:
    """Where one axis is read when it becomes `axis`, and its size; None: only at one place."""
    shown = _shown(item)
    if isinstance(item, slice):
        bounds = [_number(bound, where, shown) for bound in (item.start, item.stop, item.step)]
        if bounds[0] in (None, 0) and bounds[1] is None and bounds[2] in (None, 1):
            return Reach(axis), dim
        if bounds[2] == 0:
            raise ShapeError(f"{where} with {shown}", why="the step is 0")
        if isinstance(dim, str):
            if _nothing(*bounds):
                raise ShapeError(f"{where} with {shown}", why=f"nothing is left, whatever {dim} is")
            raise _symbolic(dim, where, shown, bounds[2] or 1)
        places = range(*slice(*bounds).indices(dim))
        if not places:
            raise ShapeError(f"{where} with {shown}", why=f"nothing is left of {dim} elements")
        return Reach(axis, places.step, places.start), len(places)
    place = _number(item, where, shown)
    if place is None:
        raise _unknown(where, shown)
    if isinstance(dim, str) and place != 0:
        raise _symbolic(dim, where, shown)
    if isinstance(dim, int) and not -dim <= place < dim:
        raise ShapeError(f"{where} with {shown}", why=f"the axis has {dim} elements")
    return Reach(None, offset=place + dim if isinstance(dim, int) and place < 0 else place), None


def _nothing(start: int | None, stop: int | None, step: int | None) -> bool:
    """Whether a slice is empty for every size: both bounds are counted from the same end."""
    if stop is None or (start is None and (step or 1) < 0):
        return False
    first = start or 0
    return (first < 0) == (stop < 0) and not range(first, stop, step or 1)


def _number(item: Any, where: str, shown: str) -> int | None:
    """A whole number; None stays None."""
    if item is None:
        return None
    try:
        if isinstance(item, bool):
            raise TypeError
        return index(item)
    except (TypeError, PolygenError):
        raise _unknown(where, shown) from None


def _shown(item: Any) -> str:
    if not isinstance(item, slice):
        return echo(item)
    start, stop = ("" if bound is None else repr(bound) for bound in (item.start, item.stop))
    return shortened(f"{start}:{stop}" + ("" if item.step is None else f":{item.step!r}"))


def _unknown(where: str, shown: str) -> TraceError:
    return TraceError(
        f"{where} with {shown}",
        nearest=INDEX_HINT,
    )


def _symbolic(dim: str, where: str, shown: str, step: int = 1) -> TraceError:
    apart = (
        f". Or pass it with an axis of its own for the steps, […, {step}, …], and take one of it"
    )
    what, why = f"{where} with {shown}", "which elements that keeps"
    return without_number(TraceError, what, dim, why, apart * (step > 1))


def diagonal(k: Any, text: str, dims: Dims) -> int:
    """The number of a diagonal, 0 for the main one.

    Args:
        k: as ``np.tril`` takes it.
        text: the value, for messages.
        dims: of the value.

    Raises:
        ShapeError: the value has no rows and columns.
        TraceError: the diagonal is no whole number.
    """
    if len(dims) < _ROWS_AND_COLUMNS:
        raise ShapeError(
            f"a triangle of {text} {shape_text(dims)}", nearest="It needs rows and columns"
        )
    try:
        if not isinstance(k, bool):
            return index(k)
    except TypeError:
        pass
    raise TraceError(
        f"the diagonal {shortened(repr(k))}", nearest="Write a whole number, as np.tril(v, 1)"
    )


def repetition(repeats: Any, axis: Any, dims: Dims) -> tuple[int, int]:
    """How often elements are repeated, and along which axis, counted from 0.

    Raises:
        ShapeError: not a whole number from 1 on, or no axis.
    """
    try:
        count, place = index(repeats), index(axis)
        fits = not isinstance(repeats, bool) and count >= 1
        if fits and not -len(dims) <= place < len(dims):
            raise ShapeError(
                f"repeat of {shape_text(dims)} by {count} along axis {place}",
                nearest=f"Axes are {-len(dims)} to {len(dims) - 1}, as in pg.repeat(s, 128, axis=1)"
                if dims
                else "It has no axes",
            )
    except TypeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"repeat of {shape_text(dims)} by {shortened(repr(repeats))} along axis {axis!r}",
            why="elements are repeated a constant number of times, along one axis",
            nearest="Write pg.repeat(s, 128, axis=1)",
        )
    return count, place % len(dims)


def permutation(axes: Sequence[Any], text: str, rank: int) -> list[int]:
    """The axes of a transposition, each counted from 0.

    Raises:
        ShapeError: they do not name each axis once.
    """
    try:
        order = [index(axis) for axis in axes]
    except TypeError:
        order = []
    order = [axis + rank if axis < 0 else axis for axis in order]
    if sorted(order) != list(range(rank)):
        raise ShapeError(
            f"transpose of {text} to axes {tuple(axes)}",
            why=f"it has {rank} axes",
            nearest="Name each of them once",
        )
    return order


def swapped(first: Any, second: Any, text: str, rank: int) -> list[int]:
    """All axes in order, but for two that change places.

    Raises:
        ShapeError: there are no such axes.
    """
    order = list(range(rank))
    try:
        one, other = order[index(first)], order[index(second)]
    except (IndexError, TypeError):
        raise ShapeError(
            f"axes {first!r} and {second!r} of {text} change places",
            why=f"it has {rank} axes",
            nearest=f"Axes are -{rank} to {rank - 1}" if rank else "",
        ) from None
    order[one], order[other] = other, one
    return order
