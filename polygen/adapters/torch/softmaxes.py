"""Softmaxes as PyTorch writes them around rows without a key and overflow: patterns of their own.

They hold for softmaxes alone, whose rows without a key are 0 in a kernel (docs/attention.md), so
that they are no patterns of every graph.
"""

from __future__ import annotations

from typing import Any

from polygen.adapters.graphs import Graph, Node, Pattern


def itself(value: Any) -> Any:
    """The value."""
    return value


def _is(node: Node, text: str, count: int) -> bool:
    return node.text == text and len(node.reads) == count


def _replaced(node: Node, by: str) -> Node:
    return Node(node.name, "pointwise", (by,), node.shape, node.dtype, itself, True)


def _where_some(graph: Graph, node: Node) -> tuple[str, str] | None:
    """Of ``where(not any(not x), there, elsewhere)``: x, and what is taken elsewhere."""
    if node.text != "where" or not node.reads:
        return None
    at = node.reads[0]
    for text in ("logical_not", "any", "logical_not"):
        if not _is(graph[at], text, 1):
            return None
        at = graph[at].reads[0]
    return at, node.reads[-1]


def safe(graph: Graph, node: Node) -> Node | None:
    """``where(not any(not x == -inf), 0, weights)``: weights, 0 where a row has no key."""
    found = _where_some(graph, node)
    if found is None or not _is(graph[found[0]], "eq", 1):
        return None
    return _replaced(node, found[1]) if graph[found[0]].numbers == (float("-inf"),) else None


def scaled(graph: Graph, node: Node) -> Node | None:
    """``where(all finite(s * x), s * (x - max(x)), s * x - max(s * x))``, with which Inductor keeps
    the scale behind the maximum: both are the same, up to rounding and the sign of s.
    """
    found = _where_some(graph, node)
    if found is None or len(node.reads) != 3:
        return None
    finite, less = graph[found[0]], graph[found[1]]
    times = graph[node.reads[1]]
    if not (_is(finite, "logical_and", 2) and _is(less, "sub", 2)):
        return None
    same, below = (graph[name] for name in finite.reads)
    if not (same.text == "eq" and len(set(same.reads)) == 1 and _is(below, "ne", 1)):
        return None
    value = less.reads[0]
    greatest = graph[less.reads[1]]
    about = {*same.reads, *graph[below.reads[0]].reads, *greatest.reads}
    if about != {value} or not _is(greatest, "amax", 1) or graph[below.reads[0]].text != "abs":
        return None
    scale = graph[value]
    if scale.text not in ("mul", "div") or times.text != scale.text or len(scale.numbers) != 1:
        return None
    inner = graph[times.reads[0]]
    sign = 1.0 if scale.numbers[0] >= 0 else -1.0
    if not _is(inner, "sub", 2) or times.numbers != (sign * scale.numbers[0],):
        return None
    first, top = inner.reads[0], graph[inner.reads[1]]
    if not (_is(top, "amax", 1) and top.reads == (first,)):
        return None
    signed = graph[first].text == "mul" and graph[first].numbers == (sign,)
    plain = graph[first].reads if signed else (first,)
    return _replaced(node, less.name) if plain == scale.reads else None


PATTERNS: tuple[Pattern, ...] = (safe, scaled)
