"""The primitives of the pointwise vocabulary as CUDA expressions.

Composite functions need no entry: they are expanded into these; those that have one are written as
one. What outputs of 16 bits or fewer alone are made of takes the fast forms, all else the accurate
ones. A form may call helpers from ``templates/functions``, which are
included when they are used.

The error of every form is recorded beside it. It is the largest found over 2^24 arguments spread
over all floats, with every approximate instruction of polygen's own off by as much as NVIDIA
documents. How the forms work, and what was found, is in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.emit.primitives import (
    COMPOSITES,
    EXP2,
    LAST,
    LOG2,
    PRIMITIVES,
    SHORT,
    SMALL,
    TINY,
    Emitted,
)
from polygen.frontend.expansion import expand

FAST_BITS = 16  # results this narrow take the fast forms


BOOLEAN = frozenset(
    ["lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not"]
)

# Constant exponents: small whole ones are products, some are another primitive, and moderate ones
# have a short form. What is left calls powf, which is more precise than the longer products.
_PRODUCTS, _FAST_PRODUCTS = range(1, 5), range(1, 9)
_ROOTS: dict[float, tuple[str, ...]] = {0.5: ("sqrt", "{0}"), -1.0: ("div", "1.0f", "{0}")}
_INVERSE_ROOT = Emitted("inverse_root({0})", helpers=("inverse_root",), error=(0.0, 2.0**-23))
_FAST_EXPONENTS = 64.0  # the largest: 2^-22 of that is what the logarithm's error becomes
_FAST_POWER = Emitted(
    "",
    "fast_power({0}, {1})",
    fast_helpers=(EXP2, LOG2, "fast_power"),
    fast_error=(TINY, 2.0**-14),
)


def _product(factors: int) -> str:
    """So many equal factors, each product of two written as often as it is used."""
    if factors == 1:
        return "{0}"
    half = _product(factors // 2)
    half = f"({half})" if " " in half else half
    return f"{half} * {half}" + (" * {0}" if factors % 2 else "")


def _power(constant: float | None, fast: bool) -> Emitted:
    """How a power is written.

    Args:
        constant: the exponent, if it is a number.
        fast: take the fast form if there is one.
    """
    if constant in (_FAST_PRODUCTS if fast else _PRODUCTS):
        factors = int(constant or 0)
        return Emitted(_product(factors), error=((factors - 1) * LAST, factors * 2.0**-24))
    if constant == -0.5:
        return _INVERSE_ROOT
    if fast and constant and abs(constant) <= _FAST_EXPONENTS:
        if constant != int(constant):
            return _FAST_POWER
        size = _FAST_POWER.fast.replace("{0}", "fabsf({0})")
        return replace(_FAST_POWER, fast=f"copysignf({size}, {{0}})" if constant % 2 else size)
    return PRIMITIVES["pow"]


def form(name: str, constant: float | None, fast: bool) -> Emitted:
    """How a function is written, and its error.

    Args:
        name: a key of `PRIMITIVES` or of `COMPOSITES`.
        constant: the last argument, if it is a number.
        fast: outputs have 16 bits or fewer.
    """
    if name == "pow":
        return PRIMITIVES[_ROOTS[constant][0]] if constant in _ROOTS else _power(constant, fast)
    return PRIMITIVES.get(name) or COMPOSITES[name]


def expanded(name: str, arguments: Sequence[Any], primitive: Callable[..., Any]) -> Any:
    """A function of the vocabulary, run down to what is written as one expression.

    Args:
        name: a key of `polygen.frontend.functions.TABLE`.
        arguments: the caller's values.
        primitive: as for `polygen.frontend.expansion.expand`.

    Returns:
        What the last call of `primitive` returned.
    """
    if name in COMPOSITES:
        return primitive(name, *arguments)
    return expand(name, arguments, primitive)


def is_costly(name: str, arguments: Sequence[Any]) -> bool:
    """Whether a statement's function is more than arithmetic: one that has a short form."""
    if name == "cast":
        return False
    found: list[str] = []

    def note(primitive: str, *_: Any) -> str:
        found.append(primitive)
        return primitive

    expanded(name, list(arguments), note)
    return any((PRIMITIVES.get(p) or COMPOSITES[p]).fast for p in found)


def is_relative(name: str, arguments: Sequence[Any]) -> bool:
    """Whether the errors of a statement's short forms are parts of its value, and small ones.

    Then a fold of such terms has errors that are parts of their sizes, however many there are.
    """
    if name == "cast":
        return True
    found: list[tuple[float, float]] = []

    def note(primitive: str, *given: Any) -> str:
        constant = given[-1] if given and not isinstance(given[-1], str) else None
        entry = form(primitive, constant, True)
        found.append(entry.fast_error if entry.fast else entry.error)
        return primitive

    expanded(name, list(arguments), note)
    return all(least <= TINY and part <= SMALL for least, part in found)


def expression(
    name: str, arguments: list[str], fast: bool, constant: float | None, *, short: bool = False
) -> tuple[str, tuple[str, ...]]:
    """One function applied to C operands.

    Args:
        name: a key of `PRIMITIVES` or of `COMPOSITES`.
        arguments: C operands: names or literals.
        fast: take the fast form if there is one.
        constant: the last argument, if it is a number.
        short: take the form of one instruction, if there is one.

    Returns:
        C text, and the helpers it calls.
    """
    if name == "pow" and constant in _ROOTS:
        name, *operands = _ROOTS[constant]
        arguments, constant = [operand.format(*arguments) for operand in operands], None
    if fast and name == "div" and constant is not None and _has_reciprocal(constant):
        return f"{arguments[0]} * {literal(1.0 / constant)}", ()
    entry = SHORT[name] if short and name in SHORT else form(name, constant, fast)
    if fast and entry.fast:
        return entry.fast.format(*arguments), entry.fast_helpers
    return entry.accurate.format(*arguments), entry.helpers


def literal(value: float) -> str:
    """A Python number as a CUDA float literal that keeps every bit of its f32 rounding."""
    with np.errstate(over="ignore"):  # beyond f32 it is infinite, as NumPy's f32 would be
        rounded = np.float32(value)
    if np.isnan(rounded):
        return "__int_as_float(0x7fffffff)"
    if np.isinf(rounded):
        return "__int_as_float(0x7f800000)" if rounded > 0 else "__int_as_float(0xff800000)"
    text = str(rounded)
    if "." not in text and "e" not in text:
        text += ".0"
    return f"({text}f)" if rounded < 0 or text.startswith("-") else f"{text}f"


def _has_reciprocal(constant: float) -> bool:
    """Whether f32 holds the number and its reciprocal in full precision."""
    return float(np.finfo(np.float32).tiny) <= abs(constant) <= 2.0**126
