"""Values with some of their nodes exchanged for others: what reads them is recorded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from polygen.frontend.nodes import (
    ApplyNode,
    FoldNode,
    JoinNode,
    Node,
    ProductNode,
    ViewNode,
    read_by,
)

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace

Change = Callable[[Node, Sequence[Node]], Node | None]


def every_node(roots: Sequence[Node]) -> dict[Node, None]:
    """All that values are computed from, each once, behind products as well."""
    found: dict[Node, None] = {}
    stack = [*reversed(roots)]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(reversed(_reads(node)))
    return found


def rebuilt(trace: Trace, roots: Sequence[Node], change: Change) -> list[Node]:
    """Values computed as before, but for some nodes.

    Args:
        trace: of the values.
        roots: the values.
        change: of a node and what it now reads, the node in its place, of the same dims; None: it
            is what it was, of what it now reads.
    """
    made: dict[Node, Node] = {}
    for root in roots:
        stack = [root]  # an expression may be deeper than Python's own stack
        while stack:
            node = stack[-1]
            reads = _reads(node)
            pending = [one for one in reads if one not in made]
            if node not in made and pending:
                stack.extend(pending)
                continue
            stack.pop()
            if node not in made:
                own = [made[one] for one in reads]
                changed = change(node, own)
                made[node] = _of(trace, node, own) if changed is None else changed
    return [made[root] for root in roots]


def _reads(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, JoinNode) else read_by(node)


def _of(trace: Trace, node: Node, reads: list[Node]) -> Node:
    """The node, computed from these."""
    if reads == [*_reads(node)]:
        return node
    if isinstance(node, ViewNode):
        return trace.reach(reads[0], node.reaches, node.dims)
    own: dict[type[Any], dict[str, Any]] = {
        ApplyNode: {"args": tuple(reads)},
        FoldNode: {"value": reads[0]},
        ProductNode: dict(zip(("lhs", "rhs"), reads, strict=False)),
        JoinNode: {"parts": tuple(reads)},
    }
    changed: Any = replace(node, **own[type(node)])
    return trace.make(type(node), *(getattr(changed, one.name) for one in fields(changed)))
