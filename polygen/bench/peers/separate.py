"""cuBLAS as PyTorch calls it, then one PyTorch kernel per step, in place: nothing is allocated."""

from __future__ import annotations

import functools
from typing import Any

from polygen.bench.operations import fixed_forms
from polygen.bench.peers.in_turn import Stage, in_turn
from polygen.bench.products import no_steps_in_place, product
from polygen.bench.source import Call
from polygen.bench.torch_code import in_place


class Separate:
    """The unfused baseline."""

    def versions(self) -> dict[str, Any]:
        """Nothing beyond PyTorch's."""
        return {}

    def make(self, work: Any) -> Call:
        """Each product into its scratch matrix, and its steps.

        Raises:
            BenchError: a step has no kernel in place, or the type no product.
        """
        operands = work.operands.timed | work.operands.values
        stages = []
        for found, z in zip(fixed_forms(work.row.operation), work.operands.scratches, strict=True):
            x, w = (
                operands[n].mT if turned else operands[n] for n, turned in (found.left, found.right)
            )
            no_steps_in_place(work.row.dtype, found.steps)
            multiply = product(work.row.dtype, batched=len(z.shape) > 2)
            steps = in_place(found.steps, operands)
            stages.append(Stage(functools.partial(multiply, x, w, out=z), steps))
        return in_turn(work.row.operation, stages)
