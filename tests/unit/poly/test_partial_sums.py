"""Sums that the blocks of a cluster share: what is derived, proved and refused of them."""

from __future__ import annotations

import dataclasses

import pytest
from matrix import case, roles
from tile_mutants import CASES, emitted, kernel, program

from polygen.errors import IllegalSchedule, ScheduleError, VerifyError
from polygen.frontend.dtypes import F32, S32, DType, dtype
from polygen.poly import mapping, partial_sums
from polygen.poly.derive_syncs import derive
from polygen.poly.frame import Frame
from polygen.poly.partial_sums import require_reassociable
from polygen.poly.refine import refine

RESIDUAL = next(c for c in CASES if c.name == "shared sums, residual")
SHARED = roles(cluster=(1, 1, 2))


def build(schedule=SHARED, epilogue="bias"):
    return case("shared", "nt", "bf16", epilogue, arch="sm_90a", schedule=schedule).kernel()


def test_parts_are_handed_over_by_one_barrier_that_counts_their_bytes():
    syncs = {sync.name: sync for sync in kernel(RESIDUAL).syncs}
    full = syncs["full_part"]
    assert [name for name, _ in full.signals] == ["send"]
    assert (full.slots, full.phase, full.arrivals) == (2, 0, 1)
    assert "send -> combine (flow through part)" in full.enforces
    assert "combine -> send (reuse through part, 2 version(s) later)" in full.enforces
    assert "empty_part" not in syncs
    # Others send to a block when its barriers are there; it leaves when it has got everything.
    assert kernel(RESIDUAL).frame == Frame("cluster", "none")


def test_a_block_is_told_that_its_one_landing_area_is_free(monkeypatch):
    """With one slot nothing implies that it is: the barrier for that is found, and proved."""
    monkeypatch.setattr(partial_sums, "LANDING_SLOTS", 1)
    of = derive(program(RESIDUAL))
    empty = next(sync for sync in of.syncs if sync.name == "empty_part")
    blocks, warps = 4, 4
    assert (empty.slots, empty.phase, empty.arrivals) == (1, -1, (blocks - 1) * warps)
    assert "combine -> send (reuse through part, 1 version(s) later)" in empty.enforces
    assert refine(emitted(of))


def test_no_leaf_arrives_in_other_blocks_for_several_threads(monkeypatch):
    monkeypatch.setattr(partial_sums, "LANDING_SLOTS", 1)
    with pytest.raises(VerifyError, match="empty_part: no leaf arrives at the barriers of other"):
        _ = build().passes


def test_the_proofs_say_what_is_shared():
    claims = [str(proof) for proof in build().passes.plan.proofs]
    assert "proved: no dependence connects two clusters of 2 thread blocks (grid)" in claims
    assert any(
        claim.startswith("proved: a sum in f32 may be added up in parts") for claim in claims
    )
    shown = build().show("plan")
    assert "clusters of 2 share the sums of a tile, each a range of k" in shown


def test_the_barrier_of_the_parts_stands_in_the_kernel():
    plan = build().passes.plan
    (placed,) = (one for one in plan.syncs if one.name == "full_part")
    warp_tile, products = 64 * 64 * 4, 1
    assert placed.bytes == warp_tile * products
    assert plan.buffer("part").slots == 2 and plan.buffer("part").slot_bytes == warp_tile
    assert plan.launch.blocks == 2 and plan.launch.cluster == (1, 1)


def test_what_other_blocks_wrote_is_acquired_and_weights_go_first_from_the_cache():
    source = build().source
    _, _, wait = source.partition("auto wait_full_part")
    assert wait.partition("};")[0].count("barrier_wait_across(") == 1
    assert source.count("barrier_wait_across(") == 2  # where it is defined, and there
    assert "keep_a = read_policy(tiles_n == 1)" in source
    assert "keep_b = read_policy(tiles_m == 1)" in source
    plain = build(roles()).source
    assert "barrier_wait_across" not in plain and "read_policy" not in plain


# --- which elements a block adds up, and which it finishes -------------------------------------
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- 1*k_tiles", "- 1*k_tiles + 1"),  # the second block begins a tile late
        ("1*k_tiles <= ", "1*k_tiles < "),  # or leaves out its first
        ("< 1*k_tiles", "<= 1*k_tiles"),  # the first block goes on into the second one's range
        ("mod 64)/32", "mod 64)/64"),  # the first block finishes all columns
    ],
)
def test_ranges_that_miss_or_repeat_elements_are_refused(monkeypatch, old, new):
    made = mapping.tile_map

    def changed(*arguments):
        text = made(*arguments)
        assert old in text
        return text.replace(old, new)

    assert build().passes.tree
    monkeypatch.setattr(mapping, "tile_map", changed)
    with pytest.raises(VerifyError):
        _ = build().passes


@pytest.mark.parametrize("k_tiles", [1, 2, 3, 7])
def test_ranges_do_not_depend_on_the_rows(k_tiles):
    """Every element of a sum goes to the block, and to its k tile, that its k says."""
    elements = build().passes.tree.elements
    products = [piece for piece in elements.strip("{ }").split("; ") if "multiply" in piece]
    terms = [piece for piece in products if piece.startswith("S0")]
    assert len(terms) == 2
    for rank, piece in enumerate(terms):
        _, _, condition = piece.partition(" : ")
        assert condition == f"{rank}*k_tiles <= floor(k/64) < {rank + 1}*k_tiles"


def test_order_between_terms_of_several_blocks_has_to_be_given_up(monkeypatch):
    monkeypatch.setattr(mapping, "within_blocks", lambda carried, products: carried)
    with pytest.raises(VerifyError, match=r"order: tiles .* wrong order: multiply\[0.*multiply\[1"):
        _ = build().passes


def test_terms_of_one_block_stay_in_order(monkeypatch):
    made = mapping.tile_map

    def backwards(*arguments):
        return made(*arguments).replace("floor(k/64) - 0*k_tiles", "k_tiles - 1 - floor(k/64)")

    monkeypatch.setattr(mapping, "tile_map", backwards)
    with pytest.raises(VerifyError, match="tiles of the program run in the wrong order"):
        _ = build().passes


# --- what may be added up in parts ---------------------------------------------------------------
def sums(kind: DType):
    (one,) = build().program.contractions
    return (dataclasses.replace(one, dtype=kind),)


@pytest.mark.parametrize("name", ["f32", "s32"])
def test_sums_that_may_be_added_up_in_parts(name):
    (proof,) = require_reassociable(sums(dtype(name, known=(F32, S32))), 4)
    assert str(proof).startswith(f"proved: a sum in {name} may be added up in parts (v0, 4 ranges")
    assert require_reassociable(sums(F32), 1) == ()


def test_sums_that_are_rounded_after_every_step_may_not():
    narrow = sums(dtype("f16"))
    require_reassociable(narrow, 1)
    with pytest.raises(IllegalSchedule) as caught:
        require_reassociable(narrow, 4)
    for words in ("cluster.k = 4 adds up", "its sums are f16", "cluster.k = 1"):
        assert words in str(caught.value)


def test_shares_of_columns_that_are_no_panels():
    narrow = roles(n=48, cluster=(1, 1, 2))
    with pytest.raises(ScheduleError) as caught:
        _ = build(narrow).passes
    assert "tile.warp.n = 48 shared by 2 blocks with panels" in str(caught.value)
    assert 'a multiple of 32, or epilogue.through = "registers"' in str(caught.value)
