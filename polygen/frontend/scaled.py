"""Operands that are 8-bit floats times scales: nothing of them is rounded.

``x * pg.repeat(s, 128, axis=1)`` of ``x: e4m3[M,K]`` is no matrix of 8 bits. It need not become one
of more: the instruction multiplies what is stored, and `polygen.rewrite.block_factors` takes the
scales out of the sum, or says why they cannot leave it.
"""

from __future__ import annotations

from polygen.frontend.dtypes import BF16, E4M3, E5M2, F16, F32, DType
from polygen.frontend.nodes import ApplyNode, InputNode, Node, ViewNode
from polygen.frontend.rebuilding import every_node

STORED = (E4M3, E5M2)
_SCALES = (F32, F16, BF16)


def scaled_types(left: Node, right: Node) -> tuple[DType, DType] | None:
    """The types of what is stored of both operands; None: one of them is no 8-bit float scaled."""
    found = [_stored(node) for node in (left, right)]
    return None if None in found else (found[0], found[1])  # type: ignore[return-value]


def _stored(node: Node) -> DType | None:
    """The type of the one 8-bit float that a product of arguments has; None: it is no such."""
    if isinstance(node, ViewNode):
        return _stored(node.source)
    if isinstance(node, InputNode):
        return node.dtype if node.dtype in STORED else None
    if not isinstance(node, ApplyNode):
        return None
    if node.function == "cast" and node.dtype == F32:  # which rounds nothing
        return _stored(node.args[0])
    if node.function != "mul":
        return None
    others = [arg for arg in node.args if not _is_scale(arg)]
    return _stored(others[0]) if len(others) == 1 else None


def _is_scale(node: Node) -> bool:
    """Whether a value is made of scales alone."""
    return all(
        isinstance(one, ViewNode)
        or (isinstance(one, InputNode) and one.dtype in _SCALES)
        or (isinstance(one, ApplyNode) and one.function == "mul")
        for one in every_node([node])
    )
