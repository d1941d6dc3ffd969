"""Runs programs on tensors: kernels on CUDA devices, the program's meaning on the CPU in float64,
shapes alone where PyTorch traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from polygen.adapters.kernels import Kernels, sizes_of, stored
from polygen.adapters.torch import meaning as operations
from polygen.adapters.torch.tensors import is_reference, needs_copy, order_of, torch_dtype
from polygen.errors import ArgumentError
from polygen.frontend.evaluate import evaluate
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program, Tensor
from polygen.kernel_sequence import AnyKernel
from polygen.runtime.arrays import READS
from polygen.runtime.recent import Recent
from polygen.runtime.repeated import Repeated
from polygen.schedule.model import Schedule

KERNELS = Kernels()
_MOST_READY = 4096  # combinations of shapes, strides and types that one runner keeps

Operands = Sequence[Any]


class Runner:
    """Runs one function's programs; which one, `program_for` says from a call's operands.

    Args:
        program_for: the program, and the extents of its symbolic dims.
        schedule: for all kernels; None: chosen by sizes.
    """

    def __init__(
        self,
        program_for: Callable[[Operands], tuple[Program, dict[str, Any]]],
        schedule: Schedule | None = None,
    ) -> None:
        self._program_for, self._schedule = program_for, schedule
        self._ready: Recent[Any, tuple[AnyKernel | Nothing, tuple[int, ...]]] = Recent(_MOST_READY)
        self._latest: tuple[list[Any], AnyKernel | Nothing | None] = ([], None)

    def on_gpu(self, operands: tuple[Any, ...], out: tuple[Any, ...] | None = None) -> Any:
        """Launch on the current stream of the tensors' device; nothing waits.

        Args:
            operands: tensors and numbers.
            out: tensors for the results, without gaps; None: new ones.

        Returns:
            What the kernel returns: a new tensor, or a tuple of several.

        Raises:
            PolygenError: no kernel takes these operands.
        """
        # Calls of short kernels are as fast as this is: what is read of tensors is read once.
        reads = READS.get(type(operands[0])) if operands else None
        found = None if reads is None else reads(operands)
        forms, kernel = self._latest
        if out is None and found is not None and found[1] == forms and _is_current(operands[0]):
            assert kernel is not None
            return kernel.launched(operands, found)
        try:
            key: tuple[Any, ...] = tuple([(o.shape, o.stride(), o.dtype) for o in operands])
            index = operands[0].get_device()
        except AttributeError:  # a number among them
            key = tuple([(o.shape, o.stride(), o.dtype) if _is_tensor(o) else None
                         for o in operands])  # fmt: skip
            index = _device_of(operands)
        ready = self._ready.get((index, key))
        if found is not None and ready is not None and not ready[1]:
            self._latest = list(found[1]), ready[0]
        if _has_several_devices() and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                return self._launch(ready or self._prepare(index, key, operands), operands, out)
        return self._launch(ready or self._prepare(index, key, operands), operands, out)

    def repeated(self, operands: tuple[Any, ...]) -> Repeated | None:
        """What repeats the call that `on_gpu` made with such tensors, if that is a launch alone.

        Args:
            operands: tensors of a device that is current.
        """
        key = tuple([(o.shape, o.stride(), o.dtype) for o in operands])
        ready = self._ready.get((operands[0].get_device(), key))
        return None if ready is None or ready[1] else ready[0].repeated(operands)

    def _prepare(
        self, index: int, key: tuple[Any, ...], operands: tuple[Any, ...]
    ) -> tuple[AnyKernel | Nothing, tuple[int, ...]]:
        copied = tuple(n for n, o in enumerate(operands) if _is_tensor(o) and needs_copy(o))
        operands = _copied(operands, copied)
        program, sizes = self._program_for(operands)
        if without_elements(program, sizes):
            return self._ready.put((index, key), (Nothing(program, sizes), ()))
        program = stored(program, [order_of(o) for o in operands if _is_tensor(o)])
        kernel = KERNELS.find(program, sizes, self._schedule)
        return self._ready.put((index, key), (kernel, copied))

    @staticmethod
    def _launch(
        ready: tuple[AnyKernel | Nothing, tuple[int, ...]],
        operands: tuple[Any, ...],
        out: Any,
    ) -> Any:
        kernel, copied = ready
        operands = _copied(operands, copied) if copied else operands
        return kernel(*operands) if out is None else kernel(*operands, out=out)

    def into(self, out: tuple[torch.Tensor, ...], operands: tuple[Any, ...]) -> None:
        """Run a program, its results stored in tensors that there are, without gaps."""
        if out[0].is_cuda:
            self.on_gpu(operands, out)
            return
        for place, value in zip(out, self.on_cpu(operands), strict=True):
            place.copy_(value)

    def on_cpu(self, operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """The program's meaning in float64, for comparisons and `torch.autograd.gradcheck`.

        Raises:
            ArgumentError: a tensor that is not float64: kernels run on CUDA devices.
        """
        if not is_reference(operands):
            raise _on_the_cpu()
        program, sizes = self._program_for(operands)
        return meaning(program, operands, sizes)

    def shapes_alone(self, operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Outputs without elements, as PyTorch's tracing wants them."""
        program, sizes = self._program_for(operands)
        return empty(program, sizes, operands)


class Nothing:
    """What stands for a kernel where an array has no elements: nothing is launched.

    Of a sum of no elements the result is what PyTorch's operations make of it.

    Args:
        program: what is computed.
        sizes: of its symbolic dims.
    """

    def __init__(self, program: Program, sizes: dict[str, Any]) -> None:
        self._program, self._sizes = program, sizes
        self._has_results = any(0 not in _extents(t, sizes) for t in program.outputs)

    def __call__(self, *operands: Any, out: tuple[torch.Tensor, ...] | None = None) -> Any:
        """The results, in `out` if there is one."""
        if self._has_results:
            found = tuple(operations.run(self._program, operands, self._sizes))
            found = tuple(value.contiguous() for value in found)
        else:
            found = empty(self._program, self._sizes, operands)
        if out is not None:
            for place, value in zip(out, found, strict=True):
                place.copy_(value)
            return out
        return found[0] if len(found) == 1 else found

    def launched(self, operands: tuple[Any, ...], _: Any) -> Any:
        """As `Kernel.launched`."""
        return self(*operands)

    def repeated(self, _: tuple[Any, ...]) -> None:
        """There is no launch that could be repeated."""


def _extents(tensor: Tensor, sizes: Mapping[str, Any]) -> list[Any]:
    return [size_value(dim, sizes) for dim in tensor.dims]


def without_elements(program: Program, sizes: Mapping[str, Any]) -> bool:
    """Whether one of a program's arrays has no elements; sizes are numbers."""
    return any(0 in _extents(tensor, sizes) for tensor in (*program.inputs, *program.outputs))


def _is_tensor(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor)


@functools.cache
def _has_several_devices() -> bool:
    return bool(torch.cuda.device_count() > 1)


def _is_current(tensor: Any) -> bool:
    return not _has_several_devices() or tensor.get_device() == torch.cuda.current_device()


def _device_of(operands: tuple[Any, ...]) -> int:
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            return int(operand.get_device())
    raise ArgumentError("no operand is a tensor", nearest="A product needs two")


def _copied(operands: tuple[Any, ...], which: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(o.contiguous() if n in which else o for n, o in enumerate(operands))


def _on_the_cpu() -> ArgumentError:
    return ArgumentError(
        "the tensors are on the CPU",
        why="kernels run on CUDA devices; float64 tensors on the CPU give the program's meaning",
        nearest="Move them: x.cuda()",
    )


def meaning(
    program: Program, operands: tuple[Any, ...], sizes: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """A program's outputs in float64, by the reference evaluator; nothing is rounded but casts."""
    named = {
        tensor.name: operand.detach().numpy() if isinstance(operand, torch.Tensor) else operand
        for tensor, operand in zip(program.inputs, operands, strict=True)
    }
    found = evaluate(program, named, sizes, round_outputs=False)
    return tuple(torch.from_numpy(np.array(value, np.float64, order="C")) for value in found)


def empty(program: Program, sizes: dict[str, Any], operands: Operands) -> tuple[torch.Tensor, ...]:
    """New tensors for a program's outputs."""
    first = next(operand for operand in operands if isinstance(operand, torch.Tensor))
    exact = is_reference(operands)
    return tuple(
        torch.empty(
            _extents(tensor, sizes),
            dtype=torch.float64 if exact else torch_dtype(tensor.dtype),
            device=first.device,
        )
        for tensor in program.outputs
    )


def sizes_for(program: Program, operands: Operands) -> dict[str, Any]:
    """The symbolic dims of a program as these operands have them."""
    return sizes_of(program, [o.shape for o in operands if isinstance(o, torch.Tensor)])
