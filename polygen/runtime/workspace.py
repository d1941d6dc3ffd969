"""Memory that a call needs beside its arrays, and the copy of operands that goes there.

The memory belongs to the stream of the call, and goes back to the caller's library when the call
returns: both libraries hand it out again in stream order, after the kernel. While PyTorch captures
a graph its allocator keeps what is captured to the graph. CuPy's does not, so that there the driver
gives the memory: allocation and release become parts of the graph.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polygen.frontend.dtypes import dtype
from polygen.frontend.program import Tensor
from polygen.runtime.arrays import PROBES, library
from polygen.runtime.binding import Binding
from polygen.runtime.driver import Driver
from polygen.runtime.outputs import allocation_scope, allocator
from polygen.schedule import realign
from polygen.schedule.realign import Realign

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
    if owner != "torch" and driver.capturing(queue):
        address = driver.reserve(count, queue)
        try:
            yield address
        finally:
            driver.release(address, queue)
        return
    make = allocator(owner, device, (count,), _BYTE, (0,))
    if explicit:
        with allocation_scope(owner, queue, driver):
            held = make()
    else:
        held = make()
    library(type(held))  # fills PROBES
    yield PROBES[type(held)](held)[0]


class Copies:
    """The copy before a kernel, for one combination of array forms.

    Args:
        copy: which arrays, where to.
        binding: of the arrays.
        tensors: inputs, then outputs.
        launch: the CUDA call.
        function: the copy's function handle.
    """

    def __init__(
        self,
        copy: Realign,
        binding: Binding,
        tensors: Sequence[Tensor],
        launch: Callable[..., Any],
        function: int,
    ) -> None:
        sizes = dict(binding.sizes)
        self.offsets = copy.offsets(sizes)[:-1]
        self.bytes = copy.workspace(sizes)
        self.places = binding.copied
        self._launch, self._function, self._threads = launch, function, copy.threads
        self._numbers = tuple(
            realign.constants(tensors[at], sizes, steps)
            for at, steps in zip(binding.copied, binding.steps, strict=True)
        )

    def run(self, pointers: Sequence[int], targets: Sequence[int | None], queue: int) -> list[int]:
        """Copy arrays on a stream.

        Args:
            pointers: addresses of the call's arrays.
            targets: where the copy of each array goes; None: it is not copied.
            queue: the stream.

        Returns:
            `pointers`, with the copies in the place of the arrays.
        """
        inner, blocks = list(pointers), 0
        values: list[Any] = []  # numbers of C
        for at, target, numbers in zip(self.places, targets, self._numbers, strict=True):
            active = target is not None
            values += [ctypes.c_uint64(pointers[at]), ctypes.c_uint64(target or 0)]
            values += [ctypes.c_int32(numbers[0] * active), *map(ctypes.c_int32, numbers[1:])]
            blocks += numbers[0] * active
            if target is not None:
                inner[at] = target
        table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._launch(
            self._function, blocks, 1, 1, self._threads, 1, 1, 0, queue,
            ctypes.addressof(table), 0,
        )  # fmt: skip
        return inner
