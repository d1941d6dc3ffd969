"""What expressions may contain: operators, functions, constants; and what to write for others."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.frontend.coordinates import indices, repeat, tril, triu
from polygen.frontend.folds import PUBLIC as FOLDS
from polygen.frontend.functions import PUBLIC
from polygen.frontend.groups import grouped_matmul, per_group
from polygen.frontend.joined import concatenate, split, stack
from polygen.frontend.names import ALIASES, closest, is_numpy
from polygen.frontend.norms import PUBLIC as NORMS
from polygen.frontend.numpy_functions import LINALG
from polygen.frontend.packed import unpack
from polygen.frontend.products import PUBLIC as OF_VECTORS
from polygen.frontend.products import einsum
from polygen.frontend.random import dropout, uniform
from polygen.frontend.rearranged import PUBLIC as REARRANGED
from polygen.frontend.selecting import PUBLIC as SELECTING
from polygen.frontend.statistics import PUBLIC as STATISTICS
from polygen.frontend.symbolic import first_symbolic

MODULES = ("np", "numpy", "pg", "polygen", "math")
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
_SHOWN = 80  # characters of a suggestion

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# What is not part of expressions, how it is called, and what is written in its place.
INSTEAD: dict[type[ast.AST], tuple[str, str]] = {
    ast.IfExp: ("a conditional expression", "where({0.test}, {0.body}, {0.orelse})"),
    ast.And: ("and", "logical_and({0.values[0]}, {0.values[1]})"),
    ast.Or: ("or", "logical_or({0.values[0]}, {0.values[1]})"),
    ast.Not: ("not", "logical_not({0.operand})"),
    ast.Lambda: ("a lambda", "{0.body}"),
    ast.NamedExpr: ("an assignment", "{0.value}"),
    ast.FloorDiv: ("//", "{0.left} / {0.right}"),
}


def _special() -> dict[str, Callable[..., Any]]:
    """NumPy's other names, on traced values as on arrays."""
    others: dict[str, Callable[..., Any]] = {
        "matmul": lambda a, b: a @ b,
        "dot": lambda a, b: a @ b,
        "transpose": lambda a, axes=None: a.T if axes is None else a.transpose(axes),
        "swapaxes": lambda a, axis1, axis2: a.swapaxes(axis1, axis2),
        "einsum": einsum,
    }
    return {alias: others.get(name) or PUBLIC[name] for alias, name in ALIASES.items()}


def on_arrays_too(name: str) -> Callable[..., Any]:
    """A function of np.linalg, on traced values as on arrays."""

    def called(*args: Any, **keywords: Any) -> Any:
        traced = first_symbolic((*args, *keywords.values()))
        function = getattr(np.linalg, name) if traced is None else LINALG[name]
        return function(*args, **keywords)

    return called


FUNCTIONS = PUBLIC | _special()
FUNCTIONS |= {"indices": indices, "repeat": repeat, "unpack": unpack}
FUNCTIONS |= {"tril": tril, "triu": triu}
FUNCTIONS |= {"dropout": dropout, "uniform": uniform}
FUNCTIONS |= {"grouped_matmul": grouped_matmul, "per_group": per_group}
JOINED = {"concatenate": concatenate, "concat": concatenate, "stack": stack}
FUNCTIONS |= FOLDS | JOINED | {"split": split}
# Functions with axes and other literals among their arguments, and arrays by keywords.
FOLDED = FOLDS | STATISTICS | NORMS | SELECTING | {"vecdot": OF_VECTORS["vecdot"]}
FUNCTIONS |= FOLDED | OF_VECTORS | REARRANGED
FUNCTIONS |= {f"linalg.{name}": on_arrays_too(name) for name in LINALG}
# Those with arguments that are no arrays.
LITERALS = (
    "einsum",
    "swapaxes",
    "transpose",
    "permute_dims",
    "unpack",
    "repeat",
    *FOLDED,
    *REARRANGED,
)
LITERALS += ("tril", "triu", "split", *(f"linalg.{name}" for name in LINALG))
KNOWN = 'Known: .T, .mT, .swapaxes(1, 2), .transpose(0, 2, 1), .astype("f16")'


def suggestion(form: str, node: ast.AST) -> str:
    """A form filled with the texts of a node's parts; in words where that would be long."""
    text = re.sub(
        r"\{0\.(\w+)(?:\[(\d)\])?\}",
        lambda found: _source(getattr(node, found[1]), found[2]),
        form,
    )
    return f"Write `{text}`" if len(text) <= _SHOWN else f"Write `{form.partition('(')[0]}(…)`"


def _source(part: Any, position: str | None) -> str:
    return ast.unparse(part if position is None else part[int(position)])


def as_function(called: ast.Attribute, node: ast.Call) -> str:
    """How a method is written that is a function here."""
    if called.attr not in FUNCTIONS:
        return closest(called.attr) if is_numpy(called.attr) else KNOWN
    text = ast.unparse(
        ast.Call(ast.Name(called.attr), [called.value, *node.args], list(node.keywords))
    )
    return f"Write `{text}`" if len(text) <= _SHOWN else f"Write `{called.attr}(…)`"
