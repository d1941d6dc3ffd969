"""Numbers of four bits, two in a byte: array code that takes them apart.

Element k of an axis is in byte ``k // 2``: in the low half if k is even, else in the high one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polygen.errors import ArgumentError, DTypeError, ShapeError, echo
from polygen.frontend.coordinates import indices, repeat
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import U8
from polygen.frontend.nibbles import nibble_i4, nibble_u4
from polygen.frontend.program import Tensor
from polygen.frontend.shapes import shape_text
from polygen.frontend.traced import Traced

FOUR_BITS = ("i4", "u4")
_TWO = 2  # numbers in a byte
_RANGE = {"i4": (-8, 7), "u4": (0, 15)}


def stored(tensor: Tensor) -> Tensor:
    """An argument as a kernel takes it: numbers of four bits as bytes that hold two neighbours.

    ``q: i4[N,4096]`` is ``q: u8[N,2048]``, of which the function sees the numbers.

    Args:
        tensor: as described.

    Returns:
        The same tensor where its type has eight bits or more.

    Raises:
        ShapeError: an odd number of elements in a row, or one that is known at run time only.
    """
    if tensor.dtype.name not in FOUR_BITS:
        return tensor
    dims, axis = list(tensor.dims), tensor.order[-1] if tensor.order else 0
    count = dims[axis] if dims else 1
    if not isinstance(count, int) or count % _TWO:
        error = ShapeError(
            f"{tensor.dtype} packed along {count} elements",
            where=f"argument {tensor.name} {shape_text(tensor.dims)}",
            why="two neighbours share a byte",
            nearest=f"Write an even number in the place of {count}"
            + (f', or make it one: static=("{count}",)' if isinstance(count, str) else ""),
        )
        error.unknown = (count,) if isinstance(count, str) else ()
        raise error
    dims[axis] = count // _TWO
    return replace(tensor, dtype=U8, dims=tuple(dims))


def taken_apart(value: Traced, described: Tensor) -> Any:
    """What the function sees of an argument: of bytes the numbers that they hold."""
    if described.dtype.name not in FOUR_BITS:
        return value
    return unpack(value, described.dtype.name, described.order[-1])


def pack(numbers: Any, dtype: str, axis: int = -1) -> Any:
    """Bytes that hold two numbers of four bits each, as an argument ``i4[N,K]`` takes them.

    ``pg.pack(q, "i4")`` makes ``u8[N, K/2]`` of ``q[N, K]``, once, for weights; `unpack` is the way
    back. Where the array lies (NumPy, CuPy) the bytes do, too.

    Args:
        numbers: an array of whole numbers, from -8 to 7 for i4, from 0 to 15 for u4, of which
            `axis` has an even size.
        dtype: ``"i4"``, in two's complement, or ``"u4"``.
        axis: along which two neighbours share a byte, the first in its low half.

    Returns:
        Half as many elements along the axis, uint8.

    Raises:
        DTypeError: another type, or numbers that are not whole.
        ShapeError: no such axis, or one of odd size.
        ArgumentError: numbers that four bits do not hold.
    """
    _require_four_bits("pack", dtype)
    if isinstance(numbers, Traced) or not hasattr(numbers, "astype"):
        raise DTypeError(
            f"pack of {echo(numbers)}",
            why="bytes are made of an array that is there, once, and passed to the function",
            nearest="Pass a NumPy or CuPy array of integers; inside of functions there is unpack",
        )
    if numbers.dtype.kind not in "iu":
        raise DTypeError(
            f"pack of an array of {numbers.dtype}",
            why="what is stored are whole numbers",
            nearest='Round it first, as in np.rint(w / s).astype("int8")',
        )
    if not -numbers.ndim <= axis < numbers.ndim or numbers.shape[axis] % _TWO:
        raise ShapeError(
            f"pack of an array of shape {tuple(numbers.shape)} along axis {axis}",
            why="two neighbours along the axis share a byte",
            nearest="Name an axis of even size, or append a zero to each row",
        )
    least, most = _RANGE[dtype]
    if numbers.size and not least <= int(numbers.min()) <= int(numbers.max()) <= most:
        raise ArgumentError(
            f"pack of numbers from {int(numbers.min())} to {int(numbers.max())}",
            why=f"{dtype} holds {least} to {most}",
            nearest=f"Clip them: numbers.clip({least}, {most})",
        )
    before = (slice(None),) * (axis % numbers.ndim)
    wide = numbers.astype("int16")
    low, high = (wide[(*before, slice(at, None, _TWO))] & 15 for at in range(_TWO))
    return (low | high << 4).astype("uint8")


def unpack(value: Any, dtype: str, axis: int = -1) -> Any:
    """Numbers of four bits from an array that holds two in a byte.

    ``x @ (pg.unpack(q, "i4").astype("bf16") * pg.repeat(s, 128, axis=1)).T`` multiplies by weights
    ``q: u8[N, K/2]`` with scales ``s: bf16[N, K/128]``; the unpacked array is never made.

    Args:
        value: bytes: a traced value of u8, or an array of them, of which `axis` has a number as
            its size.
        dtype: ``"i4"``, in two's complement, or ``"u4"``.
        axis: along which two neighbours share a byte, the first in its low half.

    Returns:
        Twice as many elements along the axis, f32.

    Raises:
        DTypeError: another type, or elements that are no bytes.
        ShapeError: no such axis, or one whose size has no number.
    """
    _require_four_bits("unpack", dtype)
    if isinstance(value, Traced) and value.dtype != U8:
        raise DTypeError(
            f"unpack of {describe(value.node)}, which is {value.dtype}",
            why="two numbers of four bits are a byte",
            nearest="Describe it as u8",
        )
    both = repeat(value, 2, axis)
    place = indices(both)[axis]
    if isinstance(both, Traced):
        return both.apply(f"nibble_{dtype}", both, place)
    found = (nibble_i4 if dtype == "i4" else nibble_u4)(both, place)
    return np.asarray(found).view(type(place))


def _require_four_bits(what: str, dtype: str) -> None:
    if dtype not in FOUR_BITS:
        raise DTypeError(f"{what} to {dtype!r}", nearest=f"Use {' or '.join(FOUR_BITS)}")
