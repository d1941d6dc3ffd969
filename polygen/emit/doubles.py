"""The primitives of the pointwise vocabulary in double precision, for kernels with sums of f64.

CUDA's own functions, or definitions in terms of them that cancel nothing; what is not named here is
written as in single precision. Composites are expanded into their definitions.
"""

from __future__ import annotations

import math

from polygen.emit.functions import literal
from polygen.emit.primitives import PRIMITIVES

_ROOT_OF_HALF = 0.7071067811865476
FORMS = {
    "abs": "fabs({0})",
    "minimum": "({0} != {0} || {0} < {1} ? {0} : {1})",
    "maximum": "({0} != {0} || {0} > {1} ? {0} : {1})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "trunc": "trunc({0})",
    "round": "rint({0})",
    "exp": "exp({0})",
    "exp2": "exp2({0})",
    "expm1": "expm1({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "(1.0 / sqrt({0}))",
    "cbrt": "cbrt({0})",
    "hypot": "hypot({0}, {1})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "tan": "tan({0})",
    "arctan2": "atan2({0}, {1})",
    "tanh": "tanh({0})",
    "erf": "erf({0})",
    "erfc": "erfc({0})",
    "erfinv": "erfinv({0})",
    "sigmoid": "(1.0 / (1.0 + exp(-{0})))",
    "softplus": "(({0} > 0.0 ? {0} : 0.0) + log1p(exp(-fabs({0}))))",
    "gelu": f"(0.5 * {{0}} * erfc(-{_ROOT_OF_HALF} * {{0}}))",
    "copysign": "copysign({0}, {1})",
    "pow": "pow({0}, {1})",
}
_POWERS = {0.5: "sqrt({0})", -0.5: "(1.0 / sqrt({0}))", -1.0: "(1.0 / {0})"}
_POWERS |= {float(n): " * ".join(["{0}"] * n) for n in (1, 2, 3)}


def in_double(
    name: str, arguments: list[str], constant: float | None
) -> tuple[str, tuple[str, ...]]:
    """One function applied to C operands, as `polygen.emit.functions.expression`."""
    if name == "pow" and constant in _POWERS:
        return _POWERS[constant].format(*arguments), ()
    if name in FORMS:
        return FORMS[name].format(*arguments), ()
    entry = PRIMITIVES[name]
    return entry.accurate.format(*arguments), entry.helpers


def literal_of(value: float, real: str) -> str:
    """A Python number as a literal of the C type in which values are computed."""
    return double_literal(value) if real == "double" else literal(value)


def rounding_of(real: str) -> str:
    """The file of the function by which a number of a type stays as it is rounded."""
    return "rounded_double" if real == "double" else "rounded"


def double_literal(value: float) -> str:
    """A Python number as a CUDA literal that keeps every bit."""
    if math.isnan(value):
        return "__longlong_as_double(0x7ff8000000000000LL)"
    if math.isinf(value):
        return f"__longlong_as_double(0x{'7' if value > 0 else 'f'}ff0000000000000LL)"
    text = repr(float(value))
    return f"({text})" if text.startswith("-") else text
