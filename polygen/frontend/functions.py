"""The pointwise vocabulary: one table for tracing, code generation and the NumPy reference.

A *primitive* is a function the code generator emits itself. A *composite* has a definition over
primitives (or other composites) and takes one line: its parameters and defaults are those of the
definition, its NumPy reference is the definition run on arrays. `polygen.frontend.expansion` runs a
definition over whatever values a caller has.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.errors import TraceError
from polygen.frontend import nibbles, philox
from polygen.frontend.dtypes import BOOL, F32, DType
from polygen.frontend.rounding import nearest_tf32, round_to
from polygen.frontend.symbolic import first_symbolic


@dataclass(frozen=True, slots=True)
class Function:
    """One pointwise function.

    Attributes:
        name: its key in `TABLE` and in `Pointwise.function`.
        arity: least and greatest number of arguments.
        reference: the function on NumPy arrays, exact to the arrays' precision.
        definition: None for a primitive; otherwise the function in terms of others.
        parameters: argument names, in order.
        defaults: values of the last parameters when a call leaves them out.
        result: f32 or bool; a cast's result is its statement's dtype.
        inline: the tracer records the definition in place of the name.
    """

    name: str
    arity: tuple[int, int]
    reference: Callable[..., Any]
    definition: Callable[..., Any] | None
    parameters: tuple[str, ...]
    defaults: tuple[float, ...] = ()
    result: DType = F32
    inline: bool = False


TABLE: dict[str, Function] = {}
PUBLIC: dict[str, Callable[..., Any]] = {}  # name -> callable on traced values, arrays and numbers


def _register(function: Function) -> Callable[..., Any]:
    """Enters a function in the table; gives its callable on traced values, arrays, numbers."""

    def call(*args: Any, **keywords: Any) -> Any:
        values = bind(function, args, keywords)
        symbolic = first_symbolic(values)
        if symbolic is not None:
            return symbolic.apply(function.name, *values)
        result = function.reference(*map(_plain, values))
        # An array subclass (the reference path's rounding arrays) survives np.where and friends.
        kinds = [type(value) for value in values if isinstance(value, np.ndarray)]
        subclass = next((kind for kind in kinds if kind is not np.ndarray), None)
        return result if subclass is None else np.asarray(result).view(subclass)

    call.__name__ = call.__qualname__ = function.name
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
            for name, default in _with_defaults(function)
        ]
    )
    call.__doc__ = f"`{function.name}({', '.join(function.parameters)})`, elementwise."
    TABLE[function.name] = function
    PUBLIC[function.name] = call
    return call


def _with_defaults(function: Function) -> list[tuple[str, Any]]:
    """Each parameter and its default, `inspect.Parameter.empty` where it has none."""
    required = len(function.parameters) - len(function.defaults)
    values = [inspect.Parameter.empty] * required + list(function.defaults)
    return list(zip(function.parameters, values, strict=True))


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, np.ndarray) else value


def _primitive(
    name: str, reference: Callable[..., Any], parameters: str = "x", result: DType = F32
) -> Callable[..., Any]:
    names = tuple(parameters.split())
    return _register(
        Function(name, (len(names), len(names)), reference, None, names, result=result)
    )


def _composite(
    name: str,
    definition: Callable[..., Any],
    *,
    inline: bool = False,
    reference: Callable[..., Any] | None = None,
    result: DType = F32,
) -> Callable[..., Any]:
    parameters = inspect.signature(definition).parameters.values()
    names = tuple(p.name for p in parameters)
    defaults = tuple(float(p.default) for p in parameters if p.default is not p.empty)
    arity = (len(names) - len(defaults), len(names))
    means = reference or definition
    return _register(Function(name, arity, means, definition, names, defaults, result, inline))


def bind(function: Function, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call in parameter order, defaults filled in.

    Raises:
        TraceError: too many or too few arguments, or an unknown keyword.
    """
    parameters = function.parameters
    form = f"It is {function.name}({', '.join(parameters)})"
    if len(args) > len(parameters):
        raise TraceError(f"{function.name} got {len(args)} arguments", nearest=form)
    values = dict(zip(parameters, args, strict=False))
    for keyword, value in keywords.items():
        if keyword not in parameters or keyword in values:
            reason = "twice" if keyword in values else "which it does not take"
            raise TraceError(f"{function.name} got {keyword!r} {reason}", nearest=form)
        values[keyword] = value
    values = dict(_with_defaults(function)) | values
    missing = [name for name, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise TraceError(f"{function.name} lacks {', '.join(missing)}", nearest=form)
    return tuple(values.values())


# --- primitives -----------------------------------------------------------------------------------
_SQRT_HALF = math.sqrt(0.5)
_SQRT_PI = math.sqrt(math.pi)
# M. Giles: "Approximating the erfinv function", 2010: coefficients of falling powers.
_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04, -1.25372503e-03,
    -4.17768164e-03, 2.46640727e-01, 1.50140941,
)  # fmt: skip
_TAIL = (
    -2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03,
    -7.6224613e-03, 9.43887047e-03, 1.00167406, 2.83297682,
)  # fmt: skip
_python_erf, _python_erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def _erf(x: Any) -> Any:
    return np.asarray(_python_erf(np.asarray(x, np.float64)), np.float64)


def _erfc(x: Any) -> Any:
    return np.asarray(_python_erfc(np.asarray(x, np.float64)), np.float64)


def _erfinv(y: Any) -> Any:
    """Giles' approximation in single precision, and two steps of Halley's method."""
    value = np.asarray(y, np.float64)
    with np.errstate(all="ignore"):
        log = -np.log1p(-value * value)
        middle, tail = log - 2.5, np.sqrt(log) - 3.0
        x = value * np.where(log < 5.0, np.polyval(_MIDDLE, middle), np.polyval(_TAIL, tail))
        for _ in range(2):
            beyond = np.abs(value) > 0.5  # there the difference from 1 has the digits
            ends = np.sign(value) * (1.0 - np.abs(value) - _erfc(np.abs(x)))
            ahead = np.where(beyond, ends, _erf(x) - value) * (_SQRT_PI / 2) * np.exp(x * x)
            x = x - ahead / (1.0 + x * ahead)
        ends = np.where(np.abs(value) == 1.0, np.copysign(np.inf, value), np.nan)
        return np.where(np.abs(value) < 1.0, x, ends)


def _gelu_of_arrays(x: Any) -> Any:
    return 0.5 * x * _erfc(np.multiply(x, -_SQRT_HALF))


def _power_of_arrays(x: Any, exponent: Any) -> Any:
    """NumPy's power; of a number 0.5 it makes the root, in newer versions also in `np.power`."""
    half = np.ndim(exponent) == 0 and exponent == 0.5
    return np.sqrt(x) if half else np.power(x, exponent)


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, np.negative(x)))


def _rsqrt(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


def _softplus(x: Any) -> Any:
    return np.logaddexp(0.0, x)


add = _primitive("add", np.add, "x y")
sub = _primitive("sub", np.subtract, "x y")
mul = _primitive("mul", np.multiply, "x y")
div = _primitive("div", np.divide, "x y")
neg = _primitive("neg", np.negative)
absolute = _primitive("abs", np.absolute)
floor = _primitive("floor", np.floor)
ceil = _primitive("ceil", np.ceil)
trunc = _primitive("trunc", np.trunc)
round_half_even = _primitive("round", np.rint)
minimum = _primitive("minimum", np.minimum, "x y")  # NaN wins, as in NumPy
maximum = _primitive("maximum", np.maximum, "x y")
exp = _primitive("exp", np.exp)
exp2 = _primitive("exp2", np.exp2)
expm1 = _primitive("expm1", np.expm1)
log = _primitive("log", np.log)
log1p = _primitive("log1p", np.log1p)
sqrt = _primitive("sqrt", np.sqrt)
rsqrt = _primitive("rsqrt", _rsqrt)
cbrt = _primitive("cbrt", np.cbrt)
hypot = _primitive("hypot", np.hypot, "x y")
sin = _primitive("sin", np.sin)
cos = _primitive("cos", np.cos)
tan = _primitive("tan", np.tan)
arctan2 = _primitive("arctan2", np.arctan2, "y x")
tanh = _primitive("tanh", np.tanh)
erf = _primitive("erf", _erf)
erfc = _primitive("erfc", _erfc)
erfinv = _primitive("erfinv", _erfinv)
sigmoid = _primitive("sigmoid", _sigmoid)
# A primitive because the stable form, max(x, 0) + log1p(exp(-|x|)), is one the emitter can shorten.
softplus = _primitive("softplus", _softplus)
# A primitive because 1 + erf(x) cancels where x is negative.
_gelu = _primitive("gelu", _gelu_of_arrays)
# A primitive because the sign of -0, and of NaN, shows in nothing that is compared.
copysign = _primitive("copysign", np.copysign, "x y")
power = _primitive("pow", _power_of_arrays, "x exponent")
where = _primitive("where", np.where, "condition x y")
lt = _primitive("lt", np.less, "x y", BOOL)
le = _primitive("le", np.less_equal, "x y", BOOL)
gt = _primitive("gt", np.greater, "x y", BOOL)
ge = _primitive("ge", np.greater_equal, "x y", BOOL)
eq = _primitive("eq", np.equal, "x y", BOOL)
ne = _primitive("ne", np.not_equal, "x y", BOOL)
logical_and = _primitive("logical_and", np.logical_and, "x y", BOOL)
logical_or = _primitive("logical_or", np.logical_or, "x y", BOOL)
logical_not = _primitive("logical_not", np.logical_not, "x", BOOL)

# A cast's dtype is its statement's dtype, so it has one argument in a Program; its reference takes
# the dtype too.
TABLE["cast"] = Function("cast", (1, 1), round_to, None, ("x",))
TABLE["random_uniform"] = Function(
    "random_uniform", (5, 5), philox.uniform, None, ("a", "b", "c", "d", "seed")
)
TABLE["nearest_tf32"] = Function("nearest_tf32", (1, 1), nearest_tf32, None, ("x",))
for _half in (nibbles.nibble_i4, nibbles.nibble_u4):
    TABLE[_half.__name__] = Function(_half.__name__, (2, 2), _half, None, ("byte", "place"))
TABLE["tanh_of_power"] = Function(
    "tanh_of_power", (1, 1), lambda x: np.tanh(x * (math.log(2.0) / 2.0)), None, ("x",)
)
for _tangent in ("tanh_of_score", "tanh_within"):
    TABLE[_tangent] = Function(
        _tangent, (2, 2), lambda x, scale: np.tanh(x * scale), None, ("x", "scale")
    )
for _tangent in ("scaled_tanh", "scaled_tanh_within"):
    TABLE[_tangent] = Function(
        _tangent,
        (4, 4),
        lambda x, scale, factor, offset: np.tanh(x * scale) * factor + offset,
        None,
        ("x", "scale", "factor", "offset"),
    )
LATER = frozenset(
    {"nearest_tf32", "tanh_of_power", "tanh_of_score", "tanh_within"}
    | {"scaled_tanh", "scaled_tanh_within"}
)
"""What rewrites and the emission put in the place of others: no traced program has them."""
INTERNAL = LATER | {"cast", "random_uniform", "nibble_i4", "nibble_u4"}
"""Functions with which others are made; nobody writes them by name."""

# --- composites: one line each --------------------------------------------------------------------
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805

square = _composite("square", lambda x: x * x)
reciprocal = _composite("reciprocal", lambda x: 1.0 / x, inline=True)
# x + 0 is 0 for -0, and NaN for NaN.
sign = _composite("sign", lambda x: where(x > 0.0, 1.0, where(x < 0.0, -1.0, x + 0.0)))
heaviside = _composite(
    "heaviside",
    lambda x, at_zero: where(x > 0.0, 1.0, where(x < 0.0, 0.0, where(x == 0.0, at_zero, x))),
)
isnan = _composite("isnan", lambda x: x != x, inline=True, result=BOOL)
isinf = _composite("isinf", lambda x: absolute(x) == math.inf, inline=True, result=BOOL)
isfinite = _composite("isfinite", lambda x: absolute(x) < math.inf, inline=True, result=BOOL)
# Of equal infinities the distance is 0, too. The reference is NumPy's own, which is quiet there.
logaddexp = _composite(
    "logaddexp",
    lambda x, y: maximum(x, y) + softplus(-absolute(where(x == y, 0.0, x - y))),
    reference=np.logaddexp,
)
relu = _composite("relu", lambda x: maximum(x, 0.0), inline=True)
leaky_relu = _composite("leaky_relu", lambda x, slope=0.01: where(x > 0.0, x, slope * x))
silu = _composite("silu", lambda x: x * sigmoid(x))
mish = _composite("mish", lambda x: x * tanh(softplus(x)))
clip = _composite("clip", lambda x, lo, hi: minimum(maximum(x, lo), hi))
hardswish = _composite("hardswish", lambda x: x * (clip(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)))
# (1 + tanh(u)) / 2 = sigmoid(2 * u), which does not cancel where x is negative.
gelu_tanh = _composite(
    "gelu_tanh",
    lambda x: x * sigmoid(2.0 * _SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))),
)
elu = _composite("elu", lambda x, alpha=1.0: where(x > 0.0, x, alpha * expm1(x)))
celu = _composite("celu", lambda x, alpha=1.0: where(x > 0.0, x, alpha * expm1(x / alpha)))
selu = _composite("selu", lambda x: _SELU_SCALE * elu(x, _SELU_ALPHA))
softsign = _composite("softsign", lambda x: x / (1.0 + absolute(x)))
logsigmoid = _composite("logsigmoid", lambda x: -softplus(-x))


def gelu(x: Any, approximate: str = "none") -> Any:
    """GELU, elementwise: exact (``none``) or the tanh approximation (``tanh``).

    Raises:
        TraceError: `approximate` is neither.
    """
    if approximate not in ("none", "tanh"):
        raise TraceError(
            f"gelu got approximate={approximate!r}", nearest='Use approximate="none" or "tanh"'
        )
    return gelu_tanh(x) if approximate == "tanh" else _gelu(x)


PUBLIC["gelu"] = gelu
