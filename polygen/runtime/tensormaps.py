"""Tensor maps: what the copy engine must know of a tensor, encoded by the driver.

A kernel takes a map as 128 bytes by value. The driver encodes one from the tensor's address, the
sizes and steps of its axes, and from the box that one copy moves.

1. Binding arrays fixes all of a map but the address: its `MapLayout`.
2. A launch encodes each map once per address and keeps the bytes (`MapCache`).
3. Each block of launch parameters holds copies of its own, rewritten when addresses change.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polygen.emit.source import Argument
from polygen.errors import ArgumentError, ToolchainMissing
from polygen.frontend.indices import size_value
from polygen.frontend.program import Tensor
from polygen.hardware.device import common_facts
from polygen.runtime.recent import Recent

MAP_BYTES = 128
MAP_ALIGNMENT = 128  # as cuda.h of CUDA 13 has it; before, it was 64
_MOST_ENCODED = 1024  # maps kept per combination of shapes

# cuda.h: CUtensorMapDataType; fp8 travels as bytes
_TYPES = {"f16": 6, "bf16": 9, "f32": 7, "tf32": 11, "e4m3": 0, "e5m2": 0, "s8": 0}
_TYPES |= {"u8": 0, "bool": 0, "s32": 3}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # cuda.h: CUtensorMapSwizzle
# Promotion to 128 bytes: 256 fetch too much where rows do not start at a multiple of them.
_INTERLEAVE_NONE, _PROMOTE_128_BYTES, _FILL_WITH_ZEROS = 0, 2, 0
_INVALID_VALUE = 1  # cuda.h: CUresult

Encoder = Callable[[int, "MapLayout"], bytes]


@dataclass(frozen=True, slots=True)
class MapLayout:
    """A tensor map without the tensor's address.

    Attributes:
        name: the tensor.
        dtype: polygen's name of its element type.
        sizes: elements along its axes, 1 to 5 of them, innermost first.
        strides: bytes from one index to the next along all axes but the innermost.
        box: elements of a box, innermost first.
        swizzle: bytes of the span inside which 16-byte chunks are swapped, or 0.
        start: bytes from the tensor's address to the map's.
        every: positions along the axes from one element of a box to the next; (): neighbours.
    """

    name: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    start: int = 0
    every: tuple[int, ...] = ()

    def __str__(self) -> str:
        swizzle = f"swizzle {self.swizzle} bytes" if self.swizzle else "no swizzle"
        apart = f", {_by(self.strides)} bytes apart" if self.strides else ""
        start = f", from byte {self.start} on" if self.start else ""
        every = f", every {_by(self.every)}" if self.every else ""
        return (
            f"{_by(self.sizes)} {self.dtype}{apart}{start}, in boxes of {_by(self.box)} elements"
            f"{every}, {swizzle}"
        )


def _by(innermost_first: Sequence[int]) -> str:
    return " x ".join(map(str, reversed(innermost_first)))


def map_layout(
    argument: Argument, tensor: Tensor, sizes: Mapping[str, int], strides: Sequence[int]
) -> MapLayout:
    """What a map argument says of a tensor of this shape.

    Args:
        argument: the map.
        tensor: the tensor that it describes.
        sizes: of the symbolic dims.
        strides: elements per step along each axis of the tensor; any along one of extent 1.
    """
    facts, size = common_facts(), tensor.dtype.bytes
    multiple, most = facts["tensor_map_row_bytes"], facts["tensor_map_step_most"]
    extents, steps, start, reach = [], [], 0, size
    for one in reversed(argument.axes):
        extent = size_value(one.extent, sizes)
        stride = 0 if one.axis is None else strides[one.axis] * size
        # One index alone has no next one; the driver still wants a step that could lead to it.
        step = stride * one.step if extent > 1 else min(-(-reach // multiple) * multiple, most)
        reach += (extent - 1) * step
        start += stride * one.start
        extents.append(extent)
        steps.append(step)
    return MapLayout(
        tensor.name,
        tensor.dtype.name,
        tuple(extents),
        tuple(steps[1:]),
        argument.box[::-1],
        argument.swizzle,
        start,
        argument.every[::-1] if set(argument.every) != {1} else (),
    )


@functools.cache
def _encode_tiled() -> Any:
    """``cuTensorMapEncodeTiled`` of the installed driver.

    Raises:
        ToolchainMissing: there is no driver, or it is older than tensor maps.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        function = driver.cuTensorMapEncodeTiled
    except (OSError, AttributeError) as reason:
        raise ToolchainMissing(
            "the CUDA driver cannot encode tensor maps",
            why=str(reason),
            nearest="Kernels with tensor maps need the driver of CUDA 12.0 or newer",
        ) from reason
    function.restype = ctypes.c_int
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int,
        ctypes.c_int, ctypes.c_int,
    )  # fmt: skip
    return function


def encode(pointer: int, layout: MapLayout) -> bytes:
    """Encode a tensor map with the driver; needs no CUDA context.

    Args:
        pointer: device address of the tensor.
        layout: the rest of the map.

    Returns:
        The map, `MAP_BYTES` long.

    Raises:
        ToolchainMissing: the driver is missing, too old, or cannot encode maps at all.
        ArgumentError: the driver refuses this map.
    """
    rank = len(layout.sizes)
    every = layout.every or (1,) * rank
    # A box that leaves elements out is as long as what it spans, in the driver's terms.
    spanned = [side * each for side, each in zip(layout.box, every, strict=True)]
    room = (ctypes.c_uint8 * (MAP_BYTES + MAP_ALIGNMENT))()  # the driver wants aligned memory
    start = -ctypes.addressof(room) % MAP_ALIGNMENT
    code = _encode_tiled()(
        ctypes.addressof(room) + start,
        _TYPES[layout.dtype],
        rank,
        pointer + layout.start,
        (ctypes.c_uint64 * rank)(*layout.sizes),
        (ctypes.c_uint64 * (rank - 1))(*layout.strides),
        (ctypes.c_uint32 * rank)(*spanned),
        (ctypes.c_uint32 * rank)(*every),
        _INTERLEAVE_NONE,
        _SWIZZLES[layout.swizzle],
        _PROMOTE_128_BYTES,
        _FILL_WITH_ZEROS,
    )
    if code:
        raise _refused(code, pointer, layout)
    return bytes(room[start : start + MAP_BYTES])


def _refused(code: int, pointer: int, layout: MapLayout) -> ArgumentError | ToolchainMissing:
    what = f"the driver does not encode the tensor map (CUresult {code})"
    why = f"{layout}, at address {pointer:#x}"
    if code == _INVALID_VALUE:
        return ArgumentError(
            what, where=layout.name, why=why, nearest="Pass a contiguous copy of the array"
        )
    nearest = "Kernels with tensor maps need a GPU and a driver that have them"
    return ToolchainMissing(what, where=layout.name, why=why, nearest=nearest)


class MapCache:
    """The maps of one combination of shapes and strides.

    Args:
        layouts: per map argument, the position of its tensor among the arrays, and its layout.
        encode: makes a map of an address and a layout.
    """

    __slots__ = ("_encode", "_encoded", "_layouts")

    def __init__(self, layouts: Sequence[tuple[int, MapLayout]], encode: Encoder) -> None:
        self._layouts, self._encode = tuple(layouts), encode
        self._encoded: Recent[tuple[int, int], bytes] = Recent(_MOST_ENCODED)

    def write(self, target: int, written: list[int], pointers: Sequence[int]) -> None:
        """Bring the maps of one parameter block up to date.

        Args:
            target: address of the block's maps, one behind the other.
            written: addresses of the arrays that the block's maps describe; empty at first. Becomes
                `pointers`.
            pointers: addresses of the arrays of this launch.

        Raises:
            ArgumentError: the driver refuses a map. The block is of no use then.
        """
        for number, (position, layout) in enumerate(self._layouts):
            pointer = pointers[position]
            if not written or written[position] != pointer:
                encoded = self._map(number, pointer, layout)
                ctypes.memmove(target + number * MAP_BYTES, encoded, MAP_BYTES)
        written[:] = pointers

    def _map(self, number: int, pointer: int, layout: MapLayout) -> bytes:
        key = (number, pointer)
        found = self._encoded.get(key)
        if found is None:
            # Two threads may both get here; they encode the same bytes.
            found = self._encoded.put(key, self._encode(pointer, layout))
        return found
