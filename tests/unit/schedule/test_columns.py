"""Tiles no wider than results with few columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.schedule.columns import with_few_columns
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Problem

FEW = Problem(65536, 10, 512)


def named(name: str, arch: str = "sm_90a") -> Schedule:
    return next(one for one in shipped(arch) if one.name == name)


ROLES, WARPS = named("pingpong_128x64x64_s6_e2p3"), named("32x32x64_w16x16_s4")


@pytest.mark.parametrize(
    ("n", "columns"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (40, 48), (49, 64), (500, 64)]
)
def test_a_consumer_has_as_few_columns_as_there_are_in_groups(n: int, columns: int) -> None:
    found = with_few_columns(ROLES, Problem(65536, n, 512))
    assert found.tile.cta.n == found.tile.warp.n == columns
    stage = found.tile.cta.m + columns
    assert found.pipeline.stages * stage <= ROLES.pipeline.stages * (128 + 64)
    assert found.pipeline.stages >= ROLES.pipeline.stages


@pytest.mark.parametrize(("n", "tile"), [(1, (64, 16)), (16, (64, 16)), (17, (32, 32))])
def test_warps_are_one_below_another(n: int, tile: tuple[int, int]) -> None:
    found = with_few_columns(WARPS, Problem(65536, n, 512))
    assert (found.tile.cta.m, found.tile.cta.n) == tile and found.tile.warp == WARPS.tile.warp


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (replace(ROLES, exchange=True), FEW),
        (named("dots_1x16x1024_w1x2_n16_f4_b3"), FEW),
        (ROLES, replace(FEW, sections=((64, 10, 1), (64, 300, 1)))),
        (ROLES, replace(FEW, block=128)),
        (named("cooperative_64x128x64_s6_k2"), Problem(64, 4096, 512)),
    ],
)
def test_others_are_as_they_are(schedule: Schedule, problem: Problem) -> None:
    assert with_few_columns(schedule, problem) == schedule


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_softmax_of_few_classes_is_of_narrow_tiles(arch: str) -> None:
    kernel = pg.fuse(lambda x, w, b: pg.softmax(x @ w.T + b), name="f").compile(
        "bf16[M,K]", "bf16[10,K]", "bf16[10]", arch=arch, sizes={"M": 65536, "K": 512}
    )
    assert kernel.schedule.covers_rows and kernel.schedule.tile.cta.n == 16
    report = kernel.check()
    assert report.ok, str(report)
