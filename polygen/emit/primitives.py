"""Pointwise primitives and what is composed of them in CUDA, each with its error."""

from __future__ import annotations

from dataclasses import dataclass


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


TINY = 2.0**-126  # below it the approximate instructions give zero
SMALL = 2.0**-15  # part of a term that a fold of short forms may be off by
LAST = 2.0**-149  # the spacing of the smallest numbers
EXP2, _RECIPROCAL = "approximate_exp2", "approximate_reciprocal"
LOG2, _QUOTIENT, _SQRT = "approximate_log2", "approximate_quotient", "approximate_sqrt"
_CLAMP = ("minimum", "maximum")
STEPPED, _TURNS = "stepped_reciprocal", ("far_turns", "quarter_turns")

# Files that define the same functions, with reciprocals by the special function unit.
SPECIAL = {STEPPED: "special_reciprocal", "fast_sigmoid": "special_sigmoid"}

# What a schedule may ask for in place of a fast form: one instruction, as coarse as f16.
SHORT: dict[str, Emitted] = {
    "tanh": Emitted(
        "", "short_tanh({0})", fast_helpers=("short_tanh",), fast_error=(TINY, 2.0**-11)
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
        fast_error=(TINY, 2.0**-21),
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
        fast_helpers=(EXP2,),
        error=(LAST, 2.0**-23),
        fast_error=(TINY, 2.0**-17),
    ),
    "exp2": Emitted(
        "exp2f({0})",
        "approximate_exp2({0})",
        fast_helpers=(EXP2,),
        error=(LAST, 2.0**-22),
        fast_error=(TINY, 2.0**-21),
    ),
    "expm1": Emitted(
        "exponential_less_one({0})",
        "fast_expm1({0})",
        helpers=(*_CLAMP, "exponential_less_one"),
        fast_helpers=(EXP2, "fast_expm1"),
        error=(LAST, 2.0**-22),
        fast_error=(TINY, 2.0**-17),
    ),
    "log": Emitted(
        "logf({0})", "__logf({0})", error=(0.0, 2.0**-23), fast_error=(2.0**-21, 2.0**-21)
    ),
    "log1p": Emitted("log1pf({0})", error=(LAST, 2.0**-23)),
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
        fast_helpers=(EXP2, LOG2, "fast_cbrt"),
        error=(0.0, 2.0**-23),
        fast_error=(TINY, 2.0**-16),
    ),
    "hypot": Emitted(
        "hypotf({0}, {1})",
        "fast_hypot({0}, {1})",
        fast_helpers=(_SQRT, "fast_hypot"),
        error=(LAST, 2.0**-23),
        fast_error=(LAST, 2.0**-21),
    ),
    "sin": Emitted(
        "sine({0}, 0u)",
        "fast_sine({0}, 0u)",
        helpers=(*_TURNS, "sine"),
        fast_helpers=(*_TURNS, "fast_sine"),
        error=(LAST, 2.0**-22),
        fast_error=(LAST, 2.0**-18),
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
        error=(LAST, 2.0**-21),
        fast_error=(TINY, 2.0**-21),
    ),
    "arctan2": Emitted(
        "atan2f({0}, {1})",
        "fast_arctan2({0}, {1})",
        fast_helpers=(*_CLAMP, _QUOTIENT, "fast_arctan2"),
        error=(LAST, 2.0**-22),
        fast_error=(TINY, 2.0**-19),
    ),
    "tanh": Emitted(
        "tanhf({0})",
        "fast_tanh({0})",
        fast_helpers=(*_CLAMP, _RECIPROCAL, "fast_tanh"),
        error=(LAST, 2.0**-22),
        fast_error=(TINY, 2.0**-19),
    ),
    "tanh_of_power": Emitted(
        "tanhf({0} * 0.34657359f)",
        "tanh_of_power({0})",
        fast_helpers=(EXP2, "tanh_of_power"),
        error=(LAST, 2.0**-19),
        fast_error=(2.0**-21, 2.0**-24),
    ),
    "tanh_of_score": Emitted(
        "tanh_of_score({0}, {1})",
        helpers=(EXP2, "tanh_of_power", "tanh_within", "tanh_of_score"),
        error=(2.0**-21, 2.0**-24),
    ),
    "tanh_within": Emitted(
        "tanh_within({0}, {1})", helpers=("tanh_within",), error=(2.0**-22, 2.0**-24)
    ),
    # Of what is multiplied by: less than the tangent is off by, and the rounding of the result.
    "scaled_tanh": Emitted(
        "scaled_tanh({0}, {1}, {2}, {3})",
        helpers=(EXP2, "tanh_of_power", "scaled_tanh_within", "scaled_tanh"),
        error=(2.0**-21, 2.0**-23),
    ),
    "scaled_tanh_within": Emitted(
        "scaled_tanh_within({0}, {1}, {2}, {3})",
        helpers=("scaled_tanh_within",),
        error=(2.0**-22, 2.0**-23),
    ),
    "erf": Emitted(
        "erff({0})",
        "fast_erf({0})",
        fast_helpers=(*_CLAMP, _RECIPROCAL, "fast_erf"),
        error=(LAST, 2.0**-23),
        fast_error=(TINY, 2.0**-18),
    ),
    "erfc": Emitted(
        "erfcf({0})",
        "fast_erfc({0})",
        fast_helpers=(EXP2, _RECIPROCAL, "fast_erfc"),
        error=(LAST, 2.0**-21),
        fast_error=(2 * TINY, 2.0**-17),
    ),
    "erfinv": Emitted("erfinvf({0})", error=(LAST, 2.0**-21)),
    "sigmoid": Emitted(
        "sigmoid({0})",
        "fast_sigmoid({0})",
        helpers=(_RECIPROCAL, "sigmoid"),
        fast_helpers=("minimum", EXP2, STEPPED, "fast_sigmoid"),
        error=(TINY, 2.0**-21),
        fast_error=(2 * TINY, 2.0**-17),
    ),
    "softplus": Emitted(
        "softplus({0})",
        "fast_softplus({0})",
        helpers=("softplus",),
        fast_helpers=(EXP2, "fast_softplus"),
        error=(LAST, 2.0**-22),
        fast_error=(2 * TINY, 2.0**-17),
    ),
    "gelu": Emitted(
        "gelu({0})",
        "fast_gelu({0})",
        helpers=(EXP2, _RECIPROCAL, "gelu"),
        fast_helpers=("maximum", EXP2, "fast_gelu"),
        error=(16 * LAST, 2.0**-19),
        fast_error=(2.0**-23, 2.0**-15),
    ),
    "copysign": Emitted("copysignf({0}, {1})"),
    "pow": Emitted("powf({0}, {1})", error=(LAST, 2.0**-23)),
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


_LOGARITHM_OF_SUM = ("maximum", "softplus", "logaddexp")
# Composites that are shorter, or keep more digits, written as one.
COMPOSITES: dict[str, Emitted] = {
    # One form: what a coarse logarithm is off by shows where the sum is next to 0.
    "logaddexp": Emitted(
        "logaddexp({0}, {1})",
        helpers=_LOGARITHM_OF_SUM,
        error=(2.0**-22, 2.0**-22),
    ),
    "gelu_tanh": Emitted(
        "gelu_tanh({0})",
        "fast_gelu_tanh({0})",
        helpers=(EXP2, _RECIPROCAL, "gelu_tanh"),
        fast_helpers=(EXP2, STEPPED, "fast_gelu_tanh"),
        error=(256 * TINY, 2.0**-17),
        fast_error=(256 * TINY, 2.0**-16),
    ),
    "mish": Emitted(
        "mish({0})",
        "fast_mish({0})",
        helpers=(_RECIPROCAL, "mish"),
        fast_helpers=(EXP2, _RECIPROCAL, "fast_mish"),
        error=(256 * TINY, 2.0**-20),
        fast_error=(256 * TINY, 2.0**-17),
    ),
    "silu": Emitted(
        "{0} * sigmoid({0})",
        "fast_silu({0})",
        helpers=(_RECIPROCAL, "sigmoid"),
        fast_helpers=(EXP2, STEPPED, "fast_silu"),
        error=(256 * TINY, 2.0**-20),
        fast_error=(256 * TINY, 2.0**-17),
    ),
}


# What the others may be off by, whose definitions are expanded. They cancel nothing.
EXPANDED = Emitted("", error=(256 * TINY, 2.0**-20), fast_error=(256 * TINY, 2.0**-15))
