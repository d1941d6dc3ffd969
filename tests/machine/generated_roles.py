"""Kernels with roles that polygen generates for sm_90a: material for broken barriers and faults.

Tiles are small, and few persistent blocks run, so that every block has several tiles and its ring
goes round several times.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

import polygen as pg
from polygen.check import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.machine import Report
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.small_problem import few_blocks, trial_operands


@pg.fuse
def activated(x, w, b):
    return pg.relu(x @ w.T + b)


@pg.fuse
def gated(x, w, r, g):
    return (x @ w.T + r) * g


@pg.fuse
def turned(x, w, r):
    return x @ w + r


def _schedule(
    cta: tuple[int, int, int], warp: tuple[int, int], form: str, cluster: Cluster
) -> Schedule:
    return Schedule(
        name="seeded",
        device="sm_90a",
        tile=Tile(CtaTile(*cta), WarpTile(*warp)),
        roles=Roles(form),
        pipeline=Pipeline(stages=3, in_flight=1),
        epilogue=Epilogue("tma", 2, 2),
        cluster=cluster,
    )


# name -> (program, types, type of the result, schedule, sizes of a run: m, n, k)
KERNELS = {
    "cooperative": (
        activated,
        ("bf16[M,K]", "bf16[N,K]", "f32[N]"),
        "bf16",
        _schedule((128, 64, 64), (64, 64), "cooperative", Cluster()),
        (136, 136, 264),
    ),
    "cluster": (
        activated,
        ("bf16[M,K]", "bf16[N,K]", "f32[N]"),
        "bf16",
        _schedule((128, 64, 64), (64, 64), "cooperative", Cluster(2, 1)),
        (264, 136, 264),
    ),
    "shared": (
        activated,
        ("bf16[M,K]", "bf16[N,K]", "f32[N]"),
        "bf16",
        _schedule((128, 64, 64), (64, 64), "cooperative", Cluster(k=2)),
        (264, 136, 584),
    ),
    "pingpong": (
        gated,
        ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]", "bf16[M,N]"),
        "bf16",
        _schedule((64, 64, 64), (64, 64), "pingpong", Cluster()),
        (136, 136, 264),
    ),
    "residual": (
        turned,
        ("f16[M,K]", "f16[K,N]", "f32[M,N]"),
        "f32",
        _schedule((128, 128, 64), (64, 128), "cooperative", Cluster()),
        (264, 136, 264),
    ),
}


@cache
def role_kernel(name: str) -> Kernel:
    """``cooperative``: two consumers share a tile; bias and relu, results in panels.

    ``cluster``: the same, and two blocks share tiles of the right operand. ``shared``: the same,
    and two blocks share the sums of a tile. ``pingpong``: consumers
    take turns at tiles; two operands in panels. ``residual``: two consumers share a tile; the right
    operand with n innermost, two f32 panels per tile.
    """
    program, types, result, schedule, (m, n, k) = KERNELS[name]
    sizes = {"M": m, "N": n, "K": k}
    return program.compile(*types, arch="sm_90a", sizes=sizes, schedule=schedule, out_dtype=result)


def role_execute(name: str, ptx: str, *size: int, room: int = 0, **options) -> tuple[Report, bool]:
    """Run PTX in the place of a kernel's own.

    Args:
        name: of `KERNELS`.
        ptx: what to run.
        size: m, n, k; others than the kernel's own.
        room: more bytes of shared memory.
        options: for the machine.

    Returns:
        The report, and whether the values are right.
    """
    made = role_kernel(name)
    program, sizes = made.program, dict(zip("MNK", size or KERNELS[name][-1], strict=True))
    operands = trial_operands(program, sizes, 1)
    arrays = {t.name: array for t, array in zip(program.inputs, operands, strict=True)}
    (wanted,) = evaluate(program, arrays, sizes)
    source = few_blocks(made.passes.source)
    launch = replace(source.launch, shared_bytes=source.launch.shared_bytes + room)
    done = emulate(program, replace(source, launch=launch), ptx, operands, **options)
    return done.report, np.array_equal(done.results, wanted, equal_nan=False)
