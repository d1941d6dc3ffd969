"""NumPy's names of functions, and what to write in the place of a name that is unknown."""

from __future__ import annotations

import difflib
import math
from typing import Any

import numpy as np

from polygen.frontend.functions import INTERNAL, PUBLIC, TABLE

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

# Functions of more than one element, of which other modules have the definitions.
_ELSEWHERE = """
    sum prod max min mean all any argmax argmin logsumexp softmax log_softmax rms_norm layer_norm
    var std ptp average count_nonzero norm vector_norm matrix_norm
    trace diagonal take_along_axis nan_to_num inner vdot outer vecdot matvec vecmat
"""

# NumPy's and PyTorch's names of what needs more than one element, and is no fold; "min" and "max"
# of two arguments are called minimum and maximum.
_REDUCTIONS = frozenset(
    [
        "cumsum",
        "cumprod",
        "cummax",
        "cumulative_sum",
        "cumulative_prod",
        "diff",
        "median",
        "nanmedian",
        "percentile",
        "quantile",
        "sort",
        "argsort",
        "topk",
        "partition",
        "argpartition",
        "unique",
        "histogram",
    ]
)

# What to write in the place of functions that NumPy has and polygen has not.
_PRODUCT = "A product of two matrices is written `x @ w` or `x @ w.T`"
_MASKED = "Choose what counts: `np.{}(np.where(np.isnan(v), {}, v), axis=1)`"
_ROWS = "Make the rows what they are to be outside, centred or scaled, and write `x @ x.T`"
_INSTEAD = {
    "fmax": "Where NaN may win: `maximum(a, b)`",
    "fmin": "Where NaN may win: `minimum(a, b)`",
    "log2": f"Write `log(a) * {1.0 / math.log(2.0)!r}`",
    "log10": f"Write `log(a) * {1.0 / math.log(10.0)!r}`",
    "arctan": "Write `arctan2(a, 1)`",
    "arcsin": "Write `arctan2(a, sqrt(1 - a * a))`",
    "arccos": "Write `arctan2(sqrt(1 - a * a), a)`",
    "sinh": "Write `(exp(a) - exp(-a)) / 2`",
    "cosh": "Write `(exp(a) + exp(-a)) / 2`",
    "arctanh": "Write `(log1p(a) - log1p(-a)) / 2`",
    "floor_divide": "Write `floor(a / b)`",
    **dict.fromkeys(("remainder", "mod"), "Write `a - floor(a / b) * b`"),
    "fmod": "Write `a - trunc(a / b) * b`",
    "isposinf": "Write `a == np.inf`",
    "isneginf": "Write `a == -np.inf`",
    "nansum": _MASKED.format("sum", "0"),
    "nanmax": _MASKED.format("max", "-np.inf"),
    "nanmin": _MASKED.format("min", "np.inf"),
    "normalize": "Write `v / pg.norm(v, axis=-1, keepdims=True)`",
    "tensordot": _PRODUCT,
    **dict.fromkeys(("multi_dot", "matrix_power"), "It is a function of np.linalg"),
    **dict.fromkeys(("corrcoef", "cov", "cdist"), _ROWS),
}
_CAST = 'Write `.astype("f32")`, or another type'
# Likewise, of methods that PyTorch's arrays have and NumPy's have not.
_METHODS = {
    **dict.fromkeys(("mm", "bmm"), _PRODUCT),
    **dict.fromkeys(("to", "type", "float", "double", "half", "bfloat16", "int", "long"), _CAST),
    "t": "Write `.T`",
    "permute": "Write `.transpose(1, 0)`, with all axes in their new order",
    "view": "Write `.reshape(-1)`, with the new sizes",
    "unsqueeze": "Of a vector, write `[:, None]` or `[None, :]`",
}
_OUTSIDE = (
    "There are sum, prod, max, min, mean, var, std, all, any, argmax, argmin, logsumexp and others "
    "that combine elements in any order: return the matrix, and compute {} outside"
)
_LISTED = "All functions are listed in docs/reference.md, and by dir(polygen)"
INDEX_HINT = (
    "An index adds axes, as c[:, None] and c[None, :] do to a vector, takes a part with constant "
    "bounds, as v[..., :64], v[:, ::2] and v[0], or the rows that an argument names, as x[rows]"
)


def closest(name: str, *, method: bool = False) -> str:
    """A sentence that says what there is in the place of an unknown name.

    Args:
        name: of a function, without its module.
        method: whether it was taken for a method of an array, in Python.
    """
    known = known_names()
    if name in known:
        module = "" if not method else "pg." if name in _ours() else "np."
        return f"It is a function: `{module}{name}(…)`"
    if method and name in _METHODS:
        return _METHODS[name]
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name in _REDUCTIONS:
        return _OUTSIDE.format(name)
    # What NumPy has is no misspelling of something else.
    near = [] if is_numpy(name) else difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    return f"Did you mean {' or '.join(near)}?" if near else _LISTED


def known_names() -> list[str]:
    """What functions of values are called, without their modules, in order."""
    return sorted({*TABLE, *ALIASES, *_ours()} - INTERNAL)


def _ours() -> set[str]:
    return {*PUBLIC, *_ELSEWHERE.split()}


def full_name(function: Any) -> str:
    """What a function of NumPy is called in a program: ``np.flip``, ``np.linalg.inv``."""
    name, part = function.__name__, str(function.__module__).partition("numpy.")[2]
    within = getattr(vars(np).get(part), name, None) is function
    return f"np.{part}.{name}" if within else f"np.{name}"


def is_numpy(name: str) -> bool:
    """Whether NumPy has a function of this name."""
    return not name.startswith("_") and callable(vars(np).get(name))
