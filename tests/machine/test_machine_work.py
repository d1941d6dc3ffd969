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


@pytest.mark.parametrize(
    "sizes",
    [
        ((256, 256, 256), (512, 256, 256), (1024, 256, 256)),
        ((256, 256, 256), (256, 256, 512), (256, 256, 1024)),
    ],
    ids=["blocks", "k tiles"],
)
def test_the_work_is_linear_in_the_instructions(kernel, sizes):
    """Twice and four times the blocks, or the k tiles: the second step costs what the first did.

    What a run costs whatever its size drops out. So does translating, which is not counted: which
    forms of a basic block a run needs, for all lanes or for some, depends on its sizes, and each is
    translated once and kept.
    """
    counts = []
    for size in sizes:
        counted(kernel, *size)  # compiles and translates
        counts.append(counted(kernel, *size))
    (small, few), (middle, some), (large, many) = counts
    assert 1.3 * few < some <= 2 * few
    assert 1.4 * some < many <= 2 * some
    step = max(middle - small, 0) / (some - few)
    assert large <= 1.02 * (middle + step * (many - some)), counts
