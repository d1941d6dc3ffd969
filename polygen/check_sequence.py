"""Checks kernels that run one after another, and runs them on NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.check import CheckReport, Emulation
from polygen.emulated import joined, poisoned, view_of
from polygen.errors import ArgumentError
from polygen.frontend.pitches import sizes_in
from polygen.frontend.program import Tensor
from polygen.kernel_sequence import KernelSequence
from polygen.pipeline import check_sizes
from polygen.runtime.binding import bound_sizes
from polygen.runtime.sequence import places

Array = np.ndarray[Any, Any]


def emulate_sequence(
    sequence: KernelSequence, operands: tuple[Any, ...], out: Any, options: Mapping[str, Any]
) -> Emulation:
    """Run the compiled PTX of every kernel on NumPy arrays, in their order.

    Args:
        sequence: the kernels.
        operands: arrays and numbers in call order.
        out: arrays that lie as the outputs of the call do, in order; (): they have no gaps.
        options: for `polygen.machine.run`.

    Raises:
        ArgumentError: the operands do not fit.
    """
    program = sequence.program
    if len(operands) != len(program.operands):
        raise ArgumentError(
            f"{len(operands)} operands, expected {len(program.operands)}",
            where=program.name,
            nearest=f"Expected: {', '.join(map(str, program.operands))}",
        )
    found = {t.name: one for t, one in zip(program.operands, operands, strict=True)}
    given = dict(zip((t.name for t in program.outputs), out, strict=bool(out)))
    arrays = [tensor for tensor in program.operands if tensor.dims]
    sizes = bound_sizes(arrays, [view_of(np.asarray(found[t.name]), t) for t in arrays])
    lying, _ = places(sequence.between, sizes)
    types = {tensor.name: tensor for tensor in sequence.between}
    room = {one.name: _between(types[one.name], one.shape, one.strides) for one in lying}
    reports = []
    for kernel in sequence.kernels:
        outputs = kernel.program.outputs
        lying_as = given | room
        outs = [
            lying_as[t.name] if t.name in lying_as else poisoned(t.shape(sizes), t) for t in outputs
        ]
        done = kernel.emulation(
            *(found[tensor.name] for tensor in kernel.program.operands), out=tuple(outs), **options
        )
        results = done.results if isinstance(done.results, tuple) else (done.results,)
        found |= dict(zip((t.name for t in outputs), results, strict=True))
        reports.append(done.report)
    results = tuple(found[tensor.name] for tensor in program.outputs)
    return Emulation(results[0] if len(results) == 1 else results, joined(tuple(reports)))


def _between(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """An array between kernels, before it is written: all bits are set, as in NaNs."""
    kind = tensor.dtype.numpy
    last = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    filled = np.full(last * kind.itemsize, 0xFF, np.uint8).view(kind)
    return np.lib.stride_tricks.as_strided(
        filled, shape, [step * kind.itemsize for step in strides]
    )


def check_sequence(
    sequence: KernelSequence, sizes: dict[str, int], workers: int = 1
) -> CheckReport:
    """Check every kernel of a sequence, each on data of its own.

    Args:
        sequence: the kernels.
        sizes: of the runs.
        workers: processes at most.

    Raises:
        PolygenError: a size names no dim of the program, or is none.
    """
    check_sizes(sequence.program, sizes)
    reports = [one.check(sizes_in(one.program, sizes), workers=workers) for one in sequence.kernels]
    named = [
        (kernel.program.name, report)
        for kernel, report in zip(sequence.kernels, reports, strict=True)
    ]
    return CheckReport(
        tuple(
            replace(proof, subject=f"{name}: {proof.subject}")
            for name, report in named
            for proof in report.proofs
        ),
        tuple({name: size for report in reports for name, size in report.sizes}.items()),
        "; ".join(f"{name} {report.comparison}" for name, report in named),
        tuple(
            replace(one, where=f"{name}: {one.where}") for name, of in named for one in of.findings
        ),
        tuple(f"{name}: {note}" for name, report in named for note in report.notes),
        tuple(row for report in reports for row in report.profile),
    )
