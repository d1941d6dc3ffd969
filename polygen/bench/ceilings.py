"""What the card can do at most, measured in the process that measures everything else.

The rate of products is cuBLAS's best of a few large ones; the bandwidth is that of a large copy,
bytes read and bytes written together. Both are medians of single launches like every other figure.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polygen.bench.elements import ELEMENTS
from polygen.bench.products import allow, drawn, product, torch_types
from polygen.bench.source import Call

PRODUCTS = ((8192, 8192, 8192), (16384, 8192, 4096))  # M, N, K
COPIED_BYTES = 2 << 30
REPEATS = 15
_WINDOW = 0.25  # seconds over which a rate is taken
_STEADY = 0.01  # part by which the rates of two windows may differ
_MOST = 6.0  # seconds until the clocks count as settled whatever they do


def settle() -> None:
    """Multiply until the clocks have settled: two windows with the same rate, a second at least."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    begin, last = time.monotonic(), 0.0
    while time.monotonic() - begin < _MOST:
        start, count = time.monotonic(), 0
        while time.monotonic() - start < _WINDOW:
            torch.mm(x, x)
            torch.cuda.synchronize()
            count += 1
        rate = count / (time.monotonic() - start)
        if last and time.monotonic() - begin > 1 and abs(rate / last - 1) < _STEADY:
            return
        last = rate


def ceilings(timed: Callable[[Sequence[Call]], list[float]]) -> dict[str, Any]:
    """The card's ceilings.

    Args:
        timed: microseconds of launches.

    Returns:
        "tflops" by type, "copy_gbytes_per_s", and what each was measured with.
    """
    rates: dict[str, float] = {}
    of: dict[str, str] = {}
    kinds = torch_types()
    for name, elements in ELEMENTS.items():
        allow(name, "f32")
        for m, n, k in PRODUCTS:
            x, w = (drawn((rows, k), kinds[name]) for rows in (m, n))
            z = torch.empty(m, n, device="cuda", dtype=kinds[elements.result])
            call = functools.partial(product(name), x, w.t(), out=z)
            try:
                rate = 2 * m * n * k / _median(timed, call) / 1e6
            except RuntimeError:  # a card, or a PyTorch, without products of this type
                break
            if rate > rates.get(name, 0.0):
                rates[name], of[name] = round(rate, 1), f"cuBLAS {m}x{n}x{k}"
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    microseconds = _median(timed, lambda: target.copy_(source))
    return {
        "tflops": rates,
        "tflops_of": of,
        "copy_gbytes_per_s": round(2 * COPIED_BYTES / microseconds / 1e3, 1),
        "copy_of": f"{COPIED_BYTES >> 20} MiB, read and written",
    }


def _median(timed: Callable[[Sequence[Call]], list[float]], call: Call) -> float:
    timed([call] * 3)
    return statistics.median(timed([call] * REPEATS))
