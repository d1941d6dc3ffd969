"""The space of schedules: all fit, none twice, in one order, and nothing shipped is missed."""

from __future__ import annotations

import pytest
from tuning_samples import fused

from polygen.decide import candidates
from polygen.errors import PolygenError
from polygen.hardware.device import device
from polygen.pipeline import generate, with_sizes
from polygen.schedule.load import dumps, loads, shipped
from polygen.schedule.problem import Fitted
from polygen.tune.space import space

GATE = ("silu(x @ w.T + b) * g", ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]", "g:bf16[M,N]"))
PLAIN = ("x @ w.T", ("x:f16[M,K]", "w:f16[N,K]"))
NARROW = ("x @ w.T", ("x:e4m3[M,K]", "w:e4m3[N,K]"))


def problem_of(sample, arch, **sizes):
    program = with_sizes(fused(*sample).program(*sample[1]), sizes)
    return program, *candidates(program, device(arch), sizes)


def found(sample, arch, **sizes):
    _, problem, fit = problem_of(sample, arch, **sizes)
    return list(space(device(arch), problem, fit)), fit


@pytest.mark.parametrize(
    ("sample", "arch"), [(GATE, "sm_80"), (GATE, "sm_90a"), (NARROW, "sm_90a")]
)
@pytest.mark.parametrize("sizes", [(4096, 4096, 1024), (1001, 1003, 1000), (8, 4096, 4096)])
def test_everything_fits_once(sample, arch, sizes):
    named = dict(zip("MNK", sizes, strict=True))
    listed, fit = found(sample, arch, **named)
    schedules = [one.schedule for one in listed]
    assert len({one.name for one in schedules}) == len(set(schedules)) == len(schedules) > 50
    for one in listed[:: max(1, len(listed) // 200)]:
        again = fit(one.schedule)
        assert isinstance(again, Fitted) and again.schedule == one.schedule
        assert loads(dumps(one.schedule), "text") == one.schedule


def test_a_problem_has_hundreds_of_candidates_in_a_fixed_order():
    sizes = {"M": 4096, "N": 4096, "K": 1024}
    for arch, least in (("sm_80", 300), ("sm_90a", 1000)):
        first, _ = found(GATE, arch, **sizes)
        again, _ = found(GATE, arch, **sizes)
        assert first == again and least < len(first) < 3000


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_shipped_tiles_are_among_them(arch):
    listed, fit = found(PLAIN, arch, M=4096, N=4096, K=4096)
    for few in ({"M": 128, "N": 4096, "K": 4096}, {"M": 64, "N": 1024, "K": 8192}):
        listed += found(PLAIN, arch, **few)[0]  # of few rows, those that share sums
    for m in (1, 2, 4, 6, 16, 32, 128):  # those that exchange operands, or multiply by lanes
        listed += found(PLAIN, arch, M=m, N=14336, K=4096)[0]
        listed += found(PLAIN, arch, M=m, N=4096, K=4096)[0]
    listed += found(PLAIN, arch, M=16, N=2048, K=4096)[0]
    if arch == "sm_90a":  # a round and a half of its tiles
        listed += found(PLAIN, arch, M=1792, N=1792, K=4096)[0]

    def decisions(schedule):
        other = schedule.exchange, schedule.by_lanes
        return schedule.tile, schedule.roles.form, schedule.cluster, other

    there = {decisions(one.schedule) for one in listed}
    own = [s for s in shipped(device(arch)) if s.device == device(arch).name]
    fitted = [one.schedule for one in map(fit, own) if isinstance(one, Fitted)]
    assert len(fitted) > 10
    assert [s.name for s in fitted if decisions(s) not in there] == []


def test_tiles_are_no_larger_than_the_problem_needs():
    listed, _ = found(PLAIN, "sm_90a", M=64, N=96, K=4096)
    as_it_is = [one for one in listed if not one.schedule.exchange]
    tiles = {(one.schedule.tile.cta.m, one.schedule.tile.cta.n) for one in as_it_is}
    assert max(m for m, _ in tiles) == 64 and max(n for _, n in tiles) <= 128
    assert all(one.schedule.cluster.m == 1 for one in as_it_is)
    turned = [one.schedule.tile.cta for one in listed if one.schedule.exchange]
    assert max(one.m for one in turned) == 128 and max(one.n for one in turned) == 64


def test_few_rows_are_tried_both_ways_and_by_lanes():
    def kinds(m, n=4096):
        listed, _ = found(PLAIN, "sm_90a", M=m, N=n, K=4096)
        return {
            (one.schedule.exchange, one.schedule.by_lanes)
            for one in listed
            if one.schedule.for_few_rows
        }

    assert kinds(1) == {(True, False), (False, True)}
    assert kinds(16) == {(True, False)}
    assert kinds(129) == kinds(4096) == kinds(128, 64) == set()


def test_blocks_share_sums_where_tiles_are_few_and_sums_long():
    def splits(**sizes):
        listed = (one.schedule for one in found(PLAIN, "sm_90a", **sizes)[0])
        of_all = (one for one in listed if not one.cluster.last)
        return {one.cluster.k for one in of_all if one.launch.realign == copied}

    copied = False

    assert splits(M=64, N=1024, K=8192) == {1, 2, 4, 8}
    assert splits(M=64, N=1024, K=1024) == {1, 2, 4}  # at least four k tiles each
    assert splits(M=4096, N=4096, K=8192) == {1}
    assert splits(M=1001, N=1001, K=1001) == {1}
    copied = True
    assert splits(M=1001, N=1001, K=1001) == {1, 2}, "behind a copy the copy engine fills rings"


def test_operands_that_tensor_maps_cannot_take_leave_schedules_without_clusters():
    listed, _ = found(PLAIN, "sm_90a", M=1001, N=1001, K=1001)
    specialised = [one.schedule for one in listed if one.schedule.specialised]
    assert 0 < len(specialised) < len(listed)
    copied = [s for s in specialised if s.launch.realign]
    assert copied and {s.launch.dependent for s in copied} == {True}
    assert len({(s.cluster.m, s.cluster.n) for s in copied}) > 1
    assert all("_copied" in s.name for s in copied)
    in_place = [s for s in specialised if not s.launch.realign]
    assert {(s.cluster.m, s.cluster.n) for s in in_place} == {(1, 1)}
    assert {s.epilogue.through for s in in_place} == {"lines"}
    assert all(s.name.endswith("_lines") or "_lines_" in s.name for s in in_place)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_most_are_proved_legal_and_the_others_say_why_not(arch):
    sizes = {"M": 4096, "N": 4096, "K": 1024}
    program, problem, fit = problem_of(GATE, arch, **sizes)
    listed = list(space(device(arch), problem, fit))
    refused = []
    sample = listed[:: len(listed) // 6]
    for one in sample:
        try:
            generate(program, device(arch), sizes, one.schedule)
        except PolygenError as reason:
            refused.append(str(reason))
    assert len(refused) <= len(sample) // 5, refused
