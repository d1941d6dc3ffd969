"""Memory that a call needs beside its arrays, and the launch that copies or makes operands there.

The memory belongs to the stream of the call, and goes back to the caller's library when the call
returns: both libraries hand it out again in stream order, after the kernel. While a graph is
captured the memory belongs to the graph: in captures of PyTorch's own it does by itself
(`graph_pool`), in others `graph_memory` sees to it, which makes replays longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polygen.emit.source import KernelSource
from polygen.errors import ArgumentError
from polygen.frontend.dtypes import dtype
from polygen.frontend.program import Program, Tensor
from polygen.runtime.arrays import describe
from polygen.runtime.binding import Binding
from polygen.runtime.dlpack import compact
from polygen.runtime.driver import Driver
from polygen.runtime.graph_pool import of_a_capture
from polygen.runtime.outputs import address_reader, allocation_scope, allocator
from polygen.schedule import realign

_BYTE = dtype("s8")


def bytes_beside(source: KernelSource, program: Program, known: Mapping[str, int]) -> int:
    """Bytes that a call takes beside its arrays: operands that are copied or made, parts of folds.

    Args:
        source: the kernel.
        program: what it computes.
        known: the sizes of the call.

    Raises:
        ArgumentError: the size of a dim is not known.
    """
    copy, following = source.realign, source.following
    if copy is None and following is None:
        return 0
    wanted = set(program.sizes)
    if copy is not None and following is None:
        wanted = {d for t in copy.every for d in t.dims if isinstance(d, str)}
    missing = wanted - set(known)
    if missing:
        raise ArgumentError(
            f"sizes without {', '.join(sorted(missing))}",
            where="workspace",
            nearest=f"Name all of {', '.join(program.sizes)}",
        )
    own = 0 if copy is None else copy.workspace(known)
    return own + (0 if following is None else following.workspace(known))


class Room:
    """Memory for the calls of one combination of arrays.

    Args:
        owner: the library whose memory it shall be.
        device: where it is.
        count: bytes.
    """

    __slots__ = ("_address", "_make", "count", "owner")

    def __init__(self, owner: str, device: int, count: int) -> None:
        self.owner, self.count = owner, count
        self._make = allocator(owner, device, (count,), _BYTE, (0,))
        self._address = address_reader(owner)

    def taken(self, queue: int, driver: Driver, *, explicit: bool) -> tuple[int, Any]:
        """Memory for one call.

        Args:
            queue: the stream.
            driver: the CUDA calls.
            explicit: whether `queue` may be another stream than the library's current one.

        Returns:
            The address, a multiple of a line of the cache, and what is to be kept until all is
            launched that takes the memory.
        """
        captures = driver.capturing(queue)
        if captures and self.owner != "torch":
            return driver.reserve(self.count, queue), None
        if not (explicit or captures):
            held = self._make()
            return self._address(held), held
        with (
            allocation_scope(self.owner, queue, driver) if explicit else contextlib.nullcontext(),
            driver.beside_captures() if captures else contextlib.nullcontext(),
        ):
            held = self._make()
        if captures and not of_a_capture(held):
            return driver.reserve(self.count, queue), None
        return self._address(held), held


def address(
    given: Any, needed: tuple[int, int], device: int, where: str, stream: int, driver: Driver
) -> int:
    """The address of an array that serves as workspace.

    Args:
        given: an array in device memory, of any type.
        needed: bytes, and of what number of them the address is a multiple.
        device: on which the kernel runs.
        where: the kernel, for messages.
        stream: that is going to use it.
        driver: the CUDA calls.

    Raises:
        ArgumentError: it is too small, has gaps, is misaligned, or lies on another device.
    """
    size, multiple = needed
    view = describe(given, name="workspace", stream=stream, driver=driver)
    item = getattr(getattr(given, "dtype", None), "itemsize", 1)
    room = math.prod(view.shape) * int(item)
    fits = room >= size and view.strides == compact(view.shape)
    if not fits or view.pointer % multiple or view.device != device or view.readonly:
        raise ArgumentError(
            f"the workspace has {room} bytes on device {view.device}",
            where=where,
            why=f"a call takes {size} on device {device}, without gaps, from a multiple of "
            f"{multiple} on",
            nearest=f'cupy.empty({size}, "u1"), or leave workspace= away',
        )
    return view.pointer


class Copies:
    """The launch before a kernel, for one combination of array forms.

    Args:
        source: the kernel.
        binding: of the arrays.
        tensors: inputs, then outputs.
        scalars: the scalar inputs.
        launch: the CUDA call to launch with.
        function: the handle of what goes before.
    """

    def __init__(
        self,
        source: KernelSource,
        binding: Binding,
        tensors: Sequence[Tensor],
        scalars: Sequence[Tensor],
        launch: Callable[..., Any],
        function: int,
    ) -> None:
        self._own, sizes, copy = len(tensors), dict(binding.sizes), source.realign
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

    def made(
        self, pointers: Sequence[int], scalars: Sequence[float], start: int, queue: int
    ) -> list[int]:
        """Copy or make arrays in a workspace.

        Args:
            pointers: addresses of the call's arrays, and of the room for parts of folds.
            scalars: its numbers.
            start: of the workspace, which is the call's until its kernel is done.
            queue: the stream.

        Returns:
            `pointers`, with the copies in the place of the arrays, and behind the arrays what was
            made.
        """
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
