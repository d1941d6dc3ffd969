"""Schedules that do not fit the instruction or the device: refused with the figure."""

import dataclasses

import numpy as np
import pytest
from matrix import UNUSUAL, case, pipeline, small, tiled

from polygen.errors import (
    PolygenError,
    ResourceError,
    ScheduleError,
    ScheduleFileError,
    UnsupportedProgram,
    VerifyError,
)
from polygen.hardware.swizzle import swizzle
from polygen.lower.lanes import closed_form
from polygen.lower.verify import verify
from polygen.lower.verify_memory import check_apart
from polygen.poly.ast import Block, Call, Const
from polygen.schedule.model import Epilogue, Loops, Pipeline, Raster, Roles, SharedMemory

ROLES = "sm_90a"


def refuses(error, schedule, *fragments, dtype="bf16", layout="nt", **changes):
    with pytest.raises(error) as caught:
        case("refused", layout, dtype, "bias", schedule=schedule, **changes).kernel()
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


# --- resources -----------------------------------------------------------------------------------
def test_too_much_shared_memory():
    big = tiled((128, 128, 64), (64, 64), pipeline=pipeline(6, 4))
    refuses(
        ResourceError, big, "196608 bytes of shared memory", "sm_80 has at most 166912",
        "6 stages of 128x64 and 128x64 tiles", "Use pipeline.stages = 5, or reduce tile.cta",
    )  # fmt: skip
    assert case("fits", "nt", "bf16", "bias", schedule=tiled(
        (128, 128, 64), (64, 64), pipeline=pipeline(5, 4))).kernel()  # fmt: skip


def test_stages_that_fit_have_a_distance_that_they_allow():
    big = tiled((128, 256, 64), (64, 64), pipeline=pipeline(6, 5))
    refuses(ResourceError, big, "Use pipeline.stages = 3 and pipeline.distance = 2, or reduce")
    fitting = tiled((128, 256, 64), (64, 64), pipeline=pipeline(3, 2))
    assert case("fits", "nt", "bf16", "bias", schedule=fitting).kernel()


def test_sums_that_outgrow_the_rings_are_not_made_smaller_by_stages():
    wide = tiled((256, 256, 16), (64, 64), pipeline=pipeline(2, 1))
    with pytest.raises(ResourceError) as caught:
        case("refused", "nt", "bf16", "bias", schedule=wide).kernel()
    assert "Reduce tile.cta" in str(caught.value) and "stages =" not in str(caught.value)


def test_a_larger_device_takes_what_a_smaller_one_refuses():
    big = tiled((128, 128, 64), (64, 64), pipeline=pipeline(6, 4))
    assert case("fits", "nt", "bf16", "bias", schedule=big, arch="sm_90").kernel()
    refuses(ResourceError, tiled((128, 128, 64), (64, 64)), "sm_86", "bytes", arch="sm_86",
            dtype="tf32")  # fmt: skip


def test_too_many_registers():
    wide = tiled(
        (256, 256, 16), (128, 128), pipeline=pipeline(2, 1), epilogue=Epilogue("registers")
    )
    refuses(ResourceError, wide, "registers per thread, at most 255", "512 for sums", "tile.warp")


def test_too_many_warps():
    many = tiled((256, 128, 32), (16, 16), pipeline=pipeline(2, 1))
    refuses(ScheduleFileError, many, "128 warps", "at most 32", "larger warp tiles")


def test_min_blocks_that_registers_do_not_allow():
    refuses(ResourceError, small(min_blocks=30), "30 block(s)", "min_blocks")


def test_min_blocks_that_shared_memory_does_not_allow():
    big = tiled((64, 64, 64), (32, 32), pipeline=pipeline(5, 3), min_blocks=3)
    refuses(ResourceError, big, "min_blocks = 3, but only 2 block(s) fit", "min_blocks = 2")


# --- tiles and swizzles --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schedule", "fragment"),
    [
        (tiled((32, 32, 32), (24, 16)), "tile.warp.m = 24 does not divide tile.cta.m = 32"),
        (tiled((32, 40, 32), (16, 20)), "tile.warp.n = 20 is not a multiple of 8"),
        (tiled((32, 32, 24), (16, 16)), "tile.cta.k = 24 is not a multiple of 16"),
        (tiled((24, 32, 32), (24, 16)), "tile.warp.m = 24 is not a multiple of 16"),
    ],
)
def test_tiles_that_do_not_divide(schedule, fragment):
    refuses(ScheduleFileError, schedule, fragment, "Nearest legal")


def test_every_tile_mistake_is_listed():
    refuses(
        ScheduleFileError,
        tiled((32, 40, 24), (24, 20)),
        "4 problem(s)",
        "warp.m",
        "warp.n",
        "cta.k",
    )


def test_a_swizzle_that_does_not_fit_the_row():
    swizzled = small(smem=SharedMemory("xor8_shift0"))
    refuses(
        ScheduleError, swizzled, "swizzle xor8_shift0 does not fit rows of 64 bytes",
        "blocks of 128 bytes", "Legal: auto, none",
    )  # fmt: skip


# --- records made in Python go through the same checks as files ----------------------------------
@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (small(pipeline=pipeline(0, 0)), "pipeline.stages: 0"),
        (small(pipeline=pipeline(3, -1)), "pipeline.distance: -1"),
        (small(pipeline=pipeline(3, 2, ("copy",))), "pipeline.order: ['copy']"),
        (small(pipeline=pipeline(3, 2, fragments=0)), "pipeline.fragments: 0"),
        (small(pipeline=pipeline(3, 2, copies="sprad")), "Nearest legal: 'spread'"),
        (small(raster=Raster("q", 8)), "raster.along: 'q'"),
        (small(raster=Raster("m", 0)), "raster.group: 0"),
        (small(loops=Loops(mma=("k", "m"))), "loops.mma: ['k', 'm']"),
        (small(loops=Loops(grid=())), "loops.grid: []"),
        (small(epilogue=Epilogue("nowhere")), "epilogue.through: 'nowhere'"),
        (small(min_blocks=0), "min_blocks: 0"),
        (tiled((0, 32, 32), (16, 16)), "tile.cta.m: 0"),
    ],
)
def test_values_out_of_range(schedule, field):
    refuses(ScheduleFileError, schedule, field)


@pytest.mark.parametrize("grid", [("m",), ("n",)])
def test_a_grid_without_m_or_n(grid):
    refuses(ScheduleError, small(loops=Loops(grid=grid)), "loops.grid", "one output tile")


# --- instructions --------------------------------------------------------------------------------
def test_an_instruction_for_other_types():
    named = small(atom="m16n8k8_f32_tf32")
    refuses(
        UnsupportedProgram, named, "m16n8k8_f32_tf32 does not run bf16 x bf16", "m16n8k16_f32_bf16"
    )


def test_an_unknown_instruction():
    refuses(ScheduleFileError, small(atom="m16n8k99"), "m16n8k99", "Nearest legal:")


def test_types_no_instruction_takes():
    with pytest.raises(PolygenError, match="s32"):
        case("refused", "nt", "s32", "plain").kernel()


# --- plans edited by hand ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plan():
    return case("edited", "nt", "bf16", "bias", schedule=UNUSUAL["stages_2"]).kernel().passes.plan


def edited_buffer(plan, index, **changes):
    buffers = list(plan.buffers)
    buffers[index] = dataclasses.replace(buffers[index], **changes)
    return dataclasses.replace(plan, buffers=tuple(buffers))


def test_the_plan_itself_is_sound(plan):
    assert verify(plan) is plan


def test_overlapping_buffers(plan):
    second = next(i for i, b in enumerate(plan.buffers) if b.name == "ring_b")
    with pytest.raises(VerifyError, match="overlaps"):
        verify(edited_buffer(plan, second, offset=16))


def test_buffers_that_share_bytes_and_nobody_orders(plan):
    """Only what the tile program overlays may: its dependences say when."""
    made = dataclasses.replace(plan.buffers[0], name="other", offset=plan.buffers[0].offset + 16)
    for overlay in (False, True):
        other = dataclasses.replace(made, overlay=overlay)
        with pytest.raises(VerifyError, match="other overlaps ring_a"):
            check_apart(dataclasses.replace(plan, buffers=(*plan.buffers, other)))


def test_a_misaligned_buffer(plan):
    with pytest.raises(VerifyError, match="ring_b is not aligned to 16 bytes"):
        verify(edited_buffer(plan, 1, offset=plan.buffers[1].offset + 8))


@pytest.mark.parametrize("more", [{"row_bytes": 8}, {"rows": 1}])
def test_rows_that_do_not_fill_their_slots(plan, more):
    rows = plan.buffers[0].rows
    changed = {name: getattr(rows, name) + value for name, value in more.items()}
    with pytest.raises(VerifyError, match="ring_a is not made of whole chunks"):
        verify(edited_buffer(plan, 0, layout=dataclasses.replace(rows, **changed)))


def test_a_swizzle_wider_than_the_rows(plan):
    rows = dataclasses.replace(plan.buffers[0].rows, row_bytes=16, swizzle=swizzle("xor8_shift0"))
    with pytest.raises(VerifyError, match="the swizzle of ring_a leaves its rows"):
        verify(edited_buffer(plan, 0, layout=rows))


def test_buffers_behind_the_end(plan):
    launch = dataclasses.replace(plan.launch, shared_bytes=plan.launch.shared_bytes - 16)
    with pytest.raises(VerifyError, match="the launch has"):
        verify(dataclasses.replace(plan, launch=launch))


def calling(plan, call):
    """The plan with one more call behind the loops of its block."""
    (place,) = plan.places
    loops = Block((place.loops, call))
    return dataclasses.replace(plan, places=(dataclasses.replace(place, loops=loops),))


def test_a_call_without_a_leaf(plan):
    with pytest.raises(VerifyError, match="prefetch with 1 arguments has no leaf"):
        verify(calling(plan, Call("prefetch", (Const(0),))))


def test_a_call_with_too_few_arguments(plan):
    with pytest.raises(VerifyError, match="mma with 1 arguments"):
        verify(calling(plan, Call("mma", (Const(0),))))


def test_threads_that_are_not_the_warps(plan):
    launch = dataclasses.replace(plan.launch, threads=64)
    with pytest.raises(VerifyError, match="64 threads"):
        verify(dataclasses.replace(plan, launch=launch))


def test_a_fragment_without_a_closed_form():
    with pytest.raises(ScheduleError, match="no simple closed form"):
        closed_form(np.arange(32) ** 2)


# --- several persistent blocks on a multiprocessor
def beside(blocks, own, width=64, stages=2):
    """One consumer, `blocks` of them on a multiprocessor."""
    return dataclasses.replace(
        tiled((64, width, 64), (64, width), pipeline=Pipeline(stages)),
        device="sm_90a",
        roles=Roles("cooperative", 24, own),
        epilogue=Epilogue("tma"),
        min_blocks=blocks,
    )


def test_blocks_side_by_side_divide_registers():
    refuses(
        ResourceError, beside(2, 240), "a block has 32768", "consumer_registers = 232", arch=ROLES
    )


def test_blocks_side_by_side_divide_shared_memory():
    refuses(
        ResourceError, beside(2, 232, stages=8), "only 1 block(s) fit", "min_blocks = 1", arch=ROLES
    )


def test_an_instruction_fits_the_registers_that_threads_start_with():
    refuses(
        ResourceError, beside(3, 136, width=128), "64 registers for the sums of an instruction",
        "Reduce tile.warp or min_blocks", arch=ROLES,
    )  # fmt: skip


def test_blocks_side_by_side_are_launched_together():
    kernel = case("beside", "nt", "bf16", "bias", arch=ROLES, schedule=beside(2, 232)).kernel()
    launch = kernel.passes.plan.launch
    assert (launch.per_multiprocessor, launch.persistent) == (2, 264)
    assert "resident *= 2;" in kernel.source
    assert "__launch_bounds__(256, 2)" in kernel.source
