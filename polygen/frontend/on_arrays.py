"""The function itself on NumPy arrays, with the errors that its program would have.

Each operand is an array of real numbers, or a number, and there are as many as parameters. Where
the function fails on them NumPy's own words are about NumPy: it is traced with arrays of these
shapes then, and what that refuses is the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygen.errors import ArgumentError, PolygenError, ShapeError, TraceError, told
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import F32, S32, DType
from polygen.frontend.evaluate import reference
from polygen.frontend.program import Tensor

_REAL = "biuf"  # kinds of NumPy's types
_OTHERS = "V"  # and that of the types of ml_dtypes, which are real as well


def checked_reference(
    function: Callable[..., Any], name: str, parameters: Sequence[str], operands: Sequence[Any]
) -> Any:
    """What the function gives for NumPy arrays, in float64.

    Args:
        function: plain array code.
        name: of its kernels.
        parameters: of the function, in order.
        operands: arrays and numbers.

    Raises:
        ArgumentError: too few or too many of them, or one that does not hold real numbers.
        ShapeError: shapes that do not fit.
        TraceError: the function raises something else.
    """
    require_count(name, parameters, operands)
    arrays = [_array(*pair) for pair in zip(parameters, operands, strict=True)]
    try:
        return reference(function, arrays)
    except PolygenError:
        raise
    except Exception as error:
        _require_shapes(function, name, parameters, arrays)
        raise TraceError(f"the function raises {told(error)}", where=name) from error


def require_count(name: str, parameters: Sequence[str], operands: Sequence[Any]) -> None:
    """Refuse another number of operands than the function has parameters.

    Raises:
        ArgumentError: with the parameters.
    """
    if len(operands) != len(parameters):
        raise ArgumentError(
            f"{name} takes {len(parameters)} operands, got {len(operands)}",
            nearest=f"Expected: {', '.join(parameters)}",
        )


def _array(name: str, operand: Any) -> np.ndarray[Any, Any]:
    """An operand as an array of real numbers."""
    try:
        array = np.asarray(operand)
    except Exception as error:  # lists of several lengths, arrays of another device
        raise ArgumentError(
            f"a {type(operand).__name__} is no array of NumPy's",
            where=name,
            why=told(error),
            nearest="Pass a NumPy array, or a number",
        ) from error
    kind = array.dtype.kind
    if kind in _REAL or (kind in _OTHERS and np.can_cast(array.dtype, np.float64)):
        return array
    raise ArgumentError(
        f"a {type(operand).__name__} is neither an array nor a number"
        if array.dtype == object and not array.ndim
        else f"the array holds {array.dtype}",
        where=name,
        why="programs compute with real numbers",
        nearest=f"Pass {name}.real, or {name}.imag, which hold {array.real.dtype}"
        if kind == "c"
        else "Pass a NumPy array of numbers, float32 say",
    )


def _require_shapes(
    function: Callable[..., Any],
    name: str,
    parameters: Sequence[str],
    arrays: Sequence[np.ndarray[Any, Any]],
) -> None:
    """Raise what a program of arrays of these shapes is refused for, if shapes are what it is."""
    for whole in (S32, F32):  # whole numbers name rows, or are multiplied
        tensors = [
            Tensor(one, _kind(array, whole), array.shape)
            for one, array in zip(parameters, arrays, strict=True)
        ]
        try:
            build_program(function, name, name, tensors)
        except ShapeError as error:
            raise error from None
        except PolygenError:
            continue


def _kind(array: np.ndarray[Any, Any], whole: DType) -> DType:
    return whole if array.dtype.kind in "iu" else F32
