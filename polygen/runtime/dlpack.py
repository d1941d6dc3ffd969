"""Reads a DLPack capsule without consuming it; no library is needed, and fp8 types are understood.

The structures are those of dlpack.h (version 0.x capsules, named ``dltensor``). The capsule frees
its tensor when it dies, so whoever uses the pointer keeps the capsule.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from polygen.errors import ArgumentError

CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged
_LEGACY_DEFAULT_STREAM = 1  # how the protocol names CUDA's stream 0
_CODES = {0: "int", 1: "uint", 2: "float", 5: "complex", 6: "bool"}
_WHOLE_NAMES = {
    (4, 16): "bfloat16",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Described:
    """What a capsule says."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str  # NumPy or ml_dtypes name
    device: int
    capsule: object  # keeps the memory alive


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def read(array: Any, stream: int | None) -> Described:
    """Describe an array through its ``__dlpack__``.

    Args:
        array: an object with ``__dlpack__``.
        stream: the CUDA stream that must wait for the array's pending writes; None: no request.

    Returns:
        Pointer, shape, strides, dtype, device, and the capsule that keeps the memory alive.

    Raises:
        ArgumentError: the array's library refuses to export it.
    """
    try:
        if stream is None:
            capsule = array.__dlpack__()
        else:
            capsule = array.__dlpack__(stream=stream or _LEGACY_DEFAULT_STREAM)
        address = _capsule_pointer(capsule, b"dltensor")
    except (TypeError, ValueError, RuntimeError, BufferError, NotImplementedError) as reason:
        raise ArgumentError(
            f"an array of type {type(array).__name__} cannot be read through DLPack",
            why=str(reason),
        ) from reason
    tensor = _Tensor.from_address(address)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    strides = (
        tuple(tensor.strides[axis] for axis in range(tensor.rank))
        if tensor.strides
        else compact(shape)
    )
    element = tensor.type
    bits = element.bits * element.lanes
    name = _WHOLE_NAMES.get((element.code, bits)) or f"{_CODES.get(element.code, 'unknown')}{bits}"
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Described(pointer, shape, strides, name, tensor.device.index, capsule)
