"""Floats with every mantissa bit in use, bit patterns of interest, and what a sum may be off by."""

from __future__ import annotations

import ml_dtypes
import numpy as np

LOW = 13  # bits of a float32 mantissa that tf32 lacks
NARROW = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def patterns() -> np.ndarray:
    """512 float32 bit patterns that tell one rounding to tf32 from another, as u32.

    Both signs of: zero, denormals, the smallest and the largest normals, numbers around 1; even and
    odd last bits, mantissas that carry into the exponent; remainders below, at and above a tie;
    infinities, and NaN with payloads in the high bits, in the low bits and in both. The rest are
    random.
    """
    exponents, kept = (0, 1, 127, 254, 255), (0, 1, 2, 0x1FF, 0x200, 0x3FE, 0x3FF)
    left = (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)
    chosen = [
        sign << 31 | exponent << 23 | high << LOW | low
        for sign in (0, 1)
        for exponent in exponents
        for high in kept
        for low in left
    ]
    random = np.random.default_rng(0).integers(0, 2**32, 512 - len(chosen), dtype=np.uint32)
    return np.concatenate([np.array(chosen, np.uint32), random])


def nearest_tf32(values: np.ndarray, ties: str = "even") -> np.ndarray:
    """float32 rounded to tf32 through float64, by arithmetic and not by bits; NaN stays NaN.

    Args:
        values: float32.
        ties: ``even``, ``away`` from zero, or ``none`` of that: ``truncated``.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        wide = values.astype(np.float64)
        _, exponent = np.frexp(wide)
        step = np.ldexp(1.0, np.maximum(exponent - 1, -126) - 10)
        units = wide / step
        away = np.copysign(np.floor(np.abs(units) + 0.5), units)
        whole = {"even": np.rint(units), "away": away, "truncated": np.trunc(units)}[ties]
        return np.where(np.isfinite(wide), whole * step, wide).astype(np.float32)


def floats(shape: tuple[int, ...], kind: type, seed: int) -> np.ndarray:
    """Random data of a type in which every mantissa bit varies.

    Normal where sums are bounded by `sum_error`. Eight-bit floats are drawn from ±[1, 2), so that
    sums of a hundred products are whole multiples of a product's last place and exact in the 13
    bits that the matrix units are known to keep of them; nobody says how they round beyond.
    """
    generator = np.random.default_rng(seed)
    if kind in NARROW:
        mantissa = (
            generator.integers(0, 8, shape) / 8
            if kind is NARROW[0]
            else 0.25 * (generator.integers(0, 4, shape))
        )
        return ((1 + mantissa) * generator.choice([-1.0, 1.0], shape)).astype(kind)
    if np.dtype(kind).kind in "iu":
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        return generator.integers(low, high, shape, endpoint=True).astype(kind)
    return generator.standard_normal(shape).astype(np.float32).astype(kind)


def sum_error(a: np.ndarray, b: np.ndarray, start: np.ndarray, depth: int, bits: int) -> np.ndarray:
    """What ``start + a @ b`` may be off by when matrix instructions of `depth` add it up.

    One instruction aligns its products and the running sum to the largest of them and drops what
    lies below the sum type's last place of that one, then rounds: at most depth + 2 times a unit in
    the last place of the sum of magnitudes. K / depth of them follow each other.

    Args:
        a: (m, K), as the unit multiplies it; products are exact.
        b: (K, n).
        start: (m, n), added first.
        depth: products that one instruction adds.
        bits: explicit mantissa bits of the sum's type.
    """
    magnitudes = np.abs(start.astype(np.float64)) + np.abs(a.astype(np.float64)) @ np.abs(
        b.astype(np.float64)
    )
    return -(-a.shape[1] // depth) * (depth + 2) * 2.0**-bits * magnitudes
