"""The choice among shipped schedules: what the model takes into account, and the error."""

import pytest

from polygen.errors import ScheduleError
from polygen.hardware.atom import atom
from polygen.hardware.device import device
from polygen.schedule.default import Problem, choose

H200 = device("sm_90a")
MMA = atom("m16n8k16_f32_bf16")


def chosen(m, n, k, *, resident=1, skip=frozenset()):
    return choose(H200, MMA, Problem(m, n, k), lambda _: resident, skip)[0]


def test_few_rows_take_a_tile_of_few_rows():
    rows = [chosen(m, 4096, 4096).tile.cta.m for m in (16, 128, 4096)]
    assert rows == sorted(rows) and rows[0] <= 32 < rows[2]


def test_a_large_product_takes_the_largest_reuse():
    warp = chosen(8192, 8192, 8192).tile.warp
    assert (warp.m, warp.n) == (64, 64)


def test_few_tiles_get_copies_far_ahead():
    assert chosen(16, 4096, 4096).pipeline.distance > chosen(8192, 8192, 8192).pipeline.distance


def test_a_schedule_to_skip_is_not_taken_and_the_origin_names_it():
    first = chosen(4096, 4096, 4096)
    second, origin = choose(
        H200, MMA, Problem(4096, 4096, 4096), lambda _: 1, frozenset({first.name})
    )
    assert second.name != first.name and f"they spill: {first.name}" in origin


def test_no_schedule_fits():
    with pytest.raises(ScheduleError, match=r"no shipped schedule fits .* on sm_90a.*Pass a"):
        chosen(4096, 4096, 4096, resident=0)
