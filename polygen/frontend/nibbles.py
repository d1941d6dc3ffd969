"""Halves of bytes as numbers: the references of the functions that take packed numbers apart."""

from __future__ import annotations

from typing import Any

import numpy as np


def nibble_u4(byte: Any, place: Any) -> Any:
    """The half of each byte that an element is in: the low one where `place` is even."""
    high = np.floor(np.asarray(byte) / 16)
    return np.where(np.asarray(place) % 2 > 0, high, np.asarray(byte) - 16 * high)


def nibble_i4(byte: Any, place: Any) -> Any:
    """The same as a number in two's complement: -8 to 7."""
    half = nibble_u4(byte, place)
    return np.where(half >= 8, half - 16, half)
