"""Folds over a part of an axis: the axis is split in what the value is computed from.

A reshape of what a product gives is a matter of addresses, and the product stays one matrix. Not
where a fold meets the reshape: ``pg.rms_norm((x @ w.T).reshape(S, 16, 128))`` folds over 128 of
2048 columns, which are an axis of the product's own only in

    einsum("sk,hdk->shd", x, w.reshape(16, 128, K))

So views of a value that split an axis part of which a fold runs over become views of what the value
is computed from (`polygen.frontend.taking`), wherever they stand. What is returned of the whole
value beside them is computed of the same parts, and stored where these are of the whole. Where the
value is read in yet another way, nothing is changed: two products would be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from polygen.frontend.forms import Digit, Form
from polygen.frontend.indices import multiple
from polygen.frontend.nodes import (
    ApplyNode,
    FoldNode,
    JoinNode,
    Node,
    ProductNode,
    Reach,
    ViewNode,
    reach_of,
)
from polygen.frontend.part_folds import is_part
from polygen.frontend.program import Dim
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
    views = dict.fromkeys(view for fold in _folds(roots) for view in _split_by(fold))
    if not views:
        return list(roots)
    before = {one for view in views for one in products_of(view.source)}
    ways = dict.fromkeys(map(_way, views))
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

    found = [_in_parts(trace, root, before, ways) for root in rebuilt(trace, roots, change)]
    return list(roots) if before & {*every_node(found)} else found


def _in_parts(
    trace: Trace, root: Node, before: set[ProductNode], ways: Iterable[frozenset[Any]]
) -> Node:
    """What is returned of whole products that are split: of their parts, each in its place."""
    if before.isdisjoint(every_node([root])) or isinstance(root, JoinNode):
        return root
    for way in ways:
        if all(_fits(root, axis, steps) for axis, *steps in way):
            return _behind(trace, root, {axis + len(root.dims): steps for axis, *steps in way})
    if isinstance(root, ViewNode):
        return trace.reach(_in_parts(trace, root.source, before, ways), root.reaches, root.dims)
    return root


def _fits(root: Node, axis: int, steps: Sequence[tuple[int, Dim]]) -> bool:
    """Whether a value has an axis that is split so: digits of a number, all of its indices."""
    (_, first), *others = steps
    counts = [count for _, count in others if isinstance(count, int)]
    scales = [prod(counts[at:]) for at in range(len(steps))]
    if len(root.dims) + axis < 0 or [scale for scale, _ in steps] != scales:
        return False
    return len(counts) == len(others) and root.dims[axis] == multiple(first, scales[0])


def _behind(trace: Trace, root: Node, split: Mapping[int, Sequence[tuple[int, Dim]]]) -> Node:
    """A value that is computed of parts of axes, with the axes as they were."""
    dims: list[Dim] = []
    reaches, back = [], []
    for axis, extent in enumerate(root.dims):
        steps = split.get(axis, [(1, extent)])
        places = range(len(dims), len(dims) + len(steps))
        digits = (Digit(at, scale) for at, (scale, _) in zip(places, steps, strict=True))
        reaches.append(reach_of(Form(tuple(digits))))
        dims += [count for _, count in steps]
        if axis not in split:
            back.append(Reach(axis))
            continue
        for number, (scale, count) in enumerate(steps):
            modulo = count if number and isinstance(count, int) else 0
            back.append(reach_of(Form((Digit(axis, per=scale, modulo=modulo),))))
    return trace.reach(taken(trace, root, reaches, tuple(dims)), back, root.dims)


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
