"""The primitives of the pointwise vocabulary as CUDA expressions.

Composite functions need no entry: they are expanded into these. An expression with a name in braces
calls a helper from ``templates/functions``, which is included when it is used. Kernels whose
outputs all have 16 bits or fewer take the fast forms, whose error is far below the output's
rounding; the others take the accurate ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Emitted:
    """How a primitive is written."""

    accurate: str  # {0}, {1}, ... are the arguments
    fast: str = ""  # the form for 16-bit outputs; empty: the same
    helpers: tuple[str, ...] = ()  # files of templates/functions


PRIMITIVES: dict[str, Emitted] = {
    "add": Emitted("{0} + {1}"),
    "sub": Emitted("{0} - {1}"),
    "mul": Emitted("{0} * {1}"),
    "div": Emitted("{0} / {1}"),
    "neg": Emitted("-{0}"),
    "abs": Emitted("fabsf({0})"),
    "minimum": Emitted("minimum({0}, {1})", helpers=("minimum",)),
    "maximum": Emitted("maximum({0}, {1})", helpers=("maximum",)),
    "exp": Emitted("expf({0})", "__expf({0})"),
    "exp2": Emitted("exp2f({0})"),
    "log": Emitted("logf({0})"),
    "log1p": Emitted("log1pf({0})"),
    "sqrt": Emitted("sqrtf({0})"),
    "rsqrt": Emitted("rsqrtf({0})"),
    "tanh": Emitted("tanhf({0})"),
    "erf": Emitted("erff({0})"),
    "sigmoid": Emitted("1.0f / (1.0f + expf(-{0}))", "__fdividef(1.0f, 1.0f + __expf(-{0}))"),
    "softplus": Emitted("softplus({0})", helpers=("softplus",)),
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
BOOLEAN = frozenset(
    ["lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not"]
)

# Constant exponents that need no call of powf.
_POWERS = {
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    0.5: "sqrtf({0})",
    -0.5: "rsqrtf({0})",
    1.0: "{0}",
}
_POWERS[-1.0] = "1.0f / {0}"
_POWERS[4.0] = "({0} * {0}) * ({0} * {0})"


def expression(name: str, arguments: list[str], fast: bool, exponent: float | None) -> str:
    """One primitive applied to C operands.

    Args:
        name: a key of `PRIMITIVES`.
        arguments: C operands: names or literals.
        fast: take the fast form if there is one.
        exponent: the constant exponent of a ``pow``.
    """
    if name == "pow" and exponent in _POWERS:
        return _POWERS[exponent].format(*arguments)
    entry = PRIMITIVES[name]
    form = entry.fast if fast and entry.fast else entry.accurate
    return form.format(*arguments)


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
