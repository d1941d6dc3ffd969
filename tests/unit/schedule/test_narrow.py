"""Groups of tiles of many small matrices."""

from __future__ import annotations

import pytest

import polygen as pg
from polygen.schedule.load import shipped_as
from polygen.schedule.narrow import in_narrow_groups
from polygen.schedule.problem import Fitted, Problem

WARPS = shipped_as("sm_80", "64x64x32_w32x32_s4")  # groups of 8 rows of tiles


def group(m, batches, schedule=WARPS):
    asked = Problem(m, 64, 64, batches=batches)
    return in_narrow_groups(Fitted(schedule, 1), asked).schedule.raster.group


@pytest.mark.parametrize(
    ("m", "wanted"), [(1, 1), (64, 1), (65, 2), (192, 4), (257, 8), (512, 8), (9999, 8)]
)
def test_groups_are_as_wide_as_a_matrix(m, wanted):
    assert WARPS.raster.group == 8
    assert group(m, 1000) == wanted


def test_others_keep_their_groups():
    assert group(64, 63) == 8
    roles = shipped_as("sm_90a", "pingpong_128x64x64_s3_b2")
    assert group(64, 1000, roles) == roles.raster.group > 1


def test_auto_leaves_no_place_empty():
    made = pg.fuse(lambda x, y: x @ y, name="f")
    made = made.compile("f32[B,16,16]", "f32[B,16,16]", arch="sm_80", sizes={"B": 100_000})
    assert made.schedule.raster.group == 1
    assert made.passes.plan.launch.grid({"B": 100_000}) == (2, 1, 65_535)
