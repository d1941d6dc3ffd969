"""How a node addresses what it is computed from: through views, and where axes stretch."""

from __future__ import annotations

from collections.abc import Mapping

from polygen.frontend.describing import describe
from polygen.frontend.forms import Form, composed
from polygen.frontend.gathering import gathered
from polygen.frontend.indexing import affine, form_of, index_of
from polygen.frontend.indices import Place
from polygen.frontend.nodes import (
    ApplyNode,
    Dims,
    InputNode,
    Node,
    ProductNode,
    Reach,
    ViewNode,
)
from polygen.frontend.program import Dim, Gathered, Index, Within
from polygen.frontend.reshaping import mixed_rows, not_affine

Indices = tuple[Index, ...]


def unview(node: Node, index: Indices, sizes: Mapping[str, Dim]) -> tuple[Node, Indices]:
    """The node under views, and the index that reaches the same element.

    Args:
        node: perhaps a view.
        index: of its element.
        sizes: of the iterators.
    """
    while isinstance(node, ViewNode):
        index = tuple(
            _reached(node, reach, index, extent, sizes)
            for reach, extent in zip(node.reaches, node.source.dims, strict=True)
        )
        node = node.source
    return node, index


def _reached(
    view: ViewNode, reach: Reach, index: Indices, extent: Dim, sizes: Mapping[str, Dim]
) -> Index:
    """What indexes an axis of a view's source."""
    if reach.form is None and not reach.places and reach.axis is None:
        return reach.offset
    merged = reach.per > 1 and any(one.form is not None for one in view.reaches)
    digits = any(isinstance(index[axis], Form) for axis in reach.met)
    if reach.form is None and not (reach.places or merged or digits):
        assert reach.axis is not None
        place = affine(index[reach.axis], reach.scale, reach.offset, reach.per)
        return place if reach.rows is None else gathered((place,), reach.rows, extent)
    if any(isinstance(index[axis], Gathered) for axis in reach.met):
        raise mixed_rows(describe(view))
    if reach.rows is not None:
        return _named(view, reach, reach.rows, index, extent, sizes)
    return _composed(view, reach.whole, index, sizes)


def _named(
    view: ViewNode,
    reach: Reach,
    rows: InputNode,
    index: Indices,
    extent: Dim,
    sizes: Mapping[str, Dim],
) -> Index:
    """What indexes an axis of which an array of numbers names the elements."""
    forms = reach.places or (reach.whole,)
    places = tuple(_composed(view, form, index, sizes) for form in forms)
    if len(places) == 1 and isinstance(places[0], Form):  # several axes along one vector
        raise mixed_rows(describe(view))
    return gathered(places, rows, extent)


def _composed(view: ViewNode, whole: Form, index: Indices, sizes: Mapping[str, Dim]) -> Place:
    """A form over the numbers of a view's axes, where these are at an index."""
    places = {term.of: index[int(term.of)] for term in whole.terms}
    forms = {
        of: form_of(one) for of, one in places.items() if not isinstance(one, Gathered | Within)
    }
    found = composed(whole, forms, sizes)
    if found is None:
        raise not_affine(describe(view))
    return index_of(found)


def stretched(dims: Dims, index: Indices, extents: Dims) -> Indices:
    """An index along longer extents, as an index of axes of which some have size 1."""
    return tuple(
        at if dim == extent else 0 for dim, at, extent in zip(dims, index, extents, strict=True)
    )


def argument_index(dims: Dims, index: Indices, arg: Node) -> Indices:
    """How a node of dims `dims`, indexed by `index`, addresses an argument broadcast to it."""
    skip = len(dims) - len(arg.dims)
    return stretched(arg.dims, index[skip:], dims[skip:])


def arguments(node: Node, index: Indices, sizes: Mapping[str, Dim]) -> list[tuple[Node, Indices]]:
    """The arguments of a pointwise function under their views, and the index of each."""
    if not isinstance(node, ApplyNode):
        return []
    return [unview(arg, argument_index(node.dims, index, arg), sizes) for arg in node.args]


def first_product(
    root: Node, index: Indices, sizes: Mapping[str, Dim]
) -> tuple[ProductNode, Indices] | None:
    """The first product that a value is computed from, and the index at which it is read."""
    stack = [unview(root, index, sizes)]
    seen = set(stack)
    while stack:
        node, at = stack.pop()
        if isinstance(node, ProductNode):
            return node, at
        behind = arguments(node, at, sizes)
        stack.extend(one for one in reversed(behind) if one not in seen)
        seen.update(behind)
    return None
