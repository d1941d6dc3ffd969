"""A product with weights of 8 bits and a scale for every 64 of them, in bfloat16.

Replaces: a kernel that writes the weights as bfloat16, four times the bytes that they have, and
a product that reads them again.
Why one: weights are read as bytes, and become bfloat16 on their way to shared memory. That is for
few rows, where bytes are what costs; with thousands of rows every block converts them again, and
converting once is faster.
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

GROUP = 64
SIGNATURE = ("bf16[M,128]", "s8[N,128]", "bf16[N,2]")
LARGE = ("bf16[M,8192]", "s8[N,8192]", "bf16[N,128]")


@pg.fuse
def dequantised(x, q, s):
    """The product x @ (q * s).T, each scale for a group of the weights of a row."""
    return x @ (q.astype("bf16") * pg.repeat(s, GROUP, axis=1)).T


def operands(sizes, random):
    """x, the weights as s8, their scales."""
    m, n, k = (sizes[name] for name in "MNK")
    q = random.integers(-127, 128, (n, k)).astype(np.int8)
    s = (random.uniform(0.5, 1.5, (n, k // GROUP)) / 127 * k**-0.5).astype(np.float32)
    return gallery.normal(random, m, k), q, s.astype(gallery.ml_dtypes.bfloat16)


def main() -> None:
    """Run and check it; the depth is a constant, so that groups are."""
    gpu = gallery.current_arch()
    depth = 8192 if gpu else 128
    small, large = {"M": 12, "N": 72}, {"M": 16, "N": 8192}
    gallery.run(
        dequantised, LARGE if gpu else SIGNATURE,
        lambda sizes, random: operands({**sizes, "K": depth}, random), small=small, large=large,
    )  # fmt: skip


if __name__ == "__main__":
    main()
