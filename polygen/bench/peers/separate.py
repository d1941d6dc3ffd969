"""cuBLAS as PyTorch calls it, then one PyTorch kernel per step, in place: nothing is allocated."""

from __future__ import annotations

import functools
from typing import Any

from polygen.bench.operations import chain, in_place
from polygen.bench.products import no_steps_in_place, product
from polygen.bench.source import Call


class Separate:
    """The unfused baseline."""

    def versions(self) -> dict[str, Any]:
        """Nothing beyond PyTorch's."""
        return {}

    def make(self, work: Any) -> Call:
        """A product into the scratch matrix, and its steps.

        Raises:
            BenchError: a step has no kernel in place.
        """
        multiply = product(work.row.dtype)
        found, operands, z = chain(work.row.operation), work.operands.timed, work.operands.scratch
        x, w = (
            operands[n].t() if turned else operands[n] for n, turned in (found.left, found.right)
        )
        no_steps_in_place(work.row.dtype, found.steps)
        steps = in_place(found.steps, operands)

        def call() -> Any:
            return functools.reduce(lambda value, step: step(value), steps, multiply(x, w, out=z))

        return call
