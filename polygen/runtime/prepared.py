"""One combination of array forms, with the parameter blocks of its launches."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from polygen.emit.source import KernelSource
from polygen.frontend.program import Tensor
from polygen.runtime.binding import Binding
from polygen.runtime.tensormaps import MAP_ALIGNMENT, MAP_BYTES, Encoder, MapCache
from polygen.runtime.workspace import Copies, Room

_SLOT = 8  # bytes
_MAP_STEP = MAP_ALIGNMENT // _SLOT  # slots
# Slots, addresses of the parameters, address of those, addresses of the arrays its maps describe.
_Block = tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_void_p], int, list[int]]
_MOST_BLOCKS = 128  # that wait, per combination: a layer has one for each place of a model


class Prepared:
    """One combination of array forms, ready to launch.

    A block holds the parameters of one launch in 8-byte slots (addresses of all arrays, scalars,
    constants), the tensor maps, and the table of parameter addresses that CUDA takes. Blocks that
    are not in use wait in `_pool`, under the addresses that they hold; each running call has its
    own, so that threads do not meet.
    """

    __slots__ = (
        "_constants", "_first_map", "_launches", "_maps", "_pack", "_pool", "_size", "_slots",
        "address", "allocate", "binding", "checks", "copies", "device", "finish", "latest",
        "library", "memory", "passed", "queue", "room",
    )  # fmt: skip

    def __init__(
        self,
        source: KernelSource,
        binding: Binding,
        tensors: Sequence[Tensor],
        scalars: Sequence[Tensor],
        launches: tuple[Callable[..., Any], ...],
        encode: Encoder,
    ) -> None:
        self.binding, self.device = binding, binding.device
        self.latest: list[int] | None = None  # addresses that are in order
        self.passed: set[tuple[int, ...]] = set()  # likewise, all that are remembered
        self.checks = tuple(zip(binding.stride_bits, binding.masks, strict=True))
        rooms = [argument.name for argument in source.arguments if argument.kind == "workspace"]
        names = [*(t.name for t in tensors), *rooms, *(s.name for s in scalars)]
        place = {name: slot for slot, name in enumerate(names)}
        # Maps come last, each at a multiple of its alignment.
        count = len(place) + sum(value is not None for value in binding.constants)
        self._first_map = first = -(-count // _MAP_STEP) * _MAP_STEP
        slots, constants, free, free_map = [], [], len(place), first
        for argument, value in zip(source.arguments, binding.constants, strict=True):
            if argument.kind == "map":
                slots.append(free_map)
                free_map += MAP_BYTES // _SLOT
            elif value is None:
                slots.append(place[argument.tensor or argument.name])
            else:
                constants.append((free, value))
                slots.append(free)
                free += 1
        self._size, self._slots, self._constants = free_map, tuple(slots), tuple(constants)
        self._maps = MapCache(binding.maps, encode) if binding.maps else None
        # Little-endian: a 32-bit parameter is the low half of its slot.
        addresses = len(tensors) + len(rooms)
        self._pack = struct.Struct(f"<{addresses}Q" + "f4x" * len(scalars)).pack_into
        self._pool: dict[tuple[int, ...], _Block] = {}
        self._launches = launches
        # Bytes of the workspace, and of what number of them its address is a multiple.
        self.room: tuple[int, int] | None = None
        self.memory: Room  # where there is a workspace
        self.allocate: tuple[Callable[[], Any], ...] = ()
        self.address: Callable[[Any], int] = int  # of what `allocate` makes
        self.finish: Callable[[Any], Any] | None = None
        self.library = ""
        self.queue: Callable[[], int] = int  # the caller's current stream, as the library sees it
        self.copies: Copies | None = None  # that go before it

    def _block(self) -> _Block:
        room = (ctypes.c_int64 * (self._size + _MAP_STEP))()
        shift = -ctypes.addressof(room) % MAP_ALIGNMENT
        values = (ctypes.c_int64 * self._size).from_buffer(room, shift)  # keeps `room` alive
        for slot, value in self._constants:
            values[slot] = value
        base = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * len(self._slots))(*(base + _SLOT * n for n in self._slots))
        return values, addresses, ctypes.addressof(addresses), []

    def submit(self, pointers: Sequence[int], scalars: Sequence[float], queue: int) -> None:
        """Launch on stream `queue`."""
        key = tuple(pointers)
        block = self._pool.pop(key, None)
        if block is None:
            block = self._free()
            if self._maps:
                place = ctypes.addressof(block[0]) + _SLOT * self._first_map
                self._maps.write(place, block[3], pointers)
            self._pack(block[0], 0, *pointers, *scalars)
        elif scalars:
            self._pack(block[0], 0, *pointers, *scalars)
        for launch in self._launches:  # in their order on the stream, with the same parameters
            launch(queue, block[2], 0)
        self._pool[key] = block  # CUDA has copied the parameters

    def submit_with(
        self, start: int, pointers: Sequence[int], scalars: Sequence[float], queue: int
    ) -> None:
        """Launch with a workspace, what copies first: its room is in front of that for parts of
        folds.
        """
        copies = self.copies
        if copies is None:
            self.submit([*pointers, start], scalars, queue)
            return
        assert self.room is not None
        parts = [start + copies.bytes] if self.room[0] > copies.bytes else []
        self.submit(copies.made([*pointers, *parts], scalars, start, queue), scalars, queue)

    def again(self, pointers: tuple[int, ...]) -> bool:
        """Launch on the caller's current stream with addresses that a block which waits holds.

        Args:
            pointers: as many as there are arrays; the kernel has no scalars.

        Returns:
            Whether there is such a block: its addresses were in order once, and so they are now.
        """
        block = self._pool.pop(pointers, None)
        if block is None:
            return False
        queue, place = self.queue(), block[2]
        for launch in self._launches:
            launch(queue, place, 0)
        self._pool[pointers] = block
        return True

    def _free(self) -> _Block:
        """A block to write addresses into: the one that waits longest, where enough do."""
        if len(self._pool) >= _MOST_BLOCKS:
            try:
                return self._pool.pop(next(iter(self._pool)))
            except (StopIteration, KeyError, RuntimeError):  # another thread was quicker
                pass
        return self._block()
