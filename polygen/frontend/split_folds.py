"""Folds over a part of an axis: the axis is split in what the value is computed from.

A reshape of what a product gives is a matter of addresses, and the product stays one matrix. Not
where a fold meets the reshape: ``pg.rms_norm((x @ w.T).reshape(S, 16, 128))`` folds over 128 of
2048 columns, which are an axis of the product's own only in

    einsum("sk,hdk->shd", x, w.reshape(16, 128, K))

So views of a value that split an axis part of which a fold runs over become views of what the value
is computed from (`polygen.frontend.taking`), wherever they stand. Where the value is read in
another way, too, nothing is changed: two products would be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polygen.frontend.nodes import ApplyNode, FoldNode, Node, ViewNode
from polygen.frontend.part_folds import is_part
from polygen.frontend.rebuilding import every_node, rebuilt
from polygen.frontend.taking import products_of, split_axes, taken, with_single

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace


def split_where_folded(trace: Trace, roots: Sequence[Node]) -> list[Node]:
    """Values of which folds over parts of axes are over axes.

    Args:
        trace: of the values.
        roots: what the function returns and stores.

    Returns:
        The values, in the same order and of the same dims.
    """
    views = {view for fold in _folds(roots) for view in _split_by(fold)}
    if not views:
        return list(roots)
    before = {one for view in views for one in products_of(view.source)}
    ways = {_way(view) for view in views}
    heads = {one for view in views for one in _of_one(view)}

    def change(node: Node, reads: Sequence[Node]) -> Node | None:
        if not isinstance(node, ViewNode):
            return None
        own = products_of(node.source)
        if _way(node) not in ways or before.isdisjoint(own):
            parts = (any(is_part(whole, one) for whole in before) for one in own)
            if not (heads & _of_one(node) and all(parts)):
                return None
        return taken(trace, reads[0], with_single(node), node.dims)

    found = rebuilt(trace, roots, change)
    return list(roots) if before & {*every_node(found)} else found


def _way(view: ViewNode) -> frozenset[Any]:
    """How a view splits axes, which are counted from the last one: the steps that they become."""
    rank = len(view.source.dims)
    return frozenset(
        (axis - rank, *((digit.scale, view.dims[int(digit.of)]) for digit in digits))
        for axis, digits in split_axes(view).items()
    )


def _of_one(view: ViewNode) -> frozenset[tuple[int, int]]:
    """The axes, counted from the last one, of which a view makes several, all but one of them of
    one index: as those of a single head are. With how many.
    """
    rank = len(view.source.dims)
    return frozenset(
        (axis - rank, len(digits))
        for axis, digits in split_axes(view).items()
        if [view.dims[int(digit.of)] for digit in digits].count(1) == len(digits) - 1
    )


def _folds(roots: Sequence[Node]) -> list[FoldNode]:
    return [one for one in every_node(roots) if isinstance(one, FoldNode)]


def _split_by(fold: FoldNode) -> list[ViewNode]:
    """The views below a fold that split an axis some of whose parts, not all, are folded."""
    rank = len(fold.value.dims)
    stack, seen, found = [fold.value], set[Node](), []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, ViewNode):
            own = {axis - rank + len(node.dims) for axis in fold.axes}
            parts = [[one.of in own for one in digits] for digits in split_axes(node).values()]
            if any(any(one) and not all(one) for one in parts):
                found.append(node)
        elif isinstance(node, ApplyNode):  # whose arguments have its last axes
            stack.extend(node.args)
    return found
