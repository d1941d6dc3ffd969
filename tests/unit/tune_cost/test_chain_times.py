"""What tiles of chains that were timed are predicted to take for other sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import device
from polygen.schedule.model import CtaTile, Pipeline, Schedule, Tile, WarpTile
from polygen.tune.cost.chains import ChainProblem, chain_time, timed

H100 = device("sm_90a")
START = cost_parameters(H100).start
RANGES = [(None, None), (None, 0), (-100, 0), (-1, 70), (5, None), (None, -300)]


@pytest.mark.parametrize(("lower", "upper"), RANGES)
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (300, 300), (64, 1000), (500, 130)])
def test_tiles_of_keys_are_those_of_any_row(
    rows: int, keys: int, lower: int | None, upper: int | None
) -> None:
    problem = ChainProblem(rows, keys, 1, 64, 64, 2, lower=lower, upper=upper)
    wanted = []
    for first in range(0, rows, 64):
        seen = {
            key // 48
            for row in range(first, min(first + 64, rows))
            for key in range(keys)
            if (lower is None or key >= row + lower) and (upper is None or key <= row + upper)
        }
        wanted.append(max(1, len(seen)))  # a block visits one, in which all is masked
    assert problem.visited(64, 48) == wanted


def test_times_count_rounds_of_blocks_or_where_they_differ_in_length_all_of_them() -> None:
    schedule = Schedule(tile=Tile(CtaTile(128, 64, 128), WarpTile(64, 64)))
    one = ChainProblem(128, 1024, H100.multiprocessors, 64, 64, 2)
    assert timed(H100, schedule, one, 3.0, 0.5) == pytest.approx(START + 3.0 + 8 * 0.5)
    more = replace(one, matrices=one.matrices + 1)
    assert timed(H100, schedule, more, 3.0, 0.5) == pytest.approx(START + 2 * 7.0)
    beside = replace(schedule, min_blocks=2)
    assert timed(H100, beside, more, 3.0, 0.5) == pytest.approx(START + 7.0)
    masked = replace(one, rows=1024, upper=0)  # 1 to 8 tiles of keys
    assert timed(H100, schedule, masked, 3.0, 0.5) == pytest.approx(START + 8 * 3.0 + 36 * 0.5)


def _of_warps(warps: int, rows: int, keys: int = 64) -> Schedule:
    pipeline = Pipeline(stages=2, distance=1, order=("copy", "mma"))
    tile = Tile(CtaTile(warps * rows, 128, keys), WarpTile(rows, 128))
    return Schedule(tile=tile, pipeline=pipeline, min_blocks=2)


def test_times_of_warps_follow_their_work() -> None:
    """Products, exponentials, loads of every warp, and the tiles of keys that a mask leaves."""
    target, problem = device("sm_80"), ChainProblem(4096, 4096, 64, 128, 128, 2)
    usual = chain_time(target, _of_warps(4, 32), problem)
    products = 4 * 4096 * 4096 * 128 * 64 / 2 / cost_parameters(target).warp_rate
    assert usual > products / target.multiprocessors / (cost_parameters(target).clock * 1e3)
    assert usual < chain_time(
        target, _of_warps(8, 16), problem
    )  # which load all keys twice as often
    assert 0.4 < chain_time(target, _of_warps(4, 32), replace(problem, upper=0)) / usual < 0.6
    assert chain_time(target, _of_warps(4, 32), replace(problem, keys=8192)) > 1.9 * usual
    thin = replace(problem, rows=128, matrices=8)  # 8 blocks of 128 rows, or 16 of 64
    assert chain_time(target, _of_warps(4, 16), thin) < chain_time(target, _of_warps(4, 32), thin)


def test_layers_in_front_and_gates_take_longer() -> None:
    target, plain = device("sm_80"), ChainProblem(65536, 64, 1, 64, 64, 2)
    schedule = _of_warps(4, 32)
    layered = replace(plain, layers=((64, 64), (64, 64)))
    times = [chain_time(target, schedule, one) for one in (plain, layered)]
    assert times[0] < times[1]
    gated = replace(plain, keys=1024, products=2)
    assert chain_time(target, schedule, replace(gated, products=1)) < chain_time(
        target, schedule, gated
    )
    assert gated.bytes > replace(gated, products=1).bytes


def test_elements_of_4_bytes_take_longer_and_parts_of_f32_longer_still() -> None:
    """As of single products: a product of tf32 takes two of 16 bits, and one of f32 three of it."""
    target, narrow = device("sm_80"), ChainProblem(4096, 4096, 64, 64, 64, 2)
    wide = replace(narrow, item=4)
    times = [chain_time(target, _of_warps(4, 16), one) for one in (narrow, wide)]
    assert 1.3 * times[0] < times[1] < 2.1 * times[0]
    assert wide.work == 2 and replace(wide, terms=3).work == 6
    assert chain_time(target, _of_warps(4, 16), replace(wide, terms=3)) > 1.5 * times[1]
