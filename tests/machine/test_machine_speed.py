"""How fast the machine runs a generated kernel, with all checks; time is linear in the work."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.schedule.model import CtaTile, Pipeline, Schedule, Tile, WarpTile

SCHEDULE = Schedule(
    name="speed",
    tile=Tile(CtaTile(128, 128, 64), WarpTile(64, 64)),
    pipeline=Pipeline(stages=3, distance=2),
)


@pg.fuse
def up(x, w, b):
    return pg.relu(x @ w.T + b)


@pytest.fixture(scope="module")
def kernel():
    return up.compile("bf16[M,K]", "bf16[N,K]", "f32[N]", arch="sm_80", schedule=SCHEDULE)


def operands(m, n, k):
    random = np.random.default_rng(0)
    x, w = (random.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return x, w, random.integers(-2, 3, n).astype(np.float32)


PATIENCE = 60.0  # seconds to wait for a moment when nothing else runs on the machine


def timed(kernel, size, repeats, limit=float("inf")):
    """(seconds of the fastest run, warp instructions); the run is right and silent.

    Neighbours on a shared machine only ever add time: when `repeats` runs are above `limit`,
    more follow until one is not or patience ends.
    """
    given = operands(*size)
    best, count, start = float("inf"), 0, time.perf_counter()
    while count < repeats or (best > limit and time.perf_counter() < start + PATIENCE):
        begin = time.perf_counter()
        done = kernel.emulation(*given)
        best, count = min(best, time.perf_counter() - begin), count + 1
    x, w, b = (one.astype(np.float32) for one in given)
    assert done.report.ok, str(done.report)
    wanted = np.maximum(x @ w.T + b, 0).astype(ml_dtypes.bfloat16)
    assert np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
    return best, done.report.instructions


@pytest.mark.alone
@pytest.mark.parametrize(
    ("size", "limit", "repeats"),
    [((128, 128, 64), 0.020, 10), ((512, 512, 512), 1.0, 3), ((1024, 1024, 1024), 6.0, 2)],
)
def test_time_with_all_checks(kernel, size, limit, repeats):
    timed(kernel, (128, 128, 64), 1)  # compiles and translates
    seconds, _ = timed(kernel, size, repeats, limit)
    assert seconds <= limit


@pytest.mark.alone
def test_time_is_linear_in_the_instructions(kernel):
    """Twice the blocks or twice the k tiles: as much more time as instructions, not more."""
    timed(kernel, (128, 128, 64), 1)
    small, few = timed(kernel, (512, 512, 512), 3)
    for size in ((1024, 512, 512), (512, 512, 1024)):
        large, many = timed(kernel, size, 3)
        assert many > 1.6 * few
        assert large / many <= 1.5 * small / few
