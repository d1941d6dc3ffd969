"""A generated kernel of every kind, each with a small problem: material for seeded faults.

Kinds differ in what blocks and threads do for each other: persistent blocks that walk a triangle,
sums that are promoted, blocks of a cluster that send each other parts of rows, rows that are stored
by number, boxes of pixels, sums that go on with those of another product, keys in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from chain_samples import few_rows
from matrix import roles
from rest_samples import form, low_rank, signature

import polygen as pg
from polygen.emulated import Emulation, emulate
from polygen.kernel import Kernel
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import (
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.small_problem import few_blocks, trial_operands


@dataclass(frozen=True)
class Kind:
    """A program, its types, how it is scheduled, and the sizes of its runs."""

    function: Callable[..., Any]
    types: tuple[str, ...]
    schedule: Schedule | str
    sizes: dict[str, int]
    arch: str = "sm_90a"
    result: str | None = None


def _shipped(name: str, **fields: Any) -> Schedule:
    return replace(load_schedule(schedules_folder() / "sm_90a" / f"{name}.toml"), **fields)


def _tile(m: int, n: int, k: int) -> Tile:
    return Tile(CtaTile(m, n, k), WarpTile(64, 64))


def _triangle(x, w):
    return np.tril(x @ w)


def _scaled(x, sx, w, sw):
    both = pg.repeat(pg.repeat(sw, 32, axis=0), 128, axis=1)
    return (x * pg.repeat(sx, 128, axis=1)) @ (w * both).T


def _rows(x, w):
    v = x @ w.T
    u = v - np.max(v, axis=1, keepdims=True)
    return u + np.min(abs(u), axis=1, keepdims=True), np.max(v, axis=1), v


def _scattered(x, w, rows, out):
    out[rows] = pg.relu(x @ w.T)
    return out


def _pixels(x, w):
    """Every second pixel."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))[:, ::2, ::2]
    return pg.einsum("npqcrs,krsc->npqk", windows, w)


def _attention(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


_RING = Pipeline(stages=3, in_flight=1)
_WALK = Schedule(
    "triangle", "sm_90a", tile=_tile(64, 64, 64), roles=Roles("cooperative"),
    pipeline=_RING, epilogue=Epilogue("tma", 2, 2), raster=Raster("m", 2),
)  # fmt: skip
_BESIDE = roles("one", through="registers", cluster=(1, 2))
_STORED = ("bf16[T,K]", "bf16[N,K]", "s32[T]", "f32[S,N]")

KINDS = {
    "a triangle that persistent blocks walk": Kind(
        _triangle, ("bf16[M,K]", "bf16[K,N]"), _WALK, {"M": 136, "N": 136, "K": 264}
    ),
    "scaled eight-bit floats with promoted sums": Kind(
        _scaled, ("e4m3[M,1024]", "f32[M,8]", "e4m3[64,1024]", "f32[2,8]"),
        _shipped("cooperative_64x64x64", tile=_tile(64, 64, 128), pipeline=_RING), {"M": 397},
        result="f32",
    ),
    "rows that the blocks of a cluster share": Kind(
        _rows, ("bf16[M,K]", "bf16[N,K]"),
        replace(_BESIDE, epilogue=replace(_BESIDE.epilogue, rows="tile")),
        {"M": 328, "N": 120, "K": 264},
    ),
    "rows that are stored by number": Kind(
        _scattered, _STORED, "auto", {"S": 300, "T": 100, "N": 40, "K": 776}
    ),
    "rows that are stored by number, sm_80": Kind(
        _scattered, _STORED, "auto", {"S": 300, "T": 100, "N": 40, "K": 776}, "sm_80"
    ),
    "boxes of pixels with strides": Kind(
        _pixels, ("f16[20,8,6,64]", "f16[64,2,2,64]"),
        _shipped(
            "cooperative_128x64x64", tile=replace(_tile(128, 64, 64), pixels=(4, 4, 8)),
            pipeline=replace(_RING, stages=2),
        ),
        {},
    ),
    "sums that go on with those of another product": Kind(
        low_rank, signature(8), form(), {"M": 200, "N": 392, "K": 72}
    ),
    "attention with its keys in parts": Kind(
        _attention, ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]"), few_rows(256), {"S": 70, "T": 700}
    ),
}  # fmt: skip


@cache
def kind(name: str) -> Kernel:
    """The kernel of a kind."""
    one = KINDS[name]
    return pg.fuse(one.function, name="k").compile(
        *one.types, arch=one.arch, sizes=one.sizes, schedule=one.schedule, out_dtype=one.result
    )


@cache
def _operands(name: str) -> tuple[Any, ...]:
    return trial_operands(kind(name).program, KINDS[name].sizes, 1)


def execute_kind(name: str, ptx: str, **options: Any) -> Emulation:
    """Run PTX in the place of a kernel's own, with few persistent blocks."""
    made = kind(name)
    source = few_blocks(made.passes.source)
    return emulate(made.program, source, ptx, _operands(name), **options)
