"""Shared memory is laid out once: what a schedule is fitted with is what the plan has."""

import pytest
from matrix import UNUSUAL, case, roles, small

from polygen.hardware.atom import atom
from polygen.lower.memory import memory, needed
from polygen.poly.pointwise import pointwork
from polygen.poly.tiling import tiling

KERNELS = {
    "staged": ("sm_80", small()),
    "pairs": ("sm_80", UNUSUAL["registers"]),
    "panels": ("sm_90a", roles("two")),
    "turns": ("sm_90a", roles("pingpong")),
    "padded": ("sm_90a", roles(n=72, k=32, through="registers")),
}


@pytest.fixture(scope="module", params=KERNELS)
def passes(request):
    arch, schedule = KERNELS[request.param]
    return case("memory", "nt", "bf16", "gate", 16, arch=arch, schedule=schedule).kernel().passes


def laid_out(passes, syncs):
    plan, tree = passes.plan, passes.tree
    work = pointwork(passes.program, tree.fusion, tree.match)
    tiles = tiling(plan.schedule, atom(plan.atom.name))
    return memory(plan.schedule, tree.match, work, tiles, syncs)


def test_the_fit_knows_the_buffers_of_the_plan(passes):
    before = {b.name: (b.offset, b.bytes) for b in laid_out(passes, None) if b.kind != "barrier"}
    after = {b.name: (b.offset, b.bytes) for b in passes.plan.buffers if b.kind != "barrier"}
    assert before == after


def test_room_for_barriers_is_enough(passes):
    estimated, plan = needed(laid_out(passes, None)), passes.plan
    assert plan.launch.shared_bytes == needed(plan.buffers) <= estimated
    assert estimated - plan.launch.shared_bytes < 1024


def test_layouts_fill_their_slots(passes):
    for buffer in passes.plan.buffers:
        if buffer.kind == "scratch":
            assert buffer.rows.rows * buffer.rows.row_bytes == buffer.slot_bytes
        elif buffer.kind == "ring" and passes.plan.launch.persistent:
            assert 0 <= buffer.slot_bytes - buffer.matrix.bytes < buffer.alignment
