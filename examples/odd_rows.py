"""A product of matrices whose rows start anywhere: odd widths, no padding.

Replaces: padding both operands to multiples of 8 before the product, and cutting the result; or
the slow kernels that libraries have for such rows.
Why it works: the kernel is made for the alignment that the arrays have. Where the copy engine
cannot take them, threads shift rows into place, or rows are copied first; the model says which
is fastest.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[M,K]", "bf16[N,K]")


@pg.fuse
def product(x, w):
    """relu(x @ w.T), of any sizes."""
    return pg.relu(x @ w.T)


def operands(sizes, random):
    """Both matrices; rows follow each other without gaps."""
    m, n, k = (sizes[name] for name in "MNK")
    return gallery.normal(random, m, k), gallery.normal(random, n, k, scale=k**-0.5)


def main() -> None:
    """Run and check it."""
    small, large = {"M": 37, "N": 45, "K": 67}, {"M": 4099, "N": 4093, "K": 1031}
    kernel = gallery.run(product, SIGNATURE, operands, small=small, large=large)
    aligned = {t.name: t.alignment for t in (*kernel.program.inputs, *kernel.program.outputs)}
    print("rows are aligned to bytes:", aligned)


if __name__ == "__main__":
    main()
