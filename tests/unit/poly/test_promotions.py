"""Promoted sums in a tile program: what is derived, and refused of trees that are broken."""

from dataclasses import replace

import pytest
from tile_mutants import CASES, emitted, kernel

from polygen import isl
from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.derive_syncs import derive
from polygen.poly.promotions import prove_whole_blocks
from polygen.poly.refine import refine
from polygen.poly.tile_tree import insert, leaves, loops_around, without

ONE = next(c for c in CASES if c.name == "cooperative, sums in blocks")
RUNS = next(c for c in CASES if c.name == "cooperative, runs of blocks")
PAIRS = next(c for c in CASES if c.name == "ping-pong, sums in blocks")


def test_the_wait_and_the_fence_of_a_promotion_are_derived():
    syncs = {sync.name: sync for sync in kernel(ONE).syncs}
    wait = syncs["retire_empty_ring"]  # one wait for the slot and for the sum
    assert wait.pending == 0
    assert "multiply -> promote (flow through inner)" in wait.enforces
    (needed,) = syncs["fence_multiply"].enforces
    assert needed == "promote -> multiply (reuse through inner, 1 version(s) later, wgmma.fence)"


def test_slots_are_released_before_the_promotion():
    order = leaves(kernel(ONE).tree)
    assert order.index("commit") < order.index("arrive_empty_ring") < order.index("promote")


def test_of_a_run_a_block_is_promoted_beside_the_products_of_the_next_one():
    """Inner sums are a ring of two: a wait leaves those products running, the last leaves none."""
    syncs = {sync.name: sync for sync in kernel(RUNS).syncs}
    wait, last = syncs["retire_empty_ring"], syncs["wait_promote_last"]
    assert (wait.pending, last.pending) == (1, 0)
    assert "multiply -> promote (flow through inner)" in wait.enforces
    assert "multiply -> promote_last (flow through inner)" in last.enforces
    order = leaves(kernel(RUNS).tree)
    assert order.index("commit") < order.index("promote") < order.index("read_scales")
    assert order.index("read_scales") < order.index("promote_last")
    (inner,) = (one for one in kernel(RUNS).program.buffers if one.name == "inner")
    assert (inner.slots, inner.slot) == (2, (("i", "b"), "b mod 2"))


def test_a_run_with_one_set_of_registers_is_refused():
    of = kernel(RUNS)
    alone = [
        replace(one, slots=1, slot=None) if one.name == "inner" else one
        for one in of.program.buffers
    ]
    one = replace(of.program, buffers=tuple(alone))
    with pytest.raises(IllegalSchedule, match=r"Change pipeline\.overlap"):
        derive(one)
    with pytest.raises(VerifyError, match=r"nothing keeps promote -> multiply \(reuse"):
        refine(emitted(of, program=one), necessary=False)


def test_blocks_of_runs_are_added_up_in_their_order():
    """By two statements; the one that ends a run before the one that begins it is refused."""
    of = kernel(RUNS)
    times = [loop.time("promote_last") for loop in loops_around(of.tree, "promote_last")]
    tree = without(of.tree, "promote_last")
    early = insert(tree, 2, ("promote",), "promote_last", tuple(times[:2]))
    with pytest.raises(VerifyError, match="order: nothing keeps"):
        refine(emitted(of, tree=early), necessary=False)


@pytest.mark.slow
def test_of_a_block_of_two_k_tiles_one_is_still_multiplied_where_slots_are_released():
    syncs = {sync.name: sync for sync in kernel(PAIRS).syncs}
    assert syncs["retire_empty_ring"].pending == 1
    assert syncs["wait_promote"].pending == 0
    assert "multiply -> promote (flow through inner)" in syncs["wait_promote"].enforces


def test_a_block_whose_promotion_is_left_out_is_refused():
    of = kernel(ONE)
    promote = of.program.statement("promote")
    fewer = replace(promote, bounds=f"{promote.bounds} and k > 0")
    statements = tuple(fewer if s is promote else s for s in of.program.statements)
    shown = replace(of.program, statements=statements)
    with pytest.raises(VerifyError, match=r"instances: promote\[0,0,0,0\] .* never executed"):
        refine(emitted(of, shown=shown), necessary=False)


def test_a_promotion_before_the_products_are_complete_is_refused():
    of = kernel(ONE)
    times = [loop.time("promote") for loop in loops_around(of.tree, "promote")]
    tree = without(of.tree, "promote")
    early = insert(tree, 2, ("retire_empty_ring",), "promote", tuple(times[:2]))
    with pytest.raises(VerifyError, match=r"order: nothing keeps multiply -> promote"):
        refine(emitted(of, tree=early), necessary=False)


def test_factors_that_are_read_behind_the_promotion_are_refused():
    of = kernel(ONE)
    times = [loop.time("read_scales") for loop in loops_around(of.tree, "read_scales")]
    tree = without(of.tree, "read_scales")
    late = insert(tree, 2, ("promote",), "read_scales", tuple(times), after=True)
    with pytest.raises(VerifyError, match=r"order: nothing keeps read_scales -> promote"):
        refine(emitted(of, tree=late), necessary=False)


def test_blocks_have_all_of_their_k_tiles():
    prefix = "[K, k_tiles] -> "
    whole = isl.Set(f"{prefix}{{ : K mod 256 = 0 and 128*k_tiles = K and K > 0 }}")
    assert str(prove_whole_blocks(whole, prefix, 2))
    rest = isl.Set(f"{prefix}{{ : 128*k_tiles = K and K > 0 }}")
    with pytest.raises(VerifyError, match="a block of 2 k tiles ends behind the last"):
        prove_whole_blocks(rest, prefix, 2)
