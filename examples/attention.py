"""Causal attention with a soft cap and biases by distance, and log-sum-exp beside it.

Replaces: a library's attention where it has this score function, and else a product that writes
all scores, several kernels over them, and a product that reads them again.
Why one: both products run in one loop over the keys; scores stay in registers. Nothing here is a
template: the loop follows from a rewrite that `polygen show --stage rewrite` explains.
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

SIGNATURE = ("bf16[B,H,S,64]", "bf16[B,H,T,64]", "bf16[B,H,T,64]")


@pg.fuse
def attention(q, k, v):
    """Keys after a row's own are masked, far ones count less."""
    s = pg.tanh((q @ k.mT) * (0.125 / 30)) * 30
    i, j = pg.indices(s)[-2:]
    s = pg.where(i >= j, s - (i - j) * 0.0625, -np.inf)
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def operands(sizes, random):
    """Queries, keys and values as they come: normal."""
    b, h, s, t = (sizes[name] for name in "BHST")
    shapes = (b, h, s, 64), (b, h, t, 64), (b, h, t, 64)
    return tuple(gallery.normal(random, *shape) for shape in shapes)


def main() -> None:
    """Run and check it."""
    small = {"B": 1, "H": 2, "S": 130, "T": 150}
    gallery.run(
        attention, SIGNATURE, operands, small=small, large={"B": 4, "H": 16, "S": 4096, "T": 4096}
    )


if __name__ == "__main__":
    main()
