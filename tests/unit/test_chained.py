"""Chains of products from a program to a plan: decisions, numbers, what `show` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen import fit_chain
from polygen.adapters.kernels import Kernels
from polygen.chained import is_chain, matched, whole_dims, with_numbers
from polygen.errors import ResourceError, VerifyError
from polygen.fit_chain import decide_chain
from polygen.hardware.atom import atom
from polygen.hardware.device import device
from polygen.hardware.fragment_load import atom_load
from polygen.knobs import scope
from polygen.lower.carried import carried, in_pairs
from polygen.lower.scan_work import Scan

SIGNATURE = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def causal(q, k, v):
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(i >= j, s, -np.inf)) @ v


def test_sizes_of_heads_become_numbers() -> None:
    program = pg.fuse(softmax).program("bf16[B,S,D]", "bf16[B,T,D]", "bf16[B,T,E]")
    assert is_chain(program) and whole_dims(program) == ("D", "E")
    fixed = with_numbers(program, {"D": 64, "E": 128, "S": 7})
    assert fixed.sizes == ("B", "S", "T")
    found = matched(fixed)
    assert (found.depth, found.columns) == (64, 128)


def test_calls_of_adapters_know_their_heads() -> None:
    program = pg.fuse(softmax).program("bf16[B,S,D]", "bf16[B,T,D]", "bf16[B,T,D]")
    sizes = {"B": 2, "S": 100, "T": 300, "D": 64}
    with scope(arch="sm_90a"):
        kernel = Kernels().find(program, sizes)
    assert kernel.passes.plan.scores is not None


def test_other_programs_keep_their_sizes() -> None:
    program = pg.fuse(lambda x, w: pg.relu(x @ w)).program("bf16[M,K]", "bf16[K,N]")
    assert with_numbers(program, {"M": 4, "N": 4, "K": 4}) is program


def test_schedules_that_spill_are_left_out() -> None:
    program, target = pg.fuse(softmax).program(*SIGNATURE), device("sm_90a")
    seen: list[str] = []
    for _ in range(20):
        try:
            chosen = decide_chain(program, target, "auto", frozenset(seen))
        except ResourceError as error:
            assert "spill" in str(error)
            break
        seen.append(chosen.schedule.name)
    assert len(seen) == len(set(seen)) >= 3
    keys = [int(name.split("x")[2].split("_")[0]) for name in seen]
    assert keys[-1] == min(keys)


def _named(monkeypatch, function, *signature: str, sizes=None):
    """What is chosen where every entry of the data says that results leave in panels."""
    data = fit_chain.read("chains.toml")
    tiles = [one | {"through": "tma"} for one in data["tiles"]]
    monkeypatch.setattr(fit_chain, "read", lambda _: data | {"tiles": tiles})
    program = pg.fuse(function).program(*signature)
    return decide_chain(program, device("sm_90a"), "auto", sizes=sizes).schedule


def test_data_may_say_that_results_leave_in_panels(monkeypatch) -> None:
    chosen = _named(monkeypatch, softmax, *SIGNATURE)
    assert chosen.epilogue.through == "tma" and chosen.name.endswith("_tma")
    chosen = _named(monkeypatch, causal, *SIGNATURE)
    assert chosen.name.endswith("_tma_pairs")


def test_what_panels_do_not_hold_leaves_the_registers(monkeypatch) -> None:
    beside = _named(
        monkeypatch, lambda q, k, v, r: softmax(q, k, v) + r, *SIGNATURE, "bf16[B,S,64]"
    )
    narrow = _named(
        monkeypatch, lambda q, k, v: softmax(q, k, v).astype("e4m3"), *SIGNATURE[:2], "bf16[B,T,8]"
    )
    sizes = {"B": 1, "S": 1, "T": 65536}
    parts = _named(monkeypatch, softmax, *SIGNATURE, sizes=sizes)
    assert parts.tile.part
    for chosen in (beside, narrow, parts):
        assert chosen.epilogue.through == "registers" and "tma" not in chosen.name


IN_PLACE = ("wgmma_m64k16_f32_bf16", "wgmma_m64k16_f32_f16", "m16n8k16_f32_bf16")


@pytest.mark.parametrize("name", IN_PLACE)
def test_sums_are_the_next_operand_in_place(name: str) -> None:
    found = carried(atom(name))
    assert in_pairs(atom(name)) == ((0, 0), (0, 2), (1, 0), (1, 2))
    assert found.order == () and found.registers[1] == ((0, 2), (0, 3))


@pytest.mark.parametrize("name", ["m16n8k8_f32_tf32", "m16n8k8_f32_f32"])
def test_sums_as_wide_as_operands_are_in_another_order(name: str) -> None:
    """That order makes of the operand's fragment the sums': for every lane and register."""
    of = atom(name)
    found = carried(of)
    assert found.order == (0, 2, 4, 6, 1, 3, 5, 7)
    order = np.array(found.order)
    for register, ((group, element),) in enumerate(found.registers):
        assert group == 0
        rows, k = of.a.table[:, register].T
        assert np.array_equal(of.c.table[:, element], np.stack([rows, order[k]], axis=-1))


@pytest.mark.parametrize("k_contiguous", [True, False])
def test_values_are_loaded_in_that_order(k_contiguous: bool) -> None:
    of = atom("m16n8k8_f32_tf32")
    order = carried(of).order
    load, own = (atom_load(of, "b", k_contiguous, 8, one) for one in (order, ()))
    assert load is not None and load.order == order and load != own
    lanes = np.arange(32)
    seen = []
    for number in range(load.count):
        rows, bytes_ = load.lane_addresses(number)
        for word in range(load.results):
            at = rows, bytes_ // 4 + word
            seen.append(np.stack(at if not k_contiguous else at[::-1], axis=-1))
    wanted = np.stack([order[0] + 2 * (lanes % 4), lanes // 4], axis=-1)
    assert np.array_equal(seen[0], wanted)
    assert np.array_equal(seen[1] - seen[0], np.tile([1, 0], (32, 1)))


def test_an_order_that_no_load_has() -> None:
    of = atom("m16n8k8_f32_tf32")
    assert atom_load(of, "b", False, 8, (1, 0, 2, 3, 4, 5, 6, 7)) is None


def test_what_descriptors_do_not_read_is_refused() -> None:
    """A matrix descriptor has rows in the instruction's own order."""
    with pytest.raises(VerifyError, match="no pair of sums"):
        in_pairs(atom("wgmma_m64k8_f32_tf32"))


def test_what_moves_between_the_products_is_refused() -> None:
    """Sums of rows that other lanes multiply."""
    of = atom("m16n8k8_f32_tf32")
    elsewhere = np.roll(of.c.table, 1, axis=0)
    with pytest.raises(VerifyError, match="element 0 of the left operand is no sum"):
        carried.__wrapped__(replace(of, c=replace(of.c, table=elsewhere)))


def test_show_explains_the_derivation() -> None:
    kernel = pg.fuse(causal).compile(*SIGNATURE, arch="sm_90a")
    text = kernel.show("rewrite")
    for fragment in ("becomes a scan, rescaled by c", "row i has the keys j <= i"):
        assert fragment in text
    plan = kernel.show("plan")
    for fragment in ("the reference; c(m, m') =", "a block visits the tiles that have some"):
        assert fragment in plan
    for stage in ("program", "scop", "tree", "ast", "cost"):
        assert kernel.show(stage)
    product = pg.fuse(lambda x, w: x @ w).compile("bf16[M,K]", "bf16[K,N]", arch="sm_90a")
    assert "nothing is rewritten" in product.show("rewrite")


def test_masks_of_whole_tiles_are_left_out() -> None:
    kernel = pg.fuse(causal).compile(*SIGNATURE, arch="sm_90a")
    (scan, *_) = kernel.passes.plan.of(Scan)
    assert scan.advance is not None
    assert any(s.function == "where" for s in scan.advance.statements)
    assert scan.advance.unmasked
    assert not any(s.function in ("where", "ge") for s in scan.advance.unmasked)


def test_checks_run_chains() -> None:
    kernel = pg.fuse(causal).compile(*SIGNATURE, arch="sm_90a")
    report = kernel.check({"B": 1, "S": 140, "T": 200})
    assert report.ok, report


def test_room_is_kept_for_the_barriers_that_are_derived() -> None:
    from polygen.lower.chain_memory import chain_memory, layouts
    from polygen.lower.memory import needed

    program, target = pg.fuse(causal).program(*SIGNATURE), device("sm_90a")
    chosen, found = decide_chain(program, target, "auto"), matched(program)
    made = layouts(found, chosen.shape, chosen.atom, chosen.schedule)
    plan = pg.fuse(causal).compile(*SIGNATURE, arch="sm_90a").passes.plan
    rings = needed(chain_memory(found, chosen.shape, made, ()))
    assert rings < plan.resources.shared_bytes <= needed(chain_memory(found, chosen.shape, made))


def test_tangents_of_scores_have_registers() -> None:
    """Three consumers have none to spare beside both forms: what is chosen does not spill."""

    def capped(q: Any, k: Any, v: Any) -> Any:
        return pg.softmax(30 * pg.tanh((q @ k.mT) / 30), axis=-1) @ v

    target, types = device("sm_90a"), [f"bf16[B,{rows},64]" for rows in "STT"]
    plain, program = (pg.fuse(one).program(*types) for one in (softmax, capped))
    wide = decide_chain(plain, target, "auto").schedule
    assert wide.tile.cta.m == 192
    assert decide_chain(program, target, "auto").schedule.tile.cta.m < 192
    with pytest.raises(ResourceError, match=r"about 176 registers .*16 for tangents"):
        decide_chain(program, target, wide)


def test_keys_are_in_parts_where_the_grid_is_thin() -> None:
    target = device("sm_90a")
    program = pg.fuse(softmax).program("bf16[B,H,G,64]", "bf16[B,H,T,64]", "bf16[B,H,T,64]")

    def chosen(**sizes: int) -> str:
        return decide_chain(program, target, "auto", sizes=sizes).schedule.name

    assert chosen() == "chain_192x64x128_r2_t_tma"
    assert chosen(G=8) == "chain_64x64x128_r1"
    assert chosen(B=1, H=8, G=8, T=65536).startswith("chain_64x64x128_r1_p")
    assert chosen(B=64, H=8, G=8, T=4096) == "chain_64x64x128_r1"
    assert chosen(B=8, H=16, G=4096, T=4096) == "chain_192x64x128_r2_t_tma"
    masked = pg.fuse(causal).program(*SIGNATURE)  # 16 rows see 16 keys
    few = decide_chain(masked, target, "auto", sizes={"B": 8, "S": 16, "T": 65536})
    assert few.schedule.name == "chain_64x64x128_r1"


def test_tiles_of_warps_are_those_that_the_model_finds_fastest() -> None:
    program = pg.fuse(softmax).program("bf16[B,S,128]", "bf16[B,T,128]", "bf16[B,T,128]")

    def chosen(arch: str, **sizes: int) -> str:
        return decide_chain(program, device(arch), "auto", sizes=sizes).schedule.name

    assert chosen("sm_80") == "chain_128x128x32_w4x32_f1_b2"  # the first that fits
    assert chosen("sm_80", B=64, S=4096, T=4096) == "chain_128x128x32_w4x32_f1_b2"
    assert chosen("sm_80", B=8, S=512, T=512).startswith("chain_64x")  # a thin grid: small tiles
    assert chosen("sm_80", B=8, S=1, T=65536).startswith("chain_64x128x64_w4x16_f2_b2_p")
    assert chosen("sm_86").startswith("chain_128x128x64_w8")  # less shared memory
    skip = frozenset({"chain_128x128x32_w4x32_f1_b2"})
    assert decide_chain(program, device("sm_80"), "auto", skip).schedule.tile.warp.m == 16


@pytest.mark.sample(3)
@pytest.mark.parametrize("columns", [32, 64, 96, 128, 192, 256])
def test_shipped_tiles_of_warps_spill_nothing(columns: int) -> None:
    """All that fit, under a causal mask, compiled for sm_80."""
    given = tuple(f"bf16[B,{side},{columns}]" for side in "STT")
    program, target = pg.fuse(causal).program(*given), device("sm_80")
    skip: frozenset[str] = frozenset()
    for _ in range(20):
        try:
            schedule = decide_chain(program, target, "auto", skip).schedule
        except ResourceError:
            break
        kernel = pg.fuse(causal).compile(*given, arch="sm_80", schedule=schedule)
        taken = kernel.resources
        assert taken.spill_store_bytes == taken.spill_load_bytes == 0, schedule.name
        skip |= {schedule.name}
    assert len(skip) > 2


@pytest.mark.sample(2)
@pytest.mark.parametrize("columns", [97, 111, 113, 127])
def test_odd_heads_of_f32_have_a_tile_that_spills_nothing(columns: int) -> None:
    signature = (f"f32[B,S,{columns}]", f"f32[B,T,{columns}]", f"f32[B,T,{columns}]")
    kernel = pg.fuse(softmax).compile(*signature, arch="sm_120")
    taken = kernel.resources
    assert taken.spill_store_bytes == taken.spill_load_bytes == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("lead", ["", "B,", "B,H,"])
@pytest.mark.parametrize("columns", [192, 256])
def test_results_of_wide_tiles_leave_in_panels(columns: int, lead: str) -> None:
    """Whatever the batch dims: what they take of registers is left beside 256 columns of sums."""

    def plain(q, k, v):
        return pg.softmax((q @ k.mT) * 0.0625) @ v

    given = tuple(f"bf16[{lead}{side},{columns}]" for side in "STT")
    kernel = pg.fuse(plain).compile(*given, arch="sm_90a")
    assert kernel.resources.spill_store_bytes == 0
    epilogue = kernel.schedule.epilogue
    assert (epilogue.through, epilogue.columns) == ("tma", 32 if columns == 256 else 0)


def test_parts_that_are_not_those_that_are_combined_are_refused() -> None:
    from chain_samples import few_rows

    from polygen.errors import VerifyError
    from polygen.lower.key_parts import check_parts

    kernel = pg.fuse(causal).compile(*SIGNATURE, arch="sm_90a", schedule=few_rows(128))
    plan = kernel.passes.plan
    assert len(check_parts(plan)) == 2 and plan.following is not None
    less = replace(plan.following, parts=plan.following.parts[:-1])
    for wrong in (
        replace(plan, launch=replace(plan.launch, tile_across=256)),
        replace(plan, following=less),
        replace(plan, following=None),
        replace(plan, key_tiles=replace(plan.key_tiles, part=3)),
    ):
        with pytest.raises(VerifyError):
            check_parts(wrong)


def test_of_the_tiles_that_were_timed_the_fastest_is_taken() -> None:
    target = device("sm_90a")

    def chosen(score: Callable[..., Any], columns: int, keys: int) -> str:
        program = pg.fuse(score).program(*[f"bf16[B,S,{columns}]"] * 3)
        decided = decide_chain(program, target, "auto", sizes={"B": 256, "S": keys})
        assert decided.origin == "shipped: the fastest of 2 tiles that were timed"
        return decided.schedule.name

    assert chosen(softmax, 128, 512) == "chain_128x128x128_r2_t_tma"
    assert chosen(softmax, 128, 16384) == "chain_128x128x128_r2_t_tma"
    assert chosen(causal, 64, 1024) == "chain_64x64x64_r1_tma_pairs"  # blocks begin beside others
    assert chosen(causal, 64, 8192) == "chain_192x64x128_r2_t_tma_pairs"
    assert chosen(causal, 128, 4096) == "chain_128x128x128_r2_t_tma_pairs"


def test_parts_of_keys_are_chosen_where_few_rows_have_many_keys_of_their_range() -> None:
    target = device("sm_90a")

    def window(q: Any, k: Any, v: Any) -> Any:
        i, j = pg.indices(scores := q @ k.mT)[-2:]
        return pg.softmax(pg.where((i >= j) & (i - j < 512), scores, -np.inf)) @ v

    def chosen(score: Callable[..., Any], batches: int, rows: int) -> tuple[str, int, str]:
        program = pg.fuse(score).program(*["bf16[B,S,64]"] * 3)
        found = decide_chain(program, target, "auto", sizes={"B": batches, "S": rows}).schedule
        return found.name, found.tile.part, found.raster.order

    assert chosen(causal, 64, 4096) == ("chain_192x64x128_r2_t_tma_pairs", 0, "pairs")
    name, part, order = chosen(causal, 1, 4096)  # 22 tiles of rows
    assert part and order == "matrix" and name == f"chain_192x64x128_r2_t_p{part}"
    assert chosen(window, 1, 4096)[1] == 0  # no row has more than ten tiles of keys


def test_a_tile_that_spills_is_left_out_in_every_order_and_with_parts() -> None:
    program = pg.fuse(causal).program(*["bf16[B,S,64]"] * 3)
    for batches in (64, 1):
        sizes = {"B": batches, "S": 4096}
        spills = decide_chain(program, device("sm_90a"), "auto", sizes=sizes).schedule
        other = decide_chain(
            program, device("sm_90a"), "auto", frozenset({spills.name}), sizes=sizes
        )
        if spills.epilogue.through == "tma":  # its results may leave the registers for memory
            assert other.schedule.tile.cta == spills.tile.cta
            assert other.schedule.epilogue.through == "registers"
            spilled = frozenset({spills.name, other.schedule.name})
            other = decide_chain(program, device("sm_90a"), "auto", spilled, sizes=sizes)
        assert other.schedule.tile.cta != spills.tile.cta


def test_every_multiprocessor_has_the_blocks_of_the_schedule() -> None:
    target, program = device("sm_90a"), pg.fuse(softmax).program(*SIGNATURE)
    few = decide_chain(program, target, "auto", sizes={"S": 8}).schedule
    launch = pg.fuse(softmax).compile(*SIGNATURE, arch="sm_90a", schedule=few).passes.plan.launch
    assert (few.min_blocks, launch.per_multiprocessor) == (2, 2)
    assert launch.persistent == 2 * target.multiprocessors
    assert launch.grid({"B": 4096, "S": 8, "T": 4096}) == (2 * target.multiprocessors, 1, 1)


def test_functions_of_one_instruction_are_asked_for() -> None:
    from chain_samples import few_rows

    def capped(q, k, v):
        return pg.softmax(pg.tanh((q @ k.mT) * 0.0125) * 10.0) @ v

    short = replace(few_rows(), functions="short")
    kernel = pg.fuse(capped).compile(*SIGNATURE, arch="sm_90a", schedule=short)
    assert "tanh.approx" in kernel.source
    assert "tanh.approx" not in pg.fuse(capped).compile(*SIGNATURE, arch="sm_90a").source
    exact = pg.fuse(lambda q, k, v: capped(q, k, v).astype("f32"))
    kernel = exact.compile(*SIGNATURE, arch="sm_90a", schedule=short, out_dtype="f32")
    assert "tanh.approx" not in kernel.source  # results of more than 16 bits
