"""The derivatives of the pointwise vocabulary: one table, on values of any kind.

An entry has one rule per argument: what reaches it of a gradient `g` that reaches the result `r`.
None: nothing does, the function is constant almost everywhere. A rule is called as
``rule(g, r, *arguments)`` with values that have Python's operators and go through the vocabulary
(statements under construction, or arrays), and with numbers for constants. A function without an
entry has a definition in terms of others, and is differentiated through it.

At kinks the rules are PyTorch's: relu'(0) = 0, a tie between two values goes half to each, clip
passes its bounds on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from polygen.frontend import functions as f
from polygen.frontend.functions import TABLE

Rule = Callable[..., Any]
_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
_HALF_SQRT_PI = math.sqrt(math.pi) / 2.0
_SQRT_HALF, _ROOT_OF_TURN = math.sqrt(0.5), 1.0 / math.sqrt(2.0 * math.pi)
_NEVER: tuple[Rule | None, ...] = (None, None)


def _won(wins: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """The gradient of the argument that `wins`; a number wins ties, two values share them."""

    def rule(g: Any, own: Any, other: Any) -> Any:
        tie = 0.0 if isinstance(other, float) else f.where(own == other, 0.5 * g, 0.0)
        return f.where(wins(own, other), g, tie)

    return rule


_larger, _smaller = _won(lambda x, y: x > y), _won(lambda x, y: x < y)


def _base(g: Any, r: Any, x: Any, e: Any) -> Any:
    if isinstance(e, float):
        return 0.0 if e == 0.0 else g * (e * f.power(x, e - 1.0))
    return f.where(e == 0.0, 0.0, g * (e * f.power(x, e - 1.0)))


def _exponent(g: Any, r: Any, x: Any, e: Any) -> Any:
    if isinstance(x, float):
        return g * (r * math.log(x)) if x > 0.0 else 0.0
    return f.where(x == 0.0, 0.0, g * (r * f.log(x)))


def _gelu(g: Any, r: Any, x: Any) -> Any:
    below = 0.5 * f.erfc(x * -_SQRT_HALF)  # the normal distribution, without cancellation
    return g * (below + x * (_ROOT_OF_TURN * f.exp(x * x * -0.5)))


def _over_sum_of_squares(g: Any, value: Any, y: Any, x: Any) -> Any:
    return g * (value / (x * x + y * y))


def _inside(g: Any, r: Any, x: Any, lo: Any, hi: Any) -> Any:
    return f.where(f.logical_and(x >= lo, x <= hi), g, 0.0)


def _below_zero(x: Any) -> Any:
    """What exp may be taken of where a selection throws away the rest: nothing overflows."""
    return f.minimum(x, 0.0)


DERIVATIVES: dict[str, tuple[Rule | None, ...]] = {
    "add": (lambda g, r, x, y: g, lambda g, r, x, y: g),
    "sub": (lambda g, r, x, y: g, lambda g, r, x, y: -g),
    "mul": (lambda g, r, x, y: g * y, lambda g, r, x, y: g * x),
    "div": (lambda g, r, x, y: g / y, lambda g, r, x, y: -(g * (r / y))),
    "neg": (lambda g, r, x: -g,),
    "abs": (lambda g, r, x: g * f.PUBLIC["sign"](x),),
    "sign": (None,),
    "heaviside": (None, lambda g, r, x, z: f.where(x == 0.0, g, 0.0)),
    "floor": (None,),
    "ceil": (None,),
    "trunc": (None,),
    "round": (None,),
    "minimum": (
        lambda g, r, x, y: _smaller(g, x, y),
        lambda g, r, x, y: _smaller(g, y, x),
    ),
    "maximum": (
        lambda g, r, x, y: _larger(g, x, y),
        lambda g, r, x, y: _larger(g, y, x),
    ),
    "clip": (
        _inside,
        lambda g, r, x, lo, hi: f.where(f.logical_and(x < lo, lo <= hi), g, 0.0),
        lambda g, r, x, lo, hi: f.where(f.logical_or(x > hi, lo > hi), g, 0.0),
    ),
    "exp": (lambda g, r, x: g * r,),
    "exp2": (lambda g, r, x: g * (r * math.log(2.0)),),
    "expm1": (lambda g, r, x: g * (r + 1.0),),
    "log": (lambda g, r, x: g / x,),
    "log1p": (lambda g, r, x: g / (x + 1.0),),
    "sqrt": (lambda g, r, x: g * (0.5 / r),),
    "rsqrt": (lambda g, r, x: g * (r * r * r * -0.5),),
    "cbrt": (lambda g, r, x: g / (3.0 * (r * r)),),
    "hypot": (lambda g, r, x, y: g * (x / r), lambda g, r, x, y: g * (y / r)),
    "sin": (lambda g, r, x: g * f.cos(x),),
    "cos": (lambda g, r, x: -(g * f.sin(x)),),
    "tan": (lambda g, r, x: g * (r * r + 1.0),),
    "arctan2": (
        lambda g, r, y, x: _over_sum_of_squares(g, x, y, x),
        lambda g, r, y, x: -_over_sum_of_squares(g, y, y, x),
    ),
    "tanh": (lambda g, r, x: g * (1.0 - r * r),),
    "erf": (lambda g, r, x: g * (_TWO_OVER_SQRT_PI * f.exp(-(x * x))),),
    "erfc": (lambda g, r, x: g * (-_TWO_OVER_SQRT_PI * f.exp(-(x * x))),),
    "erfinv": (lambda g, r, x: g * (_HALF_SQRT_PI * f.exp(r * r)),),
    "sigmoid": (lambda g, r, x: g * (r * (1.0 - r)),),
    "softplus": (lambda g, r, x: g * f.sigmoid(x),),
    "gelu": (_gelu,),
    "elu": (
        lambda g, r, x, a: f.where(x > 0.0, g, g * (a * f.exp(_below_zero(x)))),
        lambda g, r, x, a: f.where(x > 0.0, 0.0, g * f.expm1(_below_zero(x))),
    ),
    "celu": (
        lambda g, r, x, a: f.where(x > 0.0, g, g * f.exp(_below_zero(x) / a)),
        lambda g, r, x, a: f.where(
            x > 0.0,
            0.0,
            g * (f.expm1(_below_zero(x) / a) - f.exp(_below_zero(x) / a) * (x / a)),
        ),
    ),
    "copysign": (lambda g, r, x, y: f.where(x == 0.0, 0.0, g * (r / x)), None),
    "logaddexp": (
        lambda g, r, x, y: g * f.sigmoid(x - y),
        lambda g, r, x, y: g * f.sigmoid(y - x),
    ),
    "pow": (_base, _exponent),
    "where": (
        None,
        lambda g, r, c, x, y: f.where(c, g, 0.0),
        lambda g, r, c, x, y: f.where(c, 0.0, g),
    ),
    "cast": (lambda g, r, x: g,),  # the rounding of a cast counts as no change
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), _NEVER),
    **dict.fromkeys(("logical_and", "logical_or"), _NEVER),
    "logical_not": (None,),
    "random_uniform": (None,) * 5,
    "nearest_tf32": (None,),
    **dict.fromkeys(("nibble_i4", "nibble_u4"), (None, None)),
}


def has_rules(name: str) -> bool:
    """Whether a function of the vocabulary has an entry; the others have definitions."""
    return name in DERIVATIVES


def defined(name: str) -> Callable[..., Any]:
    """The definition of a function that has no entry."""
    definition = TABLE[name].definition
    assert definition is not None, f"{name} has neither derivative nor definition"
    return definition
