"""Programs, with the sizes and storage of the arrays of a call -> kernels, made on first use.

Among calls with one program, one layout, one alignment class and one choice of schedule the kernel
is the same, as it is for direct calls of `polygen.api.Fused`. A schedule that is given is the
choice for all sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polygen.api import target
from polygen.chained import with_numbers
from polygen.decision import decision
from polygen.frontend.program import Program
from polygen.generated import content
from polygen.in_order import in_order
from polygen.kernel import Kernel
from polygen.kernel_sequence import AnyKernel
from polygen.pipeline import with_sizes
from polygen.runtime.recent import Recent
from polygen.schedule.model import Schedule

_MOST_KERNELS = 512


class Kernels:
    """The kernels of a process, by what they are made from."""

    def __init__(self) -> None:
        self._found: Recent[Any, Kernel] = Recent(_MOST_KERNELS)

    def __len__(self) -> int:
        return len(self._found)

    def find(
        self, program: Program, sizes: Mapping[str, int], schedule: Schedule | None = None
    ) -> AnyKernel:
        """The kernel for the GPU present, or several in order.

        Args:
            program: what to compute, with the order in which each array is stored.
            sizes: of its symbolic dims.
            schedule: None: an automatic choice, which depends on the sizes.

        Raises:
            PolygenError: no kernel can be made of the program.
        """
        if schedule is not None:
            return self._given(program, sizes, schedule)
        known = {name: sizes[name] for name in program.sizes}
        whole = functools.partial(self.alone, program, sizes)
        return in_order(program, known, target(None), self._decided, whole)

    def alone(self, program: Program, sizes: Mapping[str, int]) -> Kernel:
        """The one kernel for the GPU present; arguments as for `find`.

        Raises:
            PolygenError: no single kernel can be made of the program.
        """
        known = {name: sizes[name] for name in program.sizes}
        return self._decided(with_numbers(program, known), known)

    def _decided(self, program: Program, sizes: dict[str, int]) -> Kernel:
        """The kernel of an automatic choice for sizes and pitches."""
        program, device = with_sizes(program, sizes), target(None)
        chosen, origin = decision(program, device, sizes)
        key = (content(program), device, chosen, False)
        found = self._found.get(key)
        if found is None:
            found = Kernel.decided(program, device, sizes, chosen, origin)
        return self._found.put(key, found)

    def _given(self, program: Program, sizes: Mapping[str, int], schedule: Schedule) -> Kernel:
        """The kernel of a schedule that is given."""
        program = with_numbers(program, sizes)
        known = {name: sizes[name] for name in program.sizes}
        program, device = with_sizes(program, known), target(None)
        key = (content(program), device, schedule, True)
        found = self._found.get(key)
        return self._found.put(key, found or Kernel(program, device, known, schedule))


def stored(program: Program, orders: Sequence[tuple[int, ...]]) -> Program:
    """The program for arrays that are stored in these orders.

    Args:
        program: what to compute.
        orders: of each input that is no scalar, in order: its axes, the contiguous one last.
    """
    given = iter(orders)
    inputs = tuple(
        replace(tensor, order=next(given)) if tensor.dims else tensor for tensor in program.inputs
    )
    return replace(program, inputs=inputs)


def sizes_of(program: Program, shapes: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The symbolic dims of a program as arrays of these shapes have them.

    Args:
        program: what is computed.
        shapes: of each input that is no scalar, in order.
    """
    arrays = [tensor for tensor in program.inputs if tensor.dims]
    return {
        dim: extent
        for tensor, shape in zip(arrays, shapes, strict=True)
        for dim, extent in zip(tensor.dims, shape, strict=True)
        if isinstance(dim, str)
    }
