"""A mixture of experts: rows sorted by expert, each multiplied by its expert's matrices, gated.

One kernel for all experts, with no padding and nothing read back to the host: a CUDA graph of it is
right for other routings. Without a GPU the kernel runs on NumPy, on a small problem.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import polygen as pg

ROWS, EXPERTS, WIDTH, HIDDEN = 150, 4, 72, 80
SIGNATURE = ("bf16[T,K]", "bf16[E,N,K]", "bf16[E,N,K]", "bf16[E,N]", "s32[E]")


@pg.fuse
def experts(x, gate, up, bias, ends):
    """silu(x @ gate.T + bias) * (x @ up.T), each row of x[T,K] with its expert's matrices."""
    gated = pg.grouped_matmul(x, gate.mT, ends) + pg.per_group(bias, ends, x)
    return pg.silu(gated) * pg.grouped_matmul(x, up.mT, ends)


def main() -> None:
    """Routes rows by chance, runs the kernel, and compares it with NumPy in float64."""
    random = np.random.default_rng(0)
    of_expert = np.sort(random.integers(0, EXPERTS, ROWS))
    ends = np.searchsorted(of_expert, np.arange(EXPERTS), side="right").astype(np.int32)
    shapes = [(ROWS, WIDTH), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, HIDDEN)]
    arrays = [random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    pg.check_ends(ends, ROWS)
    sizes = {"T": ROWS, "E": EXPERTS, "K": WIDTH, "N": HIDDEN}
    kernel = experts.compile(*SIGNATURE, arch="sm_90a", sizes=sizes)
    found = np.asarray(kernel.emulate(*arrays, ends)).astype(np.float64)
    wanted = experts.reference(*arrays, ends)
    print(kernel.schedule_origin)
    print("rows of each expert:", np.diff(ends, prepend=0).tolist())
    print("largest relative error:", float((abs(found - wanted) / (1 + abs(wanted))).max()))


if __name__ == "__main__":
    main()
