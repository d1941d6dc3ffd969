"""Times a product with one of low rank beside it, and what PyTorch runs for it, on this GPU.

    python docs/low_rank_time.py [M N K rank]       # 8192 4096 4096 16

Contenders take turns in one process, the L2 cache is written over before each launch, medians of
microseconds: polygen's kernel, its plain product, PyTorch's product, and PyTorch's sequence for the
whole, in two kernels (`addmm` adds the second product to the first) and as it is written.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import polygen as pg

WARM, ROUNDS, FLUSH = 10, 100, 256 << 20  # launches, launches, bytes


def low_rank(x: Any, w: Any, a: Any, b: Any) -> Any:
    """What is timed."""
    return x @ w.T + (x @ a.T) @ b.T


def main() -> None:
    """Print the table."""
    given = [int(one) for one in sys.argv[1:]] or [8192, 4096, 4096, 16]
    m, n, k, rank = given
    shapes = ((m, k), (n, k), (rank, k), (n, rank))
    x, w, a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes)
    fused, plain = pg.fuse(low_rank), pg.fuse(lambda x, w: x @ w.T)
    joined, both = torch.cat((x, x @ a.T), 1), torch.cat((w, b), 1)
    runs: dict[str, Callable[[], Any]] = {
        "polygen, one kernel": lambda: fused(x, w, a, b),
        "polygen, the product alone": lambda: plain(x, w),
        "PyTorch, the product alone": lambda: x @ w.T,
        "PyTorch, two kernels on joined operands": lambda: (x @ a.T, joined @ both.T)[1],
        "PyTorch, addmm": lambda: torch.addmm(x @ w.T, x @ a.T, b.T),
        "PyTorch, as it is written": lambda: low_rank(x, w, a, b),
    }
    wanted = low_rank(*(one.double() for one in (x, w, a, b)))
    error = (fused(x, w, a, b).double() - wanted).abs().max().item()
    times = measured(runs)
    first = times["polygen, one kernel"]
    print(f"{torch.cuda.get_device_name()}, bf16, {m}x{n}x{k}, rank {rank}")
    print(f"largest error {error:.3g}; us, and how many times as long as the first")
    for name, time in times.items():
        print(f"| {name} | {time:.1f} | {time / first:.3f} |")


def measured(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each, taken in turns."""
    room = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM + ROUNDS):
        for name, run in runs.items():
            room.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            if number >= WARM:
                found[name].append(start.elapsed_time(end) * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


if __name__ == "__main__":
    main()
