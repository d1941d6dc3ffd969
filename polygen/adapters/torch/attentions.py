"""Where a graph of ATen's operations has attention.

1. A call of one of PyTorch's attention kernels is one, whatever it came from: modules, functions,
   or Inductor's own patterns.
2. So is a product of matrices whose left operand follows from another one by pointwise work and
   folds of its rows, among them exponentials under a maximum: a softmax that somebody wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from polygen.adapters.attention import Softmax, Weights
from polygen.adapters.graphs import Graph, Shape, same
from polygen.adapters.torch.aten import name_of
from polygen.adapters.torch.softmaxes import PATTERNS, itself
from polygen.adapters.torch.sources import shape_of

# PyTorch's kernels, and what each is called here.
KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention_for_cpu": "flash_for_cpu",
}


@dataclass(frozen=True, slots=True)
class Found:
    """Attention in a graph.

    Attributes:
        members: the operations that it is made of, in the graph's order.
        result: the member whose value it gives.
        operands: q, k and v, as the products have them.
        swapped: whether k is as its product has it, ``[..., D, T]``.
        lead: the leading axes of the scores.
        weights: of the scores, and of the values of `arrays`.
        arrays: what stands beside the scores.
        library: whose one kernel it is; "": products and a softmax apart.
        refused: why it cannot be taken, whatever the kernel.
    """

    members: tuple[FxNode, ...]
    result: FxNode
    operands: tuple[FxNode, FxNode, FxNode]
    swapped: bool
    lead: Shape
    weights: Weights
    arrays: tuple[FxNode, ...]
    library: str = ""
    refused: str = ""

    def __str__(self) -> str:
        extents = (*self.lead, *shape_of(self.operands[0])[-2:])
        return f"{self.library or 'softmax'} attention over {' x '.join(map(str, extents))}"


# --- PyTorch's kernels ----------------------------------------------------------------------------
def calls(graph: FxGraph) -> Iterator[Found]:
    """All calls of PyTorch's attention kernels, in the graph's order."""
    for node in list(graph.nodes):
        library = KERNELS.get(name_of(node)) if node.op == "call_function" else None
        if library is not None and node.users:
            yield _called(node, library)


def _called(node: FxNode, library: str) -> Found:
    arguments = node.target._schema.arguments
    given = {one.name: one.default_value for one in arguments if one.has_default_value()}
    given |= dict(zip((one.name for one in arguments), node.args, strict=False)) | node.kwargs
    operands = (given["query"], given["key"], given["value"])
    beside = given.get("attn_bias", given.get("attn_mask"))
    arrays = () if beside is None else (beside,)
    results = [user for user in node.users if user.users]
    first = next((user for user in results if user.args[1] == 0), node)
    scale = given.get("scale")
    weights = Softmax(
        float(shape_of(operands[0])[-1]) ** -0.5 if scale is None else float(scale),
        bool(given["is_causal"]),
        tuple(one.meta["val"].dtype == torch.bool for one in arrays),
    )
    refused = ""
    if given["dropout_p"] != 0:
        refused = "weights are dropped: PyTorch's random numbers are its own"
    elif results != [first]:
        refused = "its log-sum-exp is kept for a backward pass, which takes PyTorch's own"
    members = (node, *results)
    lead = shape_of(operands[0])[:-2]
    return Found(members, first, operands, True, lead, weights, arrays, library, refused)


# --- what is written in products and a softmax ----------------------------------------------------
def written(graph: FxGraph, translated: Graph) -> Iterator[Found]:
    """All softmaxes between two products, in the graph's order.

    Args:
        graph: of ATen's operations.
        translated: the same, by `polygen.adapters.torch.aten`.
    """
    named = {node.name: node for node in graph.nodes}
    seen = _seen(translated, named)
    for name, node in seen.nodes.items():
        if node.kind == "product" and node.text in ("bmm", "mm"):
            found = _Behind(seen, named).found(named[name])
            if found is not None:
                yield found


def _seen(graph: Graph, named: dict[str, FxNode]) -> Graph:
    """The graph with expansions that change nothing as views, softmaxes as they are defined, and
    without what is never read.
    """
    found = {}
    for name, node in graph.nodes.items():
        if node.kind == "other" and name_of(named[name]) == "expand":
            before = node.reads[0]
            if same(graph[before].shape, node.shape):
                node = replace(node, kind="view", reads=(before,), compute=itself, text="expand")
        found[name] = node
    wide = Graph(found, graph.results).with_patterns(PATTERNS)
    read = set(graph.results)
    for name in reversed(wide.nodes):
        if name in read:
            read.update(wide[name].reads)
    return Graph({n: node for n, node in wide.nodes.items() if n in read}, graph.results)


class _Behind:
    """What the left operand of a product follows from."""

    def __init__(self, graph: Graph, named: dict[str, FxNode]) -> None:
        self.graph, self.named = graph, named
        self.known: dict[str, bool] = {}
        self.products: set[str] = set()

    def found(self, second: FxNode) -> Found | None:
        """The attention whose second product this is; None: it is none."""
        graph, named = self.graph, self.named
        weights, values = graph[second.name].reads
        if not self._inside(weights) or self._inside_product(values):
            return None
        members = [name for name in graph.sorted(self.known) if self.known[name]]
        texts = {graph[name].text for name in members}
        if len(self.products) != 1 or not {"amax", "exp"} <= texts:
            return None
        (first,) = self.products
        domain = next(graph[name].shape for name in members if graph[name].text == "exp")
        if not self._over(members, domain) or graph[first].text not in ("bmm", "mm"):
            return None
        q, k = (named[name] for name in graph[first].reads)
        whole = frozenset({*members, second.name})
        outside = [n for n in members if graph.leaves(whole, n)]
        arrays = [
            read
            for read in dict.fromkeys(r for n in members if n != first for r in graph[n].reads)
            if not self.known[read] and _number(named[read]) is None
        ]
        return Found(
            members=tuple(named[name] for name in graph.sorted(whole)),
            result=second,
            operands=(q, k, named[values]),
            swapped=False,
            lead=tuple(domain[:-2]),
            weights=self._weights(members, first, arrays, weights),
            arrays=tuple(named[name] for name in arrays),
            refused=f"{outside[0]} is read elsewhere, as by a backward pass" if outside else "",
        )

    def _inside(self, name: str) -> bool:
        """Whether a value follows from a product, by what a kernel has on chip."""
        found = self.known.get(name)
        if found is None:
            node = self.graph[name]
            self.known[name] = False
            if node.kind == "product":
                self.products.add(name)
                found = True
            elif node.kind in ("pointwise", "fold", "view"):
                found = any([self._inside(read) for read in node.reads])
            else:
                found = False
            self.known[name] = found
        return found

    def _inside_product(self, name: str) -> bool:
        """Whether the second product's right operand is made of the scores."""
        return self.known.get(name, False)

    def _over(self, members: list[str], domain: Shape) -> bool:
        """Whether all work is at scores, or at their rows."""
        shapes = (domain, (*domain[:-1], 1))
        for name in members:
            node = self.graph[name]
            worked = node.kind == "fold" or (node.kind == "pointwise" and not node.cast)
            if worked and not any(same(node.shape, shape) for shape in shapes):
                return False
            if not worked and not same(node.shape[-1:], domain[-1:]) and str(node.shape[-1]) != "1":
                return False
        return len(domain) >= 2

    def _weights(
        self, members: list[str], first: str, arrays: list[str], weights: str
    ) -> Callable[..., Any]:
        graph, named = self.graph, self.named

        def run(scores: Any, *given: Any) -> Any:
            values: dict[str, Any] = {first: scores, **dict(zip(arrays, given, strict=True))}
            for name in members:
                if name == first:
                    continue
                node = graph[name]
                assert node.compute is not None
                read = [values[r] if r in values else _number(named[r]) for r in node.reads]
                values[name] = (
                    itself(read[0]) if node.kind == "view" or node.cast else node.compute(*read)
                )
            return values[weights]

        return run


def _number(node: FxNode) -> float | None:
    """The number that fills an array; None: none does."""
    number = node.args[1] if name_of(node) == "full" else None
    return float(number) if isinstance(number, int | float) else None
