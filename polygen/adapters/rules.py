"""Which nodes of a graph may become one kernel, and what patterns of nodes are one function.

A rule is asked about a group and a node that reads one of its values. It gives the names of all
that is to join, or none. Rules are tried in order; the first that gives names which keep the group
whole (nothing outside stands between two members) wins. A pattern is asked about one node, and
gives another one with the same value.

    @rule
    def mine(graph, group, node):
        return frozenset({node.name}) if ... else NOTHING

A rule of another kind is asked about two groups, and says whether they may share a kernel although
no value joins them:

    @beside
    def alike(graph, one, other):
        return ...

Whether a group becomes a kernel is not decided here: that takes a legal program, and a prediction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from polygen.adapters.graphs import Beside, Graph, Node, Pattern, Rule, Shape, placed, same
from polygen.frontend import functions as f
from polygen.frontend.dtypes import BOOL, REALS

NOTHING: frozenset[str] = frozenset()
RULES: list[Rule] = []
PATTERNS: list[Pattern] = []
BESIDE: list[Beside] = []


def rule(function: Rule) -> Rule:
    """Add a rule, behind those there are."""
    RULES.append(function)
    return function


def pattern(function: Pattern) -> Pattern:
    """Add a pattern, behind those there are."""
    PATTERNS.append(function)
    return function


def beside(function: Beside) -> Beside:
    """Add a rule about two groups, behind those there are."""
    BESIDE.append(function)
    return function


# --- rules ----------------------------------------------------------------------------------------
def domain_of(graph: Graph, group: frozenset[str]) -> Shape:
    """The shape of a group's products."""
    return next(graph[name].shape for name in graph.sorted(group) if graph[name].kind == "product")


def is_at(node: Node, domain: Shape) -> bool:
    """Whether a value has an element for each of the products' domain, rows perhaps split."""
    return same(node.shape, domain) or (
        len(node.shape) >= len(domain) > 1
        and same(node.shape[-1:], domain[-1:])
        and _count(node.shape[:-1]) == _count(domain[:-1])
    )


def _count(extents: Shape) -> object:
    total = 1
    for extent in extents:
        total = total * extent
    return str(total)


def fits(graph: Graph, group: frozenset[str], node: Node) -> bool:
    """Whether a pointwise node can be computed at each point of the group's domain."""
    domain = domain_of(graph, group)
    if node.kind != "pointwise" or not is_at(node, domain):
        return False
    for name in node.reads:
        argument = graph[name]
        if name in group:
            readable = same(argument.shape, node.shape)
        else:
            readable = argument.dtype in REALS and bool(argument.shape)
            readable = readable and placed(argument.shape, node.shape, domain) is not None
        if not readable:
            return False
    return node.dtype in REALS or node.dtype == BOOL


@rule
def sums_go_on(graph: Graph, group: frozenset[str], node: Node) -> frozenset[str]:
    """A sum joins with a product of what another one makes, as in ``x @ w + (x @ a) @ b``.

    Both of the products behind it multiply rows of the same value as the group's own, and nothing
    else reads what lies between them.
    """
    joined = products_meet(graph, group, node)
    own = {graph[name].reads[-2] for name in group if graph[name].kind == "product"}
    found: set[str] = set()
    for name in joined:
        if graph[name].kind == "product" and name not in group:
            found |= _made_of_rows(graph, name, own)
    return joined | found if found else NOTHING


def _made_of_rows(graph: Graph, product: str, rows: set[str]) -> frozenset[str]:
    """The nodes from a product of some rows to the left operand of another; none if it has none."""
    found, user, name = set(), product, graph[product].reads[-2]
    while graph.users[name] == [user] and name not in graph.results:
        node = graph[name]
        found.add(name)
        if node.kind == "product":
            return frozenset(found) if node.reads[-2] in rows else NOTHING
        if not (node.kind == "view" or node.cast):
            return NOTHING
        user, name = name, node.reads[0]
    return NOTHING


@rule
def products_meet(graph: Graph, group: frozenset[str], node: Node) -> frozenset[str]:
    """A pointwise node joins with other products that it reads, as in ``silu(x @ u) * (x @ v)``.

    The way from those to the node may be pointwise, too.
    """
    if node.kind != "pointwise":
        return NOTHING
    domain = domain_of(graph, group)
    brought: set[str] = set()
    for name in node.reads:
        if name not in group:
            brought |= _back_to_products(graph, group, graph[name], domain)
    if not brought:
        return NOTHING
    members = group | brought
    return frozenset({*brought, node.name}) if fits(graph, members, node) else NOTHING


def _back_to_products(
    graph: Graph, group: frozenset[str], node: Node, domain: Shape
) -> frozenset[str]:
    """The nodes by which a value is computed from products over the domain; none if it is not."""
    if node.kind == "product":
        return frozenset({node.name}) if same(node.shape, domain) else NOTHING
    if node.kind == "view" or (node.kind == "pointwise" and is_at(node, domain)):
        parts = [_back_to_products(graph, group, graph[name], domain)
                 for name in node.reads if name not in group]  # fmt: skip
        found = frozenset().union(*parts)
        whole = group | found | {node.name}
        if found and (node.kind == "view" or fits(graph, frozenset(whole), node)):
            return frozenset({*found, node.name})
    return NOTHING


@rule
def pointwise_follows(graph: Graph, group: frozenset[str], node: Node) -> frozenset[str]:
    """A pointwise node joins the group whose values it reads."""
    return frozenset({node.name}) if fits(graph, group, node) else NOTHING


@rule
def masks_come_along(graph: Graph, group: frozenset[str], node: Node) -> frozenset[str]:
    """A pointwise node joins with the comparisons that only it reads: kernels read no masks."""
    masks: set[str] = set()
    for name in node.reads:
        if name not in group and graph[name].dtype == BOOL:
            masks |= _only_for(graph, graph[name], node.name)
    members = group | masks
    if masks and fits(graph, members, node) and all(fits(graph, members, graph[m]) for m in masks):
        return frozenset({*masks, node.name})
    return NOTHING


def _only_for(graph: Graph, node: Node, user: str) -> frozenset[str]:
    """A truth value and those it is made of, as far as nothing but `user` reads them in the end."""
    if node.kind != "pointwise" or graph.leaves(frozenset({user}), node.name):
        return NOTHING
    made_of = (graph[name] for name in node.reads if graph[name].dtype == BOOL)
    parts = (_only_for(graph, one, node.name) for one in made_of)
    return frozenset({node.name}).union(*parts)


@rule
def views_are_seen_through(graph: Graph, group: frozenset[str], node: Node) -> frozenset[str]:
    """A view that splits or joins the rows of a value, and leaves its last axis alone, joins."""
    if node.kind == "view" and is_at(node, domain_of(graph, group)):
        return frozenset({node.name})
    return NOTHING


@beside
def products_of_one_operand(graph: Graph, one: frozenset[str], other: frozenset[str]) -> bool:
    """Groups whose products all multiply the same value, as queries, keys and values do.

    Their results may have other sizes; a group has as many products as the other.
    """
    both = [
        [n for n in graph.sorted(group) if graph[n].kind == "product"] for group in (one, other)
    ]
    if len(both[0]) != len(both[1]):
        return False
    multiplied = [graph[name].reads[-2:] for names in both for name in names]
    return any(len({reads[side] for reads in multiplied}) == 1 for side in (0, 1))


def is_absorbed(graph: Graph, group: frozenset[str], node: Node) -> bool:
    """Whether a node that only the group reads is computed in it, in place of being read.

    A backward pass reads functions of what the forward pass has kept: one matrix is less to read
    than each function of it.
    """
    domain = domain_of(graph, group)
    # What a product reads has its own rows and columns, be they as many as the result's.
    multiplied = any(
        node.name in graph[name].reads for name in group if graph[name].kind == "product"
    )
    return (
        not graph.leaves(group, node.name)
        and bool(node.reads)
        and (
            (
                node.kind == "view"
                and not multiplied
                and is_at(node, domain)
                and is_at(graph[node.reads[0]], domain)
            )
            or fits(graph, group, node)
        )
    )


# --- patterns -------------------------------------------------------------------------------------
def _is(graph: Graph, name: str, text: str, *numbers: float) -> tuple[str, ...] | None:
    """What a node reads, if it is the operation with these numbers."""
    node = graph[name]
    close = len(node.numbers) == len(numbers) and all(
        math.isclose(a, b, rel_tol=1e-6) for a, b in zip(node.numbers, numbers, strict=True)
    )
    return node.reads if node.text == text and close else None


def _replaced(node: Node, reads: str, compute: Callable[..., object], text: str) -> Node:
    return Node(node.name, "pointwise", (reads,), node.shape, node.dtype, compute, False, text)


@pattern
def gelu(graph: Graph, node: Node) -> Node | None:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``, as decompositions write it."""
    if node.text != "mul" or len(node.reads) != 2:
        return None
    for half, rest in (node.reads, node.reads[::-1]):
        halved, plus = _is(graph, half, "mul", 0.5), _is(graph, rest, "add", 1.0)
        inner = _is(graph, plus[0], "erf") if plus else None
        scaled = _is(graph, inner[0], "mul", math.sqrt(0.5)) if inner else None
        if halved and scaled and halved == scaled:
            return _replaced(node, halved[0], f.gelu, "gelu")
    return None


@pattern
def silu(graph: Graph, node: Node) -> Node | None:
    """``x / (1 + exp(-x))``, as decompositions write it."""
    if node.text != "div" or len(node.reads) != 2:
        return None
    x, below = node.reads
    plus = _is(graph, below, "add", 1.0)
    inner = _is(graph, plus[0], "exp") if plus else None
    negated = _is(graph, inner[0], "neg") if inner else None
    return _replaced(node, x, f.PUBLIC["silu"], "silu") if negated == (x,) else None


@pattern
def gelu_by_tanh(graph: Graph, node: Node) -> Node | None:
    """``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, the cube in either form."""
    if node.text != "mul" or len(node.reads) != 2:
        return None
    for half, rest in (node.reads, node.reads[::-1]):
        halved, plus = _is(graph, half, "mul", 0.5), _is(graph, rest, "add", 1.0)
        inner = _is(graph, plus[0], "tanh") if plus else None
        scaled = _is(graph, inner[0], "mul", math.sqrt(2 / math.pi)) if inner else None
        summed = graph[scaled[0]] if scaled else None
        if not halved or summed is None or summed.text != "add" or summed.numbers:
            continue
        x = halved[0]
        cubes = [read for read in summed.reads if read != x]
        cube = _is(graph, cubes[0], "mul", 0.044715) if len(cubes) == 1 else None
        if cube and x in summed.reads and _is_cube(graph, cube[0], x):
            return _replaced(node, x, functools.partial(f.gelu, approximate="tanh"), "gelu")
    return None


def _is_cube(graph: Graph, name: str, x: str) -> bool:
    """Whether a value is the third power of another one."""
    node = graph[name]
    if node.text == "pow":
        return node.reads == (x,) and node.numbers == (3.0,)
    if node.text != "mul" or node.numbers or x not in node.reads:
        return False
    square = [read for read in node.reads if read != x]
    return len(square) == 1 and _is(graph, square[0], "mul") == (x, x)
