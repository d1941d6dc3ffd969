"""Kernels whose consumers compute fragments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import polygen as pg
from polygen.lower.plan import KernelPlan
from polygen.schedule.load import load_schedule, schedules_folder


@cache
def computed() -> KernelPlan:
    """Numbers of four bits with scales by group and by row, whose sums two blocks share."""
    name = "cooperative_128x16x128_w64_s5_k2_registers_f4_exchanged_made.toml"
    schedule = load_schedule(schedules_folder() / "sm_90a" / name)

    def function(x, q, s, r):
        weights = pg.unpack(q, "i4").astype("bf16") * pg.repeat(s, 32, axis=1)
        return x @ (weights * r[:, None]).T

    types = ("bf16[M,512]", "u8[N,256]", "bf16[N,16]", "f32[N]")
    return pg.fuse(function).compile(*types, arch="sm_90a", schedule=schedule).passes.plan


@cache
def loaded() -> KernelPlan:
    """Elements of 16 bits, which are loaded as fragments, and a vector along k."""
    return _of_rows(lambda x, g, w: (np.tanh(x) * g) @ w.T)


@cache
def scaled() -> KernelPlan:
    """The same, computed in pairs, of zeros where the vector has no more numbers."""
    return _of_rows(lambda x, g, w: (x * g) @ w.T)


def _of_rows(function: Callable[..., Any]) -> KernelPlan:
    name = "cooperative_128x256x64_f4_g2_made.toml"
    schedule = load_schedule(schedules_folder() / "sm_90a" / name)
    types = ("bf16[M,K]", "bf16[K]", "bf16[N,K]")
    return pg.fuse(function).compile(*types, arch="sm_90a", schedule=schedule).passes.plan


@cache
def paired(kind: str = "s8") -> KernelPlan:
    """Numbers of few bits with scales of the operand's type by group, computed in pairs."""
    name = "cooperative_128x16x128_w64_s5_k2_registers_f4_exchanged_made.toml"
    schedule = load_schedule(schedules_folder() / "sm_90a" / name)
    types = ("bf16[M,384]", f"{kind}[N,384]", "bf16[N,12]")
    function = pg.fuse(lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 32, axis=1)).T)
    return function.compile(*types, arch="sm_90a", schedule=schedule).passes.plan
