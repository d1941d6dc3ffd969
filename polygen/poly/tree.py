"""Schedule trees as small values that print themselves in isl's YAML, for isl to read and check.

isl's own trees are edited through cursors; these nodes are plain data instead, so that a pass
builds the tree it wants in one expression and a test can compare it. Nothing is trusted:
`polygen.poly.legality` checks the tree that isl read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of a branch."""


@dataclass(frozen=True, slots=True)
class Band:
    """Loops: one member per loop, each a list of (instance text, isl expression)."""

    members: tuple[tuple[tuple[str, str], ...], ...]
    child: Node | None = None
    options: str = ""  # isl AST options, "separate[x]"


@dataclass(frozen=True, slots=True)
class Mark:
    """A name on the subtree below."""

    name: str
    child: Node


@dataclass(frozen=True, slots=True)
class Filter:
    """Only these statement instances continue below."""

    instances: tuple[str, ...]
    child: Node | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    """Filters executed one after the other."""

    children: tuple[Filter, ...]


Node = Leaf | Band | Mark | Filter | Sequence


def domain_tree(domain: str, child: Node, context: str = "") -> Filter:
    """The root of a tree; `to_isl_text` prints it as a domain node."""
    return Filter((f"domain: {domain}", context), child)


def to_isl_text(root: Filter, parameters: tuple[str, ...]) -> str:
    """The tree in isl's flow-style YAML, ready for ``isl.Schedule``."""
    # isl reads "[] -> [...]" as an empty band, so no parameters means no prefix.
    prefix = f"[{','.join(parameters)}] -> " if parameters else ""
    domain, context = root.instances
    assert root.child is not None
    body = _text(root.child, prefix)
    if context:
        body = f'{{ context: "{prefix}{{ [] : {context} }}", child: {body} }}'
    return f'{{ domain: "{domain.removeprefix("domain: ")}", child: {body} }}'


def _text(node: Node, prefix: str) -> str:
    if isinstance(node, Mark):
        return f'{{ mark: "{node.name}", child: {_text(node.child, prefix)} }}'
    if isinstance(node, Sequence):
        return f"{{ sequence: [ {', '.join(_text(child, prefix) for child in node.children)} ] }}"
    if isinstance(node, Filter):
        head = f'filter: "{prefix}{{ {"; ".join(node.instances)} }}"'
        return _with_child(head, node.child, prefix)
    if isinstance(node, Band):
        members = ", ".join(
            "{ " + "; ".join(f"{instance} -> [({value})]" for instance, value in member) + " }"
            for member in node.members
        )
        head = f'schedule: "{prefix}[{members}]"'
        if node.options:
            head += f', options: "{prefix}{{ {node.options} }}"'
        return _with_child(head, node.child, prefix)
    raise TypeError(type(node).__name__)


def _with_child(head: str, child: Node | None, prefix: str) -> str:
    if child is None or isinstance(child, Leaf):
        return f"{{ {head} }}"
    return f"{{ {head}, child: {_text(child, prefix)} }}"
