"""The documentation of a pointwise function: formula, domain, types and error, from its tables.

1. The formula of a composite is its definition, run on names; a primitive's is NumPy's name for it,
   or stands below where NumPy has none.
2. The domain of a function of one number is found by asking its reference: the interval of numbers
   for which it is not NaN.
3. The error is the one recorded beside the form that is emitted.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.emit.function_errors import recorded_error
from polygen.emit.functions import expanded
from polygen.emit.primitives import Emitted
from polygen.frontend.dtypes import BOOL
from polygen.frontend.functions import TABLE, Function
from polygen.frontend.symbolic import Symbolic

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
# Primitives that NumPy has no name for.
_FORMULAS = {
    "rsqrt": "1 / sqrt(x)",
    "sigmoid": "1 / (1 + exp(-x))",
    "softplus": "log(1 + exp(x))",
    "erfc": "1 - erf(x)",
    "erfinv": "the number whose erf is x",
    "gelu": "x / 2 * erfc(-x / sqrt(2))",
    "erf": "2 / sqrt(pi) * integral of exp(-t * t) for t from 0 to x",
}
# Constant last arguments that lead to forms of their own, beside none.
_CONSTANTS: dict[str, tuple[float | None, ...]] = {"pow": (None, -1.0, -0.5, 0.5, 2.5, 4.0, 8.0)}
_ALL = "every number"
_ROUNDED = Emitted("").error
_PROBES = np.array([-math.inf, -1e30, -100.3, -3.7, -0.3, 0.0, 0.3, 3.7, 100.3, 1e30, math.inf])


def document(function: Callable[..., Any]) -> None:
    """Give a function of `polygen` its docstring; one that has paragraphs of its own keeps them.

    Args:
        function: a callable made of an entry of the vocabulary's table, which has its name.
    """
    entry = TABLE.get(function.__name__)
    if entry is None:
        return
    own = inspect.cleandoc(function.__doc__ or "")
    first = own if "\n" in own else f"`{entry.name}{inspect.signature(function)}`, elementwise."
    function.__doc__ = f"{first}\n\n{_facts(entry)}\n"


def formula(entry: Function) -> str:
    """What a function computes, as an expression over its parameters."""
    if entry.name in _FORMULAS:
        return _FORMULAS[entry.name]
    if entry.definition is None:
        result = _Term(_primitive(entry.name, entry.parameters))
    else:
        result = entry.definition(*map(_Term, entry.parameters))
    # Parsed and written again, so that only the parentheses that are needed remain.
    return ast.unparse(ast.parse(str(result), mode="eval"))


def domain(entry: Function) -> str:
    """For which numbers the result is a number, in words; empty for several parameters."""
    if entry.arity[0] != 1 or entry.result == BOOL:
        return ""

    def defined(x: Any) -> Any:
        with np.errstate(all="ignore"):
            values = [np.asarray(x, np.float64), *entry.defaults]
            return ~np.isnan(np.asarray(entry.reference(*values), np.float64))

    valid = np.atleast_1d(defined(_PROBES))
    finite = valid[1:-1]
    if finite.all():
        lost = [f"{x:g}" for x in _PROBES[~valid]]
        return _ALL + (f" but {' and '.join(lost)}" if lost else "")
    inside = np.flatnonzero(valid)
    if not inside.size:
        return ""
    low, high = int(inside[0]), int(inside[-1])
    parts = []
    if low > 0:
        parts.append(_edge("x", _PROBES[low - 1], _PROBES[low], defined, ">"))
    if high < len(_PROBES) - 1:
        parts.append(_edge("x", _PROBES[high + 1], _PROBES[high], defined, "<"))
    return " and ".join(parts)


def _edge(name: str, outside: float, inside: float, defined: Callable[..., Any], sign: str) -> str:
    """One bound of an interval: bisected, then rounded to what people write."""
    for _ in range(200):
        middle = (outside + inside) / 2
        if not math.isfinite(middle):
            middle = math.copysign(1e300, outside)
        outside, inside = (outside, middle) if defined(middle) else (middle, inside)
    bound = round(inside, 9) + 0.0
    return f"{name} {sign}{'=' if defined(bound) else ''} {bound:g}"


def _facts(entry: Function) -> str:
    lines = [f"Formula: {formula(entry)}."]
    where = domain(entry)
    if where:
        lines.append(f"Domain: {where}{'' if where == _ALL else '; NaN otherwise'}.")
    boolean = entry.result == BOOL
    rounding = "" if boolean else ", which an output rounds to its own type"
    lines.append(
        "Types: traced values, arrays and numbers of any floating type; computed in f32, and the "
        f"result is {'bool' if boolean else 'f32'}{rounding}."
    )
    if not boolean:
        lines.append(f"Error: {_error(entry)}.")
    return "\n".join(lines)


def _error(entry: Function) -> str:
    accurate, fast = (_bound(*_recorded(entry, fast)) for fast in (False, True))
    if accurate == fast:
        return accurate
    return f"{accurate}; for outputs of 16 bits or fewer {fast}, then rounded"


def _recorded(entry: Function, fast: bool) -> tuple[float, float]:
    """(absolute, relative) of the form that is emitted, of several forms the largest."""
    calls: list[str] = []

    def note(primitive: str, *_: Any) -> str:
        calls.append(primitive)
        return primitive

    expanded(entry.name, list(entry.parameters), note)
    # A definition that is one primitive, as that of relu, has no error of its own.
    name = calls[0] if len(calls) == 1 else entry.name
    found = [recorded_error(name, constant, fast) for constant in _CONSTANTS.get(name, (None,))]
    return max(absolute for absolute, _ in found), max(relative for _, relative in found)


def _bound(absolute: float, relative: float) -> str:
    if (absolute, relative) == _ROUNDED:
        return "that of rounding to f32"
    terms = [f"{_power(relative)} |f|", *([_power(absolute)] if absolute else [])]
    return f"at most {' + '.join(terms)}"


def _power(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:.3g}"


class _Term(Symbolic):
    """A definition's value as text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def apply(self, function: str, *args: Any) -> _Term:
        """The text of a function of texts and numbers."""
        return _Term(_primitive(function, [_written(arg) for arg in args]))


def _written(value: Any) -> str:
    if isinstance(value, _Term):
        return str(value)
    return f"{value:.7g}" if value >= 0 else f"({value:.7g})"


def _primitive(name: str, arguments: Any) -> str:
    operator = _OPERATORS.get(name) or _COMPARISONS.get(name)
    if operator:
        return f"({arguments[0]} {operator} {arguments[1]})"
    if name == "neg":
        return f"(-{arguments[0]})"
    return f"{name}({', '.join(arguments)})"
