"""Plans of sections become one: what they have to share is compared, maps and work items joined."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from plan_changes import with_program

import polygen as pg
from polygen.decide import candidates
from polygen.emit.leaf.elements import does_nothing
from polygen.emit.leaf.table import kind_of, prove
from polygen.errors import VerifyError
from polygen.hardware.device import device
from polygen.lower.launch import Extents
from polygen.lower.sections import alone, join
from polygen.lower.verify import verify
from polygen.lower.verify_follow import check_following
from polygen.lower.work import Locate, Move
from polygen.schedule.load import load_schedule, schedules_folder
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


@cache
def folded():
    """Rows in tiles of one section, sums that leave of another, and a third without folds."""

    def projections(x, q, k, v):
        a, b = x @ q.T, x @ k.T
        return a - np.max(a, axis=1, keepdims=True), b, np.max(b, axis=0), x @ v.T

    signature = ("bf16[M,K]", "bf16[64,K]", "bf16[48,K]", "bf16[112,K]")
    sizes = {"M": 2048, "K": 4096}
    return pg.fuse(projections).compile(*signature, arch="sm_90a", sizes=sizes)


def test_all_sections_go_through_the_passes_of_one_and_make_the_parts_of_another():
    plan = folded().passes.plan
    assert [len(one.epilogue.before) for one in plan.sections] == [1, 1, 1]
    assert [one.folds_rows for one in plan.sections] == [True, False, False]
    assert [bool(one.epilogue.folds) for one in plan.sections] == [False, True, False]
    assert [one.following is None for one in alone(plan)] == [True, False, True]
    statements = {leaf.statement for one in plan.sections for leaf in one.leaves}
    assert {"unfold_r0", "terms_r0", "meet_r0", "unfold", "fold"} <= statements
    for one in plan.sections:
        assert statements == {leaf.statement for leaf in one.leaves}
    said = "\n".join(map(str, plan.proofs))
    assert "lanes that use a row's result have every term of it" in said
    assert "every term is in one part, and parts are written once" in said


def checked(plan):
    """Every section is checked with its part of what follows."""
    for one in alone(plan):
        check_following(one)
        verify(one)


@pytest.mark.parametrize(
    "change",
    [
        lambda after: replace(after, groups=()),
        lambda after: replace(after, groups=after.groups * 2),
        lambda after: replace(after, parts=()),
        lambda after: replace(after, parts=after.parts * 2),
        lambda after: replace(after, threads=2 * after.threads),
        lambda after: None,
    ],
)
def test_what_follows_is_that_of_the_sections(change):
    plan = folded().passes.plan
    after = change(plan.following)
    with pytest.raises(VerifyError):
        checked(replace(plan, following=after))
    checked(plan)
    every = tuple(replace(one, following=after) for one in plan.sections)
    with pytest.raises(VerifyError):
        checked(replace(plan, following=after, sections=every))


def test_a_pass_in_which_a_section_folds_nothing_has_no_text():
    plan = folded().passes.plan
    first, _, last = plan.sections
    for statement in ("terms_r0", "finish_element_r0"):
        leaf = last.leaf(statement)
        assert does_nothing(leaf.work) and not does_nothing(first.leaf(statement).work)
        prove(last, leaf, (kind_of(leaf).text(last, leaf).code,))
        with pytest.raises(VerifyError, match="where nothing is folded"):
            prove(last, leaf, ("  row_v1[0][0] = 0.0f;",))
    assert "not proved" not in folded().source


def test_registers_of_sections_stand_in_front_of_their_branches():
    text = folded().source
    before, _, branches = text.partition("auto unfold_r0 = ")
    assert re.search(r"float \w+\[1\]\[2\]\[\d\];\s*$", before)
    assert "section == 0" in branches.partition("};")[0]


def test_what_is_saved_has_the_launch_that_follows(tmp_path):
    kernel = folded()
    kernel.save(tmp_path)
    loaded = pg.Kernel.load(next(tmp_path.glob("*.json")))
    assert loaded.source == kernel.source
    assert loaded.workspace({"M": 20, "K": 40}) == kernel.workspace({"M": 20, "K": 40}) > 0


def test_panels_that_do_not_fit_are_none():
    """Results go straight from the registers where panels, which sections would not share anyway,
    want more shared memory than there is.
    """
    rows, width = 2048, 4096

    def halves(value, cos, sin):
        a, b = value[..., :64], value[..., 64:]
        c, s = cos[:, None], sin[:, None]
        return (a * c - b * s).astype("bf16"), (b * c + a * s).astype("bf16")

    def heads(x, cos, sin, q, v):
        first, second = halves((x @ q.T).reshape(rows, 32, 128), cos, sin)
        return first, second, (x @ v.T).astype("bf16")

    program = pg.fuse(heads).program(
        f"bf16[{rows},{width}]", *[f"bf16[{rows},64]"] * 2, *[f"bf16[{width},{width}]"] * 2
    )
    _, fit = candidates(program, device("sm_90a"), {})
    shipped = load_schedule(schedules_folder() / "sm_90a" / "pingpong_128x64x64_s6_e2p3.toml")
    found = fit(shipped)
    assert isinstance(found, Fitted) and shipped.epilogue.through == "tma"
    assert found.schedule.epilogue.through == "registers"
    assert (found.schedule.tile, found.schedule.pipeline.stages) == (shipped.tile, 6)


def test_rows_in_tiles_that_exchange_operands_of_one_section_are_left_to_a_launch():
    """Columns of a batch in its transpose are rows, whose tiles multiply the other way round."""

    def function(q, k, x, w):
        v = np.swapaxes(np.matmul(q, k), 2, 1)
        return v - np.min(v, axis=-1, keepdims=True), x[:, 32:] @ w

    types = ("bf16[2,16,32]", "bf16[2,32,16]", "bf16[16,64]", "bf16[32,16]")
    kernel = pg.fuse(function).compile(*types, arch="sm_90a")
    assert kernel.schedule.epilogue.rows == "after"
    assert kernel.check({}).ok
