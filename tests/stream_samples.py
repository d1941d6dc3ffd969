"""Programs of which a kernel folds elements, and multiplies nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import polygen as pg
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.schedule.load import shipped

STREAMS = {one.name: one for one in shipped("sm_80") if one.of_elements}
OF_ROWS = [name for name, one in STREAMS.items() if one.tile.warp.m == one.read_together[0]]
SIZES = {"M": 300, "N": 70, "B": 3}

# What is folded is added to a product of others.
COLUMNS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "columns": (lambda a, b, x: a @ b + x.sum(0) + x.var(0), ("bf16[M,N]",)),
    "columns of f32": (lambda a, b, x: a @ b + x.mean(0) + x.std(0), ("f32[M,N]",)),
    "columns of f64": (lambda a, b, x: a @ b + x.mean(0) + x.var(0), ("f64[M,N]",)),
    "columns of bytes": (lambda a, b, x: a @ b + np.max(x.astype("f32"), 0), ("s8[M,N]",)),
    "exponentials": (lambda a, b, x: a @ b + pg.logsumexp(x, axis=0), ("f16[M,N]",)),
    "of which the index": (lambda a, b, x: (a @ b) * np.argmax(x, axis=0), ("bf16[M,N]",)),
    "all": (lambda a, b, x: a @ b + np.abs(x).max(), ("bf16[M,N]",)),
    "all about their mean": (lambda a, b, x: a @ b + x.var(), ("f32[M,N]",)),
    "of two, with a vector": (
        lambda a, b, x, y, z: a @ b + ((x - y) * z).sum(0), ("bf16[M,N]", "f32[M,N]", "f32[N]"),
    ),
    "of matrices": (lambda a, b, x: a @ b + x.sum((0, 1)), ("bf16[B,M,N]",)),
    "stored by columns": (lambda a, b, x: a @ b + x.mean(0), ("bf16[M,N]:col",)),
}  # fmt: skip
ROWS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "rows": (lambda a, b, x: a @ b + x.sum(1) + x.var(1), ("bf16[M,N]",)),
    "exponentials of rows": (lambda a, b, x: a @ b + pg.logsumexp(x, axis=1), ("f32[M,N]",)),
    "of which the index": (lambda a, b, x: (a @ b) * np.argmin(x, axis=1), ("f32[M,N]",)),
}


@cache
def alone(name: str, *, rows: bool = False) -> tuple[Any, dict[str, int]]:
    """The program of the kernel that folds, and its sizes."""
    function, own = (ROWS if rows else COLUMNS)[name]
    kind = "f64" if "f64" in own[0] else "f16"
    signature = (f"{kind}[4,8]", f"{kind}[8,{'M' if rows else 'N'}]", *own)
    sizes = {dim: size for dim, size in SIZES.items() if any(dim in one for one in signature)}
    found = pg.fuse(function, name="f").compile(*signature, arch="sm_80", sizes=sizes)
    (folding,) = (one for one in found.kernels if one.schedule.of_elements)
    return folding.program, {dim: sizes[dim] for dim in folding.program.sizes}


def streamed(name: str, schedule: str, *, rows: bool = False) -> Kernel:
    """That kernel, by a schedule for it."""
    program, sizes = alone(name, rows=rows)
    few = replace(STREAMS[schedule], min_blocks=2)  # room for doubles
    return Kernel(program, device("sm_80"), sizes, few)
