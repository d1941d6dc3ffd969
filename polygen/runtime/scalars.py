"""Run-time scalars: host numbers -> what a kernel takes by value."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from polygen.errors import ArgumentError
from polygen.frontend.program import Tensor

LARGEST_F32 = float(np.finfo(np.float32).max)
_TOO_LARGE = float(np.finfo(np.float64).max)  # stands for integers beyond float64


def real(value: Any, tensor: Tensor) -> float:
    """Convert a host number; device arrays would synchronise."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, numbers.Real | np.floating | np.integer | np.bool_):
        raise ArgumentError(
            f"{type(value).__name__} is not a scalar",
            where=tensor.name,
            why="scalars are passed by value; reading one from the device would synchronise",
            nearest="Pass a Python number, or declare the argument as an array",
        )
    try:
        number = float(value)
    except OverflowError:
        number = _TOO_LARGE
    if math.isfinite(number) and abs(number) > LARGEST_F32:
        raise ArgumentError(
            "the scalar is too large",
            where=tensor.name,
            why="scalars are passed as f32",
            nearest=f"The largest is {LARGEST_F32:.8g}; inf is legal",
        )
    return number
