"""One step of decoding: few rows by a large matrix, where only the weights' bytes matter.

Replaces: a matrix-vector kernel for one row and a product for more, each with its own epilogue.
Why it is different: a tensor core has nothing to do with one row. Lanes multiply, and weights
stream through registers; for some more rows blocks share the sums of a tile. The kernel is
chosen by size.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[1,K]", "bf16[N,K]", "bf16[N]")


@pg.fuse
def decode(x, w, b):
    """silu(x @ w.T + b) of one token."""
    return pg.silu(x @ w.T + b)


def operands(sizes, random):
    """One row, the weights, the bias."""
    n, k = sizes["N"], sizes["K"]
    weights = gallery.normal(random, n, k, scale=k**-0.5)
    return gallery.normal(random, 1, k), weights, gallery.normal(random, n)


def main() -> None:
    """Run and check it."""
    small, large = {"N": 72, "K": 256}, {"N": 11008, "K": 4096}
    gallery.run(decode, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
