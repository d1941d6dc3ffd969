"""The one schedule tree over all tile statements, and what a place runs of it.

A `Loop` is a band of one member: it says for every statement below when it runs in that loop. A
`Steps` node runs its children one after the other. Trees are plain data; `isl_text` prints what isl
reads, both to prove and to generate loops from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

_UNROLLED = "unroll[x]"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One statement."""

    name: str


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop.

    Attributes:
        variable: the loop's name in the emitted code.
        times: when each statement below runs, as isl text over its coordinates.
        child: what is repeated.
        options: of isl's code generator: "separate[x]", "unroll[x]".
        together: (leaf, iterations that one iteration of the code has, one after the other), in
            trees that have the leaf: registers, which have no addresses, are then the same ones in
            every iteration of the code. "" and 1: every one has one.
    """

    variable: str
    times: tuple[tuple[str, str], ...]
    child: Node
    options: str = ""
    together: tuple[str, int] = ("", 1)

    def time(self, name: str) -> str:
        """When a statement runs in this loop."""
        return dict(self.times)[name]


@dataclass(frozen=True, slots=True)
class Steps:
    """One after the other."""

    children: tuple[Node, ...]


Node = Leaf | Loop | Steps


def steps(*children: Node | str) -> Steps:
    """Children one after the other; a name stands for its leaf."""
    return Steps(tuple(Leaf(c) if isinstance(c, str) else c for c in children))


def loop(variable: str, child: Node | str, options: str = "", /, **times: str) -> Loop:
    """A loop in which statements run at their coordinate `variable`, but for those in `times`."""
    inside = Leaf(child) if isinstance(child, str) else child
    every = tuple((name, times.get(name, variable)) for name in leaves(inside))
    return Loop(variable, every, inside, options)


def leaves(node: Node) -> tuple[str, ...]:
    """The statements below, in the order of the text."""
    if isinstance(node, Leaf):
        return (node.name,)
    if isinstance(node, Loop):
        return leaves(node.child)
    return tuple(name for child in node.children for name in leaves(child))


def filtered(node: Node, names: Iterable[str]) -> Node | None:
    """The tree of some statements; None if there are none."""
    kept = frozenset(names)
    if isinstance(node, Leaf):
        return node if node.name in kept else None
    if isinstance(node, Loop):
        child = filtered(node.child, kept)
        if child is None:
            return None
        together = node.together if node.together[0] in kept else ("", 1)
        own = tuple(t for t in node.times if t[0] in kept)
        return replace(node, child=child, times=own, together=together)
    children = tuple(c for c in (filtered(c, kept) for c in node.children) if c is not None)
    return Steps(children) if children else None


def without(node: Node, *names: str) -> Node:
    """The tree without some leaves."""
    rest = filtered(node, set(leaves(node)) - set(names))
    assert rest is not None
    return rest


def depth(node: Node, name: str) -> int:
    """How many loops are around a leaf."""
    return len(loops_around(node, name))


def loops_around(node: Node, name: str) -> tuple[Loop, ...]:
    """The loops around a leaf, outermost first."""
    if isinstance(node, Leaf):
        return ()
    if isinstance(node, Loop):
        return (node, *loops_around(node.child, name))
    return loops_around(_child_with(node, name), name)


def _child_with(node: Steps, name: str) -> Node:
    return next(child for child in node.children if name in leaves(child))


def level_children(node: Node, level: int, name: str) -> tuple[Node, ...]:
    """The children one after the other, under `level` loops around the leaf `name`."""
    if isinstance(node, Loop) and level:
        return level_children(node.child, level - 1, name)
    if isinstance(node, Steps):
        if not level:
            return node.children
        return level_children(_child_with(node, name), level, name)
    return (node,)


def insert(
    node: Node,
    level: int,
    near: Iterable[str],
    name: str,
    times: tuple[str, ...],
    *,
    after: bool = False,
) -> Node:
    """A leaf more, under `level` loops.

    Args:
        node: the tree.
        level: how many loops are around the new leaf.
        near: it stands before the first child that holds one of them, or after the last.
        name: the new leaf.
        times: when it runs in each of the loops, outermost first.
        after: whether it stands after.
    """
    anchors = frozenset(near)
    if level and isinstance(node, Loop):
        child = insert(node.child, level - 1, anchors, name, times[1:], after=after)
        return replace(node, child=child, times=(*node.times, (name, times[0])))
    children = node.children if isinstance(node, Steps) else (node,)
    found = [n for n, child in enumerate(children) if anchors & set(leaves(child))]
    position = found[-1] if after else found[0]
    if not level:
        position += after
        return Steps((*children[:position], Leaf(name), *children[position:]))
    changed = insert(children[position], level, anchors, name, times, after=after)
    return Steps((*children[:position], changed, *children[position + 1 :]))


def replace_leaf(node: Node, name: str, by: Node) -> Node:
    """The tree with a subtree in the place of a leaf; loops around keep the times of its leaves."""
    if isinstance(node, Leaf):
        return by if node.name == name else node
    if isinstance(node, Loop):
        return replace(node, child=replace_leaf(node.child, name, by))
    return Steps(tuple(replace_leaf(child, name, by) for child in node.children))


def times(node: Node) -> dict[str, tuple[str, ...]]:
    """Leaf -> its time vector, as isl texts of one length."""
    found: dict[str, tuple[str, ...]] = {}

    def visit(part: Node, prefix: tuple[str, ...]) -> None:
        if isinstance(part, Leaf):
            found[part.name] = prefix
        elif isinstance(part, Loop):
            marker = f"\0{len(loops)}"
            loops.append(part)
            visit(part.child, (*prefix, marker))
        else:
            for position, child in enumerate(part.children):
                visit(child, (*prefix, str(position)))

    loops: list[Loop] = []
    visit(node, ())
    width = max(map(len, found.values()))

    def text(name: str, item: str) -> str:
        return loops[int(item[1:])].time(name) if item.startswith("\0") else item

    return {
        name: (*(text(name, item) for item in vector), *("0",) * (width - len(vector)))
        for name, vector in found.items()
    }


def isl_text(
    node: Node, domain: str, prefix: str, instance: Callable[[str], str], context: str = ""
) -> str:
    """The tree in isl's flow-style YAML.

    Args:
        node: the tree.
        domain: all instances, as isl text.
        prefix: of isl texts with parameters, ``[k_tiles] -> ``.
        instance: leaf -> ``name[coordinates]`` as the texts write it.
        context: what is known about parameters.
    """

    def band(part: Loop, time: str, options: str, child: str) -> str:
        member = "; ".join(
            f"{instance(name)} -> [{time.format(when)}]" for name, when in part.times
        )
        chosen = f', options: "{prefix}{{ {options} }}"' if options else ""
        below = f", child: {child}" if child else ""
        return f'{{ schedule: "{prefix}[{{ {member} }}]"{chosen}{below} }}'

    def text(part: Node) -> str:
        if isinstance(part, Leaf):
            return ""
        if isinstance(part, Loop):
            child, count = text(part.child), part.together[1]
            if count > 1:
                child = band(part, "({})", _UNROLLED, child)
                child = band(part, f"floor(({{}})/{count})", part.options, child)
            else:
                child = band(part, "({})", part.options, child)
            return f'{{ mark: "{part.variable}", child: {child} }}'
        children = []
        for step in part.children:
            names = "; ".join(map(instance, leaves(step)))
            below = text(step)
            tail = f", child: {below}" if below else ""
            children.append(f'{{ filter: "{prefix}{{ {names} }}"{tail} }}')
        return f"{{ sequence: [ {', '.join(children)} ] }}"

    body = text(node)
    if context:
        body = f'{{ context: "{prefix}{{ [] : {context} }}", child: {body} }}'
    return f'{{ domain: "{domain}", child: {body} }}'
