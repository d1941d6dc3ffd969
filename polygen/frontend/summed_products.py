"""Sums of products of elements, as products, where a function has no other.

    np.vdot(a, b), np.inner(a, b), (a * b).sum()    a[K], b[K]     ->  a @ b
    (x[:, None, :] * w[None, :, :]).sum(-1)         x[M,K], w[N,K] ->  x @ w.T

Beside a product such a sum is a fold, in f32, of what is there anyway. Alone it is a product: both
factors are arguments, as they are or cast, so that none is rounded; both run along all that is
summed; and what is left is a number, or one of them has an axis that the other has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polygen.frontend.nodes import (
    ApplyNode,
    FoldNode,
    InputNode,
    Node,
    ProductNode,
    ViewNode,
)
from polygen.frontend.rebuilding import every_node, rebuilt
from polygen.frontend.shapes import ProductAxes
from polygen.frontend.subscripts import notation

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace


def with_products(trace: Trace, roots: Sequence[Node]) -> list[Node]:
    """Values whose sums of products of elements are products, if nothing else is one.

    Args:
        trace: of the values.
        roots: what the function returns and stores.

    Raises:
        DTypeError: no tensor core multiplies the factors.
    """
    if any(isinstance(node, ProductNode) for node in every_node(roots)):
        return list(roots)

    def change(node: Node, reads: Sequence[Node]) -> Node | None:
        if not isinstance(node, FoldNode) or node.function != "sum":
            return None
        return _product(trace, node, reads[0])

    return rebuilt(trace, roots, change)


def _product(trace: Trace, fold: FoldNode, terms: Node) -> Node | None:
    """A sum of products of two arguments as a product; None: it is none."""
    if not isinstance(terms, ApplyNode) or terms.function != "mul":
        return None
    if not all(map(_is_argument, terms.args)):
        return None
    if any(isinstance(one, ApplyNode) for one in terms.args) and _differ(terms.args):
        return None
    kept = [axis for axis in range(len(terms.dims)) if axis not in fold.axes]
    label = {axis: number for number, axis in enumerate((*kept, *fold.axes))}
    sides, labels = [], []
    for factor in terms.args:
        shift = len(terms.dims) - len(factor.dims)
        own = [
            axis
            for axis, dim in enumerate(factor.dims)
            if dim != 1 or terms.dims[axis + shift] == 1
        ]
        sides.append(trace.view(factor, own))
        labels.append(tuple(label[axis + shift] for axis in own))
    left, right = map(set, labels)
    summed = {label[axis] for axis in fold.axes}
    if not summed <= left & right or (kept and not left ^ right):
        return None
    extents = tuple(terms.dims[axis] for axis in (*kept, *fold.axes))
    dims, along = extents[: len(kept)], extents[len(kept) :]
    axes = ProductAxes(labels[0], labels[1], dims, along)
    return trace.product(sides[0], sides[1], axes, notation(axes))


def _is_argument(node: Node) -> bool:
    """Whether it is one, or a part of one, as it is or cast."""
    while isinstance(node, ApplyNode) and node.function == "cast":
        (node,) = node.args
    source = node.source if isinstance(node, ViewNode) else node
    return isinstance(source, InputNode) and bool(source.dims)


def _differ(factors: Sequence[Node]) -> bool:
    """Whether one would be rounded to the type of the other, after it was cast."""
    return len({factor.dtype for factor in factors}) > 1
