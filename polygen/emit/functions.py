"""The primitives of the pointwise vocabulary as CUDA expressions.

Composite functions need no entry: they are expanded into these. Kernels whose outputs all have 16
bits or fewer take the fast forms, of primitives and of the composites that have one of their own;
the others take the accurate ones. A form may call helpers from ``templates/functions``, which are
included when they are used.

The error of a fast form is recorded beside it. It is the largest found over 2^24 arguments spread
over all floats, with every approximate instruction off by as much as NVIDIA documents; how the
forms work, and what was found, is in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.frontend.functions import expand


@dataclass(frozen=True, slots=True)
class Emitted:
    """How a function is written.

    Attributes:
        accurate: {0}, {1}, ... are the arguments.
        fast: the form for outputs of 16 bits or fewer; empty: the same.
        helpers: files of templates/functions that the accurate form calls, in order.
        fast_helpers: those that the fast form calls.
        fast_error: (absolute, relative): the fast form is off by at most absolute + relative * |f|,
            f being the function of the same arguments, where f is finite in f32.
    """

    accurate: str
    fast: str = ""
    helpers: tuple[str, ...] = ()
    fast_helpers: tuple[str, ...] = ()
    fast_error: tuple[float, float] = (0.0, 0.0)


_TINY = 2.0**-126  # below it the approximate instructions give zero
_EXP2, _RECIPROCAL = "approximate_exp2", "approximate_reciprocal"
_CLAMP = ("minimum", "maximum")

PRIMITIVES: dict[str, Emitted] = {
    "add": Emitted("{0} + {1}"),
    "sub": Emitted("{0} - {1}"),
    "mul": Emitted("{0} * {1}"),
    "div": Emitted(
        "{0} / {1}",
        "approximate_quotient({0}, {1})",
        fast_helpers=("approximate_quotient",),
        fast_error=(_TINY, 2.0**-21),
    ),
    "neg": Emitted("-{0}"),
    "abs": Emitted("fabsf({0})"),
    "minimum": Emitted("minimum({0}, {1})", helpers=("minimum",)),
    "maximum": Emitted("maximum({0}, {1})", helpers=("maximum",)),
    "exp": Emitted(
        "expf({0})",
        "approximate_exp2(1.442695f * {0})",
        fast_helpers=(_EXP2,),
        fast_error=(_TINY, 2.0**-17),
    ),
    "exp2": Emitted(
        "exp2f({0})",
        "approximate_exp2({0})",
        fast_helpers=(_EXP2,),
        fast_error=(_TINY, 2.0**-21),
    ),
    "log": Emitted("logf({0})", "__logf({0})", fast_error=(2.0**-21, 2.0**-21)),
    "log1p": Emitted("log1pf({0})"),
    "sqrt": Emitted(
        "sqrtf({0})",
        "approximate_sqrt({0})",
        fast_helpers=("approximate_sqrt",),
        fast_error=(0.0, 2.0**-22),
    ),
    "rsqrt": Emitted("rsqrtf({0})"),  # one approximate instruction, and what subnormals need
    "tanh": Emitted(
        "tanhf({0})",
        "fast_tanh({0})",
        fast_helpers=(*_CLAMP, _RECIPROCAL, "fast_tanh"),
        fast_error=(_TINY, 2.0**-19),
    ),
    "erf": Emitted(
        "erff({0})",
        "fast_erf({0})",
        fast_helpers=(*_CLAMP, _RECIPROCAL, "fast_erf"),
        fast_error=(_TINY, 2.0**-18),
    ),
    "sigmoid": Emitted(
        "1.0f / (1.0f + expf(-{0}))",
        "fast_sigmoid({0})",
        fast_helpers=(_EXP2, _RECIPROCAL, "fast_sigmoid"),
        fast_error=(2 * _TINY, 2.0**-17),
    ),
    "softplus": Emitted(
        "softplus({0})",
        "fast_softplus({0})",
        helpers=("softplus",),
        fast_helpers=(_EXP2, "fast_softplus"),
        fast_error=(2 * _TINY, 2.0**-17),
    ),
    "pow": Emitted("powf({0}, {1})"),
    "where": Emitted("{0} ? {1} : {2}"),
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
# Composites that are shorter, or keep more digits, written as one; the accurate form is expanded.
FAST_COMPOSITES: dict[str, Emitted] = {
    "gelu": Emitted(
        "",
        "fast_gelu({0})",
        fast_helpers=(_EXP2, "fast_gelu"),
        fast_error=(2.0**-23, 2.0**-15),
    ),
    "gelu_tanh": Emitted(
        "",
        "fast_gelu_tanh({0})",
        fast_helpers=(_EXP2, _RECIPROCAL, "fast_gelu_tanh"),
        fast_error=(256 * _TINY, 2.0**-16),
    ),
    "mish": Emitted(
        "",
        "fast_mish({0})",
        fast_helpers=(_EXP2, _RECIPROCAL, "fast_mish"),
        fast_error=(256 * _TINY, 2.0**-17),
    ),
}
BOOLEAN = frozenset(
    ["lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not"]
)

# Constant exponents that need no call of powf: a product, or another primitive and its arguments.
_PRODUCTS = {
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
}
_POWERS = {0.5: ("sqrt", "{0}"), -0.5: ("rsqrt", "{0}"), -1.0: ("div", "1.0f", "{0}")}


def expanded(name: str, arguments: Sequence[Any], fast: bool, primitive: Callable[..., Any]) -> Any:
    """A function of the vocabulary, run down to what is written as one expression.

    Args:
        name: a key of `polygen.frontend.functions.TABLE`.
        arguments: the caller's values.
        fast: composites that have a fast form are one expression.
        primitive: as for `polygen.frontend.functions.expand`.

    Returns:
        What the last call of `primitive` returned.
    """
    if fast and name in FAST_COMPOSITES:
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

    expanded(name, list(arguments), True, note)
    return any((PRIMITIVES.get(p) or FAST_COMPOSITES[p]).fast for p in found)


def expression(
    name: str, arguments: list[str], fast: bool, constant: float | None
) -> tuple[str, tuple[str, ...]]:
    """One function applied to C operands.

    Args:
        name: a key of `PRIMITIVES`, or with `fast` of `FAST_COMPOSITES`.
        arguments: C operands: names or literals.
        fast: take the fast form if there is one.
        constant: the last argument, if it is a number.

    Returns:
        C text, and the helpers it calls.
    """
    if name == "pow" and constant in _PRODUCTS:
        return _PRODUCTS[constant].format(*arguments), ()
    if name == "pow" and constant in _POWERS:
        name, *operands = _POWERS[constant]
        arguments, constant = [operand.format(*arguments) for operand in operands], None
    if fast and name == "div" and constant is not None and _has_reciprocal(constant):
        return f"{arguments[0]} * {literal(1.0 / constant)}", ()
    entry = PRIMITIVES.get(name) or FAST_COMPOSITES[name]
    if fast and entry.fast:
        return entry.fast.format(*arguments), entry.fast_helpers
    return entry.accurate.format(*arguments), entry.helpers


def fast_error(name: str, constant: float | None) -> tuple[float, float]:
    """The largest error of what `expression` gives with `fast`.

    Args:
        name: a primitive, or a key of `FAST_COMPOSITES`.
        constant: the last argument, if it is a number.

    Returns:
        (absolute, relative), as `Emitted.fast_error`; zeros where there is no fast form: the error
        is that of f32 arithmetic.
    """
    if name == "pow" and constant in _POWERS:
        name = _POWERS[constant][0]
    entry = PRIMITIVES.get(name) or FAST_COMPOSITES.get(name)  # a cast has none
    return entry.fast_error if entry else (0.0, 0.0)


def _has_reciprocal(constant: float) -> bool:
    """Whether f32 holds the number and its reciprocal in full precision."""
    return float(np.finfo(np.float32).tiny) <= abs(constant) <= 2.0**126


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
