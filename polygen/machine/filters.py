"""Linear filters of textures, as an H200 has them: weights of 8 bits, sums cut and rounded.

No manual has more than "8 bits behind the point"; the rest was read off recorded launches.

1. Along each axis a coordinate leaves 256ths of the far texel. The last of three axes divides 256,
   the first one what each side gets, the second one these: all weights add up to 256 (`weights`).
2. Texels of a plane are cut, toward zero, to what is 4 bits finer than the last bit of the largest
   one that counts, and their weighted sum is exact. Two planes are added exactly (where one has
   much larger texels, an H200 may differ in the last place).
3. The sum is rounded to the texels' type, ties away from zero. Integers that are read as floats
   are rounded to 16 bits, or 15 and a sign (those of 8 bits and a sign may differ by one there).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polygen.machine.arithmetic import flush
from polygen.machine.lanes import Vector

WEIGHT = 256  # steps of a weight
_FINER = 4  # bits that texels are cut to, below the last one of the largest
_DIGITS = {4: 23, 2: 10}  # of float32 and float16, behind the point
_NAN = {4: np.uint32(0x7FFFFFFF), 2: np.uint32(0x7FFFE000)}  # by bytes of a texel

Corner = tuple[int, ...]
Weights = dict[Corner, Vector]


def weights(parts: list[Vector]) -> Weights:
    """The weights of the corners in 256ths, from those of the far texel along each axis.

    The far side gets the product to the nearest; on a tie it gets more, but along the second axis
    less where the first one's side is the near one.
    """
    x, *rest = parts
    whole = np.full_like(x, WEIGHT)
    slices = {(0,): whole - rest[1], (1,): rest[1]} if len(rest) > 1 else {(): whole}
    found: Weights = {}
    for behind, share in slices.items():
        far = _share(share * x, 0)
        for side, part in enumerate((share - far, far)):
            if not rest:
                found[side, *behind] = part
                continue
            further = _share(part * rest[0], side - 1)
            found[side, 0, *behind] = part - further
            found[side, 1, *behind] = further
    return found


def _share(product: Vector, less: int) -> Vector:
    return (product + WEIGHT // 2 + less) // WEIGHT


def blended(
    parts: list[Vector], texels: Callable[[Corner], Vector], kind: np.dtype[np.generic]
) -> Vector:
    """Four numbers per lane: the filtered texels.

    Args:
        parts: 256ths of the far texel along each axis, per lane.
        texels: what lies at a corner, as numbers of the array, four per lane.
        kind: the array's.
    """
    found = weights(parts)
    used = {corner: weight[:, None] for corner, weight in found.items() if weight.any()}
    held = {corner: texels(corner).astype(np.float64) for corner in used}
    if kind.kind != "f":
        return _whole(used, held, kind)
    digits = _DIGITS[kind.itemsize]
    planes: dict[Corner, list[Corner]] = {}
    for corner in used:
        planes.setdefault(corner[2:], []).append(corner)
    size = (len(parts[0]), 4)
    total, plain, negative = np.zeros(size), np.zeros(size), np.ones(size, bool)
    for corners in planes.values():
        total = total + _plane(used, held, corners, digits + _FINER)
        for corner in corners:
            counts, texel = used[corner] > 0, held[corner]
            with np.errstate(invalid="ignore"):
                plain = plain + np.where(counts & ~np.isfinite(texel), texel, 0)
            negative &= ~counts | ((texel == 0) & np.signbit(texel))
    result = _half_away(total, digits + 1).astype(np.float32)
    result = np.where(negative, np.float32(-0.0), flush(result))
    result = np.where(plain == 0, result, plain.astype(np.float32))
    missing = np.isnan(plain)
    if missing.any():
        result.view("u4")[missing] = _NAN[kind.itemsize]
    return result


def _plane(used: Weights, held: dict[Corner, Vector], corners: list[Corner], bits: int) -> Vector:
    """The exact sum of a plane's texels, each cut to `bits` below the largest that counts."""
    finite = {at: np.where(np.isfinite(held[at]), held[at], 0) for at in corners}
    largest = np.max([np.where(used[at] > 0, np.abs(finite[at]), 0) for at in corners], axis=0)
    unit = np.ldexp(1.0, np.frexp(largest)[1] - 1 - bits)
    counts = sum(np.trunc(finite[at] / unit) * used[at] for at in corners)
    return np.asarray(counts * unit / WEIGHT)


def _half_away(values: Vector, bits: int) -> Vector:
    """Numbers rounded to so many bits, ties away from zero."""
    part, exponent = np.frexp(np.abs(values))
    return np.copysign(np.ldexp(np.floor(np.ldexp(part, bits) + 0.5), exponent - bits), values)


def _whole(used: Weights, held: dict[Corner, Vector], kind: np.dtype[np.generic]) -> Vector:
    """Integers read as floats of 0 to 1 or -1 to 1."""
    most = np.iinfo(kind).max  # type: ignore[type-var]
    steps = 65535 if kind.kind == "u" else 32767
    total = sum(held[corner] * weight for corner, weight in used.items())
    found = np.floor(np.asarray(total) * steps / (WEIGHT * most) + 0.5)
    return (np.maximum(found, -steps) / steps).astype(np.float32)
