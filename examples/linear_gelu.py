"""A linear layer with bias and GELU, in one kernel.

Replaces: a product by cuBLAS, a kernel that adds the bias and one for GELU; or a library's
fused epilogue, where it has this one.
Why one: the sums stay in registers until they are results, so that the matrix is written once
instead of three times, and read never.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]")


@pg.fuse
def up(x, w, b):
    """gelu(x @ w.T + b)."""
    return pg.gelu(x @ w.T + b)


def operands(sizes, random):
    """Arrays for x, w and b; the products are of size one."""
    m, n, k = (sizes[name] for name in "MNK")
    normal = gallery.normal
    return normal(random, m, k), normal(random, n, k, scale=k**-0.5), normal(random, n)


def main() -> None:
    """Run and check it."""
    small, large = {"M": 72, "N": 104, "K": 96}, {"M": 4096, "N": 4096, "K": 1024}
    gallery.run(up, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
