"""Queries, keys and values of a language model: one projection, norms of heads, and rotations.

Replaces: a product, a split of its columns, two kernels for RMSNorm over heads, two that turn
halves of heads by cosine and sine, and three that bring heads in front of positions.
Why one: columns of queries, keys and values are sections of one kernel, each with its own work on
heads that are tiles. Its blocks go from the tiles of one to those of the next (needs sm_90a).
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

QUERIES, KEYS, SIZE = 16, 8, 128
FIRST, LAST = QUERIES * SIZE, (QUERIES + KEYS) * SIZE  # columns where keys, and values, begin
WEIGHT = f"bf16[{LAST + KEYS * SIZE},K]"
SIGNATURE = ("bf16[S,K]", WEIGHT, *[f"bf16[{SIZE}]"] * 2, *["f32[S,64]"] * 2)


def heads(y, count):
    """Columns of a projection as heads."""
    return y.reshape(-1, count, SIZE)


def turned(v, cos, sin):
    """Both halves of every head, turned by the angles of its position."""
    a, b, cos, sin = v[..., : SIZE // 2], v[..., SIZE // 2 :], cos[:, None], sin[:, None]
    return pg.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@pg.fuse
def front(x, w, g, h, cos, sin):
    """All heads of x @ w.T in front of positions, queries and keys normed and turned."""
    y = x @ w.T
    q = turned(pg.rms_norm(heads(y[:, :FIRST], QUERIES), g), cos, sin)
    k = turned(pg.rms_norm(heads(y[:, FIRST:LAST], KEYS), h), cos, sin)
    v = heads(y[:, LAST:], KEYS)
    return tuple(one.swapaxes(0, 1).astype("bf16") for one in (q, k, v))


def operands(sizes, random):
    """x, w, the norms' scales, and the cosine and sine of every position's angles."""
    s, k = sizes["S"], sizes["K"]
    angles = np.arange(s)[:, None] * 1e4 ** -(np.arange(SIZE // 2) * 2 / SIZE)
    x = gallery.normal(random, s, k)
    w = gallery.normal(random, LAST + KEYS * SIZE, k, scale=k**-0.5)
    turns = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    return x, w, gallery.normal(random, SIZE), gallery.normal(random, SIZE), *turns


def main() -> None:
    """Run and check it."""
    gallery.run(front, SIGNATURE, operands, small={"S": 40, "K": 72}, large={"S": 4096, "K": 2048})


if __name__ == "__main__":
    main()
