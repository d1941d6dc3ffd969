"""Loops as a program: the leaf instances that they run, in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from polygen.poly import ast

Point: TypeAlias = tuple[int, ...]
Instance: TypeAlias = tuple[str, Point]  # a leaf, with coordinates


def value(expression: ast.Expr, values: dict[str, int]) -> int:
    """The value of an index expression or condition."""
    if isinstance(expression, ast.Const):
        return expression.value
    if isinstance(expression, ast.Var):
        return values[expression.name]
    a, b = value(expression.left, values), value(expression.right, values)
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b,
        "/": lambda: a // b, "%": lambda: a % b, "min": lambda: min(a, b), "max": lambda: max(a, b),
        "&&": lambda: int(bool(a and b)), "||": lambda: int(bool(a or b)),
        "==": lambda: int(a == b), "<=": lambda: int(a <= b), "<": lambda: int(a < b),
        ">=": lambda: int(a >= b), ">": lambda: int(a > b),
    }[expression.op]()  # fmt: skip


def calls(node: ast.LoopAst, values: dict[str, int]) -> Iterable[Instance]:
    """The leaf instances that loops run, in order, by the names that the loops call."""
    if isinstance(node, ast.Call):
        yield node.statement, tuple(value(a, values) for a in node.arguments)
    elif isinstance(node, ast.Block):
        for child in node.children:
            yield from calls(child, values)
    elif isinstance(node, ast.Marked):
        yield from calls(node.body, values)
    elif isinstance(node, ast.If):
        branch = node.then if value(node.condition, values) else node.otherwise
        if branch is not None:
            yield from calls(branch, values)
    else:
        inner = {**values, node.iterator: value(node.first, values)}
        while value(node.condition, inner):
            yield from calls(node.body, inner)
            inner[node.iterator] += node.step
