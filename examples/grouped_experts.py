"""A mixture of experts: rows sorted by expert, each multiplied by its expert's matrices, gated.

Replaces: a loop over experts that reads their counts back to the host, or padding of every
expert to the largest; then bias, SiLU and the product with the other half.
Why one: one kernel for all experts, with no padding and nothing read back to the host: a CUDA
graph of it is right for other routings.
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

SIGNATURE = ("bf16[T,K]", "bf16[E,N,K]", "bf16[E,N,K]", "bf16[E,N]", "s32[E]")


@pg.fuse
def experts(x, gate, up, bias, ends):
    """silu(x @ gate.T + bias) * (x @ up.T), each row of x[T,K] with its expert's matrices."""
    gated = pg.grouped_matmul(x, gate.mT, ends) + pg.per_group(bias, ends, x)
    return pg.silu(gated) * pg.grouped_matmul(x, up.mT, ends)


def operands(sizes, random):
    """Rows routed by chance; `ends` says behind which row each expert ends."""
    t, e, n, k = (sizes[name] for name in "TENK")
    of_expert = np.sort(random.integers(0, e, t))
    ends = np.searchsorted(of_expert, np.arange(e), side="right").astype(np.int32)
    pg.check_ends(ends, t)
    print("rows of each expert:", np.diff(ends, prepend=0).tolist())
    matrices = (gallery.normal(random, e, n, k, scale=k**-0.5) for _ in range(2))
    return gallery.normal(random, t, k), *matrices, gallery.normal(random, e, n), ends


def main() -> None:
    """Run and check it."""
    small = {"T": 60, "E": 2, "N": 72, "K": 72}
    large = {"T": 8192, "E": 64, "N": 2816, "K": 2048}
    gallery.run(experts, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
