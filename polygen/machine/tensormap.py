"""Tensor maps: how a tensor lies in global memory, and which bytes a box of it touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.errors import LaunchError
from polygen.hardware.device import common_facts
from polygen.machine.arithmetic import to_tf32
from polygen.machine.lanes import Vector

SWIZZLES = {0: (0, 0), 32: (1, 1), 64: (2, 3), 128: (3, 7)}  # span -> (bits, mask)
# How a map of tf32 rounds float32 elements on their way to shared memory, as `to_tf32` names it: to
# nearest, ties to even, denormals too; infinities stay, every NaN becomes 0x7FFFE000. The manual
# does not say; `tests/machine/calibration/tma.tf32_loads_round.npz` is what an H200 does.
TF32_ROUNDING = "rn"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A ``CUtensorMap`` argument, described instead of encoded.

    Attributes:
        array: the tensor; its last axis is the innermost dimension and must be contiguous. Pass the
            same array, or a view that has its axes in another order, as a pointer argument to share
            its memory.
        box: elements per axis of a box, in the order of the array's axes (outermost first).
        swizzle: 0, 32, 64 or 128 bytes.
        every: per axis, elements of the array from one element of a box to the next: the driver's
            ``elementStrides``, whose ``boxDim`` is `box` times it. (): neighbours.
        nan_fill: out-of-bounds elements read as NaN instead of zero.
        kind: the element type where the array's dtype does not tell it: ``tf32`` of float32, which
            loads round (``CU_TENSOR_MAP_DATA_TYPE_TFLOAT32``); "" otherwise.
        whole: the array that `array` is a part of, by slices: its memory is what the launch has, to
            share with other arguments. None: `array` is all there is.
    """

    array: np.ndarray[Any, Any]
    box: tuple[int, ...]
    swizzle: int = 0
    nan_fill: bool = False
    kind: str = ""
    whole: np.ndarray[Any, Any] | None = None
    every: tuple[int, ...] = ()

    @property
    def memory(self) -> np.ndarray[Any, Any]:
        """The array whose memory the launch has."""
        return self.array if self.whole is None else self.whole

    @property
    def start(self) -> int:
        """Bytes from that array's first element to the map's."""
        return int(self.array.ctypes.data - self.memory.ctypes.data)


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A tensor map with its tensor in memory; every tuple is innermost first."""

    name: str
    offset: int  # byte of element 0 in global memory
    dims: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, innermost first, so the first is the element size
    box: tuple[int, ...]
    swizzle: int
    dtype: Any
    nan_fill: bool
    kind: str
    every: tuple[int, ...] = ()
    changed: bool = False  # on the device: nobody has compared it with an array

    @property
    def element(self) -> int:
        """Bytes per element."""
        return self.strides[0]

    @property
    def box_bytes(self) -> int:
        """Bytes of a whole box in shared memory."""
        return int(np.prod(self.box)) * self.element


IMAGE_BYTES, MAP_ALIGNMENT = 128, 64


def swizzled(address: Vector, span: int) -> Vector:
    """XOR the 16-byte chunk bits with the row bits: 4.. with 7.., as many as the span has."""
    _, mask = SWIZZLES[span]
    return address ^ ((address >> 7 & mask) << 4)


def place(where: str, one: TensorMap, offset: int) -> PlacedMap:
    """Check a map against the driver's limits.

    Raises:
        LaunchError: what ``cuTensorMapEncodeTiled`` would refuse.
    """
    array = one.array
    size = array.itemsize
    if one.whole is not None and not np.may_share_memory(array, one.whole):
        raise LaunchError("the tensor map's array is no part of its whole", where=where)
    if not 1 <= array.ndim <= _axes_most() or len(one.box) != array.ndim:
        raise LaunchError(f"a box of {len(one.box)} axes for {array.ndim} dims", where=where)
    if array.strides[-1] != size and array.shape[-1] > 1:
        raise LaunchError("the last axis of a tensor map's array is not contiguous", where=where)
    every = one.every or (1,) * array.ndim
    if len(every) != array.ndim:
        raise LaunchError(f"a box of every {every} elements", where=where, nearest=_every_nearest())
    if one.kind and (one.kind != "tf32" or array.dtype != np.float32):
        raise LaunchError(
            f"a tensor map of kind {one.kind!r} over {array.dtype}",
            where=where,
            nearest='"tf32" over float32, or "" for the array\'s own type',
        )
    placed = PlacedMap(
        where,
        offset,
        tuple(reversed(array.shape)),
        (size, *reversed(array.strides[:-1])),
        tuple(reversed(one.box)),
        one.swizzle,
        array.dtype,
        one.nan_fill,
        one.kind,
        tuple(reversed(every)),
    )
    wrong = problem(placed)
    if wrong is not None:
        what, why, nearest = wrong
        raise LaunchError(what, where=where, why=why, nearest=nearest)
    return placed


def _axes_most() -> int:
    return common_facts()["tensor_map_axes_most"]


def _every_nearest() -> str:
    most = common_facts()["tensor_map_every_most"]
    return f"1 to {most} along each axis, 1 along the innermost"


def problem(placed: PlacedMap) -> tuple[str, str, str] | None:
    """What the driver would refuse of a map: what, why, and the nearest legal value; or None."""
    facts = common_facts()
    multiple, most = facts["tensor_map_row_bytes"], facts["tensor_map_box_most"]
    for extent, stride in zip(placed.dims[:0:-1], placed.strides[:0:-1], strict=True):
        if extent > 1 and (stride % multiple or stride <= 0):  # an axis of extent 1 has no step
            return f"a stride of {stride} bytes", "", f"Strides are multiples of {multiple}"
    if placed.offset % multiple:
        return f"the tensor map does not start at a multiple of {multiple} bytes", "", ""
    every, box, far = placed.every[::-1], placed.box[::-1], facts["tensor_map_every_most"]
    if any(not 1 <= each <= far for each in every) or every[-1] != 1:
        return f"a box of every {every} elements", "", _every_nearest()
    if any(not 1 <= side * each <= most for side, each in zip(box, every, strict=True)):
        apart = f" of every {every} elements" if set(every) != {1} else ""
        return f"box {box}{apart}", "", f"Sides are 1 to {most}"
    inner = placed.box[0] * placed.element
    if inner % multiple:
        return f"inner box of {inner} bytes", "", f"A multiple of {multiple}"
    if placed.swizzle not in SWIZZLES:
        return f"swizzle {placed.swizzle}", "", "0, 32, 64 or 128"
    if placed.swizzle and inner != placed.swizzle:
        return (
            f"inner box of {inner} bytes with swizzle {placed.swizzle}",
            "the machine models boxes that fill the swizzle span",
            f"{placed.swizzle // placed.element} elements",
        )
    return None


def loaded(placed: PlacedMap, values: Vector) -> Vector:
    """What a load writes for elements of the tensor, both as unsigned integers of their size."""
    if placed.kind == "tf32":
        return to_tf32(values.view("f4"), TF32_ROUNDING)
    return values


def shared_chunks(placed: PlacedMap, start: int) -> Vector:
    """Shared addresses of the box's 16-byte chunks, in box order, for a box at `start`."""
    chunks = start + 16 * np.arange(placed.box_bytes // 16)
    return swizzled(chunks, placed.swizzle)


def elements(
    placed: PlacedMap, corner: tuple[int, ...], whole_chunks: bool = False
) -> tuple[Vector, Vector]:
    """Global bytes of the box's elements in box order, and which of them are inside the tensor.

    With `whole_chunks` a row ends with its last 16 bytes, as it does for stores.
    """
    at: Vector = np.zeros((), np.int64)
    inside: Vector = np.ones((), bool)
    for axis, (side, first) in enumerate(zip(placed.box, corner, strict=True)):
        index = first + np.arange(side) * (placed.every[axis] if placed.every else 1)
        shape = (side,) + (1,) * axis
        at = at + (index * placed.strides[axis]).reshape(shape)
        extent = placed.dims[axis]
        if whole_chunks and not axis:
            extent = -(-extent * placed.element // 16) * 16 // placed.element
        inside = inside & ((index >= 0) & (index < extent)).reshape(shape)
    inside = np.broadcast_to(inside, at.shape).ravel()
    return np.where(inside, placed.offset + at.ravel(), 0), inside


def box(placed: PlacedMap, corner: tuple[int, ...], memory: Vector, fill: Any) -> Vector:
    """The elements of a box in box order, as unsigned integers, from the bytes of global memory.

    Args:
        placed: the map.
        corner: innermost first.
        memory: all bytes.
        fill: what elements outside the tensor hold.
    """
    kind = np.dtype(f"u{placed.element}")
    found = np.full(placed.box[::-1], fill, kind)
    begin, part, shape, steps = placed.offset, [], [], []
    every = placed.every or (1,) * len(corner)
    for axis, (side, first, step) in enumerate(zip(placed.box, corner, every, strict=True)):
        low = max(-(first // step), 0)
        high = min(-((first - placed.dims[axis]) // step), side)
        if low >= high:
            return found.ravel()
        begin += (first + low * step) * placed.strides[axis]
        part.append(slice(low, high))
        shape.append(high - low)
        steps.append(step * placed.strides[axis])
    inside = np.ndarray(shape[::-1], kind, memory.data, begin, steps[::-1])
    found[tuple(part[::-1])] = loaded(placed, inside.copy() if placed.kind else inside)
    return found.ravel()
