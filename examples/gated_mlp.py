"""Both products of a gated layer and its gate, `silu(x @ u.T) * (x @ v.T)`, in one kernel.

Replaces: two products by cuBLAS, SiLU, and a kernel that multiplies: three matrices written and
read that nobody asks for. The usual way round it is one product with interleaved weights.
Why one: both products run over the same k tiles of x, which is copied once for both; weights
stay as they are.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]")


@pg.fuse
def gated(x, u, v):
    """silu(x @ u.T) * (x @ v.T)."""
    return pg.silu(x @ u.T) * (x @ v.T)


def operands(sizes, random):
    """x, u and v."""
    m, n, k = (sizes[name] for name in "MNK")
    weights = (gallery.normal(random, n, k, scale=k**-0.5) for _ in range(2))
    return (gallery.normal(random, m, k), *weights)


def main() -> None:
    """Run and check it."""
    small, large = {"M": 72, "N": 72, "K": 96}, {"M": 4096, "N": 11008, "K": 4096}
    gallery.run(gated, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
