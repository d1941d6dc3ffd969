"""NumPy's functions on traced values, by NumPy's own names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.errors import ShapeError, TraceError
from polygen.frontend.folding import METHODS, reduction, refuse_keywords
from polygen.frontend.functions import TABLE
from polygen.frontend.names import ALIASES
from polygen.frontend.subscripts import tensordot_subscripts
from polygen.frontend.symbolic import first_symbolic

# NumPy's functions under the vocabulary's names, and under NumPy's own.
UFUNCS: dict[Any, str] = {
    getattr(np, spelling): name
    for spelling, name in [*((name, name) for name in TABLE), *ALIASES.items()]
    if name in TABLE and isinstance(getattr(np, spelling, None), np.ufunc)
}
REDUCED: dict[Any, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_and: "all",
    np.logical_or: "any",
    np.logaddexp: "logsumexp",
}
BITWISE: dict[Any, str] = {
    np.bitwise_and: "logical_and",
    np.bitwise_or: "logical_or",
    np.invert: "logical_not",
}


def _where(*args: Any) -> Any:
    if len(args) != 3:
        raise TraceError("np.where with one argument", nearest="Use where(condition, x, y)")
    return first_symbolic(args).apply("where", *args)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **limits: Any) -> Any:
    lo, hi = limits.pop("min", a_min), limits.pop("max", a_max)
    if limits:
        raise TraceError(f"np.clip with {', '.join(limits)}=", nearest="Leave it out")
    traced = first_symbolic((a, lo, hi))
    if traced is not a:
        a = type(traced)(traced.trace, traced.trace.lift(a, "clip"))
    return a.clip(lo, hi)


def _dot(a: Any, b: Any) -> Any:
    return first_symbolic((a, b)).matmul(a, b)


def _einsum(subscripts: Any, *operands: Any, optimize: Any = None) -> Any:
    """`optimize` is in which order NumPy would multiply, and means nothing else."""
    return first_symbolic((*operands, subscripts)).einsum(subscripts, *operands)


def _windows(x: Any, window_shape: Any, axis: Any = None, **options: Any) -> Any:
    refuse_keywords("sliding_window_view", {k: v for k, v in options.items() if v})
    return x.windows(window_shape, axis)


def _pad(array: Any, pad_width: Any, mode: Any = "constant", constant_values: Any = 0) -> Any:
    if mode != "constant":
        raise TraceError(f"np.pad with mode={mode!r}", nearest="Pad with zeros")
    return array.pad(pad_width, constant_values)


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    text = tensordot_subscripts(np.ndim(a), np.ndim(b), axes)
    return first_symbolic((a, b)).einsum(text, a, b)


def _round(a: Any, decimals: int = 0) -> Any:
    if decimals != 0:
        raise TraceError(
            f"np.round to {decimals} decimals", nearest="np.round(x * 100) / 100 rounds to two"
        )
    return a.apply("round", a)


def made_of_traced(module: str, name: str) -> Callable[..., Any]:
    """A function of a module of `polygen.frontend` that itself needs traced values."""

    def called(*args: Any, **keywords: Any) -> Any:
        home = importlib.import_module(f"polygen.frontend.{module}")
        return getattr(home, name)(*args, **keywords)

    called.__name__ = name
    return called


def _several(module: str, *names: str) -> dict[str, Callable[..., Any]]:
    return {name: made_of_traced(module, name) for name in names}


def _last_two(name: str) -> Callable[..., Any]:
    """A function of diagonals by `np.linalg`, whose matrices are in the last two axes."""
    called = made_of_traced("selecting", name)

    def of_matrices(x: Any, /, *, offset: Any = 0, **others: Any) -> Any:
        return called(x, offset, -2, -1, **others)

    return of_matrices


def _outer_of_vectors(x1: Any, x2: Any, /) -> Any:
    if np.ndim(x1) != 1 or np.ndim(x2) != 1:
        raise ShapeError(
            f"np.linalg.outer of values with {np.ndim(x1)} and {np.ndim(x2)} axes",
            nearest="It takes vectors; np.outer takes others, too",
        )
    return made_of_traced("products", "outer")(x1, x2)


def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return made_of_traced("products", "vecdot")(x1, x2, axis)


ARRAY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": made_of_traced("joined", "concatenate"),
    **_several("joined", "concatenate", "stack", "split"),
    **_several("statistics", "var", "std", "ptp", "average", "count_nonzero"),
    **_several("selecting", "trace", "diagonal", "take_along_axis", "nan_to_num"),
    **_several("products", "inner", "vdot", "outer"),
    **_several("rearranged", "expand_dims", "squeeze", "moveaxis", "flip", "broadcast_to"),
    "round": _round,
    "around": _round,
    "fix": lambda x: x.apply("trunc", x),
    "where": _where,
    "clip": _clip,
    "dot": _dot,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "sliding_window_view": _windows,
    "pad": _pad,
    "transpose": lambda a, axes=None: a.transpose() if axes is None else a.transpose(tuple(axes)),
    "swapaxes": lambda a, axis1, axis2: a.swapaxes(axis1, axis2),
    "matrix_transpose": lambda x: x.mT,
    "reshape": lambda a, shape: a.reshape(shape),
    "shape": lambda a: a.shape,
    "ndim": lambda a: a.ndim,
    **{name: reduction(name) for name in METHODS},
    "amax": reduction("max"),
    "amin": reduction("min"),
    "repeat": lambda a, repeats, axis=None: a.repeat(repeats, axis),
    "tril": lambda m, k=0: m.triangle(k, below=True),
    "triu": lambda m, k=0: m.triangle(k, below=False),
}
# Those of np.linalg, some of which have other meanings under the same names.
LINALG: dict[str, Callable[..., Any]] = {
    **_several("norms", "norm", "vector_norm", "matrix_norm"),
    "trace": _last_two("trace"),
    "diagonal": _last_two("diagonal"),
    "outer": _outer_of_vectors,
    "vecdot": _vecdot,
    **_several("products", "multi_dot", "matrix_power"),
    "matmul": lambda x1, x2, /: first_symbolic((x1, x2)).matmul(x1, x2),
    "tensordot": lambda x1, x2, /, *, axes=2: _tensordot(x1, x2, axes),
    "matrix_transpose": lambda x, /: x.mT,
}
# NumPy's functions of vectors and matrices that are called as its pointwise ones are.
OF_VECTORS: dict[str, Callable[..., Any]] = {
    **_several("products", "matvec", "vecmat"),
    "vecdot": _vecdot,
}


def handler_of(function: Any) -> Callable[..., Any] | None:
    """What a function of NumPy is on traced values; None: there is nothing."""
    within = str(function.__module__).startswith("numpy.linalg")
    return (LINALG if within else ARRAY_FUNCTIONS).get(function.__name__)
