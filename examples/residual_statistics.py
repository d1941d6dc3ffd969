"""A layer's product, the residual added, and what the next norm needs of every row.

Replaces: a product, a kernel that adds the residual, one that reads the sum again for RMSNorm's
mean of squares.
Why one: the mean of squares is folded from registers while the sums leave. The next layer's
kernel takes it as a vector.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]")


@pg.fuse
def down(x, w, residual):
    """The sum, and 1 over the root of the mean square of its rows."""
    v = x @ w.T + residual
    return v, pg.rsqrt(pg.mean(v * v, axis=1) + 1e-5)


def operands(sizes, random):
    """x, w and the residual."""
    m, n, k = (sizes[name] for name in "MNK")
    weights = gallery.normal(random, n, k, scale=k**-0.5)
    return gallery.normal(random, m, k), weights, gallery.normal(random, m, n)


def main() -> None:
    """Run and check it."""
    small, large = {"M": 40, "N": 136, "K": 72}, {"M": 4096, "N": 4096, "K": 11008}
    gallery.run(down, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
