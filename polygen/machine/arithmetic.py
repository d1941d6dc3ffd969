"""NumPy forms of the PTX arithmetic that NumPy does not have under one name.

Every function takes vectors (or scalars) of equal type and returns a fresh one; none has state.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from polygen.machine.rounding import directed_narrow

Array = Any  # a NumPy vector, or a NumPy scalar when the value is uniform


# --- integers --------------------------------------------------------------------------------
def shift_left(a: Array, amount: Array) -> Array:
    """``shl``: amounts beyond the width give zero."""
    bits = a.dtype.itemsize * 8
    shifted = a << np.minimum(amount, bits - 1).astype(a.dtype)
    return np.where(amount >= bits, a.dtype.type(0), shifted)


def shift_right(a: Array, amount: Array) -> Array:
    """``shr``: amounts beyond the width give zero, or the sign for signed values."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(amount, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(amount >= bits, a.dtype.type(0), shifted)


def divide(a: Array, b: Array) -> Array:
    """Integer division, truncating; division by zero gives all ones, as the hardware does."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient < 0) & (quotient * safe != a)).astype(a.dtype)
    return np.where(b == 0, a.dtype.type(-1) if a.dtype.kind == "i" else ~a.dtype.type(0), quotient)


def remainder(a: Array, b: Array) -> Array:
    """Integer remainder with the sign of the dividend."""
    return np.where(b == 0, a, a - divide(a, b) * b).astype(a.dtype)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the double-width product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = f"{a.dtype.kind}{2 * a.dtype.itemsize}"
        return ((a.astype(wide) * b.astype(wide)) >> bits).astype(a.dtype)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view("u8"), b.view("u8")
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    upper = x1 * y1 + (middle >> half) + (((middle & low) + x0 * y1) >> half)
    if a.dtype.kind == "i":
        upper = upper - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return upper.view(a.dtype)


def saturate_add(a: Array, b: Array, sign: int) -> Array:
    """``add.sat.s32`` (sign 1) or ``sub.sat.s32`` (sign -1)."""
    wide = a.astype("i8") + sign * b.astype("i8")
    return np.clip(wide, -(2**31), 2**31 - 1).astype("i4")


def bit_field_extract(a: Array, position: Array, length: Array) -> Array:
    """``bfe``: `length` bits from `position`; signed types repeat the field's top bit."""
    bits = a.dtype.itemsize * 8
    position, length = position & np.uint32(255), length & np.uint32(255)
    low = shift_right(a, position)
    spare = np.uint32(bits) - np.minimum(length, np.uint32(bits))
    field = shift_right(shift_left(low, spare), spare)
    return np.where(length == 0, a.dtype.type(0), field).astype(a.dtype)


def bit_field_insert(value: Array, base: Array, position: Array, length: Array) -> Array:
    """``bfi``: the low `length` bits of `value` replace those of `base` from `position`."""
    one = base.dtype.type(1)
    position, length = position & np.uint32(255), length & np.uint32(255)
    mask = shift_left(shift_left(one * np.ones_like(base), length) - one, position)
    return (base & ~mask) | (shift_left(value, position) & mask)


def funnel_left(low: Array, high: Array, amount: Array, clamp: bool) -> Array:
    """``shf.l``: the upper word of (high:low) shifted left."""
    count = np.minimum(amount, 32) if clamp else amount & np.uint32(31)
    wide = (high.astype("u8") << np.uint64(32)) | low.astype("u8")
    return shift_right(shift_left(wide, count), np.uint32(32)).astype("u4")


def funnel_right(low: Array, high: Array, amount: Array, clamp: bool) -> Array:
    """``shf.r``: the lower word of (high:low) shifted right."""
    count = np.minimum(amount, 32) if clamp else amount & np.uint32(31)
    wide = (high.astype("u8") << np.uint64(32)) | low.astype("u8")
    return shift_right(wide, count).astype("u4")


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """``prmt.b32``: four bytes picked out of eight; bit 3 of a selector repeats the sign bit."""
    wide = a.astype("u8") | (b.astype("u8") << np.uint64(32))
    result: Array = np.uint32(0)
    for place in range(4):
        pick = (selector >> np.uint32(4 * place)) & np.uint32(15)
        byte = (wide >> ((pick & np.uint32(7)) * np.uint32(8)).astype("u8")) & np.uint64(255)
        byte = byte.astype("u4")
        spread = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        byte = np.where(pick & np.uint32(8), spread, byte)
        result = result | (byte << np.uint32(8 * place))
    return result.astype("u4")


def logic3(a: Array, b: Array, c: Array, table: int) -> Array:
    """``lop3``: any function of three bits, by truth table."""
    result: Array = np.zeros_like(a)
    for case in range(8):
        if table >> case & 1:
            x = a if case & 4 else ~a
            y = b if case & 2 else ~b
            z = c if case & 1 else ~c
            result = result | (x & y & z)
    return result


def count_ones(a: Array) -> Array:
    """``popc``."""
    return np.bitwise_count(a).astype("u4")


def leading_zeros(a: Array) -> Array:
    """``clz``."""
    bits = a.dtype.itemsize * 8
    for step in (1, 2, 4, 8, 16, 32)[: 6 if bits == 64 else 5]:
        a = a | (a >> a.dtype.type(step))
    return (bits - np.bitwise_count(a)).astype("u4")


def reverse_bits(a: Array) -> Array:
    """``brev``."""
    kind, bits = a.dtype.type, a.dtype.itemsize * 8
    result = a
    masks = {1: 0x5555555555555555, 2: 0x3333333333333333, 4: 0x0F0F0F0F0F0F0F0F,
             8: 0x00FF00FF00FF00FF, 16: 0x0000FFFF0000FFFF, 32: 0x00000000FFFFFFFF}  # fmt: skip
    for step, mask in masks.items():
        if step < bits:
            low = kind(mask & ((1 << bits) - 1))
            result = ((result >> kind(step)) & low) | ((result & low) << kind(step))
    return result


def find_highest(a: Array) -> Array:
    """``bfind``: position of the highest set bit (for negative values, of the highest zero)."""
    unsigned = np.where(a < 0, ~a, a).view(f"u{a.dtype.itemsize}") if a.dtype.kind == "i" else a
    return np.uint32(a.dtype.itemsize * 8 - 1) - leading_zeros(unsigned)


def distance_to_top(position: Array, bits: int) -> Array:
    """``bfind.shiftamt``: how far the found bit is from the top; "not found" stays."""
    missing = position == np.uint32(0xFFFFFFFF)
    return np.where(missing, position, np.uint32(bits - 1) - position)


def dot_four(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool) -> Array:
    """``dp4a``: c plus the dot product of four bytes each."""
    total: Array = c.astype("i8")
    for place in range(4):
        x = (a >> np.uint32(8 * place)).astype("u1").view("i1" if a_signed else "u1")
        y = (b >> np.uint32(8 * place)).astype("u1").view("i1" if b_signed else "u1")
        total = total + x.astype("i8") * y.astype("i8")
    return total.astype(c.dtype)


# --- floating point --------------------------------------------------------------------------
# NumPy takes arrays without axes faster than scalars.
_ZERO = np.array(0.0, "f4")
_LEAST_NORMAL = {np.dtype(kind): np.array(np.finfo(kind).tiny) for kind in ("f2", "f4", "f8")}


def flush(a: Array) -> Array:
    """``.ftz``: subnormal values become zeros of the same sign."""
    tiny = np.abs(a) < _LEAST_NORMAL[a.dtype]
    return np.where(tiny, np.copysign(a.dtype.type(0), a), a) if np.count_nonzero(tiny) else a


def clamp_unit(a: Array) -> Array:
    """``.sat``: clamp to [0, 1]; NaN becomes 0."""
    return np.where(a > 0, np.minimum(a, a.dtype.type(1)), a.dtype.type(0))


def lesser(a: Array, b: Array, nan: bool) -> Array:
    """``min``, or ``min.NaN``: -0 is less than 0, as the PTX manual has it."""
    found = np.minimum(a, b) if nan else np.fmin(a, b)
    zero = found == _ZERO
    return np.where(zero & (a == b), -(-a - b), found) if np.count_nonzero(zero) else found


def greater(a: Array, b: Array, nan: bool) -> Array:
    """``max``, or ``max.NaN``: 0 is greater than -0."""
    found = np.maximum(a, b) if nan else np.fmax(a, b)
    zero = found == _ZERO
    return np.where(zero & (a == b), a + b, found) if np.count_nonzero(zero) else found


def one_nan(a: Array) -> Array:
    """float32 with the NaN that arithmetic gives, for every NaN; other types as they are."""
    if a.dtype != np.float32:
        return a
    missing = a != a
    return np.where(missing, _NAN, a) if np.count_nonzero(missing) else a


def negative(a: Array) -> Array:
    """``neg`` of float64: a NaN stays as it is."""
    return np.where(a == a, -a, a)


def ordered(a: Array, b: Array) -> Array:
    """True where neither operand is NaN."""
    return (a == a) & (b == b)


def with_sign_of_product(size: Array, a: Array, b: Array) -> Array:
    """``.xorsign.abs``: a magnitude with the sign of a times b."""
    return np.where(np.signbit(a) ^ np.signbit(b), -size, size)


# --- 16- and 8-bit formats -------------------------------------------------------------------
def from_bf16(bits: Array) -> Array:
    """bf16 bits to float32."""
    return (bits.astype("u4") << np.uint32(16)).view("f4")


def to_bf16(a: Array, mode: str = "rn") -> Array:
    """float32 to bf16 bits; ``rn`` to nearest even or ``rz`` toward zero."""
    if mode == "rz":
        bits = (a.view("u4") >> np.uint32(16)).astype("u2")
    else:
        bits = a.astype(ml_dtypes.bfloat16).view("u2")
    missing = a != a
    return np.where(missing, np.uint16(0x7FFF), bits) if np.count_nonzero(missing) else bits


def to_half(a: Array, mode: str = "rn") -> Array:
    """float32 or float64 to float16; NaN as hardware has it."""
    near = a.astype("f2")
    if mode != "rn":
        near = directed_narrow(a.astype("f8"), near, mode)
    missing = a != a
    return np.where(missing, _HALF_NAN, near) if np.count_nonzero(missing) else near


def double_to_half(a: Array, mode: str) -> Array:
    """float64 to float16, whose NaN is another one."""
    return np.where(a == a, to_half(a, mode), np.float16(np.nan))


_HALF_NAN = np.array(0x7FFF, "u2").view("f2")[()]
_NAN = np.array(0x7FFFFFFF, "u4").view("f4")


def to_tf32(a: Array, mode: str = "rna") -> Array:
    """float32 to tf32 bits in a 32-bit register: ``rna`` to nearest, ties away; ``rn`` to even.

    NaN is as an H200 has it: ``rna`` drops the low bits of its payload, and with them the NaN when
    it has no other (infinity is left); ``rn`` and ``rz`` write one NaN for all.
    """
    bits = a.view("u4")
    cut = bits & np.uint32(0xFFFFE000)
    if mode == "rz":
        rounded = cut
    elif mode == "rn":
        odd = (bits >> np.uint32(13)) & np.uint32(1)
        rounded = (bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)
    else:
        rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    exponent = bits & np.uint32(0x7F800000)
    if exponent.size and exponent.max() != np.uint32(0x7F800000):
        return rounded
    special = exponent == np.uint32(0x7F800000)
    if mode == "rna":
        return np.where(special, cut, rounded)
    return np.where(a != a, np.uint32(0x7FFFE000), np.where(special, bits, rounded))


_EIGHT = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
EIGHT_TO_SINGLE = {
    name: np.arange(256, dtype="u1").view(kind).astype("f4") for name, kind in _EIGHT.items()
}


def to_eight(a: Array, kind: str) -> Array:
    """float32 to 8-bit float bits, saturating to the largest finite value."""
    clipped = np.clip(a, -_LARGEST[kind], _LARGEST[kind])
    bits = np.asarray(clipped, "f4").astype(_EIGHT[kind]).view("u1")
    return np.where(a == a, bits, np.uint8(0x7F))


def eight_pair_to_half(pairs: Array, kind: str) -> Array:
    """Two 8-bit floats per 16-bit register to two f16 per 32-bit register."""
    return to_half(EIGHT_TO_SINGLE[kind][pairs.view("u1")]).view("u4")


def to_integer(a: Array, dtype: str, mode: str) -> Array:
    """Float to integer: round by `mode`, clamp to the range.

    NaN becomes zero; of float64, and as 64 bits, the number whose highest bit alone is set.
    """
    wide = a.astype("f8")
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    rounded = rounding(wide)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    inside = (rounded >= low) & (rounded < float(high) + 1) & (a == a)
    result = np.where(inside, rounded, 0).astype(dtype)
    result = np.where(rounded >= float(high) + 1, np.dtype(dtype).type(high), result)
    result = np.where(rounded < low, np.dtype(dtype).type(low), result)
    missing = a != a
    if np.count_nonzero(missing) and 8 in (a.dtype.itemsize, np.dtype(dtype).itemsize):
        top = np.array(1 << 8 * np.dtype(dtype).itemsize - 1, f"u{np.dtype(dtype).itemsize}")
        result = np.where(missing, top.view(dtype), result)
    return result


def narrow(a: Array, dtype: str) -> Array:
    """``cvt.sat`` between integers."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    have = np.iinfo(a.dtype)
    return np.clip(a, max(low, have.min), min(high, have.max)).astype(dtype)
