"""The primitives of the pointwise vocabulary as CUDA expressions.

Composite functions need no entry: they are expanded into these; those that have one are written as
one. Kernels whose outputs all have 16 bits or fewer take the fast forms, the others the accurate
ones. A form may call helpers from ``templates/functions``, which are
included when they are used.

The error of every form is recorded beside it. It is the largest found over 2^24 arguments spread
over all floats, with every approximate instruction of polygen's own off by as much as NVIDIA
documents. How the forms work, and what was found, is in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.frontend.expansion import expand

FAST_BITS = 16  # results this narrow take the fast forms


@dataclass(frozen=True, slots=True)
class Emitted:
    """How a function is written.

    Attributes:
        accurate: {0}, {1}, ... are the arguments.
        fast: the form for outputs of 16 bits or fewer; empty: the same.
        helpers: files of templates/functions that the accurate form calls, in order.
        fast_helpers: those that the fast form calls.
        error: (absolute, relative): the accurate form is off by at most absolute + relative * |f|,
            f being the function of the same arguments, where f is finite in f32.
        fast_error: the same of the fast form.
    """

    accurate: str
    fast: str = ""
    helpers: tuple[str, ...] = ()
    fast_helpers: tuple[str, ...] = ()
    error: tuple[float, float] = (2.0**-150, 2.0**-24)  # rounded right
    fast_error: tuple[float, float] = (0.0, 0.0)


_TINY = 2.0**-126  # below it the approximate instructions give zero
_SMALL = 2.0**-15  # part of a term that a fold of short forms may be off by
_LAST = 2.0**-149  # the spacing of the smallest numbers
_EXP2, _RECIPROCAL = "approximate_exp2", "approximate_reciprocal"
_LOG2, _QUOTIENT, _SQRT = "approximate_log2", "approximate_quotient", "approximate_sqrt"
_CLAMP = ("minimum", "maximum")
_STEPPED, _TURNS = "stepped_reciprocal", ("far_turns", "quarter_turns")

# What a schedule may ask for in place of a fast form: one instruction, as coarse as f16.
SHORT: dict[str, Emitted] = {
    "tanh": Emitted(
        "", "short_tanh({0})", fast_helpers=("short_tanh",), fast_error=(_TINY, 2.0**-11)
    ),
}

PRIMITIVES: dict[str, Emitted] = {
    "add": Emitted("{0} + {1}"),
    "sub": Emitted("{0} - {1}"),
    "mul": Emitted("{0} * {1}"),
    "div": Emitted(
        "{0} / {1}",
        "approximate_quotient({0}, {1})",
        fast_helpers=(_QUOTIENT,),
        fast_error=(_TINY, 2.0**-21),
    ),
    "neg": Emitted("-{0}"),
    "abs": Emitted("fabsf({0})"),
    "minimum": Emitted("minimum({0}, {1})", helpers=("minimum",)),
    "maximum": Emitted("maximum({0}, {1})", helpers=("maximum",)),
    "floor": Emitted("floorf({0})"),
    "ceil": Emitted("ceilf({0})"),
    "trunc": Emitted("truncf({0})"),
    "round": Emitted("rintf({0})"),
    "exp": Emitted(
        "expf({0})",
        "approximate_exp2(1.442695f * {0})",
        fast_helpers=(_EXP2,),
        error=(_LAST, 2.0**-23),
        fast_error=(_TINY, 2.0**-17),
    ),
    "exp2": Emitted(
        "exp2f({0})",
        "approximate_exp2({0})",
        fast_helpers=(_EXP2,),
        error=(_LAST, 2.0**-22),
        fast_error=(_TINY, 2.0**-21),
    ),
    "expm1": Emitted(
        "exponential_less_one({0})",
        "fast_expm1({0})",
        helpers=(*_CLAMP, "exponential_less_one"),
        fast_helpers=(_EXP2, "fast_expm1"),
        error=(_LAST, 2.0**-22),
        fast_error=(_TINY, 2.0**-17),
    ),
    "log": Emitted(
        "logf({0})", "__logf({0})", error=(0.0, 2.0**-23), fast_error=(2.0**-21, 2.0**-21)
    ),
    "log1p": Emitted("log1pf({0})", error=(_LAST, 2.0**-23)),
    "sqrt": Emitted(
        "sqrtf({0})",
        "approximate_sqrt({0})",
        fast_helpers=(_SQRT,),
        fast_error=(0.0, 2.0**-22),
    ),
    # One approximate instruction, and what subnormals need.
    "rsqrt": Emitted("rsqrtf({0})", error=(0.0, 2.0**-23)),
    "cbrt": Emitted(
        "cbrtf({0})",
        "fast_cbrt({0})",
        fast_helpers=(_EXP2, _LOG2, "fast_cbrt"),
        error=(0.0, 2.0**-23),
        fast_error=(_TINY, 2.0**-16),
    ),
    "hypot": Emitted(
        "hypotf({0}, {1})",
        "fast_hypot({0}, {1})",
        fast_helpers=(_SQRT, "fast_hypot"),
        error=(_LAST, 2.0**-23),
        fast_error=(_LAST, 2.0**-21),
    ),
    "sin": Emitted(
        "sine({0}, 0u)",
        "fast_sine({0}, 0u)",
        helpers=(*_TURNS, "sine"),
        fast_helpers=(*_TURNS, "fast_sine"),
        error=(_LAST, 2.0**-22),
        fast_error=(_LAST, 2.0**-18),
    ),
    "cos": Emitted(
        "sine({0}, 1u)",
        "fast_sine({0}, 1u)",
        helpers=(*_TURNS, "sine"),
        fast_helpers=(*_TURNS, "fast_sine"),
        error=(0.0, 2.0**-22),
        fast_error=(0.0, 2.0**-18),
    ),
    "tan": Emitted(
        "tangent({0})",
        "fast_tangent({0})",
        helpers=(*_TURNS, "tangent"),
        fast_helpers=(*_TURNS, _RECIPROCAL, "fast_tangent"),
        error=(_LAST, 2.0**-21),
        fast_error=(_TINY, 2.0**-21),
    ),
    "arctan2": Emitted(
        "atan2f({0}, {1})",
        "fast_arctan2({0}, {1})",
        fast_helpers=(*_CLAMP, _QUOTIENT, "fast_arctan2"),
        error=(_LAST, 2.0**-22),
        fast_error=(_TINY, 2.0**-19),
    ),
    "tanh": Emitted(
        "tanhf({0})",
        "fast_tanh({0})",
        fast_helpers=(*_CLAMP, _RECIPROCAL, "fast_tanh"),
        error=(_LAST, 2.0**-22),
        fast_error=(_TINY, 2.0**-19),
    ),
    "erf": Emitted(
        "erff({0})",
        "fast_erf({0})",
        fast_helpers=(*_CLAMP, _RECIPROCAL, "fast_erf"),
        error=(_LAST, 2.0**-23),
        fast_error=(_TINY, 2.0**-18),
    ),
    "erfc": Emitted(
        "erfcf({0})",
        "fast_erfc({0})",
        fast_helpers=(_EXP2, _RECIPROCAL, "fast_erfc"),
        error=(_LAST, 2.0**-21),
        fast_error=(2 * _TINY, 2.0**-17),
    ),
    "sigmoid": Emitted(
        "sigmoid({0})",
        "fast_sigmoid({0})",
        helpers=(_RECIPROCAL, "sigmoid"),
        fast_helpers=("minimum", _EXP2, _STEPPED, "fast_sigmoid"),
        error=(_TINY, 2.0**-21),
        fast_error=(2 * _TINY, 2.0**-17),
    ),
    "softplus": Emitted(
        "softplus({0})",
        "fast_softplus({0})",
        helpers=("softplus",),
        fast_helpers=(_EXP2, "fast_softplus"),
        error=(_LAST, 2.0**-22),
        fast_error=(2 * _TINY, 2.0**-17),
    ),
    "gelu": Emitted(
        "gelu({0})",
        "fast_gelu({0})",
        helpers=(_EXP2, _RECIPROCAL, "gelu"),
        fast_helpers=("maximum", _EXP2, "fast_gelu"),
        error=(16 * _LAST, 2.0**-19),
        fast_error=(2.0**-23, 2.0**-15),
    ),
    "pow": Emitted("powf({0}, {1})", error=(_LAST, 2.0**-23)),
    "where": Emitted("{0} ? {1} : {2}"),
    "random_uniform": Emitted(
        "random_uniform({0}, {1}, {2}, {3}, {4})", helpers=("random_uniform",), error=(0.0, 0.0)
    ),
    "nearest_tf32": Emitted("nearest_tf32({0})", helpers=("nearest_tf32",), error=(0.0, 0.0)),
    "nibble_i4": Emitted("nibble_i4({0}, {1})", helpers=("nibble_i4",), error=(0.0, 0.0)),
    "nibble_u4": Emitted("nibble_u4({0}, {1})", helpers=("nibble_u4",), error=(0.0, 0.0)),
    "lt": Emitted("{0} < {1}"),
    "le": Emitted("{0} <= {1}"),
    "gt": Emitted("{0} > {1}"),
    "ge": Emitted("{0} >= {1}"),
    "eq": Emitted("{0} == {1}"),
    "ne": Emitted("{0} != {1}"),
    "logical_and": Emitted("{0} && {1}"),
    "logical_or": Emitted("{0} || {1}"),
    "logical_not": Emitted("!{0}"),
}
# Composites that are shorter, or keep more digits, written as one.
COMPOSITES: dict[str, Emitted] = {
    "gelu_tanh": Emitted(
        "gelu_tanh({0})",
        "fast_gelu_tanh({0})",
        helpers=(_EXP2, _RECIPROCAL, "gelu_tanh"),
        fast_helpers=(_EXP2, _STEPPED, "fast_gelu_tanh"),
        error=(256 * _TINY, 2.0**-17),
        fast_error=(256 * _TINY, 2.0**-16),
    ),
    "mish": Emitted(
        "mish({0})",
        "fast_mish({0})",
        helpers=(_RECIPROCAL, "mish"),
        fast_helpers=(_EXP2, _RECIPROCAL, "fast_mish"),
        error=(256 * _TINY, 2.0**-20),
        fast_error=(256 * _TINY, 2.0**-17),
    ),
    "silu": Emitted(
        "{0} * sigmoid({0})",
        "fast_silu({0})",
        helpers=(_RECIPROCAL, "sigmoid"),
        fast_helpers=(_EXP2, _STEPPED, "fast_silu"),
        error=(256 * _TINY, 2.0**-20),
        fast_error=(256 * _TINY, 2.0**-17),
    ),
}
# What the others may be off by, whose definitions are expanded. They cancel nothing.
EXPANDED = Emitted("", error=(256 * _TINY, 2.0**-20), fast_error=(256 * _TINY, 2.0**-15))
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
    fast_helpers=(_EXP2, _LOG2, "fast_power"),
    fast_error=(_TINY, 2.0**-14),
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
        return Emitted(_product(factors), error=((factors - 1) * _LAST, factors * 2.0**-24))
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
    return all(least <= _TINY and part <= _SMALL for least, part in found)


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
