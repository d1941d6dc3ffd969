"""Random schedules: isl accepts one exactly if the oracle finds nothing wrong with it."""

import pytest
from block_simulator import breaks, check_loops, every_barrier, loops_with, map_sample, shape_of
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from matrix import pipeline, tiled

from polygen.errors import IllegalSchedule
from polygen.poly.raster import prove_raster
from polygen.schedule.model import Epilogue, Loops

TILES = [
    ((32, 32, 32), (16, 16)),
    ((32, 32, 64), (16, 32)),
    ((16, 32, 16), (16, 32)),
    ((48, 16, 48), (16, 16)),
    ((32, 16, 32), (32, 8)),
]


@st.composite
def schedules(draw):
    stages = draw(st.integers(1, 6))
    cta, warp = draw(st.sampled_from(TILES))
    return tiled(
        cta,
        warp,
        pipeline=pipeline(
            stages,
            draw(st.integers(0, stages + 1)),
            draw(st.permutations(("copy", "mma")).map(tuple)),
            fragments=draw(st.integers(1, 4)),
            lookahead=draw(st.integers(0, 3)),
            copies=draw(st.sampled_from(["whole", "spread"])),
            across=draw(st.booleans()),
        ),
        loops=Loops(mma=draw(st.permutations(("k", "m", "n")).map(tuple))),
        epilogue=Epilogue(draw(st.sampled_from(["smem", "registers"]))),
    )


@pytest.mark.slow
@settings(max_examples=50, derandomize=True)
@given(schedule=schedules(), asynchronous=st.booleans())
def test_accepted_exactly_if_some_barriers_make_it_run_correctly(schedule, asynchronous):
    try:
        tree = map_sample(schedule, asynchronous=asynchronous)
    except IllegalSchedule as refusal:
        note(str(refusal))
        # Not even with a barrier and a full wait at every place does the oracle accept it.
        barriers = every_barrier(schedule, asynchronous)
        loops, shape = loops_with(schedule, barriers, asynchronous=asynchronous)
        assert breaks(loops, shape)
        return
    check_loops(tree.loops(), shape_of(tree, schedule, asynchronous))
    for dropped in tree.barriers:
        rest = tuple(b for b in tree.barriers if b is not dropped)
        loops, shape = loops_with(schedule, rest, asynchronous=asynchronous)
        assert breaks(loops, shape), dropped


@pytest.mark.slow
@settings(max_examples=30, derandomize=True)
@given(schedule=schedules())
def test_background_copies_can_stay_in_flight_as_long_as_possible(schedule):
    try:
        tree = map_sample(schedule)
    except IllegalSchedule:
        assume(False)
    waits = [b.pending for b in tree.barriers if b.pending is not None]
    pipe = schedule.pipeline
    assert len(waits) == 1
    assert 0 <= waits[0] <= pipe.distance


@settings(max_examples=30)
@given(
    group=st.integers(1, 20), along=st.integers(1, 50), across=st.integers(1, 12)
)  # fmt: skip
def test_raster_visits_every_tile_once(group, along, across):
    prove_raster(group)
    visited = [
        (group * y + x % group, x // group)
        for y in range(-(-along // group))
        for x in range(across * group)
        if group * y + x % group < along
    ]
    assert sorted(visited) == [(a, c) for a in range(along) for c in range(across)]


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 16, 31])
def test_raster_proof_names_its_group(group):
    assert f"groups of {group}" in str(prove_raster(group))
