"""Which kernels the automatic choice lets cover rows: tiles, clusters of them, or none."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.covering import _functions
from polygen.decision import decision
from polygen.hardware.device import device
from polygen.lower.cover import covering
from polygen.poly.folds import split_folds

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]")


@pg.fuse
def norm(x, w, b):
    return pg.layer_norm(x @ w.T + b).astype("bf16")


def sizes(m: int, n: int, k: int) -> dict[str, int]:
    return {"M": m, "N": n, "K": k}


LONG = sizes(8192, 2048, 2048)


def test_clusters_cover_rows_that_no_tile_covers():
    """The origin says what was compared."""
    schedule, origin = decision(norm.program(*SIGNATURE), device("sm_90a"), LONG)
    assert (schedule.epilogue.rows, schedule.cluster.n) == ("tile", 8)
    found = re.search(
        r"clusters cover rows of 2048 elements: (\d+) us predicted, (\d+) with a launch for the",
        origin,
    )
    assert found is not None and int(found[1]) < int(found[2])


def test_as_many_blocks_as_share_an_operands_tile():
    """A power of two, whatever the rows; more than a cluster may have, and the schedule's own."""
    own = roles("two")
    assert own.tile.cta.n == 64
    found = {row: covering(own, row).cluster.n for row in (64, 65, 130, 257, 512, 513)}
    assert found == {64: 1, 65: 2, 130: 4, 257: 8, 512: 8, 513: 1}


@pytest.mark.slow
def test_clusters_that_are_chosen_compile():
    """Nothing is left to a launch behind them."""
    kernel = norm.compile(*SIGNATURE, arch="sm_90a", sizes=LONG)
    assert kernel.schedule.cluster.n == 8 and kernel.workspace(LONG) == 0
    assert kernel.resources.spill_store_bytes == kernel.resources.stack_bytes == 0
    told = kernel.show("cost")
    assert "the blocks of a cluster cover rows: they meet 2 time(s) a tile" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "arch"),
    [
        (sizes(256, 1024, 1024), "sm_90a"),  # a few clusters keep few multiprocessors busy
        (sizes(4096, 4096, 1024), "sm_90a"),  # longer than any cluster
        (LONG, "sm_80"),  # which has none
    ],
)
def test_a_launch_finishes_rows_otherwise(problem, arch):
    schedule, origin = decision(norm.program(*SIGNATURE), device(arch), problem)
    assert schedule.epilogue.rows == "after" and "cover" not in origin


def test_what_is_used_twice_is_counted_once_a_walk():
    """In a time that does not double with each step."""

    def chain(x, w):
        v = x @ w.T
        t = np.exp(v - np.max(v, axis=1, keepdims=True))
        for _ in range(40):
            t = t * t + t
        return t / np.sum(t, axis=1, keepdims=True)

    made = pg.fuse(chain).program("bf16[M,K]", "bf16[N,K]")
    (rows,) = split_folds(made).rows
    # The exponential in both walks, the quotient in the last one.
    assert _functions(rows, {"M": 10, "N": 100}) == 3 * 1000
