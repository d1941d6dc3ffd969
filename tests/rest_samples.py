"""Products that go on with the sums of another: arrays, schedules and runs on the PTX machine."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

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


def low_rank(x, w, a, b):
    return x @ w.T + (x @ a.T) @ b.T


def signature(rank: int, dtype: str = "bf16") -> tuple[str, ...]:
    """Of `low_rank`."""
    shapes = ("[M,K]", "[N,K]", f"[{rank},K]", f"[N,{rank}]")
    return tuple(dtype + shape for shape in shapes)


def form(name: str = "cooperative", run: int = 1) -> Schedule:
    """A small schedule: "cooperative", "by columns", "pingpong", "three in turns", "cluster" or
    "registers".
    """
    turns = {"pingpong": 2, "three in turns": 3}.get(name, 0)
    columns = 64 if turns > 2 else 128
    tiles = {
        "by columns": (CtaTile(64, 2 * columns, 64), WarpTile(64, columns)),
    }
    rows = 64 if turns else 128
    cta, warp = tiles.get(name, (CtaTile(rows, columns, 64), WarpTile(64, columns)))
    plain = Roles("cooperative", 40, 232)
    roles = {0: plain, 2: replace(plain, form="pingpong"), 3: Roles("pingpong", 24, 152, turns=3)}
    return Schedule(
        "small",
        "sm_90a",
        tile=Tile(cta, warp),
        pipeline=Pipeline(stages=2, in_flight=1),
        roles=roles[turns],
        epilogue=Epilogue("registers" if name == "registers" else "tma", slots=2, prefetch=1),
        cluster=Cluster(2, 1) if name == "cluster" else Cluster(),
        raster=Raster(run=run),
    )


def whole_numbers(
    seed: int, rank: int, rows: int, columns: int, depth: int, dtype: object = ml_dtypes.bfloat16
) -> list[np.ndarray]:
    """Arguments of `low_rank` whose products are exact: what is between is at most 256."""
    rng = np.random.default_rng(seed)
    shapes = ((rows, depth), (columns, depth), (rank, depth), (columns, rank))
    found = [rng.integers(-2, 3, shape) for shape in shapes]
    found[2] *= rng.random(shapes[2]) < 0.2
    return [array.astype(dtype) for array in found]


def wanted(arrays: list[np.ndarray], scale: float = 1.0) -> np.ndarray:
    """What `low_rank` gives with the further terms times a power of two."""
    x, w, a, b = (array.astype(np.float64) for array in arrays)
    kind = arrays[0].dtype
    between = (scale * (x @ a.T)).astype(kind).astype(np.float64)
    return (x @ w.T + between @ b.T).astype(kind)
