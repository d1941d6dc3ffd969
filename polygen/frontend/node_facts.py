"""What is asked of nodes of a traced graph on their way to statements."""

from __future__ import annotations

from polygen.errors import UnsupportedProgram
from polygen.frontend.describing import describe
from polygen.frontend.gathering import behind
from polygen.frontend.nodes import (
    FoldNode,
    InputNode,
    Node,
    ProductNode,
    ViewNode,
    walk,
)


def added(node: Node) -> set[int]:
    """The axes of size 1 that a view has and what it views has not."""
    axes = node.axes if isinstance(node, ViewNode) else ()
    return {place for place, axis in enumerate(axes) if axis is None and node.dims[place] == 1}


def is_folded(node: Node) -> bool:
    """Whether a value is computed from results of folds."""
    return any(isinstance(found, FoldNode) for found in behind(node))


def over_results(node: Node) -> bool:
    """Whether it is, and from no element of a product."""
    return is_folded(node) and not any(isinstance(one, ProductNode) for one in behind(node))


def of_matrices(node: ProductNode) -> set[int]:
    """The labels of a product's axes that count matrices: both operands have them."""
    both = {*node.lhs_labels} & {*node.rhs_labels}
    return {label for label in both if label < len(node.dims)}


def no_product(root: Node, position: int) -> UnsupportedProgram:
    """What is said of an output that reads no product.

    Args:
        root: the output.
        position: among all outputs.
    """
    folds = any(isinstance(node, FoldNode) for node in walk(root, products=True))
    return UnsupportedProgram(
        f"output {position}, {describe(root)}, reads no contraction",
        why="polygen fuses work around a matrix product"
        + ", and folds what it multiplies beside it, along the axis that it sums" * folds,
        nearest="Use x @ w in it, or compute it elsewhere",
    )


def reads_computed(node: ProductNode) -> bool:
    """Whether an operand is a value rather than an argument or a view of one."""
    operands = (node.lhs, node.rhs)
    if any(isinstance(op, ViewNode) and op.by_index for op in operands):
        return True
    sources = (op.source if isinstance(op, ViewNode) else op for op in operands)
    return not all(isinstance(source, InputNode) for source in sources)
