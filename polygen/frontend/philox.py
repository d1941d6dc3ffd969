"""Philox 4x32-10 on arrays, the counter-based generator that `polygen.frontend.random` uses.

J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, ...]:
    """Four random words of 32 bits.

    Args:
        counter: four words, as arrays that broadcast, uint64 below 2^32.
        key: two words, likewise.

    Returns:
        Four arrays of uint64 below 2^32.
    """
    mask = np.uint64(0xFFFFFFFF)
    a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, np.uint64) for word in key)
    for _ in range(ROUNDS):
        left, right = np.uint64(MULTIPLIERS[0]) * a, np.uint64(MULTIPLIERS[1]) * c
        high = np.uint64(32)
        a, b, c, d = (right >> high) ^ b ^ k0, right & mask, (left >> high) ^ d ^ k1, left & mask
        k0, k1 = (k0 + np.uint64(STEPS[0])) & mask, (k1 + np.uint64(STEPS[1])) & mask
    return a, b, c, d


def uniform(a: Any, b: Any, c: Any, d: Any, seed: Any) -> Any:
    """The reference of ``random_uniform``: 24 random bits as a number in [0, 1)."""

    def word(value: Any) -> Any:  # as a GPU converts
        whole = np.nan_to_num(np.trunc(np.asarray(value, np.float64)))
        return np.clip(whole, 0, 2**32 - 1).astype(np.uint64)

    first, *_ = philox((word(a), word(b), word(c), word(d)), (word(seed), np.uint64(0)))
    return (first >> np.uint64(8)).astype(np.float64) * 2.0**-24
