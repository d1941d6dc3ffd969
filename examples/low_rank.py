"""A large product with one of low rank beside it, `x @ w.T + (x @ a.T) @ b.T * s`, in one kernel.

Replaces: three products by cuBLAS and a sum, or two kernels, with a matrix of few columns written
and read between them; as an adapter of a layer, LoRA.
Why one: the product of few columns takes the same tiles of x; what it sums is, in the registers of
the same threads, the left operand of a product that goes on with the large one's sums.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[16,K]", "bf16[N,16]", "f32")


@pg.fuse
def low_rank(x, w, a, b, s):
    """The product, and s times that of low rank."""
    return x @ w.T + (x @ a.T) @ b.T * s


def operands(sizes, random):
    """x, w, a, b and s."""
    m, n, k = (sizes[name] for name in "MNK")
    w, a = (gallery.normal(random, rows, k, scale=k**-0.5) for rows in (n, 16))
    return gallery.normal(random, m, k), w, a, gallery.normal(random, n, 16, scale=0.0625), 2.0


def main() -> None:
    """Run and check it."""
    small, large = {"M": 72, "N": 72, "K": 96}, {"M": 8192, "N": 4096, "K": 4096}
    gallery.run(low_rank, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
