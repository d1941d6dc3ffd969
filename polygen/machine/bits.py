"""NumPy forms of the PTX instructions on bits and small parts of words.

Every function takes vectors (or scalars) and returns a fresh one; none has state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.machine.arithmetic import shift_left

Array = Any  # a NumPy vector, or a NumPy scalar when the value is uniform
# which byte of the eight goes where, by the two low bits of the selector
_MODES: dict[str, Callable[[Any, int], Any]] = {
    "f4e": lambda s, i: s + i,
    "b4e": lambda s, i: (s - i) & 7,
    "rc8": lambda s, i: s,
    "ecl": np.maximum,
    "ecr": np.minimum,
    "rc16": lambda s, i: 2 * (s & 1) + (i & 1),
}


def permute_by_mode(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """``prmt.b32`` with a mode."""
    wide = a.astype("u8") | (b.astype("u8") << np.uint64(32))
    low = (selector & np.uint32(3)).astype("i8")
    result: Array = np.zeros_like(wide)
    for place in range(4):
        pick = np.asarray(_MODES[mode](low, place)).astype("u8") * np.uint64(8)
        result = result | ((wide >> pick) & np.uint64(255)) << np.uint64(8 * place)
    return result.astype("u4")


def bit_mask(begin: Array, length: Array, clamp: bool) -> Array:
    """``bmsk``: so many ones from a position on; beyond the word, or modulo its bits."""
    if not clamp:
        begin, length = begin & np.uint32(31), length & np.uint32(31)
    one = np.ones_like(begin + length)
    return shift_left(shift_left(one, length) - np.uint32(1), begin).astype("u4")


def extended(a: Array, bits: Array, clamp: bool) -> Array:
    """``szext``: the low bits of a word, with zeros or their sign above."""
    bits = np.minimum(bits, np.uint32(32)) if clamp else bits & np.uint32(31)
    spare = (np.uint32(32) - bits).astype("u8")
    signed = a.dtype.kind == "i"
    wide = a.astype("i8").view("u8") << (spare + np.uint64(32))
    wide = np.where(bits == 0, np.uint64(0), wide)
    down = spare + np.uint64(32)
    return (wide.view("i8") >> down.astype("i8") if signed else wide >> down).astype(a.dtype)


def nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """``fns``: the position of the n-th set bit from `base` on, upward or downward."""
    mask, base, offset = np.broadcast_arrays(mask, base, offset)
    places = np.arange(32)
    on = (mask[..., None] >> places.astype("u4") & np.uint32(1)).astype(bool)
    ahead = np.where((offset >= 0)[..., None], places >= base[..., None], places <= base[..., None])
    on = on & ahead
    order = np.where((offset >= 0)[..., None], places, 31 - places)
    rank = np.cumsum(np.take_along_axis(on, order, -1), -1)  # in the direction of the search
    wanted = np.abs(offset.astype("i8"))[..., None]
    hit = (rank == np.maximum(wanted, 1)) & np.take_along_axis(on, order, -1)
    found = np.take_along_axis(order, hit.argmax(-1)[..., None], -1)[..., 0]
    here = (offset != 0) | np.take_along_axis(on, np.minimum(base, 31)[..., None], -1)[..., 0]
    good = hit.any(-1) & here & (base < 32)
    return np.where(good, found, 0xFFFFFFFF).astype("u4")


def product24(a: Array, b: Array, high: bool) -> Array:
    """``mul24``: the low or the high 32 bits of a product of 24 bits each."""
    kind = a.dtype.type
    x, y = ((one << kind(8)) >> kind(8) for one in (a, b))
    wide = x.astype(f"{a.dtype.kind}8") * y.astype(f"{a.dtype.kind}8")
    return (wide >> wide.dtype.type(16) if high else wide).astype(a.dtype)


def dot_two(a: Array, b: Array, c: Array, signed: tuple[bool, bool], upper: bool) -> Array:
    """``dp2a``: c plus two 16-bit numbers times two bytes."""
    total: Array = c.astype("i8")
    for place in range(2):
        x = (a >> np.uint32(16 * place)).astype("u2").view("i2" if signed[0] else "u2")
        at = 8 * place + (16 if upper else 0)
        y = (b >> np.uint32(at)).astype("u1").view("i1" if signed[1] else "u1")
        total = total + x.astype("i8") * y.astype("i8")
    return total.astype(c.dtype)


def differences(a: Array, b: Array, signed: tuple[bool, bool], add: bool) -> Array:
    """``vabsdiff4``: absolute differences of bytes, in their places or their sum."""
    total: Array = np.zeros_like(a)
    for place in range(4):
        x, y = (
            (one >> np.uint32(8 * place)).astype("u1").view("i1" if sign else "u1").astype("i4")
            for one, sign in zip((a, b), signed, strict=True)
        )
        off = np.abs(x - y).astype("u4")
        total = total + (off if add else (off & np.uint32(255)) << np.uint32(8 * place))
    return total


def packed_bytes(a: Array, b: Array, below: Array, kind: str) -> Array:
    """``cvt.pack.sat``: two numbers clamped to a small type, side by side, `below` above them."""
    limits = np.iinfo(kind)
    width, mask = np.uint32(limits.bits), np.uint32((1 << limits.bits) - 1)
    high, low = (np.clip(one, limits.min, limits.max).astype("u4") & mask for one in (a, b))
    found = high << width | low
    return found if limits.bits == 16 else below << np.uint32(2 * limits.bits) | found


def saturated_high(a: Array, b: Array, c: Array) -> Array:
    """``mad.hi.sat.s32``."""
    wide = (a.astype("i8") * b.astype("i8") >> np.int64(32)) + c.astype("i8")
    return np.clip(wide, -(2**31), 2**31 - 1).astype("i4")


def carry_of(a: Array, b: Array, carry: Array) -> Array:
    """Whether a sum of two unsigned numbers and a carry leaves its width."""
    total = a + b
    return (total < a) | (total + carry.astype(total.dtype) < total)


def borrow_of(a: Array, b: Array, borrow: Array) -> Array:
    """Whether a difference of unsigned numbers, less a borrow, is below zero."""
    return (a < b) | ((a == b) & borrow)
