"""Rounding float64 values to a storage dtype, the way the generated code does.

Floats go through f32 first because every pointwise statement computes in f32. The 8-bit formats
saturate to their largest finite value, as the hardware's only conversion to them does; integers
round to nearest even and saturate.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from polygen.frontend.dtypes import BOOL, F32, F64, TF32, DType
from polygen.frontend.dtypes import dtype as to_dtype


def round_to(values: Any, dtype: object) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The float64 values that remain after storing `values` in `dtype`.

    Args:
        values: an array or a number, any shape.
        dtype: anything that names a dtype. tf32 is stored as f32 and keeps f32's precision here:
            only the tensor core drops its low bits. bool gives 0.0 and 1.0.

    Returns:
        A float64 array of the same shape.

    Raises:
        DTypeError: the dtype is unknown.
    """
    kind = to_dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == BOOL:
            return np.asarray(np.asarray(values) != 0, np.float64)
        if kind.kind == "int":  # not through f32: an s32 accumulator holds more digits
            return _integer(np.asarray(values, np.float64), kind)
        if kind == F64:  # what kernels that compute in it keep
            return np.asarray(values, np.float64)
        single = np.asarray(values, np.float64).astype(np.float32)
        if kind.bits == 8:
            largest = float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]
            single = np.clip(single, -largest, largest)
        if kind == TF32:
            return single.astype(np.float64)
        return single.astype(kind.numpy).astype(np.float64)


_LESS = 49  # bits of the mantissa, of 52: what functions and the order of terms may lose, and more


def as_computed(values: Any, real: DType) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a kernel that computes in `real` may have of values, a statement at a time.

    Args:
        values: float64, any shape.
        real: f32, to which values are rounded; or f64, in which the values are themselves: they
            lose their last digits then, so that what a program makes of these shows.
    """
    if real == F32:
        return round_to(values, F32)
    part, exponent = np.frexp(np.asarray(values, np.float64))
    shorter = np.rint(np.ldexp(part, _LESS + 1))
    return np.asarray(np.ldexp(shorter, exponent - _LESS - 1), np.float64)


def nearest_tf32(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The nearest tf32 to values of f32, ties away from zero, as float64; any shape."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    finite = np.isfinite(np.asarray(values, np.float32))
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    with np.errstate(over="ignore"):
        return np.where(finite, rounded, bits).astype(np.uint32).view(np.float32).astype(np.float64)


def _integer(values: np.ndarray[Any, Any], kind: DType) -> np.ndarray[Any, np.dtype[np.float64]]:
    limits = np.iinfo(kind.numpy)
    rounded = np.clip(np.rint(values), limits.min, limits.max)
    return np.where(np.isnan(rounded), 0.0, rounded)
