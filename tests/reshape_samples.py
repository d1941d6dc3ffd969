"""Programs that split and merge axes, and the ways in which kernels store their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import polygen as pg
from polygen.schedule.load import load_schedule, schedules_folder

WAYS = {
    "panels": ("sm_90a", "cooperative_128x64x64_s8_e4p2"),
    "lines": ("sm_90a", "cooperative_128x128x64_w64_s6_lines_exchanged"),
    "registers": ("sm_90a", "pingpong_64x160x64_s6_registers"),
    "staged": ("sm_80", "128x64x64_w64x32_s4"),
    "chosen": ("sm_90a", "auto"),
    "chosen, by warps": ("sm_80", "auto"),
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


def below_most(x: Any, w: Any, b: Any) -> Any:
    """A fold over a head's columns, which are an axis of the product then; and it leaves flat."""
    v = (x @ w.T + b).reshape(-1, 4, 32)
    return (v - np.max(v, axis=-1, keepdims=True)).reshape(-1, 128)


def heads_and_sums(x: Any, w: Any) -> Any:
    v = (x @ w.T).reshape(-1, 4, 32)
    return v.swapaxes(0, 1), np.sum(v, axis=-1)


def most_of_rows(x: Any, w: Any) -> Any:
    return np.max((x @ w.T).reshape(3, 50, -1), axis=1)


def turned_below_most(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    """A fold over whole heads, and elements that read halves: it folds what both have."""
    q = (x @ w.T).reshape(-1, 4, 32)
    q = q - np.max(q, axis=-1, keepdims=True)
    a, b = q[..., :16], q[..., 16:]
    return np.concatenate([a * cos[:, None] - b, b + a * sin[:, None]], axis=-1).swapaxes(0, 1)


def pairs_below_sums(x: Any, w: Any) -> Any:
    """The same of even and odd columns, of a batch's heads."""
    q = np.einsum("sk,hdk->hsd", x, w)
    q = q + np.sum(q, axis=-1, keepdims=True)
    return q[..., ::2] - q[..., 1::2]


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
    "below the most": (below_most, ("bf16[S,K]", "bf16[128,K]", "bf16[128]")),
    "heads and sums": (heads_and_sums, ("bf16[S,K]", "bf16[128,K]")),
    "most of rows": (most_of_rows, ("bf16[150,K]", "bf16[N,K]")),
    "turned below the most": (
        turned_below_most, ("bf16[S,K]", "bf16[128,K]", "f32[S,16]", "f32[S,16]")
    ),
    "pairs below sums": (pairs_below_sums, ("bf16[S,K]", "bf16[3,32,K]")),
    "repeated": (repeated, ("bf16[S,K]", "bf16[128,K]", "f32[S,4]")),
}  # fmt: skip
QUICK = [("heads", "panels"), ("matrices as one", "panels"), ("work on heads", "staged")]
QUICK += [("one matrix of a batch of one", "panels"), ("rotary", "staged")]
FOLDED = ("below the most", "heads and sums", "most of rows", "turned below the most")
FOLDED += ("pairs below sums",)
QUICK += [("heads and sums", "chosen"), ("turned below the most", "chosen, by warps")]
SLOW = [
    ("heads", "lines"), ("heads inside chunks", "lines"), ("heads inside chunks", "registers"),
    ("rows", "registers"), ("of operands", "staged"), ("one axis", "panels"),
    ("some heads", "lines"), ("some heads", "staged"),
    ("scores", "panels"), ("repeated", "registers"), ("an axis of size 1 in front", "staged"),
]  # fmt: skip
SLOW += [
    (name, way)
    for name in FOLDED
    for way in ("chosen", "chosen, by warps")
    if (name, way) not in QUICK
]


def schedule_of(way: str) -> Any:
    """The schedule of a way."""
    arch, name = WAYS[way]
    return name if name == "auto" else load_schedule(schedules_folder() / arch / f"{name}.toml")
