"""What is asked of nodes of a traced graph on their way to statements."""

from __future__ import annotations

from polygen.frontend.gathering import behind
from polygen.frontend.nodes import (
    FoldNode,
    InputNode,
    Node,
    ProductNode,
    ViewNode,
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


def reads_computed(node: ProductNode) -> bool:
    """Whether an operand is a value rather than an argument or a view of one."""
    operands = (node.lhs, node.rhs)
    if any(isinstance(op, ViewNode) and op.by_index for op in operands):
        return True
    sources = (op.source if isinstance(op, ViewNode) else op for op in operands)
    return not all(isinstance(source, InputNode) for source in sources)
