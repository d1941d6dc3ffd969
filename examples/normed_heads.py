"""Queries of a language model: the projection, a norm of each head, and its rotation by angles.

Replaces: a product, a kernel for RMSNorm over heads, one that turns halves of heads by cosine and
sine, and one that brings heads in front of positions.
Why one: each head's columns are a tile, whose threads have both halves of a head's row. The mean of
squares is folded from registers, and what is stored is stored once, where attention reads it.
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

HEADS, SIZE = 16, 128
SIGNATURE = ("bf16[S,K]", f"bf16[{HEADS * SIZE},K]", f"bf16[{SIZE}]", "f32[S,64]", "f32[S,64]")


@pg.fuse
def queries(x, w, g, cos, sin):
    """Heads of x @ w.T, each with its norm, turned by the angles of its position."""
    q = pg.rms_norm((x @ w.T).reshape(-1, HEADS, SIZE), g)
    a, b = q[..., : SIZE // 2], q[..., SIZE // 2 :]
    cos, sin = cos[:, None], sin[:, None]
    turned = pg.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return turned.swapaxes(0, 1).astype("bf16")


def operands(sizes, random):
    """x, w, the norm's scale, and the cosine and sine of every position's angles."""
    s, k = sizes["S"], sizes["K"]
    angles = np.arange(s)[:, None] * 1e4 ** -(np.arange(SIZE // 2) * 2 / SIZE)
    x, w = gallery.normal(random, s, k), gallery.normal(random, HEADS * SIZE, k, scale=k**-0.5)
    turns = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    return x, w, gallery.normal(random, SIZE), *turns


def main() -> None:
    """Run and check it."""
    gallery.run(
        queries, SIGNATURE, operands, small={"S": 40, "K": 72}, large={"S": 4096, "K": 2048}
    )


if __name__ == "__main__":
    main()
