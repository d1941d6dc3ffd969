"""Groups of rows in what is emitted: launchers that make room for any groups, and the walk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from host_launcher import COMPILER, HostLauncher, interpreted
from launcher_calls import Call, codes_of, compare_compiled
from tensor_map_samples import plan_of, source_of

import polygen as pg
from polygen.emit.conditions import refusals
from polygen.errors import VerifyError
from polygen.frontend.dtypes import BF16, S32
from polygen.frontend.program import Program, Tensor
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.lower.launch import Launch
from polygen.lower.verify_accesses import check_accesses
from polygen.lower.work import Locate

ALONG = Launch("M", "N", 16, 32, 4, 128, 0, groups="E", grouped="along")
LAUNCHES = {
    "a block a tile": ALONG,
    "a block a tile, rows across": Launch("N", "M", 16, 32, 4, 128, 0, groups=7, grouped="across"),
    "persistent": replace(ALONG, persistent=132),
    "persistent clusters": replace(ALONG, persistent=132, cluster=(2, 1)),
}
SIGNATURE = ("bf16[T,K]", "bf16[E,K,N]", "s32[E]")


def call_of(launch: Launch) -> Call:
    inputs = (
        Tensor("x", BF16, ("M", "K"), (0, 1)),
        Tensor("w", BF16, ("E", "K", "N"), (0, 1, 2)),
        Tensor("ends", S32, ("E",), (0,), alignment=4),
    )
    output = Tensor("y", BF16, ("M", "N"), (0, 1))
    program = Program("grouped", "x @ w", inputs, (output,), ())
    return Call(program, source_of(plan_of(program, (), launch, pointers=True)))


@pytest.fixture(scope="module", params=LAUNCHES)
def call(request) -> Call:
    return call_of(LAUNCHES[request.param])


def many(call):
    """So many groups, or rows, that no kernel counts their tiles, or CUDA launches no such grid."""
    for size in (300, 21_846, 65_536, 2**20, LARGEST_SIZE):
        yield {**call.values, "E": size}
        yield {**call.values, "M": size}
        yield {**call.values, "M": 1, "N": 1, "E": size}
        yield {**call.values, "M": size, "E": size}


def test_the_tests_of_the_launcher_are_those_of_python(call):
    codes = codes_of(call, [*call.around(), *many(call)])
    every = refusals(call.source.conditions, call.source.launch, call.tensors)
    assert {0, *(refusal.code for refusal in every)} <= codes, "each condition is broken"


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_compiled_launcher_does_what_python_does(call, tmp_path):
    host = HostLauncher(call.source, call.program, tmp_path)
    compare_compiled(call, [*call.around(), *many(call)], host)


def test_tiles_of_any_groups_are_counted():
    call = call_of(LAUNCHES["persistent"])
    sentence = f"M in E groups make at most {LARGEST_SIZE} tiles"
    for size, wanted in ((1, ""), (LARGEST_SIZE, ""), (2**25, "")):
        code = interpreted(call.source, {**call.values, "M": 1, "N": 1, "K": 8, "E": size})
        every = refusals(call.source.conditions, call.source.launch, call.tensors)
        found = next((refusal.sentence for refusal in every if refusal.code == code), "")
        assert (found == sentence) == (wanted == sentence)
    code = interpreted(call.source, {**call.values, "M": 2**30, "N": 96, "K": 8, "E": 2**30})
    assert next(r.sentence for r in every if r.code == code) == sentence


def test_the_header_takes_the_number_of_groups():
    header = call_of(ALONG).source.header
    assert "int M, int N, int E, unsigned grid[2]" in header
    assert "(M + E * 15LL) / 16" in header
    assert "(N + 31LL) / 32 * 4" in header


@pytest.fixture(scope="module")
def kernels():
    sizes = {"T": 300, "N": 136, "K": 136, "E": 5}
    made = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w, ends), name="grouped")
    return {arch: made.compile(*SIGNATURE, arch=arch, sizes=sizes) for arch in ("sm_80", "sm_90a")}


def test_one_walk_serves_kernels_of_either_kind(kernels):
    for kernel in kernels.values():
        text = kernel.source
        assert text.count("struct RowGroups {") == 1
        assert "const int* __restrict__ ends" in text
        assert "rows_of_group" in text
    assert "groups.find_together(ends, E, T, " in kernels["sm_80"].source


def test_plans_say_where_groups_end(kernels):
    for kernel in kernels.values():
        assert "rows in E groups that end at ends" in kernel.show("plan")


def test_plain_kernels_have_no_walk():
    plain = pg.fuse(lambda x, w: x @ w).compile("bf16[M,K]", "bf16[K,N]", arch="sm_80")
    assert "RowGroups" not in plain.source
    assert "rows_before" not in plain.source


def test_results_of_groups_leave_by_no_box():
    sizes = {"T": 4096, "N": 4096, "K": 4096, "E": 8}
    made = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w, ends), name="grouped")
    kernel = made.compile(*SIGNATURE, arch="sm_90a", sizes=sizes)
    assert kernel.schedule.specialised
    assert kernel.schedule.epilogue.through in ("lines", "registers")
    boxes = replace(kernel.schedule, epilogue=replace(kernel.schedule.epilogue, through="tma"))
    with pytest.raises(pg.PolygenError, match=r"cannot move rows of groups.*through = \"lines\""):
        made.compile(*SIGNATURE, arch="sm_90a", sizes=sizes, schedule=boxes)


def persistent_plan():
    sizes = {"T": 4096, "N": 4096, "K": 4096, "E": 8}
    made = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w, ends), name="grouped")
    return made.compile(*SIGNATURE, arch="sm_90a", sizes=sizes).passes.plan


def test_plans_that_count_other_groups_are_refused():
    plan = persistent_plan()
    check_accesses(plan)
    with pytest.raises(VerifyError, match="the tiles are not those of"):
        check_accesses(replace(plan, launch=replace(plan.launch, groups=0, grouped="")))
    leaves = tuple(
        replace(leaf, work=replace(leaf.work, groups=None))
        if isinstance(leaf.work, Locate)
        else leaf
        for leaf in plan.leaves
    )
    with pytest.raises(VerifyError, match="the tiles are not those of"):
        check_accesses(replace(plan, leaves=leaves))


def test_boxes_that_begin_at_other_rows_are_refused():
    plan = persistent_plan()
    fill = plan.leaf("fill")
    moved = tuple(
        replace(boxes, corner=tuple(c.replace("rows_before + ", "") for c in boxes.corner))
        for boxes in fill.work.boxes
    )
    leaves = tuple(
        replace(leaf, work=replace(leaf.work, boxes=moved)) if leaf is fill else leaf
        for leaf in plan.leaves
    )
    with pytest.raises(VerifyError, match="boxes of x begin at 0 of axis 0 and not at 1"):
        check_accesses(replace(plan, leaves=leaves))
