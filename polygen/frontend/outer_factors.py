"""Factors of a computed operand that the sum does not index: they multiply the sum instead.

    v[j,k] = q[j,k] * s[j]                     y[i,j] = (sum over k of x[i,k] * q[j,k]) * s[j]
    y[i,j] = sum over k of x[i,k] * v[j,k]

A computed operand is rounded to the type that the product multiplies, which nobody has written
down. Where what is left without its outer factors is stored in that type, or is a whole number or a
float of fewer bits, nothing is rounded at all. Of anything else, the result of a function or of
another product, an argument of more bits, nothing leaves: it would be rounded without its factors,
which may be what keeps it in the range of f16. Where the rounding is written,
``(q * s).astype("bf16")``, the operand is that.

What it assumes of numbers: that reals are multiplied in another order. Factors are pointwise work
on arguments and numbers. What a fold or a product makes stays, for the rewrites that know it; so do
sizes and rows by index, which not every place behind a product has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polygen.frontend.dtypes import BF16, E4M3, E5M2, F16, F32, F64, S8, TF32, U8, DType
from polygen.frontend.nodes import (
    ApplyNode,
    Dims,
    ExtentNode,
    FoldNode,
    GroupNode,
    InputNode,
    JoinNode,
    Node,
    ProductNode,
    Reach,
    ViewNode,
)
from polygen.frontend.rebuilding import every_node

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace

_BYTES = (E4M3, E5M2, S8, U8)
_NARROW = (F16, BF16, *_BYTES)
# What has all numbers of which types.
HOLDS = {
    F16: (F16, *_BYTES),
    BF16: (BF16, *_BYTES),
    TF32: (TF32, *_NARROW),
    F32: (F32, TF32, *_NARROW),
    F64: (F64, F32, TF32, *_NARROW),
}
_STAYS = (FoldNode, ProductNode, JoinNode, GroupNode, ExtentNode)  # and what is made of them


@dataclass(frozen=True, slots=True)
class Factor:
    """What a sum is multiplied with, or divided by.

    Attributes:
        function: "mul" or "div".
        value: with the axes of the operand, of size 1 along those that are summed; or a number.
    """

    function: str
    value: Node


# Of both operands, each with the labels of its operand's axes.
Factors = tuple[tuple[Factor, tuple[int, ...]], ...]


def without_factors(
    trace: Trace, node: Node, summed: frozenset[int], kind: DType
) -> tuple[Node, tuple[Factor, ...]]:
    """An operand without the factors that no summed axis indexes, and these, the innermost first.

    Args:
        trace: of the operand.
        node: the operand, which is computed.
        summed: its axes that the product sums over.
        kind: the type in which it is multiplied.
    """
    found, factors = _apart(trace, node, summed)
    # f32 is read as tf32 where it is multiplied, and not before.
    held = is_held(found, kind) or (kind == TF32 and is_held(found, F32))
    return (found, factors) if factors and held else (node, ())


def is_held(node: Node, kind: DType) -> bool:
    """Whether a value is an operand as it is, and each of its numbers one of a type."""
    while isinstance(node, ViewNode):
        if any(reach.per > 1 for reach in node.reaches):  # only what is computed has these
            return False
        node = node.source
    if isinstance(node, ApplyNode) and node.function.startswith("nibble_"):
        return True
    cast = isinstance(node, ApplyNode) and node.function == "cast"
    return (cast or isinstance(node, InputNode)) and node.dtype in HOLDS.get(kind, ())


def _apart(trace: Trace, node: Node, summed: frozenset[int]) -> tuple[Node, tuple[Factor, ...]]:
    """Factors that no summed axis indexes, and the operand without them, whatever that is."""
    if isinstance(node, ViewNode):
        return _through_view(trace, node, summed)
    if not isinstance(node, ApplyNode) or node.function not in ("mul", "div"):
        return node, ()
    left, right = node.args
    outer = [_is_outer(one, node.dims, summed) for one in node.args]
    if node.function == "mul" and outer == [True, False]:
        left, right = right, left
    elif outer != [False, True]:
        return node, ()
    if left.dims != node.dims:  # along some axis the factor alone has elements of its own
        return node, ()
    found, factors = _apart(trace, _exact(left), summed)
    return found, (*factors, Factor(node.function, _with_axes(trace, right, len(node.dims))))


def _exact(node: Node) -> Node:
    """A value without a cast to f32 of what has fewer bits, which rounds nothing."""
    if isinstance(node, ApplyNode) and node.function == "cast" and node.dtype == F32:
        (inner,) = node.args
        return inner if inner.dtype in _NARROW else node
    return node


def multiplied_behind(trace: Trace, product: Node, factors: Factors) -> Node:
    """A product times factors of its operands.

    Args:
        trace: of the product.
        product: the sum.
        factors: each with the labels of its operand's axes.
    """
    for factor, labels in factors:
        value, count = factor.value, len(product.dims)
        if value.dims:
            places = [labels.index(n) if n in labels else None for n in range(count)]
            value = trace.view(value, places)
        product = trace.apply(factor.function, product, value)
    return product


def _through_view(
    trace: Trace, node: ViewNode, summed: frozenset[int]
) -> tuple[Node, tuple[Factor, ...]]:
    """Those of a view, of axes in another order or new ones."""
    if not _permutes(node):
        return node, ()
    inside = frozenset(at for at, reach in enumerate(node.reaches) if reach.axis in summed)
    found, factors = _apart(trace, node.source, inside)
    if not factors:
        return node, ()
    outside = tuple(
        replace(one, value=trace.view(one.value, node.axes) if one.value.dims else one.value)
        for one in factors
    )
    return trace.view(found, node.axes), outside


def _permutes(node: ViewNode) -> bool:
    """Whether a view has every axis of its source whole, and beside them new ones alone."""
    return all(
        reach == Reach(reach.axis)
        and reach.axis is not None
        and node.dims[reach.axis] == node.source.dims[at]
        for at, reach in enumerate(node.reaches)
    )


def _is_outer(node: Node, dims: Dims, summed: frozenset[int]) -> bool:
    """Whether a value may be a factor: the same along all summed axes, and made of arguments."""
    missing = len(dims) - len(node.dims)
    along = (at - missing for at in summed)
    if any(at >= 0 and node.dims[at] != 1 for at in along):
        return False
    return not any(
        isinstance(one, _STAYS) or (isinstance(one, ViewNode) and one.by_index)
        for one in every_node([node])
    )


def _with_axes(trace: Trace, node: Node, count: int) -> Node:
    """A value with so many axes, those that it does not have in front; a number as it is."""
    if not node.dims or len(node.dims) == count:
        return node
    missing: list[int | None] = [None] * (count - len(node.dims))
    return trace.view(node, [*missing, *range(len(node.dims))])
