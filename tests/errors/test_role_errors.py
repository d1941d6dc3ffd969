"""Warps with roles: programs, schedules, barriers and maps that are refused, and why."""

import dataclasses
import re

import pytest
from matrix import case, roles, small, tiled
from plan_changes import with_program

import polygen as pg
from polygen import pipeline
from polygen.api import target
from polygen.emit.cuda import emit
from polygen.errors import (
    ArgumentError,
    IllegalSchedule,
    ResourceError,
    ScheduleError,
    ScheduleFileError,
    ToolchainMissing,
    UnsupportedProgram,
    VerifyError,
)
from polygen.frontend.program import InOrder
from polygen.kernel import Kernel
from polygen.lower.verify import _check_outside, verify
from polygen.lower.verify_made import check_preceding
from polygen.poly import derive_syncs, emitted, place_trees
from polygen.poly.ast import Block, Call, Const
from polygen.runtime import tensormaps
from polygen.runtime.tensormaps import MapLayout, encode
from polygen.schedule.load import loads
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Launches,
    Loops,
    Roles,
    Tile,
    WarpTile,
)


def build(schedule, layout="nt", dtype="bf16", epilogue="bias", alignment=16, **changes):
    changes = {"arch": "sm_90a", "schedule": schedule, **changes}
    return case("refused", layout, dtype, epilogue, alignment, **changes).kernel()


def refuses(error, words, *arguments, **changes):
    with pytest.raises(error) as caught:
        build(*arguments, **changes)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert str(caught.value).startswith(
        ("schedule roles_", "main loop", "epilogue", "S0", "refused")
    )


def with_tile(cta, warp, form="one", **changes):
    tile = Tile(CtaTile(*cta), WarpTile(*warp))
    return dataclasses.replace(roles(form, **changes), tile=tile)


# --- copies before a kernel ----------------------------------------------------------------------
def test_operands_are_copied_for_roles_alone():
    copying = dataclasses.replace(small(), launch=Launches(realign=True))
    words = ("launch.realign without roles", 'roles.form = "cooperative"')
    refuses(ScheduleError, words, dataclasses.replace(copying, name="roles_none"), alignment=2)


def test_dependent_launches_are_of_devices_that_have_them():
    following = dataclasses.replace(small(), name="roles_none", launch=Launches(dependent=True))
    words = ("launch.dependent on sm_80", "cannot wait for the grids before", "from sm_90 on")
    refuses(ScheduleError, words, following, arch="sm_80")
    assert build(following, arch="sm_90").passes.plan.launch.dependent


def test_the_tile_program_of_a_dependent_launch_is_one_that_waits():
    following = dataclasses.replace(small(), launch=Launches(dependent=True))
    for schedule, kind in ((following, "dependent launch"), (small(), "launch")):
        plan = build(schedule, arch="sm_90").passes.plan
        program = plan.tile_program
        other = dataclasses.replace(program, dependent=not program.dependent)
        with pytest.raises(VerifyError, match=f"the tile program is not that of a {kind}[.]$"):
            _check_outside(with_program(plan, other))


EARLY = Launches(dependent=True, ahead=True)
FIRST, LATER = InOrder(first=True), InOrder(settled=("w",))
NOT_EARLY = [
    (roles(), "launch.ahead = true", "no operand can come early", EARLY),
    (roles(cluster=(2, 1)), "launch.ahead = true", "bring operands for each other", EARLY),
]


@pytest.mark.parametrize(("schedule", "what", "why", "launch"), NOT_EARLY)
def test_operands_that_cannot_come_early(schedule, what, why, launch):
    given = dataclasses.replace(schedule, launch=launch)
    refuses(ScheduleError, (what, why, "Use launch.ahead = false"), given, "nt")


def test_a_launch_that_reads_early_is_a_dependent_one_with_a_warp_to_spare():
    given = dataclasses.replace(roles(), launch=Launches(ahead=True))
    words = ("launch.ahead = true without launch.dependent", "launch.dependent = true")
    refuses(ScheduleFileError, words, given, "nt")
    three = dataclasses.replace(roles("three", through="tma"), launch=EARLY)
    refuses(ScheduleFileError, ("launch.ahead = true with 3 consumers", "no warp left"), three)


def in_order_kernel(order: InOrder, launch: Launches, **signature: int) -> Kernel:
    schedule = dataclasses.replace(roles(through="lines"), launch=launch)
    made = pg.fuse(lambda x, w: x @ w.T, name="in_order")
    alone = made.compile("bf16[M,K]@2", "bf16[N,K]@2", arch="sm_90a", sizes=signature)
    program = dataclasses.replace(alone.program, in_order=order)
    return Kernel(program, target("sm_90a"), signature, schedule)


def test_what_is_copied_first_does_not_come_early():
    copied = dataclasses.replace(EARLY, realign=True)
    with pytest.raises(ScheduleError, match=r"launch\.ahead = true behind a launch that copies"):
        in_order_kernel(LATER, copied, M=67, N=45, K=131)


def test_the_launch_before_the_first_of_several_in_order_begins_when_all_else_is_complete():
    copied = Launches(dependent=True, realign=True)
    kernels = [in_order_kernel(order, copied, M=67, N=45, K=131) for order in (FIRST, LATER)]
    first, later = (one.passes.plan for one in kernels)
    assert first.launch.dependent and not first.realign.dependent and later.realign.dependent
    other = dataclasses.replace(first.realign, dependent=True)
    with pytest.raises(VerifyError, match="what goes before begins early"):
        check_preceding(dataclasses.replace(first, realign=other))


def test_the_first_of_several_in_order_begins_when_all_else_is_complete():
    with pytest.raises(ScheduleError, match=r"launch\.dependent with in_order, the first") as error:
        in_order_kernel(FIRST, Launches(dependent=True), M=64, N=64, K=64)
    assert "Use launch.dependent = false" in str(error.value)


def test_what_touches_global_memory_is_said_to_wait():
    following = dataclasses.replace(small(), launch=Launches(dependent=True))
    plan = build(following).passes.plan
    program = plan.tile_program
    on_chip = tuple(
        dataclasses.replace(one, op="product") if one.name == "store" else one
        for one in program.statements
    )
    program = dataclasses.replace(program, statements=on_chip)
    with pytest.raises(VerifyError, match="store touches global memory"):
        _check_outside(with_program(plan, program))
    with pytest.raises(VerifyError, match="store_rows is no multiply"):  # nor does it pass for one
        verify(with_program(plan, program))


# --- what roles need of the device and the program -----------------------------------------------
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_a_device_without_warpgroup_instructions(arch):
    words = [f"{arch} has no warpgroup instruction for bf16 x bf16", "Use a schedule without roles"]
    refuses(UnsupportedProgram, words, roles(), arch=arch)


def test_columns_that_no_instruction_for_whole_numbers_has():
    narrow = with_tile((64, 40, 64), (64, 40))
    words = ["tile.warp.n = 40", "no wgmma_m64k32_s32_s8 has 40 columns", "tile.warp.n = 32"]
    refuses(ScheduleError, words, narrow, "nt", "s8", "plain", options={"out_dtype": "f32"})


def test_an_instruction_of_one_warp():
    named = dataclasses.replace(roles(), atom="m16n8k16_f32_bf16")
    words = ["m16n8k16_f32_bf16 is an instruction of one warp", 'Use atom = "auto"']
    refuses(ScheduleError, words, named)


def filling(registers=152, **changes):
    schedule = roles(**changes)
    few = dataclasses.replace(schedule.roles, producer_registers=registers)
    return dataclasses.replace(schedule, roles=few)


@pytest.mark.parametrize("alignment", [8, 4, 2])
def test_a_producer_without_registers_to_shift_rows_into_place(alignment):
    words = ["roles.producer_registers = 40 for a producer whose threads fill rings", "none that "
             "tensor maps describe", "roles.producer_registers = 72"]  # fmt: skip
    refuses(ResourceError, words, roles(), "nt", "bf16", "bias", alignment)
    assert build(filling(72), "nt", "bf16", "bias", alignment)


@pytest.mark.parametrize(
    ("cluster", "named"), [((2, 1), "2 x 1"), ((1, 1, 2), "1 x 1 x 2")], ids=["along m", "along k"]
)
def test_a_cluster_whose_blocks_cannot_share_what_threads_shift(cluster, named):
    words = [f"a cluster of {named} with x: bf16[M, K]", "multiples of 2 bytes"]
    words += ["Use a cluster of 1"]
    refuses(ScheduleError, words, filling(cluster=cluster), "nt", "bf16", "bias", 2)


def test_panels_that_no_thread_is_left_to_fetch():
    words = ["r in panels that the copy engine brings", "none is left", 'through = "lines"']
    refuses(ScheduleError, words, filling(), "nt", "bf16", "bias_residual_relu", 2)
    assert build(filling(through="lines"), "nt", "bf16", "bias_residual_relu", 2)


@pytest.mark.parametrize(("layout", "tensor"), [("tn", "x"), ("nn", "w"), ("tt", "x")])
def test_32_bit_elements_are_multiplied_with_k_innermost(layout, tensor):
    words = [f"{tensor}: tf32 with ", "innermost", "k innermost", "without roles"]
    refuses(UnsupportedProgram, words, roles(k=32), layout, "tf32")


def test_8_bit_elements_are_multiplied_with_k_innermost():
    """What lies otherwise is copied so first, heads of it too."""

    def most_of_heads(x, w):
        return pg.max((x @ w).reshape(-1, 4, 16), axis=-1)

    fused, schedule = pg.fuse(most_of_heads), roles(k=128, through="registers")
    kernel = fused.compile("e4m3[M,K]", "e4m3[K,64]", arch="sm_90a", schedule=schedule)
    report = kernel.check({"M": 35, "K": 64})
    assert report.ok, str(report)
    assert "w_turned" in kernel.source


# --- tiles ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (
            with_tile((128, 128, 64), (64, 64)),
            ("tile.warp 64 x 64", "tile.warp.n = 128 or tile.warp.m = 128"),
        ),
        (
            with_tile((128, 64, 64), (64, 64), "pingpong"),
            ("take turns neither", 'tile.warp.m = 128, or roles.form = "cooperative"'),
        ),
        (
            with_tile((64, 128, 64), (64, 64), "pingpong"),
            ("take turns neither", "tile.warp.n = 128, tile.warp.m = 64"),
        ),
        (
            with_tile((64, 256, 64), (64, 64)),
            ("4 consumer warpgroups", "tile.warp.n = 128"),
        ),
        (with_tile((256, 64, 64), (64, 64)), ("4 consumer warpgroups", "share the registers")),
        (
            with_tile((64, 264, 64), (64, 264), through="registers"),
            ("tile.warp.n = 264", "covers 256 columns", "tile.warp.n = 88"),
        ),
        (with_tile((64, 320, 64), (64, 320)), ("covers 256 columns", "tile.warp.n = 160")),
        (
            with_tile((64, 512, 64), (64, 512), "pingpong"),
            ("covers 256 columns", "tile.cta.n = tile.warp.n = 256"),
        ),
        (
            with_tile((128, 512, 64), (64, 512)),
            ("covers 256 columns", "tile.cta.n = tile.warp.n = 256"),
        ),
    ],
)
def test_tiles_that_do_not_fit_the_roles(schedule, words):
    refuses(ScheduleError, words, schedule)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (roles(k=8), "tile.cta.k = 8 is not a multiple of 16, the shape of wgmma_m64k16_f32_bf16"),
        (roles(n=68), "tile.warp.n = 68 is not a multiple of 8"),
        (roles(m=32), "tile.warp.m = 32 is not a multiple of 64"),
    ],
)
def test_tiles_that_are_no_multiples_of_the_instruction(schedule, words):
    refuses(ScheduleFileError, [words], schedule)


def test_a_width_without_panels():
    words = ["tile.warp.n = 72 with panels", "epilogue.through", "Use a multiple of 16"]
    refuses(ScheduleError, words, roles(n=72))
    assert build(roles(n=72, through="registers"))


@pytest.mark.parametrize("epilogue", ["transposed_residual", "column_major_residual"])
def test_matrices_that_the_copy_engine_cannot_move(epilogue):
    words = ["r: the copy engine cannot move r: bf16[", "n innermost", 'through = "lines"']
    refuses(ScheduleError, words, roles(), "nt", "bf16", epilogue)
    assert build(roles(through="lines"), "nt", "bf16", epilogue)


def test_results_that_the_copy_engine_cannot_move():
    words = ["y0: the copy engine cannot move y0", "multiples of 16 bytes"]
    odd = (("M", 64), ("N", 60), ("K", 64))
    refuses(ScheduleError, words, roles(), epilogue="plain", sizes=odd)


@pytest.mark.parametrize(
    ("schedule", "layout", "words"),
    [
        (roles(cluster=(3, 1)), "nt", ("cluster of 3 x 1 cannot share w", "64 stored rows")),
        (roles(cluster=(1, 3)), "nt", ("cluster of 1 x 3 cannot share x", "64 stored rows")),
        (roles(n=96, cluster=(8, 1)), "nt", ("cannot share w", "96 stored rows")),
        (roles(k=16, cluster=(4, 1)), "nn", ("cannot share w", "16 stored rows")),
        (roles(k=48, cluster=(1, 4)), "tn", ("cannot share x", "48 stored rows")),
    ],
)
def test_tiles_that_a_cluster_cannot_share(schedule, layout, words):
    refuses(ScheduleError, (*words, "Use a cluster of 1"), schedule, layout)


@pytest.mark.parametrize(
    ("schedule", "layout", "words"),
    [
        (
            roles(n=24, through="registers"),
            "nn",
            ("w, tile.warp.n: rows of 48 bytes", "Use multiples of 16 elements"),
        ),
        (
            roles(n=40, through="registers"),
            "tn",
            ("w, tile.warp.n: rows of 80 bytes", "128, 64 or 32"),
        ),
        (
            with_tile((64, 72, 64), (64, 24), "three_beside", through="registers"),
            "nn",
            ("tile.warp.n: rows of 144 bytes in shared memory, in parts of 48", "multiples of 16"),
        ),
    ],
)
def test_operand_tiles_without_a_layout(schedule, layout, words):
    refuses(ScheduleError, words, schedule, layout)


def rings_of(plan):
    return [buffer for buffer in plan.buffers if buffer.kind == "ring"]


@pytest.mark.parametrize(
    ("schedule", "layout"), [(roles(n=112, k=16), "nt"), (roles(n=72, k=32), "nt")]
)
def test_slots_that_are_no_whole_patterns_of_the_swizzle_are_padded(schedule, layout):
    flat = dataclasses.replace(schedule, epilogue=Epilogue("registers"))
    kernel = build(flat, layout)
    assert all(b.slot_bytes % 1024 == 0 for b in rings_of(kernel.passes.plan))
    report = kernel.check()
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("schedule", "layout"),
    [(roles("two", m=192, k=32, stages=2), "nt"), (roles(k=272, stages=2), "tn")],
)
def test_boxes_with_more_rows_than_a_tensor_map_takes_are_cut(schedule, layout):
    report = build(schedule, layout).check()
    assert report.ok, str(report)


# --- values, and what only goes with roles or without them ---------------------------------------
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[roles]\nform = 'ping'", "roles.form: 'ping' is unknown. Nearest legal: 'pingpong'."),
        ("[roles]\nform = 2", "roles.form: 2 is not a string"),
        ("[roles]\nproducers = 2", "roles.producers: unknown key. Nearest legal: roles.producer_r"),
        ("[roles]\nconsumer_registers = 0", "roles.consumer_registers: 0 is too small"),
        ("[roles]\nproducer_registers = '40'", "roles.producer_registers: '40' is not an integer"),
        ("[cluster]\nm = 0", "cluster.m: 0 is too small. Nearest legal: 1"),
        ("[cluster]\nn = -2", "cluster.n: -2 is too small. Nearest legal: 1"),
        ("[cluster]\nk = 0", "cluster.k: 0 is too small. Nearest legal: 1"),
        ("[cluster]\nq = 2", "cluster.q: unknown key. Legal: m, n, k"),
        ("[epilogue]\nslots = 0", "epilogue.slots: 0 is too small. Nearest legal: 1"),
        ("[epilogue]\nprefetch = 0", "epilogue.prefetch: 0 is too small. Nearest legal: 1"),
        (
            "[epilogue]\nthrough = 'tmaa'",
            "epilogue.through: 'tmaa' is unknown. Nearest legal: 'tma'",
        ),
        ("[pipeline]\nin_flight = -1", "pipeline.in_flight: -1 is too small. Nearest legal: 0"),
        ("exchange = 1", "exchange: 1 is not true or false"),
        ("exchanged = true", "exchanged: unknown key. Nearest legal: exchange"),
    ],
)
def test_mistakes_in_a_file(text, message):
    with pytest.raises(ScheduleFileError) as caught:
        loads(f"format = 1\n{text}\n", "some.toml")
    (found,) = caught.value.problems
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (roles(through="smem"), 'epilogue.through = "smem" with roles'),
        (small(epilogue=Epilogue("tma")), 'epilogue.through = "tma" without roles'),
        (small(cluster=Cluster(2, 1)), "cluster 2 x 1 without roles"),
        (roles(cluster=(4, 4)), "cluster 4 x 4 has 16 blocks. Nearest legal: at most 8"),
        (small(cluster=Cluster(k=2)), "cluster.k = 2 without roles"),
        (roles(cluster=(1, 1, 16)), "cluster 1 x 1 x 16 has 16 blocks. Nearest legal: at most 8"),
        (
            roles(cluster=(2, 1, 2)),
            "cluster.k = 2 in a cluster of 2 x 1 tiles: blocks share the sums of one tile. "
            "Nearest legal: cluster.m = cluster.n = 1",
        ),
        (
            roles("pingpong", cluster=(1, 1, 2)),
            'cluster.k = 2 with roles.form = "pingpong": consumers that share a tile share its '
            'sums with other blocks. Nearest legal: roles.form = "cooperative"',
        ),
        (
            roles(n=40, cluster=(1, 1, 4), through="registers"),
            "tile.warp.n = 40 is not a multiple of 32: each of 4 blocks finishes a share of its "
            "columns, whole groups of 8. Nearest legal: tile.warp.n = 32 of tile.cta.n = 32 or "
            "tile.warp.n = 64 of tile.cta.n = 64",
        ),
        (
            dataclasses.replace(roles(), loops=Loops(k="backward")),
            "loops.k with roles: it decides nothing there. Leave it out",
        ),
    ],
)
def test_values_that_do_not_go_together(schedule, message):
    with pytest.raises(ScheduleFileError, match=re.escape(message)):
        build(schedule)


def test_exchanged_rows_are_none_that_the_copy_engine_stores():
    turned = dataclasses.replace(roles(), exchange=True)
    with pytest.raises(ScheduleError, match=r"needs n innermost.*epilogue.through = .lines"):
        build(turned)
    for through in ("lines", "registers"):
        way_out = dataclasses.replace(turned.epilogue, through=through)
        build(dataclasses.replace(turned, epilogue=way_out))


def test_exchanged_columns_are_shared_in_whole_groups():
    narrow = dataclasses.replace(roles(n=8, cluster=(1, 1, 2), through="registers"), exchange=True)
    with pytest.raises(ScheduleFileError, match=r"tile.warp.n = 8 is not a multiple of 16") as met:
        build(narrow)
    assert "Nearest legal: tile.warp.n = 16 of tile.cta.n = 16" in str(met.value)


def test_a_grid_over_the_reduction():
    whole = dataclasses.replace(roles(), loops=Loops(grid=("m", "n", "k")))
    with pytest.raises(IllegalSchedule, match=r"S0\[.*\] -> P1\w*\[.*loops\.grid"):
        build(whole)


# --- barriers ------------------------------------------------------------------------------------
def test_one_panel_of_results_takes_one_barrier_more():
    plan = build(roles(slots=1)).passes.plan
    names = [placed.name for placed in plan.syncs]
    assert {"bar_finish", "bar_store"} <= set(names)
    assert plan.leaf("wait_finish").work.pending == 0


def test_columns_of_panels_where_there_are_none():
    words = ["epilogue.columns = 32 without panels", "Leave it out"]
    refuses(ScheduleFileError, words, roles(columns=32, through="registers"))


@pytest.mark.parametrize(
    ("n", "columns", "nearest"),
    [
        (96, 64, "Use 32 or 16"),
        (128, 48, "Use 64 or 32 or 16"),
        (24, 16, "Use a tile.warp.n that is a multiple of 16"),
    ],
)
def test_panels_that_do_not_cover_the_columns(n, columns, nearest):
    words = [f"epilogue.columns = {columns} of tile.warp.n = {n}", nearest]
    refuses(ScheduleError, words, roles(n=n, columns=columns))


@pytest.mark.parametrize(("stages", "in_flight"), [(1, 1), (2, 2), (2, 5), (3, 3)])
def test_more_products_in_flight_than_the_ring_has_room_for(stages, in_flight):
    words = [f"pipeline.in_flight = {in_flight} with a ring of {stages}",
             "only after products that wait for its next contents",
             f"pipeline.in_flight = {stages - 1}"]  # fmt: skip
    refuses(IllegalSchedule, words, roles(stages=stages, in_flight=in_flight))


def test_one_stage_is_slow_and_legal():
    assert build(roles(stages=1, in_flight=0)).check().ok


def test_a_release_that_the_trees_make_too_early(monkeypatch):
    """What is emitted is checked against what it claims of products in flight."""

    def more_in_flight(program):
        found = derive_syncs.derive(program)
        syncs = tuple(
            dataclasses.replace(s, pending=2) if s.name == "retire_empty_ring" else s
            for s in found.syncs
        )
        assert syncs != found.syncs
        return dataclasses.replace(found, syncs=syncs)

    monkeypatch.setattr(pipeline, "synchronised", more_in_flight)
    with pytest.raises(VerifyError) as caught:
        build(roles(stages=4, in_flight=1, n=128))
    message = str(caught.value)
    assert "order: nothing keeps multiply -> fill (reuse through ring_a, 4 version(s)" in message
    assert re.search(r"multiply\[[\d,]+\] -> fill\[[\d,]+\] with k_tiles = \d+", message)


def test_an_epilogue_before_the_sums_are_complete(monkeypatch):
    def early(program, tree, more):
        *others, consumer = place_trees.place_trees(program, tree, more)
        shifted = consumer.text.replace("finish[i,p] -> [(i)]", "finish[i,p] -> [(i - 1)]")
        assert shifted != consumer.text
        return (*others, dataclasses.replace(consumer, text=shifted))

    monkeypatch.setattr(emitted, "place_trees", early)
    with pytest.raises(VerifyError) as caught:
        build(roles(n=128, stages=5))
    message = str(caught.value)
    assert "refinement: " in message
    assert re.search(r"\w+\[[\d,]+\] -> \w*finish\w*\[|finish\w*\[[\d,]+\] -> ", message), message


# --- resources -----------------------------------------------------------------------------------
def test_too_much_shared_memory():
    words = ["bytes of shared memory, sm_90a has at most 232448 per block",
             "16 stages of 64x64 and 64x64 tiles, and the panels of the epilogue",
             ", or reduce epilogue.prefetch, epilogue.slots or tile.cta"]  # fmt: skip
    refuses(ResourceError, [*words, "Use pipeline.stages = 13,"], roles(stages=16))
    assert build(roles(stages=13))
    words = [*words[:2], "the panels of the epilogue, and the parts of 4 blocks' sums", words[2]]
    refuses(ResourceError, words, roles(stages=16, cluster=(1, 1, 4)))


@pytest.mark.parametrize(
    ("registers", "words"),
    [
        ((40, 100), ("roles.consumer_registers = 100", "Multiples of 8 from 24 to 256")),
        ((16, 232), ("roles.producer_registers = 16", "Multiples of 8 from 24 to 256")),
        ((40, 264), ("roles.consumer_registers = 264", "Multiples of 8 from 24 to 256")),
    ],
)
def test_registers_that_no_warpgroup_can_have(registers, words):
    refuses(
        ResourceError, words, dataclasses.replace(roles(), roles=Roles("cooperative", *registers))
    )


def test_more_registers_than_a_block_has():
    much = dataclasses.replace(roles("two"), roles=Roles("cooperative", 40, 240))
    words = ["66560 registers for all roles, a block has 64512", "40 per producer thread",
             "240 for 2 consumer warpgroup(s)", "roles.consumer_registers = 232"]  # fmt: skip
    refuses(ResourceError, words, much)
    # 65536 are the multiprocessor's: 384 threads start with 168 each, and nobody has the rest.
    almost = dataclasses.replace(roles("two"), roles=Roles("cooperative", 48, 232))
    words = ["65536 registers for all roles, a block has 64512", "roles.consumer_registers = 224"]
    refuses(ResourceError, words, almost)


def test_fewer_registers_than_the_sums_take():
    few = dataclasses.replace(roles(n=256), roles=Roles("cooperative", 40, 120))
    words = ["about 168 registers per consumer thread", "128 for sums", "Reduce tile.warp"]
    refuses(ResourceError, words, few)


def test_a_producer_with_more_registers_than_its_consumers():
    odd = dataclasses.replace(roles("two"), roles=Roles("cooperative", 168, 128))
    with pytest.raises(ResourceError):
        assert build(odd).ptx


# --- plans edited by hand ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plan():
    return build(roles("two"), epilogue="gate").passes.plan


def edited(plan, field, index, **changes):
    parts = list(getattr(plan, field))
    parts[index] = dataclasses.replace(parts[index], **changes)
    return dataclasses.replace(plan, **{field: tuple(parts)})


def index_of(plan, kind, number):
    """Where the buffer of that kind and number is among all."""
    return [i for i, buffer in enumerate(plan.buffers) if buffer.kind == kind][number]


def test_the_plan_itself_is_sound(plan):
    assert verify(plan) is plan


@pytest.mark.parametrize(("kind", "number"), [("ring", 1), ("panel", 0), ("panel", 1)])
def test_rings_that_overlap(plan, kind, number):
    index = index_of(plan, kind, number)
    offset = plan.buffers[index].offset - 1024
    with pytest.raises(VerifyError, match=f"{plan.buffers[index].name} overlaps"):
        verify(edited(plan, "buffers", index, offset=offset))


def test_a_ring_off_its_alignment(plan):
    with pytest.raises(VerifyError, match="ring_a is not aligned to 1024 bytes"):
        verify(edited(plan, "buffers", 0, offset=512))


def test_barriers_that_overlap(plan):
    index = index_of(plan, "barrier", 1)
    barrier = plan.buffers[index]
    with pytest.raises(VerifyError, match=f"{barrier.name} overlaps"):
        verify(edited(plan, "buffers", index, offset=barrier.offset - 8))


def test_barriers_behind_the_end(plan):
    launch = dataclasses.replace(plan.launch, shared_bytes=plan.launch.shared_bytes - 8)
    with pytest.raises(VerifyError, match=r"buffers end at \d+, the launch has"):
        verify(dataclasses.replace(plan, launch=launch))


@pytest.mark.parametrize("index", [0, 2])
def test_bytes_that_no_copy_brings(plan, index):
    placed = plan.syncs[index]
    assert placed.bytes
    with pytest.raises(VerifyError, match=f"expects {placed.bytes + 16} bytes, copies bring"):
        verify(edited(plan, "syncs", index, bytes=placed.bytes + 16))


def test_a_statement_of_another_place(plan):
    """Leaves belong to a place: what the consumer calls is no leaf of the producer."""
    index = next(i for i, place in enumerate(plan.places) if place.name == "producer")
    loops = Block((plan.places[index].loops, Call("retire_empty_ring", (Const(0), Const(0)))))
    with pytest.raises(VerifyError, match="retire_empty_ring with 2 arguments has no leaf"):
        verify(edited(plan, "places", index, loops=loops))


def test_an_operation_that_no_leaf_does(plan):
    index = next(i for i, leaf in enumerate(plan.leaves) if leaf.statement == "fill")
    with pytest.raises(VerifyError, match=r"fill: no leaf does move by mma\.sync on a Move"):
        emit(edited(plan, "leaves", index, unit="mma.sync"))


def test_a_leaf_whose_statement_lacks_an_iterator(plan):
    index = next(i for i, leaf in enumerate(plan.leaves) if leaf.statement == "fill")
    with pytest.raises(
        VerifyError, match="fill has the iterators m, move by tma reads k or p or i"
    ):
        emit(edited(plan, "leaves", index, loops=("m",)))


# --- tensor maps ---------------------------------------------------------------------------------
LAYOUT = MapLayout("x", "f16", (72, 20), (160,), (64, 8), 128)


def answering(monkeypatch, code):
    monkeypatch.setattr(tensormaps, "_encode_tiled", lambda: lambda *arguments: code)


def test_a_map_that_the_driver_refuses(monkeypatch):
    answering(monkeypatch, 1)
    with pytest.raises(ArgumentError, match=r"^x: .*CUresult 1.*20 x 72 f16.*contiguous copy"):
        encode(0x10000, LAYOUT)


def test_a_driver_that_encodes_no_maps(monkeypatch):
    answering(monkeypatch, 801)
    with pytest.raises(ToolchainMissing, match=r"CUresult 801.*a driver that have them"):
        encode(0x10000, LAYOUT)


def test_a_driver_older_than_tensor_maps(monkeypatch):
    tensormaps._encode_tiled.cache_clear()
    monkeypatch.setattr(tensormaps.ctypes, "CDLL", lambda name: object())
    with pytest.raises(ToolchainMissing, match=r"cannot encode tensor maps.*CUDA 12\.0 or newer"):
        encode(0x10000, LAYOUT)
    tensormaps._encode_tiled.cache_clear()


# --- auto ----------------------------------------------------------------------------------------
def test_an_unknown_kind_of_schedule():
    with pytest.raises(ScheduleError, match=r"3 is no schedule.*Pass \"auto\""):
        build(3)


def test_types_that_no_instruction_takes():
    options = {"out_dtype": "bf16"}
    with pytest.raises(UnsupportedProgram, match="sm_80 has no warp instruction for e4m3 x e4m3"):
        build("auto", "nt", "e4m3", "plain", arch="sm_80", options=options)


def test_tiled_schedules_name_the_tile_that_a_warpgroup_instruction_wants():
    named = tiled((32, 32, 32), (16, 16), atom="wgmma_m64k16_f32_bf16")
    with pytest.raises(ScheduleFileError, match="not a multiple of 64"):
        build(named)


def test_a_warpgroup_instruction_without_roles():
    named = tiled((64, 64, 64), (64, 64), atom="wgmma_m64k16_f32_bf16")
    with pytest.raises(ScheduleError, match="roles"):
        build(named)
