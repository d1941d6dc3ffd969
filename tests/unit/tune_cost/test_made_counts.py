"""What the cost model counts of fragments that consumers compute, against kernels' own plans."""

from __future__ import annotations

import pytest

import polygen as pg
from polygen.decide import candidates
from polygen.hardware.device import device
from polygen.lower.fragments import Make
from polygen.rewrite.programs import rewritten
from polygen.rewrite.tf32_parts import in_parts
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted
from polygen.tune.cost import counts

SIZES = {"M": 4096, "N": 8192, "K": 8192}
CASES = {
    "bf16": (
        lambda x, g, w: (x * g) @ w.T, ("bf16[M,K]", "bf16[K]", "bf16[N,K]"),
        "cooperative_128x256x64_f4_g2_made",
    ),
    "s8": (
        lambda x, q: x @ q.astype("bf16").T, ("bf16[M,K]", "s8[N,K]"),
        "cooperative_128x32x64_w64_s9_k2_lines_f4_exchanged_made",
    ),
    "i4": (
        lambda x, q: x @ pg.unpack(q, "i4").astype("bf16").T, ("bf16[M,8192]", "u8[N,4096]"),
        "cooperative_64x64x128_s6_lines_f4_exchanged_made",
    ),
    "turns": (
        lambda x, w: pg.silu(x) @ w.T, ("bf16[M,K]", "bf16[N,K]"),
        "pingpong_128x128x64_s5_e3p2_made",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def counted(request):
    function, types, name = CASES[request.param]
    schedule = load_schedule(schedules_folder() / "sm_90a" / f"{name}.toml")
    fused, text = pg.fuse(function, name="made"), ",".join(types)
    sizes = {dim: size for dim, size in SIZES.items() if dim in text}
    kernel = fused.compile(*types, arch="sm_90a", sizes=sizes, schedule=schedule)
    plan = kernel.passes.plan
    problem, _ = candidates(plan.program, plan.device, sizes)
    fitted = Fitted(plan.schedule, plan.resources.blocks_per_multiprocessor)
    return plan, counts(plan.device, fitted, problem)


def test_copies_bring_what_is_stored(counted):
    plan, c = counted
    (full,) = (one for one in plan.syncs if one.name == "full_ring")
    assert c.fetched == c.filled == full.bytes
    assert (c.made, c.threaded, c.outside) == (0, 0, 0)


def test_fragments_of_a_k_tile(counted):
    plan, c = counted
    work = plan.of(Make)[0]
    tiles = plan.tiles
    assert c.making_steps == tiles.k_steps * tiles.atoms[0]
    own = plan.device.group_threads * work.elements * c.making_steps
    assert c.converted == tiles.warp_count * own
    costly = sum(one.function == "silu" for one in work.statements)
    assert c.converted_functions == costly * c.converted


def test_shared_memory_is_read_as_it_is_stored(counted):
    """A fragment once, by the consumer that makes it; the right operand by every instruction."""
    plan, c = counted
    tiles, work = plan.tiles, plan.of(Make)[0]
    stored = work.tensor.dtype.bits // work.packed
    left = tiles.warp_count * tiles.warp[0] * tiles.cta[2] * stored // 8
    right = tiles.warp_count * tiles.atoms[0] * tiles.warp[1] * tiles.cta[2] * 2
    assert c.operand_reads == left + right


def test_what_both_sides_have_is_made_once():
    def problem(function, *signature):
        fused = pg.fuse(function, name="made")
        return candidates(fused.program(*signature), device("sm_90a"), {"M": 64, "K": 1000})[0]

    once = problem(lambda x, m: (x - m).T @ (x - m), "f32[K,M]", "f32[M]")
    twice = problem(lambda x, y, m: (x - m).T @ (y - m), "f32[K,M]", "f32[K,M]", "f32[M]")
    assert (once.alike, twice.alike) == (True, False)
    (read, written), (read_twice, written_twice) = once.made_bytes, twice.made_bytes
    assert (2 * read, 2 * written) == (read_twice, written_twice)
    assert not once.behind_making.alike


def test_parts_are_written_once_however_often_they_are_multiplied():
    """Two parts of an element, for three products."""
    program = in_parts(pg.fuse(lambda x, y: x.T @ y, name="parts").program("f32[K,M]", "f32[K,N]"))
    problem, _ = candidates(program, device("sm_90a"), {"M": 512, "N": 256, "K": 4096})
    assert problem.k == 3 * 4096
    assert problem.made_bytes == (4096 * 768 * 4, 2 * 4096 * 768 * 4)
    exchanged = problem.under(Schedule(exchange=True))
    assert exchanged.values == problem.values[::-1] != problem.values


def test_rows_that_are_read_across_come_in_sectors():
    """Each element of a column that a block folds is of another sector of memory."""

    made = pg.fuse(lambda x, w: pg.abs(x - x.mean(0)).T @ w.T, name="made")
    program = rewritten(made.program("f16[K,M]", "f16[N,K]"))
    problem, _ = candidates(program, device("sm_90a"), {"M": 64, "N": 64, "K": 1000})
    assert problem.row_passes and problem.source_bytes[0] == 32 * 64 * 1000


def test_rows_that_are_copied_are_those_that_are_stored():
    made = pg.fuse(lambda a, b: a @ b, name="odd").program("bf16[M,K]", "bf16[K,N]@2")
    problem, _ = candidates(made, device("sm_90a"), {"M": 4096, "K": 64, "N": 70001})
    assert (problem.copied, problem.copied_rows) == ((0, 1), 64)


def test_short_rows_are_not_copied_to_be_aligned():
    def copies(**sizes):
        types = ("bf16[B,33,33]",) * 2 if "B" in sizes else ("bf16[M,K]@2", "bf16[K,N]@2")
        made = pg.fuse(lambda a, b: a @ b, name="odd").compile(*types, arch="sm_90a", sizes=sizes)
        return made.schedule.launch.realign

    assert not copies(B=70000)
    assert copies(M=4097, K=4097, N=4097)
