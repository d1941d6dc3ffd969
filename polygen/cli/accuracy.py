"""How far a correct kernel may be from the float64 value: a bound from dtypes and K, per element.

1. The sum. Products of two f16, bf16 or tf32 values are exact in f32; each addition loses at most
   one unit u of the sums' type, tensor cores truncating rather than rounding. An MMA adds its k
   products at once, so an element sees about K / k additions in a chain and k inside one:
   delta = (K / k + k) * u * sum |a| |b|.
2. The pointwise part. The program is evaluated in float64 with the sum moved by +delta and -delta;
   the largest change is how the functions after the sum magnify its error.
3. f32 arithmetic of the pointwise part, and rounding to the output's type, are added.

Where that is not finite (a logarithm at its pole), elements are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F32
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Access, Contraction, Pointwise, Program, Statement, Tensor

Array = np.ndarray[Any, Any]
_POINTWISE = 2.0**-18  # relative error of a chain of f32 functions, as `Kernel.check` takes it
_EXACT, _MOVE = "exact_sum", "moved_by"


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output should be."""

    tensor: Tensor
    value: Array  # float64
    allowed: Array  # largest error of each element, float64; not finite: not compared

    def compare(self, found: Array) -> tuple[float, float, int]:
        """Compare an output with it.

        Args:
            found: any float type, the shape of `value`.

        Returns:
            The largest error, the largest error as a fraction of what is allowed there, and the
            number of elements above it.
        """
        with np.errstate(invalid="ignore"):
            compared = np.isfinite(self.value) & np.isfinite(self.allowed)
            error = np.abs(found.astype(np.float64) - self.value)
            error = np.where(compared, np.where(np.isnan(error), np.inf, error), 0.0)
            ratio = np.where(compared, error / np.where(compared, self.allowed, 1.0), 0.0)
        return (
            float(error.max(initial=0.0)),
            float(ratio.max(initial=0.0)),
            int((ratio > 1.0).sum()),
        )


def expected(
    program: Program, arrays: Mapping[str, Any], sizes: Mapping[str, int], atom_k: int
) -> tuple[Expected, ...]:
    """The outputs in float64, each with the error allowed per element.

    Args:
        program: has one contraction.
        arrays: inputs by name; tf32 values must have no more than tf32's mantissa.
        sizes: of every symbolic dim.
        atom_k: products that one MMA adds.

    Raises:
        UnsupportedProgram: the program has not exactly one contraction.
    """
    contraction = _contraction(program)
    inputs = {t.name: np.asarray(arrays[t.name]).astype(np.float64) for t in program.inputs}
    delta = _sum_error(program, contraction, inputs, sizes, atom_k)
    moved = _movable(program, contraction)
    runs = [
        evaluate(moved, {**inputs, _MOVE: move}, sizes, round_outputs=False)
        for move in (np.zeros_like(delta), delta, -delta)
    ]
    results = []
    with np.errstate(all="ignore"):
        for tensor, value, up, down in zip(program.outputs, *runs, strict=True):
            change = np.maximum(np.abs(up - value), np.abs(down - value))
            rounding = 2.0**-tensor.dtype.mantissa * np.abs(value) + _tiny(tensor)
            allowed = change + rounding + _POINTWISE * np.maximum(np.abs(value), 1.0)
            largest = float(np.finfo(np.float32).max)
            if tensor.dtype.name == "f16":
                largest = float(np.finfo(np.float16).max)
            allowed = np.where(np.abs(value) + allowed < largest, allowed, np.inf)
            results.append(Expected(tensor, value, allowed))
    return tuple(results)


def _tiny(tensor: Tensor) -> float:
    """The spacing of the output type's smallest numbers."""
    return 2.0**-24 if tensor.dtype.name == "f16" else 2.0**-126


def _contraction(program: Program) -> Contraction:
    if len(program.contractions) != 1:
        raise UnsupportedProgram(
            f"{len(program.contractions)} contractions", where=program.name, nearest="One"
        )
    return program.contractions[0]


def reduction_size(contraction: Contraction, sizes: Mapping[str, int]) -> int:
    """The number of products in one sum."""
    kept = contraction.write.index
    extents = [d for it, d in contraction.domain if it not in kept]
    return int(np.prod([d if isinstance(d, int) else sizes[d] for d in extents]))


def _sum_error(
    program: Program,
    contraction: Contraction,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int],
    atom_k: int,
) -> Array:
    output = Tensor(contraction.write.name, F32, _dims(contraction))
    alone = replace(program, outputs=(output,), statements=(contraction,))
    magnitudes = {name: np.abs(value) for name, value in inputs.items()}
    (total,) = evaluate(alone, magnitudes, sizes, round_outputs=False)
    additions = reduction_size(contraction, sizes) / atom_k + atom_k
    return np.asarray(additions * 2.0**-contraction.dtype.mantissa * total)


def _dims(contraction: Contraction) -> tuple[str | int, ...]:
    extents = dict(contraction.domain)
    return tuple(extents[i] for i in contraction.write.index if isinstance(i, str))


def _movable(program: Program, contraction: Contraction) -> Program:
    """The program with an input that is added to the sum."""
    kept = [(it, extent) for it, extent in contraction.domain if it in contraction.write.index]
    exact = replace(contraction.write, name=_EXACT)
    move = Pointwise(
        "MOVE",
        tuple(kept),
        contraction.write,
        "add",
        (exact, Access(_MOVE, contraction.write.index)),
        F32,
    )
    statements: list[Statement] = []
    for statement in program.statements:
        if statement is contraction:
            statements += [replace(contraction, write=exact), move]
        else:
            statements.append(statement)
    extra = Tensor(_MOVE, F32, _dims(contraction))
    return replace(program, inputs=(*program.inputs, extra), statements=tuple(statements))
