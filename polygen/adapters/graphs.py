"""A graph of array operations, as the rules that look for kernels in it see it.

A node is a product, a pointwise function, a view that keeps the last axis, a fold of the last axis,
or something else. It knows how to compute itself on arrays of polygen's vocabulary. Whoever has a
graph of another kind translates it; `polygen.adapters.torch.aten` does so for PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from polygen.frontend.dtypes import DType

# Other operations that reduce, which compilers make one kernel of with what they read.
REDUCTIONS = frozenset(["mean", "var_mean", "var", "sum", "amax", "amin", "any", "all"])
Shape = tuple[Any, ...]  # numbers, or what stands for them; compared as text


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        name: unique in the graph.
        kind: "product", "pointwise", "view", "fold" or "other".
        reads: the nodes whose values it takes, in the order of `compute`'s arguments.
        shape: of its value.
        dtype: of its value; None: not one that kernels read or write.
        compute: on arrays; None for other kinds.
        cast: whether it only changes the type.
        text: the operation, for people and for patterns.
        numbers: among its arguments, in order.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    shape: Shape
    dtype: DType | None
    compute: Callable[..., Any] | None = None
    cast: bool = False
    text: str = ""
    numbers: tuple[float, ...] = ()


def same(first: Shape, second: Shape) -> bool:
    """Whether two shapes, or extents as shapes of one axis, are written alike."""
    return tuple(map(str, first)) == tuple(map(str, second))


@dataclass(slots=True)
class Graph:
    """Nodes in an order in which every value is computed before it is read.

    Attributes:
        nodes: by name, in that order.
        results: names of the nodes whose values leave the graph.
        kernels: by name, the members of the group that a node is in already: they run as one.
    """

    nodes: dict[str, Node]
    results: frozenset[str]
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    users: dict[str, list[str]] = field(init=False)
    places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.users = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for read in dict.fromkeys(node.reads):
                self.users[read].append(node.name)
        self.places = {name: place for place, name in enumerate(self.nodes)}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def sorted(self, names: Iterable[str]) -> list[str]:
        """Names in the graph's order."""
        return sorted(names, key=self.places.__getitem__)

    def leaves(self, members: frozenset[str] | set[str], name: str) -> bool:
        """Whether a member's value is read outside of a group."""
        return name in self.results or any(user not in members for user in self.users[name])

    def joins_later(self, name: str) -> bool:
        """Whether only pointwise functions and folds read a value, in the end.

        A compiler computes what they read where they read it, in a kernel that there is anyway.
        """
        if name in self.results or not self.users[name]:
            return False
        return all(
            self.joins_later(user) if self[user].kind == "view" or self[user].cast
            else self[user].kind in ("pointwise", "fold") or self[user].text in REDUCTIONS
            for user in self.users[name]
        )  # fmt: skip

    def between(self, members: frozenset[str] | set[str]) -> bool:
        """Whether something outside reads a member and is read, in the end, by another one."""
        stack = [u for name in members for u in self.users[name] if u not in members]
        seen = set(stack)
        while stack:
            name = stack.pop()
            for one in self.kernels.get(name, (name,)):
                for user in self.users[one]:
                    if user in members:
                        return True
                    if user not in seen:
                        seen.add(user)
                        stack.append(user)
        return False

    def with_patterns(self, patterns: Iterable[Pattern]) -> Graph:
        """The graph with nodes replaced by what patterns see in them; unread ones go away."""
        found = dict(self.nodes)
        for name, node in self.nodes.items():
            for pattern in patterns:
                other = pattern(self, node)
                if other is not None:
                    found[name] = other
                    break
        read = set(self.results)
        for name in reversed(self.nodes):
            if found[name].kind == "pointwise" and name not in read and self.users[name]:
                del found[name]
            else:
                read.update(found[name].reads)
        return Graph(found, self.results)

    def without_twins(self) -> Graph:
        """The graph in which views of one value in one shape are read as one."""
        first: dict[tuple[str, ...], str] = {}
        own: dict[str, str] = {}
        found: dict[str, Node] = {}
        for name, node in self.nodes.items():
            reads = tuple(own.get(read, read) for read in node.reads)
            found[name] = replace(node, reads=reads)
            if node.kind == "view":
                own[name] = first.setdefault((*reads, *map(str, node.shape)), name)
        return Graph(found, self.results)


Pattern = Callable[[Graph, Node], Node | None]
Rule = Callable[[Graph, frozenset[str], Node], frozenset[str]]
Beside = Callable[[Graph, frozenset[str], frozenset[str]], bool]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that may become one kernel.

    Attributes:
        members: in the graph's order.
        domain: the shape of its products.
        outputs: members whose values are read outside.
        operands: nodes outside whose values are read, each with the shape that it gets first.
        parts: groups beside each other that it is made of, if there are several; then `domain` is
            the first one's.
        instead: groups of one product each, which may do the same work in its place.
    """

    members: tuple[str, ...]
    domain: Shape
    outputs: tuple[str, ...]
    operands: tuple[tuple[str, Shape], ...]
    parts: tuple[Group, ...] = ()
    instead: tuple[Group, ...] = ()

    @property
    def each(self) -> tuple[Group, ...]:
        """Its parts, or itself."""
        return self.parts or (self,)

    def function(self, graph: Graph) -> Callable[..., Any]:
        """The group as array code: of its operands, in order; it returns its outputs."""
        names = [name for name, _ in self.operands]

        def run(*arrays: Any) -> Any:
            values: dict[str, Any] = dict(zip(names, arrays, strict=True))
            for name in self.members:
                node = graph[name]
                assert node.compute is not None
                values[name] = node.compute(*(values[read] for read in node.reads))
            return tuple(values[name] for name in self.outputs)

        return run

    def __str__(self) -> str:
        return " + ".join(self.members)


def placed(argument: Shape, own: Shape, domain: Shape) -> Shape | None:
    """The shape in which an argument of a node is read over the products' domain.

    Args:
        argument: its shape.
        own: the node's; the domain's, or one with the same last axis and the leading ones split.
        domain: of the products.

    Returns:
        None: it cannot be read so.
    """
    if same(own, domain):
        lead = len(own) - len(argument)
        fits = lead >= 0 and all(
            str(a) in ("1", str(o)) for a, o in zip(argument, own[lead:], strict=True)
        )
        return argument if fits else None
    if same(argument, own):
        return domain
    if len(argument) == len(own) and same(argument[:-1], own[:-1]) and str(argument[-1]) == "1":
        return (*domain[:-1], 1)
    if all(str(extent) == "1" for extent in argument[:-1]) and argument:
        return (argument[-1],) if str(argument[-1]) in ("1", str(own[-1])) else None
    return None
