"""Programs that split and merge axes, and the ways in which kernels store their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import polygen as pg

WAYS = {
    "panels": ("sm_90a", "cooperative_128x64x64_s8_e4p2"),
    "lines": ("sm_90a", "cooperative_128x128x64_w64_s6_lines_exchanged"),
    "registers": ("sm_90a", "pingpong_64x160x64_s6_registers"),
    "staged": ("sm_80", "128x64x64_w64x32_s4"),
}
SIZES = {"S": 100, "T": 72, "K": 72, "N": 88}


def heads(count: int, size: int) -> Callable[..., Any]:
    return lambda x, w: (x @ w.T).reshape(x.shape[0], count, size).transpose(1, 0, 2)


def on_heads(x: Any, w: Any, r: Any, s: Any) -> Any:
    v = (x @ w.T).reshape(-1, 4, 32)
    return v * r[:, None] + pg.indices(v)[1] * 8.0 + s.reshape(-1, 4, 32)


def of_operands(x: Any, w: Any, r: Any) -> Any:
    return pg.relu(x.reshape(150, -1) @ w.T + r)


def scores(q: Any, k: Any) -> Any:
    return np.einsum("shd,thd->hst", q.reshape(-1, 2, 64), k.reshape(-1, 2, 64))


def repeated(x: Any, w: Any, s: Any) -> Any:
    return (x @ w.T) * pg.repeat(s, 32, axis=1)


def rotary(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    """Halves of heads, turned: sums of a tile of both halves go into both."""
    q = (x @ w.T).reshape(-1, 4, 32)
    turned = np.concatenate([-q[..., 16:], q[..., :16]], axis=-1)
    return q * cos[:, None] + turned * sin[:, None]


def some_heads(x: Any, w: Any) -> Any:
    return pg.relu((x @ w.T).reshape(-1, 6, 24)[:, 1:6:2, 4:20])


TWO = ("bf16[S,K]", "bf16[N,K]")
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "heads": (heads(4, 64), ("bf16[S,K]", "bf16[256,K]")),
    "heads inside chunks": (heads(6, 24), ("bf16[S,K]", "bf16[144,K]")),
    "work on heads": (on_heads, ("bf16[S,K]", "bf16[128,K]", "f32[4]", "bf16[S,128]")),
    "rows": (lambda x, w: (x @ w.T).reshape(3, 50, -1), ("bf16[150,K]", "bf16[N,K]")),
    "of operands": (of_operands, ("bf16[3,50,K]", "bf16[N,K]", "bf16[150,N]")),
    "matrices as one": (lambda x, w: (x @ w).reshape(150, -1), ("bf16[3,50,K]", "bf16[3,K,N]")),
    "one axis": (lambda x, w: (x @ w.T).reshape(-1), ("bf16[50,K]", "bf16[64,K]")),
    "one matrix of a batch of one": (
        lambda x, w: (x @ w.T).reshape(-1, 24, 40),
        ("bf16[1,3,8,64]", "bf16[40,64]"),
    ),
    "an axis of size 1 in front": (
        lambda x, w: pg.relu(x.reshape(1, 24, 64) @ w.T),
        ("bf16[1,3,8,64]", "bf16[40,64]"),
    ),
    "rotary": (rotary, ("bf16[S,K]", "bf16[128,K]", "f32[S,32]", "f32[S,32]")),
    "some heads": (some_heads, ("bf16[S,K]", "bf16[144,K]")),
    "scores": (scores, ("bf16[S,128]", "bf16[T,128]")),
    "repeated": (repeated, ("bf16[S,K]", "bf16[128,K]", "f32[S,4]")),
}
QUICK = [("heads", "panels"), ("matrices as one", "panels"), ("work on heads", "staged")]
QUICK += [("one matrix of a batch of one", "panels"), ("rotary", "staged")]
SLOW = [
    ("heads", "lines"), ("heads inside chunks", "lines"), ("heads inside chunks", "registers"),
    ("rows", "registers"), ("of operands", "staged"), ("one axis", "panels"),
    ("some heads", "lines"), ("some heads", "staged"),
    ("scores", "panels"), ("repeated", "registers"), ("an axis of size 1 in front", "staged"),
]  # fmt: skip
