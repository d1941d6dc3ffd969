"""What the cost model says of tiles of the last round that blocks share, and who takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.decide import candidates
from polygen.decision import decision
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import device
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster
from polygen.schedule.problem import Fitted
from polygen.tune import choose, space
from polygen.tune.cost import cost, counts, predict
from polygen.tune.cost.explain import explain

H200 = device("sm_90a")
PROGRAM = pg.fuse(lambda x, w: x @ w.T).program("bf16[M,K]", "bf16[N,K]")
(LAST,) = (one for one in shipped(H200) if one.cluster.last)
LONG = {"M": 1792, "N": 1792, "K": 14336}  # 196 tiles of 128 x 128, 64 of them in a second round


def fitted(sizes, **changes):
    problem, fit = candidates(PROGRAM, H200, sizes)
    found = fit(replace(LAST, **changes))
    assert isinstance(found, Fitted), found
    return found, problem


@pytest.mark.parametrize(
    ("tiles", "rounds", "parts", "shared"),
    [
        (132, 1, 0, 0),
        (133, 1, 1, 1),
        (198, 1, 1, 66),
        (199, 2, 0, 1),
        (300, 2, 1, 36),
        (40, 0, 1, 40),
    ],
)
def test_rounds_of_own_tiles_and_of_parts(tiles, rounds, parts, shared):
    found, problem = fitted({"M": 128, "N": 128 * tiles, "K": 4096})
    c = counts(H200, found, problem)
    assert (c.rounds, c.last_rounds, c.last_tiles, c.clusters) == (rounds, parts, shared, tiles)
    assert (c.slots, c.split, c.last_split, c.k_tiles, c.meetings) == (132, 1, 2, 64, 4)


def test_a_thin_round_is_cheaper_shared_and_a_full_one_is_not():
    for down, beside, gains in ((10, 14, True), (10, 19, True), (11, 12, False), (13, 20, False)):
        sizes = {"M": 128 * down, "N": 128 * beside, "K": 8192}
        found, problem = fitted(sizes)
        alone = Fitted(replace(found.schedule, cluster=Cluster()), found.resident)
        shared, whole = predict(H200, found, problem), predict(H200, alone, problem)
        assert (shared < 0.95 * whole) == gains
        if not gains:  # the same tiles by the same blocks
            assert shared == pytest.approx(whole, rel=0.02)


def test_half_a_round_less_is_half_a_round_of_products():
    found, problem = fitted({"M": 128 * 10, "N": 128 * 14, "K": 65536})
    alone = Fitted(replace(found.schedule, cluster=Cluster()), found.resident)
    ratio = predict(H200, found, problem) / predict(H200, alone, problem)
    # Of 1.06 rounds the second is thin, so that its copies are faster than those of a full one.
    assert 0.75 < ratio < 0.85


def test_the_explanation_says_what_is_shared():
    found, problem = fitted(LONG)
    said = explain(H200, problem, cost(H200, found, problem), cost_parameters(H200))
    assert "2 blocks share the sums of each of the last 64 tiles: 1 part(s) for the busiest" in said
    assert "1.5 x 224 k tiles" in said


def test_the_automatic_choice_takes_it_where_it_gains_enough(monkeypatch):
    assert not decision(PROGRAM, H200, LONG)[0].cluster.last  # it takes longer than predicted
    known = replace(cost_parameters(H200), shared_round=1.0)
    monkeypatch.setattr(choose, "cost_parameters", lambda _: known)
    chosen, origin = decision(PROGRAM, H200, LONG)
    assert chosen.cluster.last
    assert "blocks share the sums of the last round's tiles" in origin
    for sizes in ({"M": 4096, "N": 4096, "K": 4096}, {"M": 1792, "N": 1792, "K": 512}):
        assert not decision(PROGRAM, H200, sizes)[0].cluster.last


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        (LONG, {16, 32}),
        ({"M": 1408, "N": 1536, "K": 8192}, set()),  # whole rounds
        ({"M": 1792, "N": 3200, "K": 8192}, set()),  # more than half of one is left
        ({"M": 1792, "N": 1792, "K": 256}, set()),  # short sums
    ],
)
def test_the_search_tries_it_where_the_last_round_is_thin(sizes, found):
    problem, fit = candidates(PROGRAM, H200, sizes)
    base = replace(LAST, cluster=Cluster(), pipeline=replace(LAST.pipeline, stages=12))
    tried = list(space._last_rounds(H200, problem, base, fit))
    assert {one.schedule.cluster.columns for one in tried} == found
    assert all(one.schedule.cluster.last for one in tried)
    assert all("last" in one.schedule.name for one in tried)


def test_programs_with_invariant_rows_do_without():
    same = replace(PROGRAM, invariant=("M",))
    assert not decision(same, H200, LONG)[0].cluster.last
