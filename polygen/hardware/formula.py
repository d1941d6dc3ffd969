"""C formulas over whole numbers, evaluated for numbers or for arrays of them.

Indices of lanes, addresses and patterns of bits are written once, as C, and proved by what they
give for every value of their names. What is read are sums, products, quotients, remainders, shifts,
operations on bits, the lesser or larger of two, comparisons, in parentheses where they are counted,
and both or either of them, all of what is not negative: there C's division is Python's `//`.
Numbers that are added or multiplied may be. Types are left out: nothing overflows here.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polygen.errors import VerifyError

_TYPES = re.compile(r"\(long long\)|(?<=[0-9A-Fa-f])(?:ULL|LL|u)\b")
_KEPT = 4096
_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {"min": np.minimum, "max": np.maximum}
Evaluate = Callable[[Mapping[str, Any]], Any]


def value(text: str, names: Mapping[str, Any]) -> Any:
    """What a formula gives.

    Args:
        text: the formula.
        names: name -> number, or array of numbers; or a function of two.

    Raises:
        VerifyError: it is no formula of this kind, has another name, or divides by 0.
    """
    try:
        with np.errstate(divide="raise"):
            return _read(text)(names)
    except (ZeroDivisionError, FloatingPointError):
        raise VerifyError("this divides by 0", where=text) from None


@functools.lru_cache(maxsize=_KEPT)
def _read(text: str) -> Evaluate:
    try:
        plain = _TYPES.sub("", text).replace("&&", " and ").replace("||", " or ").strip()
        return _made(ast.parse(plain, mode="eval").body, text)
    except SyntaxError:
        raise VerifyError("this is no formula", where=text) from None


def _made(node: ast.AST, text: str) -> Evaluate:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        number = node.value
        return lambda names: number
    if isinstance(node, ast.Name):
        return lambda names: _named(names, node.id, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _made(node.operand, text)
        return lambda names: -inner(names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        bits = _made(node.operand, text)
        return lambda names: ~bits(names)
    if isinstance(node, ast.BoolOp):
        parts = [_made(one, text) for one in node.values]
        joined = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return lambda names: functools.reduce(joined, (part(names) for part in parts))
    pair: tuple[ast.AST, ast.AST, ast.AST] | None = None
    if isinstance(node, ast.BinOp):
        pair = (node.op, node.left, node.right)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        pair = (node.ops[0], node.left, node.comparators[0])
    elif isinstance(node, ast.Call) and len(node.args) == 2:
        called = ast.unparse(node.func)
        first, second = (_made(one, text) for one in node.args)
        return lambda names: _function(names, called, text)(first(names), second(names))
    if pair is None or type(pair[0]) not in _OPERATIONS:
        raise VerifyError(f"a formula has no {type(node).__name__}", where=text)
    operation = _OPERATIONS[type(pair[0])]
    left, right = (_made(one, text) for one in pair[1:])
    return lambda names: operation(left(names), right(names))


def _function(names: Mapping[str, Any], name: str, text: str) -> Callable[[Any, Any], Any]:
    """A function of two numbers: one that is known, or that names have."""
    found: Callable[[Any, Any], Any] = _FUNCTIONS.get(name) or _named(names, name, text)
    return found


def _named(names: Mapping[str, Any], name: str, text: str) -> Any:
    if name not in names:
        raise VerifyError(f"nothing is called {name} here", where=text)
    return names[name]
