"""Nodes put into a graph of PyTorch: calls, with their values in its trace, and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from polygen.adapters.graphs import Shape, same
from polygen.errors import UnsupportedProgram


def caller(graph: FxGraph, beside: FxNode) -> Callable[..., FxNode]:
    """A function that puts a call where the graph inserts, and finds its value.

    Args:
        graph: it is put in.
        beside: a node of the same trace.
    """
    mode = beside.meta["val"].fake_mode

    def call(function: Callable[..., Any], *args: Any) -> FxNode:
        node = graph.call_function(function, args)
        plain = torch.fx.map_arg(args, lambda n: n.meta["val"])
        with mode:
            node.meta["val"] = function(*plain)
        return node

    return call


def hint(extent: Any) -> int:
    """The size that a trace was made for.

    Raises:
        UnsupportedProgram: it is not known.
    """
    if isinstance(extent, int):
        return extent
    found = getattr(extent.node, "hint", None)
    if found is None:
        raise UnsupportedProgram(f"the size {extent} depends on data")
    return int(found)


def shaped(graph: FxGraph, call: Callable[..., FxNode], node: FxNode, shape: Shape) -> FxNode:
    """The node in another shape of as many elements, if it has not that shape already."""
    if same(tuple(node.meta["val"].shape), shape):
        return node
    symbols = [extent for extent in shape if not isinstance(extent, int)]
    if len(symbols) <= 1:
        extents: list[Any] = [extent if isinstance(extent, int) else -1 for extent in shape]
    else:
        extents = [
            extent if isinstance(extent, int) else size(graph, call, extent) for extent in shape
        ]
    return call(torch.ops.aten.reshape.default, node, extents)


def size(graph: FxGraph, call: Callable[..., FxNode], extent: Any) -> FxNode:
    """A node that is a size: one that there is, or an axis of an argument of the graph."""
    wanted = str(extent)
    for node in graph.nodes:
        if node.op == "output":
            break
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and str(value) == wanted:
            return node
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            for axis, own in enumerate(value.shape):
                if str(own) == wanted:
                    return call(torch.ops.aten.sym_size.int, node, axis)
    raise UnsupportedProgram(f"no argument of the graph has the size {wanted}")


def sort(graph: FxGraph) -> None:
    """Order nodes so that each comes after what it reads, and otherwise as before."""
    order: dict[FxNode, None] = {}
    for node in graph.nodes:
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [one for one in top.all_input_nodes if one not in order and one is not top]
            if top in order or not missing:
                order.setdefault(stack.pop())
            else:
                stack.extend(missing)
    nodes: Sequence[FxNode] = list(order)
    for before, node in itertools.pairwise(nodes):
        before.append(node)
