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


def turned(v, c, s):
    """Halves of heads by numbers of their position, as a rotation by angles has them."""
    half = v.shape[-1] // 2
    a, b, c, s = v[..., :half], v[..., half:], c[:, None], s[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def less_most(v, g):
    """What a norm reads, of integers: every row's largest, and a scale of the columns."""
    return v * g - np.max(v * g, axis=-1, keepdims=True)


def front(many, few, size, *, first):
    """Queries, keys and values of one projection, the first two with work on heads."""

    def heads(x, w, g, h, c, s):
        y, (q, k) = x @ w.T, (many * size, (many + few) * size)
        q, k, v = y[:, :q], y[:, q:k], y[:, k:]
        q, k, v = (one.reshape(-1, n, size) for one, n in ((q, many), (k, few), (v, few)))
        each = turned(less_most(q, g), c, s), turned(less_most(k, h), c, s), v
        return tuple(one.swapaxes(0, 1) if first else one for one in each)

    rows = (many + 2 * few) * size
    angles = f"f32[S,{size // 2}]"
    return heads, ("bf16[S,K]", f"bf16[{rows},K]", *[f"bf16[{size}]"] * 2, angles, angles)


def of_three(x, q, k, v, g):
    q, k = ((x @ w.T).reshape(-1, n, 64) for w, n in ((q, 3), (k, 2)))
    return less_most(q, g), k - np.min(k, axis=-1, keepdims=True), x @ v.T + 1


def levels(x, q, k, v):
    """Of two levels, of one, and of none."""
    q, k = x @ q.T, x @ k.T
    q = q - np.max(q, axis=1, keepdims=True)
    return (
        q + np.sum(np.clip(q, -2, 0), axis=1, keepdims=True),
        k * np.max(k, axis=1)[:, None],
        x @ v.T,
    )


def left_in_registers(x, q, k, r, s):
    """Every section leaves a value for the passes behind."""
    q, k = x @ q.T + r, (x @ k.T) * s
    return q - np.max(q, axis=1, keepdims=True), k - np.min(k, axis=1, keepdims=True)


def pair_beside_one(x, a, b, c):
    return np.maximum(x @ a.T, 0) * (x @ b.T), np.maximum(x @ c.T + 1, 0)


THREE = ("bf16[S,K]", "bf16[192,K]", "bf16[128,K]", "bf16[72,K]")
PAIR = ("bf16[S,K]", "bf16[72,K]", "bf16[72,K]", "bf16[112,K]")
HOLDING = ("bf16[S,K]", "bf16[64,K]", "bf16[40,K]", "f32[S,64]", "f32[S,40]")
NARROW = roles("pingpong", "registers", cta=(64, 32), warp=(64, 32))
# name -> (function, signature, schedule); all of integers, and exact
FOLDED = {
    "heads": (*front(3, 2, 64, first=False), NARROW),
    "heads first": (*front(2, 1, 64, first=True), roles(through="registers", cta=(128, 32),
                                                        warp=(64, 32))),
    "as many of each": (*front(2, 2, 32, first=True), NARROW),
    "three weights": (of_three, (*THREE, "bf16[64]"), roles(through="registers")),
    "levels": (levels, (*THREE[:1], "bf16[64,K]", "bf16[48,K]", "bf16[200,K]"), roles()),
    "left in registers": (left_in_registers, HOLDING, roles("pingpong", cta=(64, 64))),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n == "heads" else pytest.param(n, marks=pytest.mark.slow) for n in FOLDED]
)
def test_sections_use_results_of_their_own_rows(name):
    function, signature, schedule = FOLDED[name]
    covering = replace(schedule, epilogue=replace(schedule.epilogue, rows="tile"))
    fused = pg.fuse(function, name="sections")
    kernel = fused.compile(*signature, arch="sm_90a", schedule=covering, out_dtype="f32")
    plan = kernel.passes.plan
    assert (
        len(plan.sections) == len(plan.program.outputs) and kernel.source.count("__global__") == 1
    )
    report = kernel.check({"S": 136, "K": 72})
    assert report.ok and report.comparison == "equal to NumPy, bit for bit", str(report)


def sums_that_leave(x, w, u, v):
    """Folds of rows, of columns and of everything, of some of the sections."""
    a, b, c = x @ w.T, x @ u.T, x @ v.T
    return a, np.max(b, axis=1), np.min(b, axis=0), np.sum(np.clip(c, -1, 1)), c + 1


def rows_behind(x, w, u, v):
    """Of rows of two lengths, which the launch that follows finishes, and of none."""
    a, b = x @ w.T, x @ u.T
    a = a - np.max(a, axis=1, keepdims=True)
    return a + np.min(a, axis=1, keepdims=True), b - np.max(b, axis=1, keepdims=True), x @ v.T


def rows_in_tiles_and_sums(x, w, u, v):
    a, b = x @ w.T, x @ u.T
    return a - np.max(a, axis=1)[:, None], np.max(a, axis=1), np.max(abs(b), axis=0), b, x @ v.T


FOUR = ("bf16[M,K]", "bf16[N,K]", "bf16[P,K]", "bf16[Q,K]")
FOLLOWED = {
    "sums that leave": (sums_that_leave, roles(through="registers"), "after"),
    "rows behind": (rows_behind, roles("pingpong", "registers", cta=(64, 64)), "after"),
    "rows in tiles, and sums": (
        rows_in_tiles_and_sums, roles(through="registers", cta=(128, 128), warp=(64, 128)), "tile",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [n if n == "rows behind" else pytest.param(n, marks=pytest.mark.slow) for n in FOLLOWED],
)
def test_one_launch_follows_the_folds_of_all_sections(name):
    function, schedule, rows = FOLLOWED[name]
    schedule = replace(schedule, epilogue=replace(schedule.epilogue, rows=rows))
    kernel = pg.fuse(function, name="sections").compile(*FOUR, arch="sm_90a", schedule=schedule,
                                                        out_dtype="f32")  # fmt: skip
    assert len(kernel.passes.plan.sections) == 3 and kernel.source.count("__global__") == 2
    report = kernel.check({"M": 136, "N": 72, "P": 104, "Q": 40, "K": 72})
    assert report.ok and report.comparison == "equal to NumPy, bit for bit", str(report)


@pytest.mark.slow
def test_columns_of_a_product_alone_are_cut_beside_a_pair():
    schedule = roles(through="registers")
    kernel = pg.fuse(pair_beside_one).compile(*PAIR, arch="sm_90a", schedule=schedule)
    pair, one = kernel.passes.plan.sections
    assert [len(of.match.products) for of in (pair, one)] == [2, 2] and one.match.n == 56
    findings(kernel, {"S": 136, "K": 72})


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
