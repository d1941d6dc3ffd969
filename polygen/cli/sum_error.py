"""How far a sum of products may be off: its additions, and what its factors were rounded by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.frontend.dtypes import F32, F64, TF32
from polygen.frontend.evaluate import evaluate
from polygen.frontend.indices import size_value
from polygen.frontend.program import Contraction, Program, Tensor

Array = np.ndarray[Any, Any]
_LEFT_OUT = 3 * 2.0**-22  # of a product of two f32 that are split into two parts of tf32


def least_of(tensor: Tensor) -> float:
    """The spacing of the output type's smallest numbers."""
    return 2.0**-24 if tensor.dtype.name == "f16" else 2.0**-126


def reduction_size(contraction: Contraction, sizes: Mapping[str, int]) -> int:
    """The number of products in one sum."""
    kept = contraction.write.index
    extents = [d for it, d in contraction.domain if it not in kept]
    return int(np.prod([size_value(d, sizes) for d in extents]))


def sum_error(
    program: Program,
    contraction: Contraction,
    inputs: Mapping[str, Array],
    ties: Mapping[str, Array],
    sizes: Mapping[str, int],
    atom_k: int,
) -> Array:
    """By how much each sum may be off, absolutely.

    Args:
        program: that has the sum.
        contraction: the sum.
        inputs: its factors, as they are multiplied.
        ties: by which factors how much may be off besides.
        sizes: the problem.
        atom_k: products that one instruction adds up.
    """
    magnitudes = {name: np.abs(value) for name, value in inputs.items()}
    by_itself = alone(program, contraction)
    (total,) = evaluate(by_itself, magnitudes, sizes, round_outputs=False)
    terms = reduction_size(contraction, sizes)
    additions = terms / atom_k + atom_k
    if contraction.dtype == F64:
        additions += terms
    error = np.asarray(additions * 2.0**-contraction.dtype.mantissa * total)
    if program.tensors[contraction.lhs.name].dtype == F32:
        error = error + _LEFT_OUT * total
    if any(step.any() for step in ties.values()):
        further = {name: value + ties.get(name, 0.0) for name, value in magnitudes.items()}
        (most,) = evaluate(by_itself, further, sizes, round_outputs=False)
        error = error + (most - total)
    return error


def nearest_tf32(values: Array) -> tuple[Array, Array]:
    """float64 values of f32 rounded to tf32, ties to even.

    Returns:
        The rounded values; and, where a value lies in the middle between two, how far they are
        apart, 0.0 elsewhere.
    """
    finite = np.isfinite(values)
    _, exponent = np.frexp(np.where(finite, values, 1.0))
    step = np.ldexp(1.0, np.maximum(exponent - 1, -126) - TF32.mantissa)
    with np.errstate(invalid="ignore"):
        units = values / step
        rounded = np.where(finite, np.rint(units) * step, values)
        tie = finite & (np.abs(units - np.trunc(units)) == 0.5)
    return rounded, np.where(tie, step, 0.0)


def dims_of(contraction: Contraction) -> tuple[str | int, ...]:
    """The extents of the axes that are not summed."""
    extents = dict(contraction.domain)
    return tuple(extents[i] for i in contraction.write.index if isinstance(i, str))


def alone(program: Program, contraction: Contraction) -> Program:
    """The sum as a program of its own."""
    output = Tensor(contraction.write.name, F32, dims_of(contraction))
    return replace(program, outputs=(output,), statements=(contraction,))
