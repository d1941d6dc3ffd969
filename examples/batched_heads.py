"""Scores of all heads of attention, with ALiBi and a causal mask, from `[B,S,H,D]`.

Replaces: two transposes into contiguous memory, a batched product, a kernel that scales, one
that adds the bias of positions, one that masks.
Why one: batch dims are further tiles, and strides are the arrays' own; position and mask are
computed from an element's coordinates, and are no arrays.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[B,S,H,D]", "bf16[B,S,H,D]", "f32")
MASKED = -10000.0


@pg.fuse
def scores(q, k, slope):
    """What softmax gets: [B,H,S,S]; the slope is a run-time scalar."""
    products = pg.einsum("bshd,bthd->bhst", q, k)
    _, _, row, column = pg.indices(products)
    biased = products * 0.125 + slope * (column - row)
    return pg.where(column <= row, biased, MASKED)


def operands(sizes, random):
    """The matrices q and k, heads inside; the slope."""
    shape = [sizes[name] for name in "BSHD"]
    return gallery.normal(random, *shape), gallery.normal(random, *shape), 0.25


def main() -> None:
    """Run and check it."""
    small = {"B": 1, "S": 40, "H": 2, "D": 64}
    large = {"B": 1, "S": 2048, "H": 32, "D": 64}
    gallery.run(scores, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
