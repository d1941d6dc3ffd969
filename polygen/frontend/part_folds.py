"""Folds of a value that elements read in parts: over what the parts have at one place.

A norm in front of a rotation by angles reads the product whole, and what is turned reads halves of
it, which are products with halves of the weights (`polygen.frontend.taking`):

    q = pg.rms_norm(x @ w.T, g)
    pg.concatenate([q[:, :64] * c - q[:, 64:] * s, q[:, 64:] * c + q[:, :64] * s], axis=1)

Whoever computes an element of both halves has the terms of both, so that the fold is one over 64
places, of what these have together: ``sum(a * a + b * b)``. The product of all columns is then
computed by nobody. Where the parts are not as many elements each, and all elements together, or the
whole product is read in another way as well, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from polygen.frontend.nodes import (
    Dims,
    FoldNode,
    Node,
    ProductNode,
    Reach,
    ViewNode,
    read_by,
)
from polygen.frontend.program import Dim
from polygen.frontend.rebuilding import every_node, rebuilt

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace

_COMBINED = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """The elements ``first + step * i`` of an axis, for i below `count`."""

    first: int
    step: int
    count: int

    @property
    def places(self) -> range:
        """Where they are."""
        return range(self.first, self.first + self.step * self.count, self.step)


def folded_by_parts(trace: Trace, roots: Sequence[Node]) -> list[Node]:
    """Values of which folds over what is read in parts are over the parts.

    Args:
        trace: of the values.
        roots: what the function returns and stores.

    Returns:
        The values, in the same order and of the same dims.
    """
    every = every_node(roots)
    products = [one for one in every if isinstance(one, ProductNode)]
    shares = {
        fold: found
        for fold in every
        if isinstance(fold, FoldNode) and (found := _shares(fold, products))
    }
    if not shares:
        return list(roots)
    wholes = {product for fold in shares for product in _products(fold.value)}

    def change(node: Node, reads: Sequence[Node]) -> Node | None:
        found = shares.get(node) if isinstance(node, FoldNode) else None
        return _over(trace, node, reads[0], found) if found else None

    made = rebuilt(trace, roots, change)
    return list(roots) if wholes & {*every_node(made)} else made


def _terms(value: Node) -> list[Node]:
    """What elements of a value are made of; of results of folds they themselves."""
    found, stack = dict[Node, None](), [value]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += () if isinstance(node, (ProductNode, FoldNode)) else read_by(node)
    return [*found]


def _products(value: Node) -> list[ProductNode]:
    return [one for one in _terms(value) if isinstance(one, ProductNode)]


def _over(trace: Trace, fold: Node, value: Node, shares: Sequence[Share]) -> Node:
    """The fold of a value, over what its parts have at one place."""
    assert isinstance(fold, FoldNode)
    (along,) = fold.axes
    dims: Dims = (*value.dims[:along], shares[0].count, *value.dims[along + 1 :])
    parts = []
    for one in shares:
        reaches = [Reach(axis) for axis in range(len(dims))]
        reaches[along] = Reach(along, one.step, one.first)
        parts.append(trace.reach(value, reaches, dims))
    together = reduce(lambda a, b: trace.apply(_COMBINED[fold.function], a, b), parts)
    return trace.make(FoldNode, fold.function, together, fold.axes, fold.dims, fold.dtype)


def _shares(fold: FoldNode, products: Iterable[ProductNode]) -> tuple[Share, ...]:
    """The parts that elements read of all products behind a fold; none: there are no such."""
    if fold.function not in _COMBINED or len(fold.axes) > 1 or not _pointwise(fold.value):
        return ()
    found, extent = set(), fold.value.dims[fold.axes[0]]
    for whole in _products(fold.value):
        axis = fold.axes[0] - len(fold.value.dims) + len(whole.dims)
        shares = {_share(whole, part, axis) for part in products if part is not whole}
        own = (one for one in shares if one is not None and _inside(one, extent))
        found.add(tuple(sorted(own)))
    if len(found) != 1:
        return ()
    (parts,) = found
    places = sorted(place for one in parts for place in one.places)
    alike = len({one.count for one in parts}) == 1
    return parts if alike and isinstance(extent, int) and places == [*range(extent)] else ()


def _inside(share: Share, extent: Dim) -> bool:
    """Whether elements are of the axis, and not of what lies beside it in the same arrays."""
    ends = (share.places[0], share.places[-1])
    return isinstance(extent, int) and all(0 <= one < extent for one in ends)


def is_part(whole: ProductNode, part: ProductNode) -> bool:
    """Whether a product has some of another's elements along one axis, and all along others."""
    shares = ((_share(whole, part, at), extent) for at, extent in enumerate(whole.dims))
    return part is not whole and any(one and _inside(one, extent) for one, extent in shares)


def _pointwise(value: Node) -> bool:
    """Whether a value has the axes of its products: no view is in between."""
    return not any(isinstance(one, ViewNode) and _products(one) for one in _terms(value))


def _share(whole: ProductNode, part: ProductNode, axis: int) -> Share | None:
    """What a product has of another's elements along an axis, whole along all others."""
    if any(
        getattr(whole, field) != getattr(part, field)
        for field in ("lhs_labels", "rhs_labels", "summed", "operand", "ends")
    ) or not 0 <= axis < len(whole.dims):
        return None
    count = part.dims[axis]
    dims = (*whole.dims[:axis], count, *whole.dims[axis + 1 :])
    if part.dims != dims or not isinstance(count, int):
        return None
    found = set()
    for all_of, some_of, labels in (
        (whole.lhs, part.lhs, whole.lhs_labels),
        (whole.rhs, part.rhs, whole.rhs_labels),
    ):
        if axis in labels:
            found.add(_steps(all_of, some_of, labels.index(axis)))
        elif all_of is not some_of:
            return None
    if len(found) != 1:
        return None
    (steps,) = found
    return Share(*steps, count) if steps else None


def _steps(whole: Node, part: Node, axis: int) -> tuple[int, int] | None:
    """Where one view of an array begins in another, along an axis, and by which steps it goes."""
    (source, reaches), (other, of_part) = _read(whole), _read(part)
    if source is not other:
        return None
    found = None
    for one, own in zip(reaches, of_part, strict=True):
        if one == own and axis not in one.met:
            continue
        if one.rows is not None or own.rows is not None or found is not None:
            return None
        terms, steps = ({term.of: term for term in each.whole.terms} for each in (one, own))
        scales = [each.pop(axis, None) for each in (terms, steps)]
        if terms != steps or None in scales:
            return None
        first, second = scales
        assert first is not None and second is not None
        behind = own.whole.offset - one.whole.offset
        plain = all((term.per, term.modulo) == (1, 0) for term in (first, second))
        if not plain or second.scale % first.scale or behind % first.scale:
            return None
        found = behind // first.scale, second.scale // first.scale
    return found


def _read(operand: Node) -> tuple[Node, Sequence[Reach]]:
    """What an operand is a view of, and where it reads it."""
    if isinstance(operand, ViewNode):
        return operand.source, operand.reaches
    return operand, [Reach(axis) for axis in range(len(operand.dims))]
