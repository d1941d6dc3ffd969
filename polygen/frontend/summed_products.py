"""Sums of products of elements, as products, where a function has no other.

    np.vdot(a, b), np.inner(a, b), (a * b).sum()    a[K], b[K]     ->  a @ b
    (x[:, None, :] * w[None, :, :]).sum(-1)         x[M,K], w[N,K] ->  x @ w.T
    (x * a).sum()                                   x[M,K], a[K]   ->  (x @ a).sum()

Beside a product such a sum is a fold, in f32, of what is there anyway. Alone it is a product: both
factors are arguments, as they are or cast, so that none is rounded; it sums along the axes that
both have, and a fold adds up what is left along the others; and what a product leaves is a number,
or one of its factors has an axis that the other has not, or there is one element along the axes
that both have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polygen.errors import UnsupportedProgram
from polygen.frontend.describing import describe
from polygen.frontend.folding import folded
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
        UnsupportedProgram: such a sum is no product, and there is no other.
    """
    if any(isinstance(node, ProductNode) for node in every_node(roots)):
        return list(roots)

    def change(node: Node, reads: Sequence[Node]) -> Node | None:
        if not isinstance(node, FoldNode) or node.function != "sum":
            return None
        return _product(trace, node, reads[0])

    found = rebuilt(trace, roots, change)
    every = list(every_node(found))
    if not any(isinstance(node, ProductNode) for node in every):
        for node in every:
            _require_no_terms(node)
    return found


def _require_no_terms(node: Node) -> None:
    """Refuse a sum of products of elements that is no product, where nothing else is one."""
    if not isinstance(node, FoldNode) or node.function != "sum":
        return
    terms = node.value
    if not isinstance(terms, ApplyNode) or terms.function != "mul":
        return
    first, second = (_axes(factor, terms) for factor in terms.args)
    why = "polygen fuses work around a matrix product; a sum of products is one "
    nearest = "Compute it outside of the kernel, as np.sum(x * w, axis=-1)"
    if not {*node.axes} & first & second:
        why += "where both factors have an axis that is summed"
    elif not _are_factors(terms):
        why += "of arguments, as they are or cast to one type: what is computed would be rounded"
        nearest = 'Say how it is rounded, as in (a * 2).astype("bf16") @ b'
    else:
        why += "where one factor has an axis that the other has not"
        nearest += ": a product of tensor cores would compute one element a row"
    raise UnsupportedProgram(f"{describe(node)} reads no contraction", why=why, nearest=nearest)


def _product(trace: Trace, fold: FoldNode, terms: Node) -> Node | None:
    """A sum of products of two arguments as a product; None: it is none."""
    if not isinstance(terms, ApplyNode) or terms.function != "mul":
        return None
    if not _are_factors(terms):
        return None
    left, right = (_axes(factor, terms) for factor in terms.args)
    inner = [axis for axis in fold.axes if {axis} <= left & right]
    free = [axis for axis in range(len(terms.dims)) if axis not in inner]
    if left == right:  # of what both have one element along, one of them is enough
        right = {axis for axis in right if axis in inner or terms.dims[axis] != 1}
    if not inner or (free and not left ^ right):
        return None
    label = {axis: number for number, axis in enumerate((*free, *inner))}
    sides, labels = [], []
    for factor, along in zip(terms.args, (left, right), strict=True):
        shift = len(terms.dims) - len(factor.dims)
        sides.append(trace.view(factor, [axis - shift for axis in sorted(along)]))
        labels.append(tuple(label[axis] for axis in sorted(along)))
    extents = tuple(terms.dims[axis] for axis in (*free, *inner))
    axes = ProductAxes(labels[0], labels[1], extents[: len(free)], extents[len(free) :])
    found = trace.product(sides[0], sides[1], axes, notation(axes))
    others = tuple(at for at, axis in enumerate(free) if axis in fold.axes)
    return folded(trace, found, "sum", others, keepdims=False) if others else found


def _axes(factor: Node, terms: ApplyNode) -> set[int]:
    """The axes of terms that a factor has elements of its own along, or there is one element."""
    shift = len(terms.dims) - len(factor.dims)
    return {
        axis + shift
        for axis, dim in enumerate(factor.dims)
        if dim != 1 or terms.dims[axis + shift] == 1
    }


def _are_factors(terms: ApplyNode) -> bool:
    """Whether both factors are arguments, none of which would be rounded to multiply them."""
    cast = any(isinstance(one, ApplyNode) for one in terms.args)
    return all(map(_is_argument, terms.args)) and not (cast and _differ(terms.args))


def _is_argument(node: Node) -> bool:
    """Whether it is one, or a part of one, as it is or cast."""
    while isinstance(node, ApplyNode) and node.function == "cast":
        (node,) = node.args
    source = node.source if isinstance(node, ViewNode) else node
    return isinstance(source, InputNode) and bool(source.dims)


def _differ(factors: Sequence[Node]) -> bool:
    """Whether one would be rounded to the type of the other, after it was cast."""
    return len({factor.dtype for factor in factors}) > 1
