"""Chains of products on the PTX machine: arrays, runs, and the schedules of few rows."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

import polygen as pg
from polygen.frontend.evaluate import reference
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

bf16 = ml_dtypes.bfloat16


def arrays_of(seed: int, *shapes: tuple[int, ...], dtype=bf16) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def run(
    function: Callable,
    signature: tuple[str, ...],
    arrays: list,
    *,
    tolerance: float = 0.02,
    schedule: Schedule | str = "auto",
    arch: str = "sm_90a",
):
    """The kernel's results and the function's, in float64; no findings, and near each other."""
    kernel = pg.fuse(function).compile(*signature, arch=arch, schedule=schedule)
    done = kernel.emulation(*arrays)
    assert done.report.findings == ()
    found = done.results if isinstance(done.results, tuple) else (done.results,)
    with np.errstate(all="ignore"):
        wanted = reference(function, arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(found, wanted, strict=True):
        known = np.isfinite(other)
        if not known.any():  # nothing but masks, or infinite scores in every row
            values = one.astype(np.float64)
            assert not values.any() or np.isnan(values).all()
            continue
        assert np.isfinite(one.astype(np.float64)[known]).all()
        worst = np.abs(one.astype(np.float64)[known] - other[known]).max()
        assert worst <= tolerance * max(1.0, np.abs(other[known]).max()), worst
    return found, wanted


def few_rows(part: int = 0, keys: int = 64, columns: int = 64, rows: int = 64) -> Schedule:
    """A schedule of one consumer, two blocks to a multiprocessor, its keys in parts."""
    return Schedule(
        "few_rows",
        "sm_90a",
        tile=Tile(CtaTile(rows, columns, keys), WarpTile(64, columns), part),
        pipeline=Pipeline(stages=2, in_flight=1),
        roles=Roles("cooperative", 24, 232),
        epilogue=Epilogue("registers", prefetch=1),
        raster=Raster("m", 1),
        min_blocks=2,
    )


def by_warps(
    warps: int = 4, rows: int = 16, keys: int = 64, columns: int = 64, part: int = 0, **more
) -> Schedule:
    """A schedule without roles; `more`: of its pipeline."""
    pipeline = {
        "stages": 2,
        "distance": 1,
        "order": ("copy", "mma"),
        "fragments": 2,
        "lookahead": 1,
    }
    return Schedule(
        "by_warps",
        "sm_80",
        tile=Tile(CtaTile(warps * rows, columns, keys), WarpTile(rows, columns), part),
        pipeline=Pipeline(**(pipeline | more)),
        epilogue=Epilogue("registers"),
        raster=Raster("m", 1),
    )
