"""Memory that a call needs beside its arrays, and the launch that copies or makes operands there.

The memory belongs to the stream of the call, and goes back to the caller's library when the call
returns: both libraries hand it out again in stream order, after the kernel. While a graph is
captured the memory belongs to the graph (`graph_memory`): no library would keep it to the graph but
for captures of its own, and whose a capture is cannot be seen.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polygen.emit.source import KernelSource
from polygen.frontend.dtypes import dtype
from polygen.frontend.program import Tensor
from polygen.runtime.arrays import describe
from polygen.runtime.binding import Binding
from polygen.runtime.driver import Driver
from polygen.runtime.outputs import allocation_scope, allocator
from polygen.schedule import realign

_BYTE = dtype("s8")


@contextlib.contextmanager
def workspace(
    owner: str, device: int, count: int, queue: int, driver: Driver, *, explicit: bool
) -> Iterator[int]:
    """Memory for as long as what is launched inside the block takes.

    Args:
        owner: the library whose memory it shall be.
        device: the current one.
        count: bytes.
        queue: the stream.
        driver: the CUDA calls.
        explicit: whether `queue` may be another stream than the library's current one.

    Yields:
        The address, a multiple of a line of the cache.
    """
    if driver.capturing(queue):
        yield driver.reserve(count, queue)
        return
    make = allocator(owner, device, (count,), _BYTE, (0,))
    if explicit:
        with allocation_scope(owner, queue, driver):
            held = make()
    else:
        held = make()
    yield describe(held).pointer


class Copies:
    """The launch before a kernel, for one combination of array forms.

    Args:
        source: the kernel.
        binding: of the arrays.
        tensors: inputs, then outputs.
        scalars: the scalar inputs.
        driver: the CUDA calls.
        launch: of them the one to launch with.
        function: the handle of what goes before.
    """

    def __init__(
        self,
        source: KernelSource,
        binding: Binding,
        tensors: Sequence[Tensor],
        scalars: Sequence[Tensor],
        driver: Driver,
        launch: Callable[..., Any],
        function: int,
    ) -> None:
        self._driver, self._device, self._own = driver, binding.device, len(tensors)
        sizes, copy = dict(binding.sizes), source.realign
        assert copy is not None
        self.offsets = copy.offsets(sizes)[:-1]
        self.bytes = copy.workspace(sizes)
        self.places = binding.copied
        self._launch, self._function, self._threads = launch, function, copy.threads
        self._numbers = tuple(
            realign.constants(tensors[at], sizes, steps)
            for at, steps in zip(binding.copied, binding.steps, strict=True)
        )
        self._blocks = tuple(copy.blocks(tensor, sizes) for tensor in copy.made)
        # What is made is made of the kernel's arguments, of arrays as the caller has them.
        self._arguments: tuple[tuple[str, int], ...] = ()
        if copy.made:
            names = [tensor.name for tensor in (*tensors, *copy.made)]
            names += [one.name for one in source.arguments if one.kind == "workspace"]
            numbers = [tensor.name for tensor in scalars]
            pairs = zip(source.arguments, binding.given, strict=True)
            self._arguments = tuple(
                ("constant", value)
                if value is not None
                else ("pointer", names.index(one.tensor or one.name))
                if one.kind in ("pointer", "workspace")
                else ("scalar", numbers.index(one.tensor))
                for one, value in pairs
                if one.kind != "map"
            )

    @contextlib.contextmanager
    def made(
        self,
        pointers: Sequence[int],
        scalars: Sequence[float],
        owner: str,
        queue: int,
        explicit: bool,
    ) -> Iterator[list[int]]:
        """Copy or make arrays in a workspace that lasts for what is launched inside the block.

        Args:
            pointers: addresses of the call's arrays, and of the room for parts of folds.
            scalars: its numbers.
            owner: the library whose memory is taken.
            queue: the stream.
            explicit: whether it may be another than the library's current one.

        Yields:
            `pointers`, with the copies in the place of the arrays, and behind the arrays what was
            made.
        """
        with workspace(
            owner, self._device, self.bytes, queue, self._driver, explicit=explicit
        ) as start:
            yield self._copied(pointers, scalars, start, queue)

    def _copied(
        self, pointers: Sequence[int], scalars: Sequence[float], start: int, queue: int
    ) -> list[int]:
        inner, blocks = list(pointers), sum(self._blocks)
        made = [start + offset for offset in self.offsets[len(self.places) :]]
        inner[self._own : self._own] = made
        values: list[Any] = []  # numbers of C
        for at, offset, numbers in zip(self.places, self.offsets, self._numbers, strict=False):
            inner[at] = start + offset
            values += [ctypes.c_uint64(pointers[at]), ctypes.c_uint64(inner[at])]
            values += map(ctypes.c_int32, numbers)
            blocks += numbers[0]
        values += map(ctypes.c_uint32, self._blocks)
        for kind, number in self._arguments:
            if kind == "pointer":
                own = pointers if number < self._own else inner
                values.append(ctypes.c_uint64(own[number]))
            else:
                scalar = kind == "scalar"
                values.append(ctypes.c_float(scalars[number]) if scalar else ctypes.c_int32(number))
        table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._launch(
            self._function, blocks, 1, 1, self._threads, 1, 1, 0, queue,
            ctypes.addressof(table), 0,
        )  # fmt: skip
        return inner
