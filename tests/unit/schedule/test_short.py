"""K tiles of sums that are shorter than a k tile."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.schedule.load import shipped_as
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.short import in_short_tiles

ROLES = shipped_as("sm_90a", "pingpong_128x64x64_s3_b2")


def tile(k, **more):
    found = in_short_tiles(Fitted(ROLES, 2), Problem(4096, 4096, k, **more)).schedule
    return found.tile.cta.k, found.pipeline.stages


@pytest.mark.parametrize(
    ("k", "wanted"), [(1, (16, 11)), (16, (16, 11)), (17, (32, 5)), (32, (32, 5)), (33, (64, 3))]
)
def test_tiles_are_as_long_as_the_narrowest_swizzle_that_has_the_sum(k, wanted):
    assert tile(k) == wanted


def test_others_keep_their_tiles():
    kept = (ROLES.tile.cta.k, ROLES.pipeline.stages)
    for more in ({"computed": (1, 0)}, {"block": 16}, {"joinable": True}):
        assert tile(16, **more) == kept
    shared = replace(ROLES, cluster=replace(ROLES.cluster, k=2))
    for other in (shared, shipped_as("sm_90a", "64x64x32_w32x32_s4")):
        assert in_short_tiles(Fitted(other, 1), Problem(64, 64, 8)).schedule == other


@pytest.mark.parametrize(
    ("kind", "k", "wanted"), [("bf16", 16, 16), ("e4m3", 30, 32), ("tf32", 5, 8)]
)
def test_kernels_of_short_sums_are_right_for_longer_ones_too(kind, k, wanted):
    kernel = pg.fuse(lambda x, w: x @ w.T, name="f").compile(
        f"{kind}[M,K]", f"{kind}[N,K]", arch="sm_90a", sizes={"M": 4096, "N": 4096, "K": k}
    )
    assert kernel.schedule.tile.cta.k == wanted
    for terms in (k, 5 * wanted + k):
        report = kernel.check({"M": 200, "N": 136, "K": terms})
        assert report.ok, str(report)
