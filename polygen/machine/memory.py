"""Global, shared, local and parameter memory, and the plain accesses to them.

1. Global memory is one byte array with red zones; `room` holds, per byte, how many valid bytes
   follow, so that bounds, padded rows and red zones are one look-up.
2. Shared memory is one byte array, a slice per CTA; local memory one slice per thread.
3. Every access resolves its addresses first; lanes that leave the memory or are misaligned are
   reported and left out (they read all ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.errors import LaunchError
from polygen.machine import grids, unwritten
from polygen.machine.data import as_bytes, gather, scatter, spread
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.special import RESERVED

if TYPE_CHECKING:
    from polygen.machine.state import Machine

BASE = 0x7000_0000_0000
WINDOW_SHARED = 0x7E00_0000_0000
WINDOW_LOCAL = 0x7D00_0000_0000
WINDOW_PARAM = 0x7C00_0000_0000
WINDOW_BYTES = 1 << 32
WINDOWS = {"shared": WINDOW_SHARED, "local": WINDOW_LOCAL, "param": WINDOW_PARAM}
RED_ZONE = 512
SLOT = 24  # a mapped shared::cluster address is (rank + 1) << 24 | offset
OWN = 0x40  # in the place of rank + 1: the thread's own CTA. In a cluster, as on an H200, no shared
# address is a plain offset, so that code which takes one for it shows.


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation in global memory."""

    name: str
    offset: int
    size: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dtype: Any = None


class GlobalMemory:
    """All buffers of a launch, each between red zones."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.size = RED_ZONE
        self._filled: list[tuple[Buffer, Any]] = []

    def reserve_array(self, name: str, array: np.ndarray[Any, Any]) -> Buffer:
        """Place an array; its element strides and its alignment within its owner are kept.

        Raises:
            LaunchError: negative strides.
        """
        if any(step < 0 for step in array.strides):
            raise LaunchError(
                "an array with a negative stride cannot be an argument",
                where=name,
                why="a kernel gets the lowest address",
                nearest="Pass np.ascontiguousarray(array)",
            )
        span = array.itemsize
        if array.size == 0:
            span = 0
        else:
            span += sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        return self._reserve(name, span, 256, place_in_owner(array) % 256, array)

    def reserve_bytes(self, name: str, data: bytes, size: int, align: int) -> Buffer:
        """Place a module variable."""
        image = np.zeros(max(size, len(data)), np.uint8)
        image[: len(data)] = np.frombuffer(data, np.uint8)
        return self._reserve(name, len(image), align, 0, image)

    def _reserve(self, name: str, size: int, align: int, shift: int, array: Any) -> Buffer:
        offset = -(-self.size // align) * align + shift
        buffer = Buffer(name, offset, size, array.shape, array.strides, array.dtype)
        self.size = offset + size + RED_ZONE
        self.buffers.append(buffer)
        self._filled.append((buffer, array))
        return buffer

    def build(self) -> None:
        """Allocate and copy in everything reserved so far."""
        self.size = -(-self.size // 64) * 64
        self.bytes = np.full(self.size, 0xAA, np.uint8)
        self.room = np.zeros(self.size, np.uint8)
        for buffer, array in self._filled:
            self.view(buffer)[...] = array
            self._mark(buffer, array)
        self._filled = []

    def view(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """The array of a buffer, inside the memory."""
        return np.ndarray(
            buffer.shape, buffer.dtype, self.bytes.data, buffer.offset, buffer.strides
        )

    def _mark(self, buffer: Buffer, array: np.ndarray[Any, Any]) -> None:
        """Fill `room`: valid bytes that follow each byte, at most 255."""
        size, offset = buffer.size, buffer.offset
        if size == 0:
            return
        if size == array.nbytes and array.flags.forc:
            self.room[offset : offset + size] = 255
            tail = min(size, 255)
            self.room[offset + size - tail : offset + size] = np.arange(tail, 0, -1)
            return
        valid = np.zeros(size, bool)
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        np.ndarray(shape, np.bool_, valid.data, 0, strides)[...] = True
        place = np.arange(size)
        stop = np.where(valid, size, place)
        stop = np.minimum.accumulate(stop[::-1])[::-1]
        self.room[offset : offset + size] = np.minimum(stop - place, 255)

    def describe(self, offset: int) -> str:
        """Where a byte position lies, relative to the nearest buffer."""
        if not self.buffers:
            return "no buffer exists"
        near = min(
            self.buffers, key=lambda b: max(b.offset - offset, offset - b.offset - b.size + 1, 0)
        )
        place = offset - near.offset
        if 0 <= place < near.size:
            gap = ", in a gap between its rows" if not self.room[offset] else ""
            return f"byte {place} of {near.name} ({near.size} bytes{gap})"
        return f"byte {place} of {near.name}, which has {near.size}"


def place_in_owner(array: np.ndarray[Any, Any]) -> int:
    """Bytes from the beginning of the array that one is a view of, or of itself."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return int(array.ctypes.data - root.ctypes.data)


# --- resolving addresses -----------------------------------------------------------------------
def _report(
    machine: Machine, lanes: Lanes, wrong: Vector, code: str, position: int, words: str
) -> Vector:
    """Record a bad address and return the places of the lanes that are fine."""
    machine.findings.add(code, words, position, count=int(wrong.sum()))
    return np.flatnonzero(~wrong)


def locate_global(
    machine: Machine, lanes: Lanes, address: Any, size: int, position: int, multiple: int = 0
) -> tuple[Vector, Vector | None]:
    """Byte positions in global memory, and the places of the good lanes (None: all are).

    They have to be multiples of `multiple`, as a rule of the size.
    """
    at = full(lanes, address).view("i8") - BASE
    inside = at.view("u8") < machine.memory.size
    room = machine.memory.room.take(at, mode="clip")
    wrong = ~inside | (room < size)
    if machine.profiler is not None:
        machine.profiler.global_access(lanes, at, size, position)
    if wrong.any():
        lane = int(np.flatnonzero(wrong)[0])
        words = (
            f"{lanes.name(lane)} accesses {size} bytes at {machine.memory.describe(int(at[lane]))}"
        )
        return at, _report(machine, lanes, wrong, "out-of-bounds-global", position, words)
    past = (multiple or size) - 1
    if np.bitwise_or.reduce(at) & past:
        wrong = (at & past) != 0
        lane = int(np.flatnonzero(wrong)[0])
        where = machine.memory.describe(int(at[lane]))
        words = f"{lanes.name(lane)} accesses {size} bytes at {where}, not a multiple of {past + 1}"
        return at, _report(machine, lanes, wrong, "misaligned", position, words)
    return at, None


def locate_shared(
    machine: Machine, lanes: Lanes, address: Any, size: int, position: int
) -> tuple[Vector, Vector | None]:
    """Byte positions in shared memory, and the places of the good lanes (None: all are)."""
    offset = full(lanes, address).astype("i8")
    base = machine.shared_base if lanes.everyone else machine.shared_base[lanes.index]
    if machine.mapped:
        rank = rank_in(offset)
        first = lanes.cta // machine.geometry.cluster * machine.geometry.cluster
        cta = np.where(rank >= 0, first + rank, lanes.cta)
        base, offset = cta * machine.shared_bytes, offset & ((1 << SLOT) - 1)
    if machine.profiler is not None:
        machine.profiler.shared_access(lanes, offset, size, position)
    first, last = machine.shared_first, machine.shared_end - size
    inside = lanes.count > 0 and offset.min() >= first and offset.max() <= last
    if inside and not np.bitwise_or.reduce(offset) & (size - 1):
        return base + offset, None
    wrong = (offset < first) | (offset > last)
    if wrong.any():
        lane = int(np.flatnonzero(wrong)[0])
        words = (
            f"{lanes.name(lane)} accesses {size} bytes at shared byte "
            f"{int(offset[lane]) - machine.shared_first} of "
            f"{machine.shared_end - machine.shared_first}"
        )
        good = _report(machine, lanes, wrong, "out-of-bounds-shared", position, words)
        return base + offset, good
    if size > 1 and (offset & (size - 1)).any():
        wrong = (offset & (size - 1)) != 0
        lane = int(np.flatnonzero(wrong)[0])
        where = int(offset[lane]) - RESERVED
        words = f"{lanes.name(lane)} accesses {size} bytes at shared byte {where}"
        return base + offset, _report(machine, lanes, wrong, "misaligned", position, words)
    return base + offset, None


def rank_in(address: Any) -> Any:
    """The cluster rank that a shared address names; -1 for the thread's own CTA."""
    code = np.asarray(address, np.int64) >> SLOT & 0xFF
    return np.where(code == OWN, -1, code - 1)


def locate_local(
    machine: Machine, lanes: Lanes, address: Any, size: int, position: int
) -> tuple[Vector, Vector | None]:
    """Byte positions in local memory, and the places of the good lanes (None: all are)."""
    offset = full(lanes, address).astype("i8")
    wrong = (offset < 0) | (offset > machine.local_bytes - size) | ((offset % size) != 0)
    at = lanes.index * machine.local_bytes + offset
    if wrong.any():
        lane = int(np.flatnonzero(wrong)[0])
        words = f"{lanes.name(lane)} accesses local byte {int(offset[lane])}"
        return at, _report(machine, lanes, wrong, "out-of-bounds-local", position, words)
    return at, None


# --- accesses ----------------------------------------------------------------------------------
def load(
    machine: Machine, lanes: Lanes, address: Any, dtype: str, count: int, space: str, position: int
) -> tuple[Vector, ...]:
    """``ld`` of `count` elements in one state space."""
    size = np.dtype(dtype).itemsize * count
    locate, memory = machine.spaces[space]
    at, good = locate(machine, lanes, address, size, position)
    if good is not None:
        some = (
            load(
                machine, lanes.pick(good), full(lanes, address)[good], dtype, count, space, position
            )
            if len(good)
            else tuple(np.zeros(0, dtype) for _ in range(count))
        )
        return spread(lanes.count, good, some)
    if space == "shared" and machine.shadow is not None:
        never = machine.shadow.read(lanes, at, size, position)
        if never is not None:
            unwritten.loaded(machine, lanes, *never, position)
    elif space == "global":
        grids.check(machine, lanes, at, size, position, writes=False)
        if machine.grids is not None and position in machine.program.facts.constant:
            machine.grids.check_constant(machine, lanes, at, size, position)
        if machine.stores is not None:
            machine.stores.read(machine, lanes, at, size, position)
    facts = machine.program.facts
    if machine.order is not None and position in facts.strong:
        machine.order.read(lanes, space, at, position in facts.acquires, position)
    return gather(memory, at, dtype, count)


def store(
    machine: Machine,
    lanes: Lanes,
    address: Any,
    *rest: Any,
) -> None:
    """``st``: the values, then dtype, space and position."""
    *values, dtype, space, position = rest
    size = np.dtype(dtype).itemsize * len(values)
    locate, memory = machine.spaces[space]
    at, good = locate(machine, lanes, address, size, position)
    if good is not None:
        lanes, at = lanes.pick(good), at[good]
        values = [value[good] if getattr(value, "ndim", 0) else value for value in values]
        if not len(good):
            return
    met = False
    if space == "shared" and machine.shadow is not None:
        met = machine.shadow.write(lanes, at, size, position)
    facts = machine.program.facts
    if machine.order is not None and position in facts.strong:
        machine.order.write(lanes, space, at, position in facts.releases, position)
    if space == "global":
        grids.check(machine, lanes, at, size, position, writes=True)
    if space == "global" and machine.stores is not None:
        new = as_bytes(lanes, tuple(values), dtype)
        machine.stores.write(machine, lanes, at, size, new, position)
        scatter(lanes, memory, at, dtype, tuple(values))
        machine.stores.collide(machine, lanes, at, new, position)
        return
    scatter(lanes, memory, at, dtype, tuple(values))
    if met:
        _collide(machine, lanes, at, as_bytes(lanes, tuple(values), dtype), position)


def _collide(machine: Machine, lanes: Lanes, at: Vector, new: Vector, position: int) -> None:
    """Lanes of a warp have stored to the same shared bytes: report those whose value is lost."""
    lost = (machine.shared[at[:, None] + np.arange(new.shape[1])] != new).any(1)
    if lost.any():
        lane = int(lost.argmax())
        where = int(at[lane]) % machine.shared_bytes - RESERVED
        words = f"{lanes.name(lane)} and another lane of its warp store different values to shared "
        words += f"byte {where} with one instruction"
        machine.findings.add("race-write-write", words, position, count=int(lost.sum()))


def split(lanes: Lanes, address: Vector) -> list[tuple[str, Vector, Any]]:
    """Generic addresses by state space: (space, places, address inside the space)."""
    parts = []
    left = np.ones(lanes.count, bool)
    for space, window in WINDOWS.items():
        inside = (address - np.uint64(window)) < np.uint64(WINDOW_BYTES)
        if inside.any():
            base = np.uint64(0 if space == "param" else window)  # parameters keep their address
            parts.append((space, np.flatnonzero(inside), address[inside] - base))
            left &= ~inside
    if left.any():
        parts.append(("global", np.flatnonzero(left), address[left]))
    return parts


def load_generic(
    machine: Machine, lanes: Lanes, address: Any, dtype: str, count: int, position: int
) -> tuple[Vector, ...]:
    """``ld`` without a state space."""
    address = full(lanes, address)
    result = tuple(np.zeros(lanes.count, dtype) for _ in range(count))
    for space, places, inside in split(lanes, address):
        part = lanes.pick(places)
        if space == "param":
            some = load_parameter(machine, part, inside, dtype, count, position)
        else:
            some = load(machine, part, inside, dtype, count, space, position)
        for wide, part in zip(result, some, strict=True):
            wide[places] = part
    return result


def store_generic(machine: Machine, lanes: Lanes, address: Any, *rest: Any) -> None:
    """``st`` without a state space: the values, then dtype and position."""
    *values, dtype, position = rest
    address = full(lanes, address)
    for space, places, inside in split(lanes, address):
        some = [value[places] if getattr(value, "ndim", 0) else value for value in values]
        store(machine, lanes.pick(places), inside, *some, dtype, space, position)


def in_space(address: Any, space: str) -> Any:
    """``isspacep``."""
    if space in WINDOWS:
        return (address - np.uint64(WINDOWS[space])) < np.uint64(WINDOW_BYTES)
    return ~(in_space(address, "shared") | in_space(address, "local"))


def parameter_word(machine: Machine, address: Any, dtype: str, place: int) -> Any:
    """One word of ``ld.param`` from an address that all threads share."""
    size = np.dtype(dtype).itemsize
    at = (int(address) & 0xFFFFFFFF) + place * size
    wide = np.clip(np.arange(at, at + size), 0, len(machine.parameter_bytes) - 1)
    return machine.parameter_bytes[wide].view(dtype)[0]


def load_parameter(
    machine: Machine, lanes: Lanes, address: Any, dtype: str, count: int, position: int
) -> tuple[Vector, ...]:
    """``ld.param`` through a register."""
    at = full(lanes, address).astype("i8") & 0xFFFFFFFF  # of the window, or of a generic address
    wide = at[:, None] + np.arange(np.dtype(dtype).itemsize * count)
    data = machine.parameter_bytes[np.clip(wide, 0, len(machine.parameter_bytes) - 1)]
    rows = np.ascontiguousarray(data).view(dtype)
    return tuple(np.ascontiguousarray(rows[:, k]) for k in range(count))
