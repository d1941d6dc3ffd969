"""Groups of a graph's nodes that may become kernels, by the rules.

1. Every product begins a group, unless it is in one. Nodes that read the group are offered to the
   rules, in the graph's order, until none joins; then what only the group reads is absorbed.
2. Casts and views at the end that would only make the results larger stay outside, and so does
   what can be computed again, from results, where a kernel behind reads it.
3. A group of several products may be replaced by groups of one product each, which are offered
   where they are predicted to take less time.
4. Groups that rules say may share a kernel are offered as one first, and by themselves where that
   is not taken.
5. A group without pointwise work is none, unless it shares a kernel: a library's product is as
   good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from polygen.adapters.forms import Form, Same, alike, most_general
from polygen.adapters.graphs import Beside, Graph, Group, Node, Rule, Shape, placed, same
from polygen.adapters.rules import BESIDE, RULES, domain_of, is_absorbed
from polygen.errors import DTypeError, PolygenError, UnsupportedProgram
from polygen.frontend.build import MAX_OUTPUTS, build_program
from polygen.frontend.dtypes import F32, REALS, TF32, DType
from polygen.frontend.program import Program, Tensor


def groups(
    graph: Graph,
    rules: Sequence[Rule] | None = None,
    beside: Sequence[Beside] | None = None,
    *,
    bare: bool = False,
) -> Iterator[Group]:
    """All groups, in the graph's order; none share a node.

    Args:
        graph: with patterns replaced.
        rules: None: all there are.
        beside: rules about two groups; None: all there are.
        bare: give products without any other work, too.
    """
    found = list(_grouped(graph, RULES if rules is None else rules))
    offered: set[str] = set()
    for at, group in enumerate(found):
        if group.members[0] in offered:
            continue
        whole = [group]
        for other in found[at + 1 :]:
            if other.members[0] not in offered and _share(
                graph, whole, other, BESIDE if beside is None else beside
            ):
                whole.append(other)
        offered |= {part.members[0] for part in whole}
        if len(whole) > 1:
            yield _together(graph, whole)
        elif bare or has_work(graph, group):
            yield group


def _share(graph: Graph, whole: Sequence[Group], other: Group, beside: Sequence[Beside]) -> bool:
    """Whether a group may share a kernel with others, and nothing outside stands between them."""
    members = frozenset(name for group in whole for name in group.members)
    known: dict[str, Shape] = {name: shape for group in whole for name, shape in group.operands}
    alike = all(same(known.get(name, shape), shape) for name, shape in other.operands)
    few = sum(len(group.outputs) for group in (*whole, other)) <= MAX_OUTPUTS
    if not (alike and few) or graph.between(members | frozenset(other.members)):
        return False
    # A value that one group makes and another reads would not be there in time.
    if any(name in members for name, _ in other.operands):
        return False
    return any(
        all(one(graph, frozenset(group.members), frozenset(other.members)) for group in whole)
        for one in beside
    )


def _together(graph: Graph, whole: Sequence[Group]) -> Group:
    members = tuple(graph.sorted(name for group in whole for name in group.members))
    graph.kernels |= dict.fromkeys(members, members)
    operands = {name: shape for group in whole for name, shape in group.operands}
    outputs = tuple(graph.sorted(name for group in whole for name in group.outputs))
    return Group(members, whole[0].domain, outputs, tuple(operands.items()), tuple(whole))


def has_work(graph: Graph, group: Group) -> bool:
    """Whether a group computes more than products."""
    return any(_is_work(graph[member]) for member in group.members)


def _grouped(graph: Graph, rules: Sequence[Rule]) -> Iterator[Group]:
    """The groups that products begin."""
    taken: set[str] = set()
    for name, node in graph.nodes.items():
        if node.kind != "product" or name in taken:
            continue
        members = _grown(graph, name, taken, rules)
        found = replace(_group(graph, members), instead=_one_by_one(graph, members, taken, rules))
        taken |= {name, *found.members}
        graph.kernels |= dict.fromkeys(found.members, found.members)
        yield found


def _one_by_one(
    graph: Graph, members: frozenset[str], taken: set[str], rules: Sequence[Rule]
) -> tuple[Group, ...]:
    """Groups of one product each for those of a group, the last one with all that it can have."""
    products = [name for name in graph.sorted(members) if graph[name].kind == "product"]
    if len(products) == 1:
        return ()
    found: list[Group] = []
    used = set(taken)
    for name in reversed(products):
        own = _grown(graph, name, used | set(products) - {name}, rules)
        used |= own
        found.append(_group(graph, own))
    return tuple(reversed(found))


def _is_work(node: Node) -> bool:
    return node.kind == "pointwise" and not node.cast


def _grown(graph: Graph, seed: str, taken: set[str], rules: Sequence[Rule]) -> frozenset[str]:
    members = frozenset({seed})
    while True:
        larger = _joined(graph, members, taken, rules)
        larger = _absorbed(graph, larger, taken)
        if larger == members:
            return _trimmed(graph, members)
        members = larger


def _joined(
    graph: Graph, members: frozenset[str], taken: set[str], rules: Sequence[Rule]
) -> frozenset[str]:
    for name in graph.nodes:
        if name in members or not any(read in members for read in graph[name].reads):
            continue
        for one in rules:
            more = one(graph, members, graph[name])
            if more and not more & taken and not graph.between(members | more):
                members |= more
                break
    return members


def _absorbed(graph: Graph, members: frozenset[str], taken: set[str]) -> frozenset[str]:
    for name in reversed(graph.nodes):
        if name in members or name in taken:
            continue
        read = any(user in members for user in graph.users[name])
        if read and is_absorbed(graph, members, graph[name]):
            members |= {name}
    return members


def _trimmed(graph: Graph, members: frozenset[str]) -> frozenset[str]:
    """Without views and widening casts at the end."""
    for name in reversed(graph.sorted(members)):
        node = graph[name]
        last = not any(user in members for user in graph.users[name])
        if last and _is_made_again(graph, members, node):
            members -= {name}
            continue
        if not last or not (node.kind == "view" or node.cast):
            continue
        source = graph[node.reads[0]]
        wider = _bytes(node.dtype) > _bytes(source.dtype)
        known = graph.leaves(members - {name}, source.name) and graph.leaves(members, source.name)
        if node.kind == "view" or wider or known:
            members -= {name}
    return members


def _is_made_again(graph: Graph, members: frozenset[str], node: Node) -> bool:
    """Whether what a node computes is computed of results just as well, where it is read."""

    def is_known(name: str) -> bool:
        if name not in members or graph.leaves(members, name):
            return True
        same_value = graph[name].cast or graph[name].kind == "view"
        return same_value and all(map(is_known, graph[name].reads))

    own = [read for read in node.reads if read in members]
    known = bool(own) and all(map(is_known, own))
    return node.kind == "pointwise" and known and graph.joins_later(node.name)


def _bytes(dtype: DType | None) -> int:
    return dtype.bytes if dtype is not None else 0


def _group(graph: Graph, members: frozenset[str]) -> Group:
    order = graph.sorted(members)
    domain = domain_of(graph, members)
    operands: dict[str, Shape] = {}
    for name in order:
        node = graph[name]
        for read in node.reads:
            if read in members:
                continue
            operands.setdefault(read, _read_in(graph, node, read, domain) or graph[read].shape)
    outputs = tuple(name for name in order if graph.leaves(members, name))
    return Group(tuple(order), domain, outputs, tuple(operands.items()))


def _read_in(graph: Graph, node: Node, read: str, domain: Shape) -> Shape | None:
    """The shape in which a member reads a value from outside; None: none that it can have."""
    shape = graph[read].shape
    if node.kind == "product":
        return shape
    if node.kind == "view":  # which splits or joins its rows
        return domain
    return placed(shape, node.shape, domain)


def program_of(
    graph: Graph, group: Group, name: str, *, allow_tf32: bool = False, alike: Same = alike
) -> tuple[Program, dict[str, Any]]:
    """The program of a group, and the extents of its dims.

    Args:
        graph: that the group is of.
        group: its operands become arguments a0, a1, ….
        name: of the program.
        allow_tf32: take f32 operands of products as tf32.
        alike: whether two extents are the same, as `most_general` takes it.

    Raises:
        PolygenError: the group cannot become one kernel.
    """
    _require_plain(graph, group)
    multiplied = {
        read
        for member in group.members
        if graph[member].kind == "product"
        for read in graph[member].reads[-2:]
    }
    forms = []
    for position, (operand, shape) in enumerate(group.operands):
        kind = graph[operand].dtype
        if kind is None:
            raise UnsupportedProgram(f"{operand} has elements that kernels do not read", where=name)
        if operand in multiplied:
            kind = multiplied_as(kind, operand, name, allow_tf32=allow_tf32)
        forms.append(Form(f"a{position}", kind, tuple(shape)))
    types = [graph[output].dtype for output in group.outputs]
    function = group.function(graph)

    def trace(tensors: Sequence[Tensor]) -> Program:
        return build_program(function, name, str(group), tensors, types)

    return most_general(trace, forms, alike)


def multiplied_as(kind: DType, operand: str, where: str, *, allow_tf32: bool) -> DType:
    """The type in which a kernel multiplies an operand.

    Args:
        kind: of its elements.
        operand: what it is called.
        where: by what.
        allow_tf32: whether f32 may be tf32.

    Raises:
        DTypeError: it is f32, and may not.
    """
    if kind != F32:
        return kind
    if not allow_tf32:
        raise DTypeError(
            f"{operand} is f32",
            where=where,
            why="products of f32 are the library's own unless tf32 is allowed",
            nearest="Allow tf32",
        )
    return TF32


def _require_plain(graph: Graph, group: Group) -> None:
    """Refuse results that kernels do not write, and operands that are read in two shapes.

    Raises:
        PolygenError: with the node.
    """
    if len(group.outputs) > MAX_OUTPUTS:
        raise UnsupportedProgram(f"{len(group.outputs)} results", nearest=f"At most {MAX_OUTPUTS}")
    for output in group.outputs:
        if graph[output].dtype not in REALS:
            raise UnsupportedProgram(f"the result {output} is no float")
    shapes = dict(group.operands)
    for member, domain in ((name, part.domain) for part in group.each for name in part.members):
        node = graph[member]
        for read in node.reads:
            if read not in shapes:
                continue
            shape = _read_in(graph, node, read, domain)
            if shape is None or not same(shape, shapes[read]):
                raise UnsupportedProgram(f"{read} is read in two shapes", where=member)


def refused(error: PolygenError) -> str:
    """Why a group is left, in a line."""
    return " ".join(str(error).split())
