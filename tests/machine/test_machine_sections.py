"""Products over output domains of their own in one kernel, on the PTX machine.

Few blocks work through tiles of all sections; rings, panels, turns and clusters go on from one
section's tile to the next one's. The machine finds races, early waits and what is read or written
outside of arrays; results are compared with NumPy's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
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


def roles(
    form="cooperative", through="tma", cluster=None, cta=(128, 64), warp=(64, 64), registers=40
):
    return Schedule(
        name="sections",
        device="sm_90a",
        tile=Tile(CtaTile(*cta, 64), WarpTile(*warp)),
        roles=Roles(form, registers, 200),
        pipeline=Pipeline(stages=3, in_flight=1),
        epilogue=Epilogue(through, 2, 2),
        cluster=cluster or Cluster(),
    )


def heads(x, q, k, v, b):
    return x @ q.T + b, pg.gelu(x @ k.T), x @ v.T


def residuals(x, w, u, r, s):
    return x @ w.T + r, pg.maximum(x @ u.T, 0) * s


def transposed(x, w, u):
    return (x * 2) @ w, (x * 2) @ u


def beside(x, w, u, b):
    return pg.maximum(x @ np.concatenate([w, u]).T + b, 0)


def rotated(x, w, c, s):
    left, right = np.split(x @ w.T, 2, axis=-1)
    return np.concatenate([left * c - right * s, right * c + left * s], axis=-1)


def gated(x, a, b, c, d):
    return pg.maximum(x @ a.T, 0) * (x @ b.T), (x @ c.T) * (x @ d.T)


HEADS = ("bf16[M,K]", "bf16[N,K]", "bf16[P,K]", "bf16[P,K]", "f32[N]")
RESIDUALS = ("bf16[M,K]", "bf16[N,K]", "bf16[P,K]", "bf16[M,N]", "bf16[M,P]")
# name -> (function, signature, schedule, sizes of a run)
KERNELS = {
    "in turns": (residuals, RESIDUALS, roles("pingpong", cta=(64, 64)), (136, 200, 72, 200)),
    "in clusters": (heads, HEADS, roles(cluster=Cluster(2, 1)), (264, 72, 136, 200)),
    "operands exchanged": (
        heads, HEADS,
        replace(roles(through="registers", cta=(64, 16), warp=(64, 16)), exchange=True),
        (24, 136, 72, 200),
    ),
    "line by line": (residuals, RESIDUALS, roles(through="lines"), (136, 72, 80, 200)),
    "from registers": (gated, (*HEADS[:2], *HEADS[1:3], HEADS[2]),
                       roles(through="registers"), (136, 136, 72, 200)),
    "computed operands": (
        transposed, ("bf16[M,K]", "bf16[K,N]", "bf16[K,P]"), roles(registers=104),
        (136, 72, 136, 136),
    ),
}  # fmt: skip
FAST = ()


def slowly(names):
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


def findings(kernel, sizes):
    report = kernel.check(sizes)
    assert not report.findings, str(report)


@pytest.mark.parametrize("name", slowly(KERNELS))
def test_tiles_of_all_sections_are_right(name):
    function, signature, schedule, extents = KERNELS[name]
    kernel = pg.fuse(function).compile(*signature, arch="sm_90a", schedule=schedule)
    assert len(kernel.passes.plan.sections) == len(kernel.program.outputs)
    findings(kernel, dict(zip("MNPK", extents, strict=True)))


@pytest.mark.parametrize(
    ("function", "signature", "schedule", "count"),
    [
        (beside, ("bf16[M,K]", "bf16[72,K]", "bf16[24,K]", "f32[96]"), roles(), 2),
        pytest.param(
            rotated,
            ("bf16[M,K]", "bf16[64,K]", "f32[M,32]", "f32[M,32]"),
            roles(through="lines", cta=(64, 32), warp=(64, 32)),
            0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_several_write_one_output(function, signature, schedule, count):
    kernel = pg.fuse(function).compile(*signature, arch="sm_90a", schedule=schedule)
    assert len(kernel.passes.plan.sections) == count
    findings(kernel, {"M": 136, "K": 72})


@pytest.mark.slow
def test_sections_have_batches_and_sums_of_their_own():
    signature = ("bf16[B,M,K]", "bf16[N,K]", "bf16[Q,L]", "bf16[P,L]")
    kernel = pg.fuse(lambda x, w, y, u: (x @ w.T, pg.maximum(y @ u.T, 0))).compile(
        *signature, arch="sm_90a", schedule=roles("pingpong", cta=(64, 64))
    )
    findings(kernel, {"B": 3, "M": 72, "K": 72, "N": 136, "Q": 136, "L": 328, "P": 72})
