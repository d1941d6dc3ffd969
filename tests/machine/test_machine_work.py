"""What the machine does for a generated kernel, with all checks, is linear in the work.

How fast that is, is for `polygen.bench.host` to say.
"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.schedule.model import CtaTile, Pipeline, Schedule, Tile, WarpTile

SCHEDULE = Schedule(
    name="work",
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


def counted(kernel, *size):
    """(functions of Python entered, warp instructions); the run is right and silent."""
    given, entered = operands(*size), [0]

    def count(frame, event, argument):
        entered[0] += event == "call"

    sys.setprofile(count)
    try:
        done = kernel.emulation(*given)
    finally:
        sys.setprofile(None)
    x, w, b = (one.astype(np.float32) for one in given)
    assert done.report.ok, str(done.report)
    wanted = np.maximum(x @ w.T + b, 0).astype(ml_dtypes.bfloat16)
    assert np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
    return entered[0], done.report.instructions


def test_the_work_is_linear_in_the_instructions(kernel):
    """Twice the blocks or twice the k tiles: as much more to do as instructions, not more."""
    counted(kernel, 128, 128, 64)  # compiles and translates
    small, few = counted(kernel, 512, 256, 256)
    for size in ((1024, 256, 256), (512, 256, 512)):
        large, many = counted(kernel, *size)
        assert 1.4 * few < many <= 2 * few
        assert large / many <= 1.1 * small / few, (small, few, large, many)
