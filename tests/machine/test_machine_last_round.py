"""Tiles of the last round, whose sums blocks share, on the PTX machine: exact, each tile once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from machine.conftest import ptx_of

import polygen as pg
from polygen.check import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.poly.last_round import LastRound
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

CLUSTERS = 2  # that run at once on the machine


def roles(
    cta: tuple[int, int, int] = (64, 64, 64),
    warp: tuple[int, int] = (64, 64),
    k: int = 2,
    columns: int = 16,
    **more: object,
) -> Schedule:
    return Schedule(
        name="last_round",
        device="sm_90a",
        tile=Tile(CtaTile(*cta), WarpTile(*warp)),
        roles=Roles("cooperative"),
        pipeline=Pipeline(stages=3, in_flight=1),
        epilogue=Epilogue(str(more.pop("through", "tma")), 2, 2, int(more.pop("panel", 0))),
        cluster=Cluster(k=k, share="last", columns=columns),
        raster=Raster("m", 2),
        **more,
    )


def layer(x, w, b, r):
    """Not linear: what is stored of a tile before its sum is complete would be wrong."""
    return pg.relu(x @ w.T + b) * r


def pair(x, u, v):
    return pg.relu(x @ u.T) * (x @ v.T)


LAYER = (layer, ("bf16[M,K]", "bf16[N,K]", "f32[N]", "bf16[M,N]"))
PAIR = (pair, ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]"))
BATCHES = (lambda x, w: x @ w.mT, ("bf16[B,M,K]", "bf16[B,N,K]"))
# k in whole tiles and parts of one, fewer k tiles than blocks, an odd number of them
DEPTHS = (200, 64, 320)
CASES = {
    "two blocks": (LAYER, roles()),
    "at once": (LAYER, roles(columns=0, through="lines")),
    "two consumers": (LAYER, roles((128, 128, 64), (64, 128), columns=32, panel=32)),
    "two instructions": (LAYER, roles((128, 64, 64), (128, 64), through="lines")),
    "four blocks": (LAYER, roles(k=4)),
    "a pair": (PAIR, roles()),
    "batches": (BATCHES, roles(columns=8)),
    "exchanged": (LAYER, roles(exchange=True, through="lines")),
}
SLOW = [pytest.mark.slow, pytest.mark.sample(2)]


@cache
def kernel(name: str) -> Kernel:
    (function, signature), schedule = CASES[name]
    sizes = {"M": 128, "N": 128, "K": 200} | ({"B": 2} if name == "batches" else {})
    return pg.fuse(function).compile(*signature, arch="sm_90a", sizes=sizes, schedule=schedule)


def few(made: Kernel, text: str | None = None):
    source = made.passes.source
    blocks = CLUSTERS * made.passes.plan.launch.blocks
    launch = replace(source.launch, persistent=blocks)
    return replace(source, launch=launch, text=text or source.text)


def run(made: Kernel, tiles: int, depth: int, text: str | None = None) -> tuple[bool, object]:
    """Whether a product of so many tiles is right; the last tile ends before its edge."""
    rows, columns, _ = made.passes.plan.tiles.cta
    side = 2 if tiles % 2 == 0 else 1
    sizes = {"M": rows * side, "N": columns * (tiles // side) - 8, "K": depth, "B": 1}
    if made.schedule.exchange:
        sizes |= {"N": rows * side, "M": columns * (tiles // side) - 8}
    random = np.random.default_rng((tiles, depth))
    given = []
    for tensor in made.program.inputs:
        shape = tuple(sizes[str(dim)] for dim in tensor.dims)
        integers = random.integers(-2, 3, shape).astype(np.float32)
        given.append(integers.astype(tensor.dtype.numpy))
    arrays = {t.name: a for t, a in zip(made.program.inputs, given, strict=True)}
    (wanted,) = evaluate(made.program, arrays, sizes)
    source = few(made, text)
    ptx = made.ptx if text is None else ptx_of(source)
    done = emulate(made.program, source, ptx, tuple(given))
    right = np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
    return right, done.report


# Tiles, how many items are blocks' own, and how many tiles are shared, with 2 clusters of 2 blocks.
TAILS = {
    "no tail": (4, 2, 0),
    "one tile": (5, 2, 1),
    "half a round": (6, 2, 2),
    "more than half": (7, 3, 1),
    "two rounds and one": (9, 4, 1),
    "less than a round": (2, 0, 2),
    "one alone": (1, 0, 1),
}


@pytest.mark.parametrize("tail", TAILS)
def test_every_tail_is_exact(tail):
    tiles, own, shared = TAILS[tail]
    of = LastRound(2)
    chosen = of.choose(tiles, min(CLUSTERS, tiles))
    assert (chosen, tiles - 2 * chosen) == (own, shared)
    right, report = run(kernel("two blocks"), tiles, DEPTHS[tiles % 3])
    assert not report.findings, report
    assert right


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        pytest.param(name, tiles, marks=SLOW)
        for name in CASES
        for tiles in ((5, 7) if name != "four blocks" else (3, 9, 12))
        if name != "two blocks"
    ],
)
def test_shared_tiles_are_exact_in_every_form(name, tiles):
    right, report = run(kernel(name), tiles, DEPTHS[tiles % 3])
    assert not report.findings, report
    assert right
