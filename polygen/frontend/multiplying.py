"""Products as NumPy writes them, and those by groups of rows: which axes of operands are one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.errors import ShapeError
from polygen.frontend.describing import describe
from polygen.frontend.folding import folded
from polygen.frontend.grouping import grouped_axes, require_ends, rows_of_groups
from polygen.frontend.nodes import GROUPED, Dims, GroupNode, Node, ProductNode, walk
from polygen.frontend.shapes import ProductAxes, matmul_axes
from polygen.frontend.steps import spelled, steps_of
from polygen.frontend.subscripts import (
    Labels,
    einsum_axes,
    notation,
    only_one,
    product_axes,
    subscripts_text,
)
from polygen.frontend.trace import Trace

_MATRIX = 2  # axes of one


def matmul(trace: Trace, lhs: Any, rhs: Any) -> Node:
    """Records a product by np.matmul's rules.

    Raises:
        ShapeError: an operand is a scalar, inner dims differ, or batch dims do not broadcast.
        DTypeError: no tensor core multiplies these dtypes.
    """
    left, right = trace.lift(lhs, "matmul"), trace.lift(rhs, "matmul")
    axes = matmul_axes((describe(left), left.dims), (describe(right), right.dims))
    return _product(trace, left, right, axes, "@")


def _product(trace: Trace, left: Node, right: Node, axes: ProductAxes, text: str) -> Node:
    """A product, of tensor cores unless it is a fold of what another product makes.

    ``f(x @ w.T) @ v`` with a vector v is the sum of ``f(x @ w.T) * v`` over each row: what has
    neither rows nor columns of its own meets elements where they are, in f32.
    """
    for one, other in ((axes.lhs, axes.rhs), (axes.rhs, axes.lhs)):
        node = left if one is axes.lhs else right
        if {*other} <= {*one} and _has_product(node):
            along = [at for at in range(len(axes.dims) + len(axes.summed)) if at in one]
            extents = (*axes.dims, *axes.summed)
            dims = tuple(extents[at] for at in along)
            spread = (
                _along(trace, side, tuple(along.index(at) for at in labels), dims)
                for side, labels in ((left, axes.lhs), (right, axes.rhs))
            )
            summed = [along.index(at) for at in along if at >= len(axes.dims)]
            return folded(trace, trace.apply("mul", *spread), "sum", tuple(summed), False)
    return trace.product(left, right, axes, text)


def _has_product(node: Node) -> bool:
    return any(isinstance(one, ProductNode) for one in walk(node, products=False))


def grouped_matmul(trace: Trace, x: Any, w: Any, ends: Any) -> Node:
    """Records a product whose rows meet the matrix of their group.

    Raises:
        ShapeError: operands without rows, groups or columns, or dims that differ.
        DTypeError: no tensor core multiplies these dtypes, or ends that are not s32.
        UnsupportedProgram: ends that are no argument.
    """
    left, right, groups = (trace.lift(value, GROUPED) for value in (x, w, ends))
    known = require_ends(groups)
    named = ((describe(left), left.dims), (describe(right), right.dims))
    axes = grouped_axes(*named, (known.tensor.name, known.dims))
    return trace.product(left, right, axes, GROUPED, known)


def per_group(trace: Trace, rows: Any, ends: Any, like: Any) -> Node:
    """Records a value whose row t is row e of an argument, where e is the group of row t.

    Raises:
        ShapeError: not as many rows as there are groups, or a value without rows.
        DTypeError: ends that are not s32.
        UnsupportedProgram: rows or ends that are no argument.
    """
    source, groups, rows_like = (trace.lift(value, "per_group") for value in (rows, ends, like))
    known = require_ends(groups)
    found, dims = rows_of_groups(source, known, rows_like)
    return trace.make(GroupNode, found, known, dims)


def einsum(trace: Trace, subscripts: object, *values: Any) -> Node:
    """Records a transposition of one operand, or products of several, by np.einsum's subscripts.

    Raises:
        TraceError: the subscripts are malformed.
        ShapeError: they do not fit the operands' dims.
        DTypeError: no tensor core multiplies these dtypes.
        UnsupportedProgram: what they mean is no contraction.
    """
    text = subscripts_text(subscripts)
    nodes = [trace.lift(value, "einsum") for value in values]
    operands = [(describe(node), node.dims) for node in nodes]
    where = f'einsum("{text}", {", ".join(name for name, _ in operands)})'
    labels, output = einsum_axes(text, operands, where)
    given = dict(enumerate(zip(labels, nodes, strict=True)))
    for at, step in enumerate(steps_of(labels, output), len(nodes)):
        (one, left), (other, right) = given.pop(step.first), given.pop(step.second)
        named = where
        if len(nodes) > 2:
            named = f'{where}, step {at - len(nodes) + 1}, "{spelled(one, other, step.output)}"'
        given[at] = step.output, _pair(trace, (one, other), step.output, (left, right), named)
    own, node = given.popitem()[1]
    gone = [label for label in own if label not in output]
    if gone and not _has_product(node):
        raise only_one(gone[0], describe(node), where)
    if gone:  # of what a product makes: a fold
        node = folded(trace, node, "sum", tuple(map(own.index, gone)), False)
        own = tuple(label for label in own if label in output)
    return trace.view(node, [own.index(label) for label in output])


def _pair(
    trace: Trace,
    labels: tuple[Labels, Labels],
    output: Labels,
    nodes: tuple[Node, Node],
    where: str,
) -> Node:
    """A product of two operands, of matrices or of elements."""
    left, right = nodes
    operands = [(describe(node), node.dims) for node in nodes]
    order = _rows_first(labels, output, nodes)
    axes = product_axes(labels, order, operands, where)
    if axes.summed:
        matrix = _as_matmul(left.dims, right.dims) == axes
        made = _product(trace, left, right, axes, "@" if matrix else notation(axes))
        return made if order == output else trace.view(made, [order.index(n) for n in output])
    axes = product_axes(labels, output, operands, where)
    # Nothing to sum: elementwise, each operand with the output's axes.
    spread = (_along(trace, left, axes.lhs, axes.dims), _along(trace, right, axes.rhs, axes.dims))
    return trace.apply("mul", *spread)


def _rows_first(labels: tuple[Labels, ...], output: Labels, nodes: Sequence[Node]) -> Labels:
    """The output's labels in the order of what is computed from a product, if one operand is.

    Its rows stay where they are, as in ``p @ v``, whatever the order in which results are stored.
    Where matrices are added up, as those of heads are, no rows are multiplied.
    """
    computed = [own for own, node in zip(labels, nodes, strict=True) if _has_product(node)]
    if len(computed) != 1 or not {*computed[0][-_MATRIX:]} - {*output}:
        return output
    rows = [label for label in computed[0] if label in output]
    return type(output)([*rows, *(label for label in output if label not in rows)])


def _along(trace: Trace, node: Node, labels: tuple[int, ...], dims: Dims) -> Node:
    """The node with one axis per output axis, of size 1 where it has none."""
    return trace.view(node, [labels.index(n) if n in labels else None for n in range(len(dims))])


def _as_matmul(left: Dims, right: Dims) -> ProductAxes | None:
    """The axes that `@` would give operands of these dims; None where it takes them not."""
    try:
        return matmul_axes(("", left), ("", right))
    except ShapeError:
        return None
