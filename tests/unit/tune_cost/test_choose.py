"""The choice among shipped schedules: what the model takes into account, and the error."""

from dataclasses import replace

import pytest
from matrix import case

import polygen as pg
from polygen import fuse
from polygen.decide import candidates
from polygen.decision import decision
from polygen.errors import ScheduleError
from polygen.frontend.parse import parse_expression
from polygen.hardware.device import device
from polygen.pipeline import generate
from polygen.poly.results import panel_columns
from polygen.schedule.load import shipped
from polygen.schedule.model import CtaTile, Epilogue, Tile, WarpTile
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.tuned import tuned
from polygen.tune.choose import Offer, choose
from polygen.tune.cost import predict

H200 = device("sm_90a")
WITHOUT_ROLES = "roles are not for this test"


def everything(schedule):
    return Fitted(schedule, 1)


def without_roles(schedule):
    return WITHOUT_ROLES if schedule.specialised else Fitted(schedule, 1)


def among(*names):
    """A fit that takes these schedules only."""
    assert set(names) <= {schedule.name for schedule in shipped(H200)}
    return lambda schedule: Fitted(schedule, 1) if schedule.name in names else "not asked for"


def chosen(m, n, k, fit=everything, skip=frozenset(), **epilogue):
    return choose(H200, Problem(m, n, k, **epilogue), fit, skip)[0]


def test_rows_that_consumers_would_fold_beside_computing_them_are_made_before():
    """rms_norm(x, g) @ w.T of 4096x4096x4096 takes 211 us so, and 196 behind a launch."""

    @fuse
    def normed(x, w, g):
        return pg.rms_norm(x, g).astype("bf16") @ w.T

    program = normed.program("bf16[M,K]", "bf16[N,K]", "bf16[K]")
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    problem, _ = candidates(program, H200, sizes)
    assert problem.tallied == (3, 0) and problem.paired_vectors == (1, 0)
    assert decision(program, H200, sizes)[0].roles.computes == "before"


# --- without roles -------------------------------------------------------------------------------
def test_few_rows_take_a_tile_of_few_rows():
    rows = [chosen(m, 4096, 4096, without_roles).tile.cta.m for m in (16, 128, 4096)]
    assert rows == sorted(rows) and rows[0] <= 32 < rows[2]


def test_a_large_product_takes_the_largest_reuse():
    warp = chosen(8192, 8192, 8192, without_roles).tile.warp
    assert (warp.m, warp.n) == (64, 64)


def test_few_tiles_get_copies_far_ahead():
    few, many = (chosen(m, n, 4096, without_roles) for m, n in ((16, 4096), (8192, 8192)))
    assert few.pipeline.distance > many.pipeline.distance


def test_the_origin_counts_waves_of_resident_blocks():
    def two(schedule):
        return WITHOUT_ROLES if schedule.specialised else Fitted(schedule, 2)

    _, origin = choose(H200, Problem(4096, 4096, 4096), two)
    assert "of 2 block(s) on 132 multiprocessors" in origin


def test_a_schedule_to_skip_is_not_taken_and_the_origin_names_it():
    first = chosen(4096, 4096, 4096)
    problem = Problem(4096, 4096, 4096)
    second, origin = choose(H200, problem, everything, frozenset({first.name}))
    assert second.name != first.name and f"they spill: {first.name}" in origin


def test_no_schedule_fits():
    def refuse(schedule):
        return "no roles here" if schedule.specialised else "no warps here"

    with pytest.raises(
        ScheduleError, match=r"no shipped schedule fits .* on sm_90a.*Pass a"
    ) as error:
        choose(H200, Problem(4096, 4096, 4096), refuse)
    assert "no roles here" in str(error.value) and "no warps here" in str(error.value)


# --- with roles ----------------------------------------------------------------------------------
def test_few_rows_are_the_instructions_columns():
    """A warpgroup instruction has 64 rows, of which 16 would be a quarter: the others are zeros."""
    found = [chosen(m, 4096, 4096) for m in (8, 16, 32, 512, 4096)]
    assert [one.exchange for one in found] == [True, True, True, False, False]
    assert all(one.specialised for one in found)
    few = [one.tile.cta.n for one in found[:3]]
    assert few == sorted(few) and few[-1] <= 64
    assert not chosen(4096, 16, 4096).exchange  # few columns are the instruction's as they are


def test_one_row_is_read_by_lanes_and_no_more_than_few_are():
    """On an H200 four rows of 4096 x 4096 take 18.1 us by lanes, and eight 15.1 by warpgroups."""
    found = [chosen(m, 4096, 4096).by_lanes for m in (1, 4, 8)]
    assert found == [True, False, False]
    assert chosen(4, 2048, 2048).by_lanes


def test_long_reductions_with_few_results_take_a_small_tile():
    few, many = chosen(512, 512, 16384), chosen(8192, 8192, 16384)
    assert few.specialised and many.specialised
    assert few.tile.cta.m * few.tile.cta.n < many.tile.cta.m * many.tile.cta.n


def test_a_heavy_epilogue_is_hidden_behind_the_other_consumers_products():
    """Little to copy and a heavy epilogue against much to copy and none."""
    pair = among("cooperative_128x256x64", "pingpong_64x128x64")
    heavy = chosen(4096, 4096, 256, pair, matrices=2, matrix_bytes=4, functions=1)
    assert heavy.roles.form == "pingpong"
    assert chosen(4096, 4096, 8192, pair).roles.form == "cooperative"


def named(name):
    return next(Fitted(s, 1) for s in shipped(H200) if s.name == name)


@pytest.mark.parametrize("more", [{"matrices": 1, "matrix_bytes": 2}, {"functions": 1}])
def test_what_an_epilogue_costs_cooperative_consumers_more(more):
    def cost(name):
        bare = Problem(4096, 4096, 4096)
        return predict(H200, named(name), replace(bare, **more)) - predict(H200, named(name), bare)

    assert 0 <= cost("pingpong_128x128x64") < cost("cooperative_128x256x64")


def test_waves_that_are_almost_empty_take_another_width():
    """Of 512 x 14336, 448 tiles of 128 columns take four rounds of 132, 360 of 160 take three, and
    256 of 224 take two.
    """
    widths = among(*(f"pingpong_128x{n}x64" for n in (128, 160)))
    assert chosen(512, 14336, 4096, widths).tile.cta.n == 160
    assert chosen(512, 14336 - 2 * 1792, 4096, widths).tile.cta.n == 128
    assert chosen(512, 14336, 4096, everything).tile.cta.n == 224


def test_of_equals_an_epilogue_takes_turns_and_a_plain_product_does_not():
    """One block's only tile: nothing to hide behind, and the same time."""
    names = ("cooperative_64x128x64", "pingpong_64x128x64")
    problem = Problem(64, 128, 4096)
    assert len({predict(H200, named(name), problem) for name in names}) == 1
    assert choose(H200, problem, among(*names))[0].roles.form == "cooperative"
    finished = replace(problem, pointwise=True)
    assert choose(H200, finished, among(*names))[0].roles.form == "pingpong"


def test_blocks_of_a_cluster_copy_less():
    alone = named("pingpong_64x128x64")
    shared = replace(alone.schedule, cluster=replace(alone.schedule.cluster, m=2))
    problem = Problem(8192, 8192, 8192)
    assert predict(H200, Fitted(shared, 1), problem) < predict(H200, alone, problem)


def test_rows_astride_the_lines_of_the_cache_are_copied_more_slowly():
    at = named("pingpong_64x128x64")
    problem = Problem(4096, 4096, 4096)
    assert predict(H200, at, replace(problem, astride=(0.875, 0.875))) > predict(H200, at, problem)


def test_rows_at_any_address_take_time_in_the_operand_that_has_them():
    at = named("128x128x64_w64x64_s3")
    both = Problem(4096, 4096, 1031, threaded=(1, 1), access_bytes=(2, 2))
    one = replace(both, threaded=(1, 0), access_bytes=(2, 16))
    none = replace(both, threaded=(0, 0), access_bytes=(16, 16))
    took = [predict(H200, at, problem) for problem in (none, one, both)]
    assert took == sorted(took) and took[1] < 0.8 * took[2]
    other = replace(one, threaded=(0, 1), access_bytes=(16, 2))
    assert predict(H200, at, other) == pytest.approx(took[1])


def test_wide_elements_multiply_more_slowly():
    at = named("pingpong_128x128x64")
    narrow, wide = (predict(H200, at, Problem(4096, 4096, 4096, size)) for size in (1, 4))
    assert wide > 2 * narrow


# --- origins -------------------------------------------------------------------------------------
def test_the_origin_counts_persistent_blocks():
    few, many = (choose(H200, Problem(m, m, 4096), everything)[1] for m in (512, 4096))
    assert "64 tiles by 128 persistent blocks" in few  # two share the sums of a tile
    assert "by 132 persistent blocks" in many and "4096x4096x4096" in many


def test_the_origin_says_why_no_schedule_with_roles_was_taken():
    _, origin = choose(H200, Problem(4096, 4096, 4096), without_roles)
    assert f"none with roles: {WITHOUT_ROLES}" in origin
    assert "none with roles" not in choose(H200, Problem(16, 4096, 4096), everything)[1]


def test_the_origin_says_that_threads_move_what_tensor_maps_cannot_describe():
    def fit(schedule):
        in_lines = replace(schedule, epilogue=Epilogue("lines"))
        return Fitted(in_lines, 1) if panel_columns(in_lines) else "no panel is that narrow"

    problem = Problem(4096, 4096, 4096)
    assert "stored line by line" in choose(H200, problem, fit)[1]
    assert "stored line by line" not in choose(H200, problem, everything)[1]
    filled = replace(problem, threaded=(1, 0), access_bytes=(2, 2))

    def in_place(schedule):
        return "no workspace" if schedule.launch.realign else fit(schedule)

    assert "threads fill rings" in choose(H200, filled, in_place)[1]
    assert "threads fill rings" not in choose(H200, problem, fit)[1]
    found, origin = choose(H200, filled, fit)
    assert found.launch.realign and "are copied first" in origin
    assert not choose(H200, problem, fit)[0].launch.realign


def test_a_device_without_the_features_is_not_asked():
    asked = []

    def fit(schedule):
        asked.append(schedule)
        return Fitted(schedule, 1)

    plain = replace(H200, features=tuple(f for f in H200.features if f != "wgmma"))
    found, origin = choose(plain, Problem(4096, 4096, 4096), fit)
    assert not found.specialised and "with roles" not in origin
    assert asked and not any(schedule.specialised for schedule in asked)


# --- offers --------------------------------------------------------------------------------------
def offer(name):
    return Offer(named(name).schedule, f"measured: {name}")


def test_an_offer_is_taken_before_any_shipped_schedule():
    problem = Problem(4096, 4096, 4096)
    offers = [offer("cooperative_64x64x64"), offer("pingpong_128x128x64")]
    taken, origin = choose(H200, problem, everything, offers=offers)
    assert (taken.name, origin) == ("cooperative_64x64x64", "measured: cooperative_64x64x64")


def test_an_offer_that_spills_or_no_longer_fits_is_passed_over():
    problem = Problem(4096, 4096, 4096)
    offers = [offer("cooperative_64x64x64"), offer("pingpong_128x128x64")]
    skip = frozenset({"cooperative_64x64x64"})
    assert choose(H200, problem, everything, skip, offers)[0].name == "pingpong_128x128x64"
    only = among("cooperative_256x128x64")
    taken, origin = choose(H200, problem, only, offers=offers)
    assert taken.name == "cooperative_256x128x64" and "fastest of 1" in origin


def test_an_offer_is_taken_as_it_fits():
    def fewer(schedule):
        return Fitted(replace(schedule, pipeline=replace(schedule.pipeline, stages=3)), 1)

    problem = Problem(4096, 4096, 4096)
    taken, _ = choose(H200, problem, fewer, offers=[offer("pingpong_128x128x64")])
    assert taken.name == "pingpong_128x128x64" and taken.pipeline.stages == 3


def test_an_offer_whose_results_would_take_another_way_out_is_not_taken():
    def fit(schedule):
        return Fitted(replace(schedule, epilogue=Epilogue("registers")), 1)

    offers = [replace(offer("pingpong_128x128x64"), origin="measured")]
    _, origin = choose(H200, Problem(4096, 4096, 4096), fit, offers=offers)
    assert origin.startswith("shipped") and "measured" not in origin


# --- the whole decision --------------------------------------------------------------------------
LARGE = (("M", 4160), ("N", 4160), ("K", 4160))  # of no measured problem


def decided(*arguments, **changes):
    passes = case("decided", *arguments, arch="sm_90a", sizes=LARGE, **changes).kernel().passes
    return passes.plan.schedule, passes.origin


def test_a_large_product_is_specialised():
    schedule, origin = decided("nt", "bf16", "bias_gelu")
    assert schedule.roles.form == "pingpong" and schedule.epilogue.through == "tma"
    assert "persistent blocks" in origin


def test_what_was_measured_for_a_problem_comes_before_the_model():
    measured = tuned(H200)[Problem(4096, 4096, 512)]
    sizes = (("M", 4096), ("N", 4096), ("K", 512))
    kernel = case("decided", "nt", "bf16", "plain", arch="sm_90a", sizes=sizes).kernel()
    assert kernel.schedule.name == measured.schedule
    assert (
        f"measured fastest for 4096x4096x512 with such an epilogue: {measured.microseconds:g}"
        in (kernel.schedule_origin)
    )


@pytest.mark.parametrize("alignment", [8, 4, 2])
def test_rows_that_no_tensor_map_describes_are_copied_first(alignment):
    schedule, origin = decided("nt", "bf16", "bias", alignment)
    assert schedule.specialised and schedule.launch.realign
    assert "are copied first" in origin


def test_a_copy_is_not_worth_it_for_a_small_product():
    """It takes a launch, and a way round memory; the rest is over before."""
    found = {
        size: choose(H200, odd, everything)[0].launch.realign
        for size in (64, 4096)
        for odd in [
            Problem(
                size, size, size - 1, threaded=(1, 1), access_bytes=(2, 2), astride=(0.875, 0.875)
            )
        ]
    }
    assert found == {64: False, 4096: True}


def test_operands_that_lie_otherwise_are_copied_before_every_schedule():
    """The problem is that of arrays that lie as the copies do, and what these take besides."""
    sizes = {"M": 4096, "N": 4096, "K": 1000}
    function = fuse(parse_expression("x @ w", ("x", "w")), name="mm")

    def candidate(w):
        return candidates(function.program("x:s8[M,K]", w, sizes=sizes), H200, sizes)

    (right, _), (other, fit) = candidate("w:s8[K,N]:col"), candidate("w:s8[K,N]")
    assert other == replace(right, turned=(4096 * 1000, 4096 * 1008)) != right
    origins = set()
    for one in (right, other):
        schedule, origin = choose(H200, one, fit)
        turned = "; operands are copied first, with their axes in another order"
        assert schedule.launch.dependent == (turned in origin) == (one is other)
        origins.add(origin.replace(turned, ""))
        before = [predict(H200, fit(schedule), each) for each in (right, other)]
        assert 3 < before[1] - before[0] < 10  # a launch, and 8.3 MB
    assert len(origins) == 1


def test_operands_are_made_first_where_the_product_is_large():
    """Rows by index by themselves; few of them are gathered in the kernel."""
    found = {}
    for rows in (16, 8192):
        gathered = Problem(
            rows, 4096, 4096, threaded=(1, 0), uncopied=(1, 0), computed=(1, 0), held=(4, 64),
            source_bytes=(rows * 8192, 0),
        )  # fmt: skip
        chosen, origin = choose(H200, gathered, everything)
        found[rows] = chosen.makes_first
        assert ("are made first" in origin) == chosen.makes_first == chosen.launch.dependent
    assert found == {16: False, 8192: True}


@pytest.mark.parametrize(
    ("sizes", "first"),
    [((4096, 4096, 4096), False), ((1000, 4096, 4096), False), ((2048, 2048, 2048), False),
     ((16384, 768, 768), False), ((4096, 14336, 4096), True)],
)  # fmt: skip
def test_scaled_rows_are_computed_in_pairs_where_that_is_faster(sizes, first):
    """As it was measured on an H200."""
    function = fuse(parse_expression("(x * g) @ w.T", ("x", "g", "w")), name="scaled")
    known = dict(zip("MNK", sizes, strict=True))
    program = function.program("x:bf16[M,K]", "g:bf16[K]", "w:bf16[N,K]", sizes=known)
    problem, fit = candidates(program, H200, known)
    assert problem.paired_vectors == (1, 0) and problem.vectors == (0, 0)
    assert choose(H200, problem, fit)[0].makes_first == first


def test_vectors_that_are_read_one_by_one_are_no_pairs():
    function = fuse(parse_expression("(x * g) @ w.T", ("x", "g", "w")), name="scaled")
    problem, _ = candidates(function.program("bf16[M,K]", "bf16[K]@2", "bf16[N,K]"), H200, {})
    assert problem.paired_vectors == (0, 0) and problem.vectors == (1, 0)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_tf32_is_multiplied_with_k_innermost_only(layout):
    schedule, origin = decided(layout, "tf32", "bias")
    assert not schedule.specialised and "k innermost" in origin
    assert decided("nt", "tf32", "bias")[0].tile.cta.k == 32


@pytest.mark.parametrize("epilogue", ["transposed_residual", "column_major_residual"])
def test_matrices_that_no_map_describes_are_moved_line_by_line(epilogue):
    schedule, origin = decided("nt", "bf16", epilogue)
    assert schedule.specialised and schedule.epilogue.through == "lines"
    assert "stored line by line" in origin


def test_many_panels_take_stages_away():
    (base,) = (s for s in shipped(H200) if s.name == "cooperative_128x256x64")

    def stages(epilogue):
        program = (
            case("decided", "nt", "bf16", epilogue, arch="sm_90a", sizes=LARGE).kernel().program
        )
        return candidates(program, H200, dict(LARGE))[1](base).schedule.pipeline.stages

    assert stages("gate") < stages("plain") == base.pipeline.stages


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_what_fits_is_generated(layout):
    """A schedule that the choice weighs has layouts for operands stored in any order."""
    one = case("fits", layout, "bf16", "same_twice", arch="sm_90a", sizes=(("N", 512), ("K", 512)))
    program = one.kernel().program
    _, fit = candidates(program, H200, {"M": 512, "N": 512, "K": 512})
    tiles, fitting = set(), 0
    for schedule in shipped(H200):
        decisions = (schedule.roles.form, schedule.tile, schedule.cluster)
        if not schedule.specialised or decisions in tiles:
            continue
        tiles.add(decisions)
        fitted = fit(schedule)
        if isinstance(fitted, Fitted):
            fitting += 1
            generate(program, H200, {}, fitted.schedule)
    assert fitting > 20


def test_a_layout_that_is_refused_is_no_fit():
    one = case("unfit", "nn", "bf16", "same_twice", arch="sm_90a", sizes=(("N", 512), ("K", 512)))
    _, fit = candidates(one.kernel().program, H200, {})
    base = next(s for s in shipped(H200) if s.name == "cooperative_192x192x64_w192x96_s4_c1x2")
    odd = replace(base, tile=Tile(replace(base.tile.cta, n=48), WarpTile(192, 24)))
    found = fit(odd)
    assert isinstance(found, str) and "parts of 48" in found and "tile.warp.n" in found, found


def test_what_spilled_takes_those_with_no_more_registers_to_spare_with_it():
    spare = {"pingpong_128x192x64": 8, "pingpong_128x192x64_s4_n16": 8, "pingpong_128x160x64": 40}
    spare |= {"pingpong_128x128x64": 72}

    def fit(schedule):
        return Fitted(schedule, 1, spare[schedule.name]) if schedule.name in spare else "no"

    def taken(*skip):
        return chosen(6144, 6144, 2048, fit, frozenset(skip)).name

    first = taken()
    assert first.startswith("pingpong_128x192x64")
    second = taken(first)
    assert spare[second] > spare[first], "the other of 192 columns would spill as well"
    # In the end one that was left out is better than none.
    assert spare[taken("pingpong_128x128x64")] < 72


def test_what_was_measured_for_other_sums_or_accesses_is_another_problem():
    """Schedules without tensor maps or for sums of 16 bits are no offers for the others."""
    sizes = {"M": 4096, "N": 4096, "K": 1024}
    fused = fuse(parse_expression("x @ w.T", ("x", "w")), name="mm")

    def problem(x="x:f16[M,K]", w="w:f16[N,K]", **options):
        return candidates(fused.program(x, w, sizes=sizes, **options), H200, sizes)[0]

    usual = problem()
    assert problem(acc_dtype="f16") == replace(usual, sum_bytes=2) != usual
    narrow = replace(usual, access_bytes=(16, 2), threaded=(0, 1))
    assert problem(w="w:f16[N,K]@2") == narrow != usual
    assert usual in tuned(H200) and replace(usual, sum_bytes=2) not in tuned(H200)


def test_sums_of_f16_go_through_warpgroup_instructions():
    sizes = {"M": 4096, "N": 4096, "K": 1024}
    fused = fuse(parse_expression("relu(x @ w.T + b)", ("x", "w", "b")), name="half")
    program = fused.program("f16[M,K]", "f16[N,K]", "f16[N]", acc_dtype="f16", sizes=sizes)
    made = generate(program, H200, sizes, "auto")
    assert made.plan.atom.name == "wgmma_m64k16_f16_f16" and made.plan.schedule.specialised
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f16.f16.f16" in made.source.text
    # Half the registers of f32 sums: a consumer of 128 x 256 fits.
    widest = replace(
        next(s for s in shipped(H200) if s.name == "pingpong_128x192x64"),
        tile=Tile(CtaTile(128, 256, 64), WarpTile(128, 256)), name="wide",
    )  # fmt: skip
    fits = {
        acc: candidates(
            fused.program("f16[M,K]", "f16[N,K]", "f16[N]", acc_dtype=acc), H200, sizes
        )[1](widest)
        for acc in ("f16", "f32")
    }
    assert isinstance(fits["f16"], Fitted) and "registers per consumer" in str(fits["f32"])


def test_what_spilled_is_not_taken_again_under_the_name_that_its_fit_has():
    """A fit to a class of sums has other k tiles than the file, and a name that says so."""

    def in_other_k_tiles(schedule):
        return Fitted(replace(schedule, name=f"{schedule.name}_k64"), 1)

    problem, skip = Problem(4096, 4096, 4096), frozenset()
    for _ in range(3):
        taken, origin = choose(H200, problem, in_other_k_tiles, skip)
        assert taken.name not in skip
        skip |= {taken.name}
    assert len(skip) == 3 and "not taken because they spill" in origin
