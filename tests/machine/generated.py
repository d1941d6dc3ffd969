"""Two kernels that polygen generates, with schedules of their own: material for seeded faults."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

import polygen as pg
from polygen.check import launch_of
from polygen.kernel import Kernel
from polygen.machine import Report, run
from polygen.schedule.model import (
    CtaTile,
    Epilogue,
    Pipeline,
    Schedule,
    Tile,
    WarpTile,
)

SCHEDULE = Schedule(
    name="seeded",
    tile=Tile(cta=CtaTile(m=32, n=64, k=32), warp=WarpTile(m=16, n=32)),
    pipeline=Pipeline(
        stages=3,
        distance=2,
        order=("mma", "copy"),
        fragments=2,
        lookahead=1,
        copies="whole",
        across=True,
    ),
)


@pg.fuse
def nt(x, w, b):
    return pg.relu(x @ w.T + b)


@pg.fuse
def nn(x, w, r):
    return x @ w + r


@cache
def kernel(name: str) -> Kernel:
    """``nt``: bf16, bias and relu, results through shared memory; ``nn``: f16, from registers."""
    sizes = {"M": 72, "N": 72, "K": 168}
    if name == "nt":
        return nt.compile(
            "bf16[M,K]", "bf16[N,K]", "f32[N]", arch="sm_80", sizes=sizes, schedule=SCHEDULE
        )
    direct = replace(SCHEDULE, epilogue=Epilogue(through="registers"))
    return nn.compile(
        "f16[M,K]",
        "f16[K,N]",
        "f32[M,N]",
        arch="sm_80",
        sizes=sizes,
        schedule=direct,
        out_dtype="f32",
    )


def edited(text: str, edits: list[tuple]) -> str:
    """Text with replacements: (old, new), or with how many of them; -1 is the last one alone."""
    for old, new, *which in edits:
        assert old in text, f"the generated code has no {old!r}"
        if which == [-1]:
            head, _, tail = text.rpartition(old)
            text = head + new + tail
        else:
            text = text.replace(old, new, which[0] if which else -1)
    return text


def execute(
    name: str, ptx: str, m: int = 40, n: int = 72, k: int = 168, **options
) -> tuple[Report, bool]:
    """Run PTX in the place of a kernel's own; the report, and whether the values are right."""
    made = kernel(name)
    random = np.random.default_rng(m + n + k)
    program = made.program
    shapes = {"nt": ((m, k), (n, k), (n,)), "nn": ((m, k), (k, n), (m, n))}[name]
    x, w, b = (
        random.integers(-4, 5, shape).astype(np.float32).astype(tensor.dtype.numpy)
        for shape, tensor in zip(shapes, program.inputs, strict=True)
    )
    report = run(ptx, launch_of(program, made.passes.source, (x, w, b)), **options)
    product = x.astype(np.float32) @ (
        w.astype(np.float32).T if name == "nt" else w.astype(np.float32)
    )
    wanted = np.maximum(product + b, 0) if name == "nt" else product + b
    result = report.arrays[-1]
    return report, np.array_equal(result, wanted.astype(result.dtype), equal_nan=False)
