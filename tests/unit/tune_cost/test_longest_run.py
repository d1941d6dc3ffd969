"""How many tiles of one row blocks take one after another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rest_samples import form, low_rank, signature

import polygen as pg
from polygen.decision import decision
from polygen.hardware.device import device
from polygen.schedule.model import CtaTile, Raster, Tile, WarpTile
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import cost
from polygen.tune.cost.chains import longest_run

H100 = device("sm_90a")
WIDE = replace(form(), tile=Tile(CtaTile(128, 256, 64), WarpTile(64, 256)))


@pytest.mark.parametrize(
    ("sizes", "run"),
    [((8192, 4096, 4096), 4), ((16384, 512, 4096), 2), ((512, 4096, 4096), 1), ((64, 128, 64), 1)],
)
def test_runs_cost_no_round_of_blocks(sizes: tuple[int, int, int], run: int) -> None:
    assert longest_run(H100, WIDE, Problem(*sizes)) == run


def test_runs_are_chosen_where_sizes_are_known() -> None:
    program = pg.fuse(low_rank).program(*signature(16))
    schedule, origin = decision(program, H100, {"M": 8192, "N": 4096, "K": 4096})
    assert schedule.raster.run == 4 and "4 tiles of a row in turn" in origin
    assert decision(program, H100, {"M": 8192})[0].raster.run == 1


def test_what_is_summed_beside_takes_time_and_less_in_runs() -> None:
    problem = Problem(8192, 4096, 4096)
    plain, beside, runs = (
        cost(H100, Fitted(schedule, 1), of).microseconds
        for schedule, of in (
            (WIDE, problem),
            (WIDE, replace(problem, beside=16)),
            (replace(WIDE, raster=Raster(run=4)), replace(problem, beside=16)),
        )
    )
    assert plain < runs < beside < 1.2 * plain
