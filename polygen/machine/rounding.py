"""Rounding that NumPy does not have: toward zero and the infinities, and once after a product.

1. A float32 result is found from an exact value as a float64 and what that leaves out (`two_sum`);
   only the sign of the rest matters (`directed`).
2. For float64 there is no wider type everywhere: the nearest value is found first, and where it is
   not sure, the exact value as a fraction decides (`directed_wide`, `fused_wide`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any  # a NumPy vector, or a NumPy scalar when the value is uniform

_NONE = np.array(0.0)
_SHORT = 4096  # a vector so long takes less time whole than at chosen places
_SINGLE, _DOUBLE, _WORD = np.dtype("f4"), np.dtype("f8"), np.dtype("u8")
# Bits of a float64 below a float32; NumPy takes arrays without axes faster than scalars.
_DROPPED, _HALF = np.array(0x1FFFFFFF, _WORD), np.array(0x10000000, _WORD)
# Of float32 that are not normal: twice the bits of the least normal one, and half of their step.
_ONE, _LEAST, _TIE = np.array(1, "u4"), np.array(0x01000000, "u4"), np.array(2.0**-150)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A sum of float64, and exactly what it leaves out."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def fused(a: Array, b: Array, c: Array) -> Array:
    """``fma.rn.f32``, rounded once: the float64 sum is corrected where it sits on a tie."""
    product = np.multiply(a, b, dtype=_DOUBLE)
    total = product + c
    tie = (total.view(_WORD) & _DROPPED) == _HALF
    found = total.astype(_SINGLE)
    small = (found.view("u4") << _ONE) - _ONE < _LEAST  # not zero, and not above the least normal
    if np.count_nonzero(small):
        tie = tie | (small & (np.abs(total - found) == _TIE))
    if np.count_nonzero(tie):  # the part float64 dropped decides which way the tie goes
        if total.size > _SHORT:
            return _fused_at(product, c, total, np.flatnonzero(tie))
        rest = total - product  # as `two_sum`, whose sum is known
        error = (product - (total - rest)) + (c - rest)
        tie = tie & (error != _NONE)
        if np.count_nonzero(tie):
            total = np.where(tie, np.nextafter(total, np.copysign(np.inf, error)), total)
        return total.astype(_SINGLE)
    return found


def _fused_at(product: Array, c: Array, total: Array, places: Array) -> Array:
    """The same, with the sums at some places alone corrected."""
    some = total[places]
    _, error = two_sum(_at(product, places), _at(c, places))
    if error.any():
        total[places] = np.where(error != 0, np.nextafter(some, np.copysign(np.inf, error)), some)
    return total.astype(_SINGLE)


def _at(values: Array, places: Array) -> Array:
    """Elements of a vector in float64; a scalar is all of them."""
    chosen = values[places] if np.ndim(values) else values
    return chosen.astype(_DOUBLE)


def fused_narrow(a: Array, b: Array, c: Array, brain: bool) -> Array:
    """``fma.rn`` of float16, or of bfloat16: as float64 or float32 that round to the right one.

    What the sum leaves out goes into its last bit (rounding to odd), which no tie has.
    """
    total, error = two_sum(a.astype(_DOUBLE) * b.astype(_DOUBLE), c.astype(_DOUBLE))
    even = (total.view(_WORD) & np.uint64(1)) == 0
    lost = (error != 0) & np.isfinite(error) & even
    total = np.where(lost, np.nextafter(total, np.copysign(np.inf, error)), total)
    if not brain:
        return total
    return to_odd(total)


def to_odd(a: Array) -> Array:
    """float32 that rounds to 16 bits as a float64 or an integer does.

    The last bit of what is cut off toward zero is set where anything was lost, which no tie has.
    """
    if a.dtype.kind != "f":
        size = np.abs(a).view(f"u{a.dtype.itemsize}") if a.dtype.kind == "i" else a
        size = size.astype("u8")
        width = np.frexp(size.astype(_DOUBLE))[1]
        drop = np.maximum(width - 22, 0).astype("u8")
        kept = size >> drop
        kept = kept | (kept << drop != size).astype("u8")
        return np.copysign(np.ldexp(kept.astype(_SINGLE), drop.astype("i4")), a)
    cut = directed(a, np.float64(0), "rz")
    odd = (cut.view("u4") | np.uint32(1)).view(_SINGLE)
    return np.where((cut != a) & np.isfinite(cut), odd, cut)


def directed(total: Array, error: Array, mode: str) -> Array:
    """`total` + `error`, in float64, as float32: toward zero ``rz``, down ``rm`` or up ``rp``."""
    near = total.astype(_SINGLE)
    off = total - near.astype(_DOUBLE)
    off = np.where(off == 0, np.nan_to_num(error), off)
    return _stepped(near, off, mode)


def _stepped(near: Array, off: Array, mode: str) -> Array:
    """The neighbour of the nearest value where that is on the wrong side; `off` is exact - near."""
    if mode == "rz":
        wrong, toward = ((near > 0) & (off < 0)) | ((near < 0) & (off > 0)), np.zeros_like(near)
    elif mode == "rm":
        wrong, toward = off < 0, np.full_like(near, -np.inf)
    else:
        wrong, toward = off > 0, np.full_like(near, np.inf)
    return np.where(wrong, np.nextafter(near, toward), near)


def directed_sum(a: Array, b: Array, mode: str) -> Array:
    """The sum of two float64 that have it nearly exactly, as float32."""
    total, error = two_sum(a, b)
    found = directed(total, error, mode)
    return _signed_zero(found, total == 0, a, b, mode)


def _signed_zero(found: Array, zero: Array, a: Array, b: Array, mode: str) -> Array:
    """A sum that is zero, and not only rounded to it, is -0 in ``rm`` unless both terms are +0."""
    if mode != "rm":
        return found
    negative = zero & (np.signbit(a) | np.signbit(b))
    return np.where(negative, -np.abs(found), found)


def directed_whole(a: Array, mode: str, kind: str) -> Array:
    """Integers as float32 (``f4``) or float64 (``f8``), rounded in a direction."""
    high, low = a >> a.dtype.type(32 if a.dtype.itemsize == 8 else 0), a.dtype.type(0)
    if a.dtype.itemsize == 8:
        low = a & a.dtype.type(0xFFFFFFFF)
        total, error = two_sum(high.astype("f8") * 2.0**32, low.astype("f8"))
    else:
        total, error = a.astype("f8"), np.float64(0)
    return directed(total, error, mode) if kind == "f4" else _stepped(total, error, mode)


def directed_narrow(exact: Array, near: Array, mode: str) -> Array:
    """float64 values as float16, given the nearest, in a direction."""
    wide = near.astype("f8")
    return _stepped(near, np.where(wide == exact, 0.0, exact - wide), mode)


# --- float64 -------------------------------------------------------------------------------------
_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
}
_NEAR: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "fma": lambda a, b, c: fused_wide(a, b, c),
}


def _off(name: str, near: float, row: tuple[float, ...]) -> float:
    """The sign of an exact result minus the nearest float64."""
    if math.isnan(near) or not all(map(math.isfinite, row)):
        return 0.0
    if name in ("div", "rcp") and row[-1] == 0:
        return 0.0
    if math.isinf(near):
        return -math.copysign(1.0, near)
    if name == "sqrt":
        exact, known = Fraction(row[0]), Fraction(near) ** 2
    else:
        exact, known = _EXACT[name](*map(Fraction, row)), Fraction(near)
    return float((exact > known) - (exact < known))


def directed_wide(name: str, mode: str, *operands: Array) -> Array:
    """An operation of float64 rounded toward zero, down or up."""
    rows = np.broadcast_arrays(*operands)
    near = np.asarray(_NEAR[name](*rows))
    table = zip(near.ravel().tolist(), *(one.ravel().tolist() for one in rows), strict=True)
    off = np.array([_off(name, first, tuple(row)) for first, *row in table]).reshape(near.shape)
    found = _stepped(near, off, mode)
    if name in ("add", "sub", "fma"):
        first = rows[0] * rows[1] if name == "fma" else rows[0]
        last = -rows[-1] if name == "sub" else rows[-1]
        found = _signed_zero(found, (near == 0) & (off == 0), first, last, mode)
    return found if near.ndim else found[()]


def fused_wide(a: Array, b: Array, c: Array) -> Array:
    """``fma.rn.f64``, rounded once: the product is split exactly, and doubtful sums are fractions.

    The nearest sum of the parts is right unless it is within the error of the parts of a tie, or
    the parts are not exact, as near the ends of the range.
    """
    product = np.asarray(a * b)
    a_high, b_high = _upper(a), _upper(b)
    a_low, b_low = a - a_high, b - b_high
    below = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total, error = two_sum(product, np.asarray(c))
    rest = error + below
    found = np.where(rest == 0, total, total + rest)  # which keeps the sign of a zero
    exact = (rest == 0) & np.isfinite(total)
    if exact.all():
        return found if found.ndim else found[()]
    # half a step of the result, and how near to it the rest may be
    step = np.spacing(np.abs(found)) / 2
    off = np.abs(np.abs((total - found) + rest) - step)
    size = np.abs(product)
    doubtful = ~exact & ~(
        (off > 2.0**-40 * step) & (size > 1e-250) & (size < 1e290) & (np.abs(found) > 1e-290)
    )
    if doubtful.any():
        rows = np.broadcast_arrays(a, b, c)
        found = np.array(found)
        for place in np.argwhere(doubtful):
            at = tuple(place)
            row = [float(one[at]) for one in rows]
            if all(map(math.isfinite, row)):
                value = Fraction(row[0]) * Fraction(row[1]) + Fraction(row[2])
                found[at] = _nearest(value, float(product[at] + rows[2][at]))
            else:
                found[at] = product[at] + rows[2][at]
    return found if found.ndim else found[()]


def _nearest(value: Fraction, guess: float) -> float:
    """The float64 nearest to an exact value; a zero has the sign of `guess`."""
    if not value:
        return guess if guess == 0 else 0.0
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _upper(a: Array) -> Array:
    """The upper half of the bits of float64 values (Veltkamp)."""
    scaled = a * 134217729.0
    return scaled - (scaled - a)
