"""Loops whose iterations go together: what a call's number leaves, divided by how many they are.

Registers have no addresses, so which slot of a ring of them a call means has to follow from its
text. `4 * k + 1` says what it leaves, divided by 4; what isl writes of the last iterations, which
are too few to go together, does not, as `k_tiles - 1` where `(k_tiles + 1) % 4 == 0`. Such a number
`e` becomes `e / 4 * 4 + 2`.

What it leaves is tried for a few sizes under the conditions on the call's way. That it is the same
number for all is proved with the loops that are emitted (`polygen.poly.read_loops`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

from polygen.poly.ast import Binary, Block, Call, Const, Expr, For, If, LoopAst, Marked, Var

_SIZES = 4  # rounds of sizes that are tried
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv,
    "%": operator.mod, "min": min, "max": max, "==": operator.eq, "<=": operator.le,
    "<": operator.lt, ">=": operator.ge, ">": operator.gt, "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b),
}  # fmt: skip


def with_residues(node: LoopAst, size: str, count: int) -> LoopAst:
    """The loops, in which numbers that depend on a size alone say what they leave.

    Args:
        node: of a place.
        size: the parameter that counts the iterations.
        count: iterations that go together.
    """
    return _written(node, size, count, tuple(range(1, _SIZES * count + 1)))


def _written(node: LoopAst, size: str, count: int, sizes: tuple[int, ...]) -> LoopAst:
    if isinstance(node, Call):
        return replace(
            node, arguments=tuple(_argument(one, size, count, sizes) for one in node.arguments)
        )
    if isinstance(node, Block):
        children = tuple(_written(child, size, count, sizes) for child in node.children)
        return replace(node, children=children)
    if isinstance(node, Marked | For):
        return replace(node, body=_written(node.body, size, count, sizes))
    then, otherwise = sizes, sizes
    if _of(node.condition, size):
        then = tuple(one for one in sizes if _value(node.condition, one))
        otherwise = tuple(one for one in sizes if one not in then)
    rest = None if node.otherwise is None else _written(node.otherwise, size, count, otherwise)
    return If(node.condition, _written(node.then, size, count, then), rest)


def _argument(expression: Expr, size: str, count: int, sizes: tuple[int, ...]) -> Expr:
    if isinstance(expression, Const) or not _of(expression, size):
        return expression
    left = {_value(expression, one) % count for one in sizes}
    if len(left) != 1:
        return expression
    whole = Binary("*", Binary("/", expression, Const(count)), Const(count))
    rest = left.pop()
    return Binary("+", whole, Const(rest)) if rest else whole


def _of(expression: Expr, size: str) -> bool:
    """Whether an expression depends on the size alone."""
    if isinstance(expression, Var):
        return expression.name == size
    if isinstance(expression, Const):
        return True
    return _of(expression.left, size) and _of(expression.right, size)


def _value(expression: Expr, size: int) -> int:
    if isinstance(expression, Const):
        return expression.value
    if isinstance(expression, Var):
        return size
    return int(
        _OPERATORS[expression.op](*(_value(e, size) for e in (expression.left, expression.right)))
    )
