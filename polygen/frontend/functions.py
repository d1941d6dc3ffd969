"""The pointwise vocabulary: one table for tracing, code generation and the NumPy reference.

A *primitive* is a function the code generator emits itself. A *composite* has a definition over
primitives (or other composites) and takes one line: its parameters and defaults are those of the
definition, its NumPy reference is the definition run on arrays. `expand` runs a definition over
whatever values a caller has.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.errors import TraceError
from polygen.frontend import nibbles, philox
from polygen.frontend.dtypes import BOOL, F32, DType
from polygen.frontend.rounding import round_to
from polygen.frontend.symbolic import Symbolic


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
        symbolic = next((value for value in values if isinstance(value, Symbolic)), None)
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
    name: str, definition: Callable[..., Any], *, inline: bool = False
) -> Callable[..., Any]:
    parameters = inspect.signature(definition).parameters.values()
    names = tuple(p.name for p in parameters)
    defaults = tuple(float(p.default) for p in parameters if p.default is not p.empty)
    arity = (len(names) - len(defaults), len(names))
    return _register(Function(name, arity, definition, definition, names, defaults, F32, inline))


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


def closest(name: str, prefix: str = "") -> str:
    """A sentence that says what there is in the place of an unknown name.

    Args:
        name: of a function, without its module.
        prefix: what goes before the functions' names where they are to be written.
    """
    known = sorted({*TABLE, *ALIASES, "gelu"} - INTERNAL)
    if name in known:
        return f"It is a function: `{prefix}{name}(…)`"
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name in _REDUCTIONS:
        return _OUTSIDE.format(name)
    # What NumPy has is no misspelling of something else.
    near = [] if is_numpy(name) else difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    return f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}"


def is_numpy(name: str) -> bool:
    """Whether NumPy has a function of this name."""
    return not name.startswith("_") and callable(vars(np).get(name))


# --- primitives -----------------------------------------------------------------------------------
_SQRT_HALF = math.sqrt(0.5)
_python_erf, _python_erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def _erf(x: Any) -> Any:
    return np.asarray(_python_erf(np.asarray(x, np.float64)), np.float64)


def _erfc(x: Any) -> Any:
    return np.asarray(_python_erfc(np.asarray(x, np.float64)), np.float64)


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
sigmoid = _primitive("sigmoid", _sigmoid)
# A primitive because the stable form, max(x, 0) + log1p(exp(-|x|)), is one the emitter can shorten.
softplus = _primitive("softplus", _softplus)
# A primitive because 1 + erf(x) cancels where x is negative.
_gelu = _primitive("gelu", _gelu_of_arrays)
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
for _half in (nibbles.nibble_i4, nibbles.nibble_u4):
    TABLE[_half.__name__] = Function(_half.__name__, (2, 2), _half, None, ("byte", "place"))
INTERNAL = frozenset(
    ["cast", "random_uniform", "nibble_i4", "nibble_u4"]
)  # with which others are made; not written by name

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

# NumPy's names for what the table calls otherwise; those that stand for themselves are known to the
# tracer.
ALIASES = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "negative": "neg",
    "absolute": "abs",
    "power": "pow",
    "float_power": "pow",
    "fabs": "abs",
    "rint": "round",
    "fix": "trunc",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
    "matmul": "matmul",
    "dot": "dot",
    "einsum": "einsum",
    "transpose": "transpose",
    "permute_dims": "transpose",
    "swapaxes": "swapaxes",
}

# NumPy's and PyTorch's names of what needs more than one element; "min" and "max" of two arguments
# are called minimum and maximum.
# fmt: off
_REDUCTIONS = frozenset(
    [
        "std", "var", "log_softmax", "norm", "cumsum", "cumprod", "median",
    ]
)
# fmt: on


# What to write in the place of functions that NumPy has and polygen has not.
_PRODUCT = "A product of two matrices is written `x @ w` or `x @ w.T`"
_INSTEAD = {
    "fmax": "Where NaN may win: `maximum(a, b)`",
    "fmin": "Where NaN may win: `minimum(a, b)`",
    "log2": f"Write `log(a) * {1.0 / math.log(2.0)!r}`",
    "log10": f"Write `log(a) * {1.0 / math.log(10.0)!r}`",
    **dict.fromkeys(("tensordot", "inner", "vdot", "vecdot"), _PRODUCT),
}
_OUTSIDE = (
    "There are sum, prod, max, min, mean, all, any, argmax, argmin and logsumexp: return one of "
    "them beside the matrix, and compute {} outside"
)
INDEX_HINT = (
    "An index adds axes, as c[:, None] and c[None, :] do to a vector, takes a part with constant "
    "bounds, as v[..., :64], v[:, ::2] and v[0], or the rows that an argument names, as x[rows]"
)


class _Term(Symbolic):
    """A caller's value inside a definition that `expand` runs."""

    __slots__ = ("primitive", "value")

    def __init__(self, value: Any, primitive: Callable[..., Any]) -> None:
        self.value, self.primitive = value, primitive

    def apply(self, function: str, *args: Any) -> Any:
        plain = [arg.value if isinstance(arg, _Term) else arg for arg in args]
        return _Term(expand(function, plain, self.primitive), self.primitive)


def expand(name: str, args: Sequence[Any], primitive: Callable[..., Any]) -> Any:
    """Runs a function of the table down to primitives over the caller's own values.

    Args:
        name: a key of `TABLE`.
        args: the caller's values (C expressions, IR nodes, numbers), as many as the function's
            parameters.
        primitive: called as ``primitive(name, *args)`` for each primitive, arguments being the
            caller's values or Python floats; what it returns stands for the result. A value may be
            used several times, so a caller that builds text should return the name of a temporary.

    Returns:
        What the last call of `primitive` returned.

    Raises:
        TraceError: the name is unknown or the number of arguments is wrong.
    """
    function = TABLE.get(name)
    if function is None:
        raise TraceError(f"unknown function {name!r}", nearest=closest(name))
    values = bind(function, args, {})
    if function.definition is None:
        return primitive(name, *values)
    result = function.definition(*(_Term(value, primitive) for value in values))
    return result.value


def applied(
    definition: Callable[..., tuple[Any, ...]], args: Sequence[Any], primitive: Callable[..., Any]
) -> tuple[Any, ...]:
    """Runs a definition of several results down to primitives, as `expand` runs one.

    Args:
        definition: of values with operators, over the functions of the vocabulary.
        args: the caller's values.
        primitive: as for `expand`.

    Returns:
        The caller's values of the results.
    """
    found = definition(*(_Term(value, primitive) for value in args))
    return tuple(one.value if isinstance(one, _Term) else one for one in found)
