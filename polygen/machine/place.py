"""Arguments and variables of a launch -> global memory and the bytes of the parameters.

1. Variables of the module and arrays get buffers in global memory; arrays of the same elements
   share one.
2. Scalars and structs become bytes of the parameters, pointers, alone or in structs, the addresses
   of their buffers.
3. A tensor map is an image of 128 bytes (`map_image`): among the parameters, alone or in a struct,
   or in global memory behind a pointer.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from polygen.errors import LaunchError
from polygen.machine import images, map_image, tensormap
from polygen.machine.arguments import Struct, memory_of
from polygen.machine.blocks import Program
from polygen.machine.memory import BASE, Buffer, GlobalMemory
from polygen.machine.module import Module, Variable, type_bytes
from polygen.machine.special import WORKSPACE, WORKSPACE_BYTES, cooperates
from polygen.machine.state import Placed
from polygen.machine.tensormap import TensorMap


def _scalar(value: Any, kind: str, size: int, where: str) -> bytes:
    """The bytes of a by-value parameter."""
    if isinstance(value, (bytes, bytearray)):
        if len(value) != size:
            raise LaunchError(f"{len(value)} bytes for a parameter of {size}", where=where)
        return bytes(value)
    if kind.startswith("b") and size not in (1, 2, 4, 8):
        raise LaunchError(
            f"a {type(value).__name__} for a struct of {size} bytes",
            where=where,
            nearest="Pass bytes, or a Struct where it has pointers",
        )
    if isinstance(value, np.generic):
        if value.itemsize != size:
            raise LaunchError(
                f"a {value.dtype} scalar for a parameter of {size} bytes", where=where
            )
        return value.tobytes()
    if isinstance(value, (bool, int)):
        if kind.startswith("f"):
            return np.array(value, f"f{size}").tobytes()
        if not -(1 << (8 * size - 1)) <= value < 1 << 8 * size:
            raise LaunchError(f"{value} does not fit in {size} bytes", where=where)
        return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if isinstance(value, float):
        return np.array(value, f"f{size}").tobytes()
    raise LaunchError(f"a {type(value).__name__} cannot be an argument", where=where)


def _memory(array: np.ndarray[Any, Any]) -> Hashable:
    """Equal for arrays of the same elements, whatever the order of their axes."""
    if array.size == 0:
        return id(array)
    steps = zip(array.strides, array.shape, strict=True)
    return (array.ctypes.data, array.itemsize, *sorted(pair for pair in steps if pair[1] > 1))


def place_arguments(module: Module, program: Program, arguments: tuple[Any, ...]) -> Placed:
    """Lay out global memory and the parameter bytes."""
    kernel = program.kernel
    memory, symbols, buffers = GlobalMemory(), {}, []
    fixed: list[tuple[Variable, Buffer]] = []
    for one in (*module.variables, *kernel.variables):
        if one.space in ("global", "const"):
            buffer = memory.reserve_bytes(one.name, one.initial, one.size, max(one.align, 16))
            symbols[one.name] = BASE + buffer.offset
            fixed.append((one, buffer))
    if cooperates(program.facts.mentioned):
        buffer = memory.reserve_bytes(WORKSPACE, b"", WORKSPACE_BYTES, 16)
        symbols[WORKSPACE] = BASE + buffer.offset
    data, offsets = b"", {}
    maps: list[tensormap.PlacedMap] = []
    placed_images: list[images.PlacedImage] = []
    known: dict[Hashable, Buffer] = {}

    def reserve(where: str, array: np.ndarray[Any, Any]) -> Buffer:
        key = _memory(array)
        found = known.get(key)
        if found is None:
            known[key] = found = memory.reserve_array(where, array)
        form = {"shape": array.shape, "strides": array.strides, "dtype": array.dtype}
        buffers.append(replace(found, **form))
        return found

    def address(where: str, target: Any) -> int:
        """Of an array, or the handle of an image."""
        buffer = reserve(where, memory_of(target))
        if isinstance(target, np.ndarray):
            return BASE + buffer.offset
        placed_images.append(images.place(where, target, buffer.offset))
        return images.HANDLE + len(placed_images) - 1

    def place_map(where: str, one: TensorMap) -> bytes:
        """Its image."""
        buffer = reserve(where, one.memory)
        maps.append(tensormap.place(where, one, buffer.offset + one.start))
        return map_image.image(len(maps) - 1, maps[-1], BASE)

    for number, (one, value) in enumerate(zip(kernel.parameters, arguments, strict=True)):
        where = f"argument {number} ({one.name})"
        size = one.size or type_bytes(one.kind)
        data += bytes(-len(data) % max(one.align, 1))
        offsets[one.name] = len(data)
        pieces = value if isinstance(value, tuple) else (value,)
        if any(isinstance(piece, TensorMap) for piece in pieces):
            if not all(isinstance(piece, TensorMap) for piece in pieces):
                raise LaunchError("a tuple of tensor maps and others", where=where)
            image = b"".join(place_map(where, piece) for piece in pieces)
            if size == 8:  # a pointer to maps in global memory
                held = memory.reserve_bytes(where, image, len(image), 64)
                image = (BASE + held.offset).to_bytes(8, "little")
            if size != len(image):
                raise LaunchError(f"a tensor map for a parameter of {size} bytes", where=where)
            data += image
        elif isinstance(value, np.ndarray | images.Texture | images.Surface):
            if size != 8:
                kind = "an array" if isinstance(value, np.ndarray) else "a handle"
                raise LaunchError(f"{kind} for a parameter of {size} bytes", where=where)
            data += address(where, value).to_bytes(8, "little")
        elif isinstance(value, Struct):
            struct = bytearray(_scalar(value.data, one.kind, size, where))
            for offset, target, start in value.targets(where):
                if isinstance(target, TensorMap):
                    word = place_map(f"{where}, byte {offset}", target)
                else:
                    word = (address(where, target) + start).to_bytes(8, "little")
                struct[offset : offset + len(word)] = word
            data += bytes(struct)
        else:
            data += _scalar(value, one.kind, size, where)
    memory.build()
    for variable, held in fixed:
        for place, symbol in variable.addresses:
            word = symbols.get(symbol, 0).to_bytes(8, "little")  # of a function: 0
            at = held.offset + place
            memory.bytes[at : at + 8] = np.frombuffer(word, np.uint8)
    return Placed(memory, tuple(buffers), symbols, offsets, data, tuple(maps), tuple(placed_images))
