"""Plans of sections become one: what they have to share is compared, maps and work items joined."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from plan_changes import with_program

import polygen as pg
from polygen.decide import candidates
from polygen.errors import VerifyError
from polygen.lower.launch import Extents
from polygen.lower.sections import join
from polygen.lower.work import Locate, Move
from polygen.schedule.problem import Fitted
from polygen.tune.cost.counts import counts


@cache
def kernel():
    function = pg.fuse(lambda x, q, k, b: (x @ q.T, pg.gelu(x @ k.T + b)), name="heads")
    signature = ("bf16[M,K]", "bf16[N,K]", "bf16[P,K]", "f32[P]")
    sizes = {"M": 2048, "N": 4096, "P": 1024, "K": 4096}
    return function.compile(*signature, arch="sm_90a", sizes=sizes)


def test_maps_have_names_of_their_own_and_what_is_shared_has_one():
    plan = kernel().passes.plan
    maps = [a for a in plan.arguments if a.kind == "map"]
    assert sorted(a.tensor for a in maps) == ["k", "q", "x", "y0", "y1"]
    assert len({a.name for a in maps}) == len(maps)
    for section, weight in zip(plan.sections, "qk", strict=True):
        (move,) = section.of(Move)
        named = {a.name: a.tensor for a in maps}
        assert [named[boxes.map] for boxes in move.boxes] == ["x", weight]


def test_every_place_locates_the_tiles_of_all_sections():
    plan = kernel().passes.plan
    locates = [one for section in plan.sections for one in section.of(Locate)]
    assert {len(one.sections) for one in locates} == {2}
    assert len(plan.of(Locate)) == 1


def test_the_grid_has_blocks_for_the_tiles_of_all_sections():
    launch = kernel().passes.plan.launch
    tile = {"along": launch.tile_along, "across": launch.tile_across}
    sizes = {"M": 1, "N": 3 * max(tile.values()), "P": 5, "K": 1}
    alone = replace(launch, further=())
    other = replace(alone, along=launch.further[0].along, across=launch.further[0].across)
    assert launch.work(sizes) == alone.work(sizes) + other.work(sizes) > alone.work(sizes)
    batched = replace(launch, further=(Extents("M", "P", ("B",)),))
    assert batched.work(sizes | {"B": 7}) == alone.work(sizes) + 7 * other.work(sizes)


def test_the_cost_model_counts_the_tiles_of_all_sections():
    made, sizes = kernel(), {"M": 300, "N": 700, "P": 40, "K": 512}
    plan = made.passes.plan
    problem, _ = candidates(made.program, plan.device, sizes)
    fitted = Fitted(plan.schedule, plan.resources.blocks_per_multiprocessor)
    assert counts(plan.device, fitted, problem).clusters == plan.launch.work(sizes)
    assert problem.n == 740 and problem.sections == ((300, 700, 1), (300, 40, 1))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda p: replace(p, buffers=p.buffers[1:]), "shared memory"),
        (lambda p: replace(p, places=p.places[:1]), "places and their loops"),
        (lambda p: replace(p, syncs=p.syncs[1:]), "barriers"),
        (lambda p: replace(p, leaves=p.leaves[:-1]), "statements"),
        (lambda p: with_program(p, replace(p.tile_program, lags=())), "the tile program"),
    ],
)
def test_sections_that_share_less_than_they_have_to_are_refused(change, what):
    plan = kernel().passes.plan
    first, second = plan.sections
    join(plan.program, (first, second))
    with pytest.raises(VerifyError, match=f"{what}: not the same for S0 and S1"):
        join(plan.program, (first, change(second)))


def test_leaves_ask_whose_tile_it_is_only_where_sections_differ():
    text = kernel().source
    assert text.count("auto fill = ") == text.count("auto multiply = ") == 1
    multiply = text.partition("auto multiply = ")[2].partition("};")[0]
    fill = text.partition("auto fill = ")[2].partition("};")[0]
    assert "section" not in multiply
    assert "section == 0" in fill
