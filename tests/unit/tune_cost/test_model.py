"""The cost model: what may never make a kernel slower or faster, and what its parts say."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import device, devices
from polygen.poly.results import panel_columns
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster, Launches, Raster
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import cost, counts, following, predict, predict_all
from polygen.tune.cost.explain import explain
from polygen.tune.cost.model import BEFORE, PARTS, Columns, times

H200 = device("sm_90a")
P = cost_parameters(H200)
ALL = tuple(Fitted(s, 1 if s.specialised else 2) for s in shipped(H200) if not s.of_elements)
STREAMS = tuple(Fitted(s, 4) for s in shipped(H200) if s.of_elements)
_ALONE = {"zeros": True, "matrices": 1, "result_bytes": 0, "computed": (1, 1), "held": (8, 64)}
FOLDED = (  # of which nothing but elements is folded
    Problem(8192, 4096, 2, matrix_bytes=2, folds=(1, 0, 1), parted=(0, 5, 0), **_ALONE),
    Problem(1 << 20, 64, 2, matrix_bytes=4, folds=(1, 0, 0), parted=(0, 1, 0), **_ALONE),
    Problem(4096, 4096, 2, matrix_bytes=2, folds=(1, 0, 0), parted=(0, 0, 1), **_ALONE),
    Problem(1, 8192, 2, matrix_bytes=4, folds=(1, 0, 0), parted=(0, 0, 1), **_ALONE),
)
PROBLEMS = (
    Problem(4096, 4096, 4096),
    Problem(16, 4096, 4096),
    Problem(3000, 3000, 3000, astride=(0.875, 0.875)),
    Problem(512, 512, 4096, functions=1, pointwise=True),
    Problem(4096, 4096, 512, matrices=2, matrix_bytes=4, functions=1, pointwise=True),
    Problem(8192, 8192, 8192, element_bytes=1),
    Problem(16384, 4096, 128, result_bytes=0, folds=(1, 1, 1)),
    Problem(3001, 3001, 3001, astride=(0.875, 0.875), access_bytes=(2, 2), threaded=(1, 1)),
    Problem(
        4096, 4096, 4096, threaded=(1, 0), computed=(1, 0), source_bytes=(1 << 25, 0),
        operand_functions=(1, 0), held=(8, 64),
    ),
    Problem(
        16, 8192, 8192, threaded=(0, 1), computed=(0, 1), source_bytes=(0, 1 << 26),
        held=(5, 64), stored_bits=(0, 8),
    ),
    Problem(
        4096, 4096, 4096, threaded=(1, 0), computed=(1, 0), source_bytes=(1 << 25, 0),
        held=(8, 64), stored_bits=(16, 0), vectors=(1, 0), paired_vectors=(1, 0), tallied=(3, 0),
        unringed=(True, False),
    ),
    Problem(4096, 4096, 4096, element_bytes=4, terms=3),
    Problem(4096, 4096, 12288, element_bytes=4, result_bytes=4, block=32),
    Problem(4096, 4096, 4096, functions=1, tallied=(2, 1)),
    Problem(4096, 4096, 4096, tallied=(0, 1), leaving=True),
)  # fmt: skip


def named(name):
    return next(one for one in ALL if one.schedule.name == name)


def totals(parameters, problem):
    rows = Columns([counts(H200, one, problem) for one in ALL])
    return times(parameters, rows)["total"]


# More of these is never slower; more of those is never faster.
BETTER = (
    "clock", "memory", "memory_share", "l2_bytes", "l2_share", "product_rate", "shared_rate",
    "box_rate", "fetch_rate_astride", "outside_rate", "l2_rate", "matrix_rate", "line_matrix_rate",
    "function_rate",
    "warp_rate", "double_rate", "warp_shared_rate", "warp_fetch_rate", "warp_narrow_rate",
    "way_out_rate", "warp_function_rate", "exchange_rate", "warp_memory",
    "lane_rate", "lane_load_rate", "producer_rate", "compute_rate", "compute_function_rate",
    "stream_rate",
    "fold_rate", "promote_rate", "promote_beside", "split_share",
    "fragment_rate", "group_share", "thread_rate", "l1_bytes", "tally_hidden",
)  # fmt: skip
WORSE = (
    "droop", "written_share", "start", "instruction", "step", "latency", "crowding", "cluster_loss",
    "wide_cluster_loss", "group_loss", "block_step", "tile", "panel", "panel_turn", "registers",
    "line", "across", "across_panels", "thread_latency", "thread_passes", "thread_start",
    "warp_start", "warp_latency", "warp_crowding", "full_rate_warps", "barrier", "round",
    "exchange", "copy_start", "launch_start", "thread_crowding", "warp_narrow_turn",
    "fragment_latency", "fragment_start", "vector_latency", "paired_latency", "promote_turn",
    "function_crowding",
    "row_pass", "row_copy", "stream_latency", "tally", "tally_alone", "tally_made", "tally_shown",
    "tally_turn", "tally_memory",
    "unstored", "fold", "fold_index", "fold_exponential",
)  # fmt: skip


@pytest.mark.parametrize("name", BETTER)
def test_more_of_a_rate_is_never_slower(name):
    more = replace(P, **{name: 1.5 * getattr(P, name)})
    for problem in PROBLEMS:
        assert (totals(more, problem) <= totals(P, problem) * (1 + 1e-9)).all(), problem


@pytest.mark.parametrize("name", WORSE)
def test_more_of_a_cost_is_never_faster(name):
    more = replace(P, **{name: 1.5 * getattr(P, name)})
    for problem in PROBLEMS:
        assert (totals(more, problem) >= totals(P, problem) * (1 - 1e-9)).all(), problem


def test_every_parameter_is_a_rate_a_cost_or_an_exponent():
    exponents = {"memory_sharpness", "warp_sharpness"}
    # of the launch that follows, of chains, of libraries, and of the choice
    behind = {"rows_share", "chain_alone", "few_rows_library", "shared_round"}
    behind |= {"early_most", "ahead_most", "early_rows"}
    assert {f.name for f in fields(P)} == {*BETTER, *WORSE, *exponents, *behind}


def test_a_launch_behind_a_kernel_takes_its_bytes_at_the_bandwidth_that_it_reaches():
    """Half the bandwidth of everything else: its blocks wait for one row at a time."""
    read, written = 1 << 26, 1 << 25
    bytes_a_microsecond = P.rows_share * P.memory * 1e3
    found = following(H200, read, written)
    assert found == pytest.approx(
        P.launch_start + (read + P.written_share * written) / bytes_a_microsecond
    )
    assert following(H200, 0, 0) == P.launch_start < found
    each = 1e3 * P.warp_function_rate * H200.multiprocessors * P.clock  # a microsecond
    computed = following(H200, read, written, int(each))
    assert computed == pytest.approx(found + 1)
    assert P.rows_share < P.memory_share


def test_each_pass_of_blocks_that_cover_rows_makes_terms_and_meets():
    """It costs more where it reads a matrix, and is counted of clusters alone."""
    schedule = next(s for s in shipped(H200) if s.name == "cooperative_128x256x64")
    alone = replace(schedule, cluster=Cluster(1, 8))

    def cycles(schedule, **changes):
        counted = counts(H200, Fitted(schedule, 1), Problem(8192, 2048, 2048, **changes))
        return times(P, Columns([counted]))["way out"][0]

    none, once, twice = (cycles(alone, passes=count) for count in range(3))
    assert none < once < twice
    assert cycles(alone, passes=1, reading=1) > once
    assert cycles(schedule, passes=2) == cycles(schedule)  # of tiles alone nothing was fitted


def test_blocks_of_a_multiprocessor_fill_their_rings_beside_each_other():
    """Its threads shift one chunk after the other; of few tiles it has one block all the same."""
    shared = named("cooperative_64x64x64_s6_b2").schedule
    shared = replace(shared, roles=replace(shared.roles, producer_registers=104))
    alone = replace(shared, min_blocks=1)

    def total(schedule, rows):
        problem = Problem(
            rows, 1003, 77, astride=(0.875, 0.875), access_bytes=(2, 2), threaded=(1, 1)
        )
        counted = counts(H200, Fitted(schedule, schedule.min_blocks), problem)
        return times(P, Columns([counted]))["total"][0]

    many, few = 1000, 512  # rows: of 256 tiles, and of 128
    assert 1.1 * total(shared, many) < total(alone, many)
    assert total(shared, few) == pytest.approx(total(alone, few), rel=0.01)


@cache
def everywhere():
    """Counts of every sort of schedule, for problems of every sort, with their times."""
    problems = [*PROBLEMS, Problem(64, 1024, 8192), Problem(16384, 16384, 512)]
    problems.append(Problem(1024, 1024, 1024, element_bytes=8))
    schedules = [one.schedule for one in ALL]
    schedules += [replace(s, cluster=Cluster(2, 2)) for s in schedules if s.specialised]
    direct = [
        replace(s, epilogue=replace(s.epilogue, through=through))
        for s in schedules
        for through in ("registers", "lines")
        if s.specialised and panel_columns(s)
    ]
    roomy = [replace(s, roles=replace(s.roles, producer_registers=152)) for s in direct]
    copying = [replace(s, launch=Launches(realign=True)) for s in schedules if s.specialised]
    making = [replace(s, roles=replace(s.roles, computes="before")) for s in direct]
    problems.append(
        Problem(
            65536, 128, 128, threaded=(1, 0), computed=(1, 0), source_bytes=(1 << 24, 0),
            held=(8, 64), row_passes=3 * 65536,
        )
    )  # fmt: skip
    runs = [replace(s, pipeline=replace(s.pipeline, overlap=8)) for s in direct]
    fitted = [Fitted(s, 1) for s in (*schedules, *direct, *roomy, *copying, *making, *runs)]
    fitted += [Fitted(s, 2) for s in schedules if not s.specialised]
    found = [Columns([counts(H200, one, problem) for one in fitted]) for problem in problems]
    found += [Columns([counts(H200, one, problem) for one in STREAMS]) for problem in FOLDED]
    return [(rows, times(P, rows)["total"]) for rows in found]


@pytest.mark.parametrize("name", [*BETTER, *WORSE])
def test_every_parameter_matters_somewhere(name):
    """A parameter that changes no time is one too many."""
    changed = replace(P, **{name: 4 * getattr(P, name)})
    for rows, took in everywhere():
        if not np.allclose(took, times(changed, rows)["total"], rtol=1e-6):
            return
    pytest.fail(f"{name} changes nothing")


@pytest.mark.parametrize("dim", ["m", "n", "k"])
def test_larger_problems_take_longer(dim):
    for one in ALL:
        sizes = (256, 1024, 4096, 16384)
        took = [predict(H200, one, replace(PROBLEMS[0], **{dim: size})) for size in sizes]
        assert took == sorted(took) and took[0] < took[-1], one.schedule.name


@pytest.mark.parametrize(
    "more",
    [
        {"functions": 2},
        {"matrices": 1, "matrix_bytes": 2},
        {"result_bytes": 4},
        {"astride": (0.875, 0.5)},
        {"element_bytes": 4},
    ],
)
def test_more_work_is_never_faster(more):
    for one in ALL:
        for problem in (Problem(4096, 4096, 1024), Problem(300, 500, 700)):
            assert predict(H200, one, replace(problem, **more)) >= predict(H200, one, problem)


def test_no_kernel_beats_the_tensor_cores_or_the_memory():
    for problem in PROBLEMS:
        work = problem.m * problem.n * problem.k * problem.element_bytes / 2
        fastest = work / (P.product_rate * H200.multiprocessors * P.clock * 1e3)
        moved = sum(problem.operand_bytes) / (P.memory * P.memory_share * 1e3)
        assert (totals(P, problem) > max(fastest, moved)).all()


def test_fewer_slots_of_the_ring_are_never_faster():
    """But where threads shift rows into them: what slots take, the L1 cache lacks."""
    one = named("pingpong_128x128x64")
    for problem in PROBLEMS:
        if problem.threaded != problem.computed:
            continue
        took = [
            predict(H200, Fitted(replace(one.schedule, pipeline=replace(
                one.schedule.pipeline, stages=stages)), 1), problem)
            for stages in (2, 3, 4, 6)
        ]  # fmt: skip
        assert took == sorted(took, reverse=True)


def test_rounds_that_are_almost_empty_cost_a_whole_one():
    """144 tiles on 132 multiprocessors take nearly twice as long as 132."""
    one = named("cooperative_128x256x64")
    full, spilled = (predict(H200, one, Problem(128 * 12, 256 * n, 16384)) for n in (11, 12))
    assert 1.7 < spilled / full < 2.0


def test_an_operand_that_the_cache_cannot_hold_is_read_once_per_group():
    problem = Problem(32768, 32768, 64)  # little to multiply
    one = named("pingpong_128x128x64").schedule
    narrow, wide = (Fitted(replace(one, raster=Raster("m", group)), 1) for group in (2, 64))
    parts = [dict(cost(H200, at, replace(problem, k=4096)).parts) for at in (narrow, wide)]
    assert parts[0]["device memory"] > 2 * parts[1]["device memory"]
    parts = [dict(cost(H200, at, replace(problem, m=1024, n=1024)).parts) for at in (narrow, wide)]
    assert parts[0]["device memory"] == parts[1]["device memory"]


def test_narrow_instructions_are_limited_by_what_they_read():
    """Of 64 x 16, an instruction reads 64 rows for a quarter of the products of 64 x 64."""
    base = named("cooperative_64x64x64").schedule

    def bound(n):
        tile = replace(
            base.tile, cta=replace(base.tile.cta, n=n), warp=replace(base.tile.warp, n=n)
        )
        parts = dict(
            cost(H200, Fitted(replace(base, tile=tile), 1), Problem(4096, 4096, 4096)).parts
        )
        return parts["shared memory"] / parts["products"]

    assert bound(256) < 1 < bound(64) < bound(16)


# --- costs ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("specialised", [False, True])
def test_terms_of_folds_of_operands_cost_those_who_multiply(specialised):
    """With roles and without: a k tile takes no less than they do."""
    (one, *_) = (f for f in ALL if f.schedule.specialised == specialised)
    found = [
        predict(H200, one, Problem(4096, 4096, 4096, tallied=(0, count))) for count in (0, 8, 16)
    ]
    assert found[0] < found[1] < found[2]


def test_results_that_leave_are_folded_of_few_tiles():
    """Where consumers take turns all tiles are folded."""
    for one in (f for f in ALL if f.schedule.specialised):
        every = Problem(4096, 4096, 4096, tallied=(0, 4))
        found = [predict(H200, one, replace(every, leaving=leaving)) for leaving in (True, False)]
        if one.schedule.roles.form == "pingpong":
            assert found[0] == found[1]
        else:
            assert found[0] < found[1]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_cost_names_its_longest_part(problem):
    for one in ALL:
        found = cost(H200, one, problem)
        parts = dict(found.parts)
        assert tuple(parts) == PARTS
        assert parts[found.bound] == max(parts.values())
        assert found.share == parts[found.bound] / found.microseconds
        # What does not overlap is no longer than the whole.
        assert parts["start"] + parts["device memory"] <= found.microseconds * (1 + 1e-9)
        assert parts["products"] <= found.microseconds


@pytest.mark.parametrize("problem", FOLDED)
def test_elements_come_no_faster_than_memory_and_folds_take_no_products(problem):
    for one in STREAMS:
        found = cost(H200, one, problem)
        moved = problem.m * problem.n * problem.matrix_bytes / (P.memory * P.memory_share * 1e3)
        assert found.microseconds > moved
        assert dict(found.parts)["products"] == dict(found.parts)["copies"] == 0
        assert found.counts.parts > 0


def test_few_columns_of_many_rows_are_read_whole_and_leave_few_parts():
    """On an H200 a million rows of 64 take 73 us, with 36 for the parts, and by others more."""
    times = {one.schedule.name: predict(H200, one, FOLDED[1]) for one in STREAMS}
    assert min(times, key=times.get) == "elements_4096x64_w1024x64_b4"
    assert times["elements_128x64_w32x64_b4"] > 2 * min(times.values())


def test_a_copy_before_the_kernel_is_a_part_of_its_own():
    odd = Problem(4096, 4096, 1031, threaded=(1, 1), access_bytes=(2, 2), astride=(0.875, 0.875))
    (one,) = (x for x in ALL if x.schedule.name == "pingpong_128x128x64")
    copying = replace(one, schedule=replace(one.schedule, launch=Launches(realign=True)))
    filled, copied = cost(H200, one, odd), cost(H200, copying, odd)
    assert tuple(dict(copied.parts)) == (*PARTS, BEFORE) and tuple(dict(filled.parts)) == PARTS
    moved = 2 * 4096 * 1031 * 2
    assert copied.counts.copied == moved and filled.counts.copied == 0
    least = 2 * moved / (P.memory_share * P.memory) * 1e-3
    assert P.copy_start < dict(copied.parts)[BEFORE] <= P.copy_start + least
    # Behind the copy nothing is shifted, and rows begin at lines.
    assert (copied.counts.threaded, copied.counts.astride) == (0, 0)
    aligned = cost(
        H200, one, replace(odd, threaded=(0, 0), access_bytes=(16, 16), astride=(0.0, 0.0))
    )
    assert copied.microseconds == pytest.approx(aligned.microseconds + dict(copied.parts)[BEFORE])


def test_operands_that_are_made_first_are_read_and_written_once_and_then_arguments():
    rows = Problem(
        8192, 4096, 4096, threaded=(1, 0), uncopied=(1, 0), computed=(1, 0), held=(4, 64),
        source_bytes=(1 << 26, 0), operand_functions=(1, 0),
    )  # fmt: skip
    (one,) = (x for x in ALL if x.schedule.name == "pingpong_128x128x64")
    roles = replace(one.schedule.roles, computes="before")
    found = cost(H200, found_in(one, roles), rows)
    plain = cost(H200, one, rows.behind_making)
    counted, before = found.counts, dict(found.parts)[BEFORE]
    assert (counted.made_from, counted.made_first, counted.made) == (1 << 26, 1 << 26, 0)
    assert counted.first_functions == 1 << 25
    assert found.microseconds == pytest.approx(plain.microseconds + before)
    moved = (1 + P.written_share) * (1 << 26) / (P.memory_share * P.memory) * 1e-3
    assert before == pytest.approx(P.launch_start + moved)
    many = cost(H200, found_in(one, roles), replace(rows, operand_functions=(8, 0)))
    assert dict(many.parts)[BEFORE] > before


def found_in(one, roles):
    """The same with other roles."""
    return replace(one, schedule=replace(one.schedule, roles=roles))


def test_what_no_copy_helps_is_still_moved_by_threads():
    odd = Problem(4096, 4096, 1031, threaded=(1, 1), access_bytes=(2, 2), astride=(0.875, 0.875))
    half = replace(odd, uncopied=(1, 0))
    (one,) = (x for x in ALL if x.schedule.name == "pingpong_128x128x64")
    schedule = replace(one.schedule, launch=Launches(realign=True))
    whole, part, none = (
        counts(H200, Fitted(schedule, 1), p) for p in (odd, half, replace(odd, uncopied=(1, 1)))
    )
    assert (whole.copied, part.copied, none.copied) == (4 * 4096 * 1031, 2 * 4096 * 1031, 0)
    assert (whole.threaded, part.threaded, none.threaded) == (0, 128 * 64 * 2, 2 * 128 * 64 * 2)


def test_many_predictions_are_those_of_each():
    problem = PROBLEMS[4]
    together = predict_all(H200, ALL, problem)
    assert together == pytest.approx([predict(H200, one, problem) for one in ALL], rel=1e-12)
    assert together == pytest.approx([cost(H200, one, problem).microseconds for one in ALL])
    assert predict_all(H200, [], problem) == []


def test_every_target_predicts_every_shipped_schedule():
    for target in devices():
        fitted = [Fitted(s, 1) for s in shipped(target)]
        took = predict_all(target, fitted, Problem(4096, 4096, 4096))
        assert all(np.isfinite(took)) and min(took) > 1


# --- the explanation -----------------------------------------------------------------------------
def explained(name, problem):
    one = named(name)
    return explain(H200, problem, cost(H200, one, problem), P)


def test_the_explanation_names_bound_share_and_every_resource():
    problem = Problem(8192, 8192, 8192)
    text = explained("cooperative_128x256x64", problem)
    found = cost(H200, named("cooperative_128x256x64"), problem)
    assert f"predicted: {found.microseconds:.1f} us" in text
    assert f"bound: {found.bound}, {found.share:.0%} of the time" in text
    for part, time_ in found.parts:
        assert f"  {part:<14}{time_:>9.1f} us" in text


def test_the_explanation_says_what_limits_what():
    astride = explained("pingpong_64x128x64", Problem(3000, 3000, 3000, astride=(0.875, 0.875)))
    assert "bound: copies" in astride and "rows astride cache lines" in astride
    few = explained("16x64x128_w16x16_s6", Problem(1, 64, 64))
    assert "bound: start" in few and "filled with zeros" in few
    text = explained("pingpong_128x192x64_c2x1", Problem(3072, 3072, 3072))
    assert "of 66 clusters of 2 multiprocessors idle" in text


@pytest.mark.parametrize("number", range(len(PROBLEMS)))
def test_a_schedule_is_priced_among_others_as_alone(number):
    problem, some = PROBLEMS[number], ALL[number % 5 :: 5]
    among = dict(zip(ALL, predict_all(H200, ALL, problem), strict=True))
    assert [among[one] for one in some] == [predict(H200, one, problem) for one in some]
