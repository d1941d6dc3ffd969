"""Views of views: where the outer one reads an axis of the innermost source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polygen.errors import ShapeError
from polygen.frontend.describing import describe
from polygen.frontend.forms import composed
from polygen.frontend.gathering import one_row
from polygen.frontend.nodes import Reach, ViewNode, named_at, reach_of
from polygen.frontend.program import Dim
from polygen.frontend.reshaping import mixed_rows, not_affine


def through(
    node: ViewNode, inner: Reach, outer: Sequence[Reach], extents: Mapping[int, Dim]
) -> Reach:
    """Where a view of a view reads an axis of the innermost source."""
    if inner.form is None and inner.axis is None and not inner.places:
        return inner
    merged = inner.per > 1 and any(reach.form is not None for reach in node.reaches)
    split = any(outer[axis].form is not None for axis in inner.met)
    if inner.form is not None or inner.places or merged or split:
        of_digits = _of_forms if inner.rows is None else _of_places
        return of_digits(node, inner, outer, extents)
    assert inner.axis is not None
    found = outer[inner.axis]
    if found.rows is not None:  # rows of a whole axis: `require_source`
        return found
    if inner.rows is not None and found.axis is None:
        raise one_row(inner.rows)
    if found.axis is None:
        return Reach(None, 1, inner.scale * (found.offset // inner.per) + inner.offset)
    several = extents.get(found.axis) != 1
    if inner.per > 1 and several and (found.scale != 1 or found.offset % inner.per):
        raise ShapeError(
            f"a part of elements of {describe(node.source)} that are repeated {inner.per} times",
            nearest="Take the part before repeating, as in pg.repeat(s[:4], 128, axis=0), or one "
            "that begins with the first of those that are the same",
        )
    return Reach(
        found.axis,
        inner.scale * found.scale,
        inner.scale * (found.offset // inner.per) + inner.offset,
        inner.per * found.per if several else 1,
        inner.rows,
    )


def _of_places(
    node: ViewNode, inner: Reach, outer: Sequence[Reach], extents: Mapping[int, Dim]
) -> Reach:
    """The same of what an array of numbers names: at which of its places."""
    assert inner.rows is not None
    if any(outer[axis].rows is not None for axis in inner.met):
        raise mixed_rows(describe(node))
    wholes = {axis: reach.whole for axis, reach in enumerate(outer) if reach.rows is None}
    places = []
    for place in inner.places or (inner.whole,):
        found = composed(place, wholes, extents)
        if found is None or found.padded:
            raise not_affine(describe(node))
        places.append(found)
    if not any(place.terms for place in places):
        raise one_row(inner.rows)
    return named_at(inner.rows, tuple(places))


def _of_forms(
    node: ViewNode, inner: Reach, outer: Sequence[Reach], extents: Mapping[int, Dim]
) -> Reach:
    """The same where one of the views splits or merges axes."""
    if inner.rows is not None or any(reach.rows is not None for reach in outer):
        raise mixed_rows(describe(node))
    places = {axis: reach.whole for axis, reach in enumerate(outer)}
    found = composed(inner.whole, places, extents)
    if found is None:
        raise not_affine(describe(node))
    return reach_of(found)
