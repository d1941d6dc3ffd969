"""A decoder block as one function: norms, heads of attention, a gated MLP, residuals.

Replaces: two kernels for norms, five products, attention, three kernels for gates and residuals.
What happens: no kernel runs all of it, so the function becomes as few as run it, one after another.
Each is chosen, proved and checked on its own: the projections behind their norm, attention, its
projection with the residual, the gated products behind the other norm, and what multiplies them.
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

WIDTH, HEADS, INNER = 256, 4, 768
SQUARE, WIDE = f"bf16[{WIDTH},{WIDTH}]", f"bf16[{WIDTH},{INNER}]"
SIGNATURE = (
    f"bf16[B,S,{WIDTH}]", f"bf16[{WIDTH}]", *[SQUARE] * 4, f"bf16[{WIDTH}]", WIDE, WIDE,
    f"bf16[{INNER},{WIDTH}]",
)  # fmt: skip
ROUNDINGS = 6  # to bf16, of what lies between the kernels


def heads(y):
    """Columns of a projection as heads in front of positions."""
    return y.reshape(y.shape[0], y.shape[1], HEADS, WIDTH // HEADS).swapaxes(1, 2)


@pg.fuse
def block(x, g, wq, wk, wv, wo, h, wg, wu, wd):
    """Causal attention and a gated MLP, each behind a norm, each added to what it was made of."""
    n = pg.rms_norm(x, g)
    q, k, v = heads(n @ wq), heads(n @ wk), heads(n @ wv)
    s = q @ k.mT * (WIDTH // HEADS) ** -0.5
    row, key = pg.indices(s)[-2:]
    a = pg.softmax(pg.where(key <= row, s, -np.inf)) @ v
    r = (x + a.swapaxes(1, 2).reshape(x.shape[0], x.shape[1], WIDTH) @ wo).astype("bf16")
    m = pg.rms_norm(r, h)
    return r + (pg.silu(m @ wg) * (m @ wu)) @ wd


def operands(sizes, random):
    """Tokens and norms' scales as they come, matrices whose products are about as large."""
    b, s = sizes["B"], sizes["S"]

    def matrix(rows, columns):
        return gallery.normal(random, rows, columns, scale=rows**-0.5)

    return (
        gallery.normal(random, b, s, WIDTH), gallery.normal(random, WIDTH),
        *(matrix(WIDTH, WIDTH) for _ in range(4)), gallery.normal(random, WIDTH),
        matrix(WIDTH, INNER), matrix(WIDTH, INNER), matrix(INNER, WIDTH),
    )  # fmt: skip


def main() -> None:
    """Run and check it."""
    gallery.run(
        block, SIGNATURE, operands, small={"B": 1, "S": 40}, large={"B": 4, "S": 1024},
        roundings=ROUNDINGS,
    )  # fmt: skip


if __name__ == "__main__":
    main()
