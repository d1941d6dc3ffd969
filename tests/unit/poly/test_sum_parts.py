"""Sums that the blocks of a cluster share: parts are functions of k, and added up in one order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from invariant_samples import SAMPLES, arrays, bits, rows_of
from sum_order_samples import given, mutant

from polygen import isl
from polygen.analysis import prospect
from polygen.decide import candidates
from polygen.errors import InvarianceError
from polygen.fit import instruction_for
from polygen.hardware.device import device
from polygen.invariance import sums_of
from polygen.poly.sum_order import sum_orders
from polygen.schedule.load import shipped
from polygen.schedule.problem import Fitted
from polygen.schedule.sums import ASCENDING, IN_TURN, Sums, ranges

SHARED = "cooperative_64x64x64_s11_k4"
SIZES = {"M": 64, "N": 1024, "K": 4096}


def test_blocks_have_ranges_of_k_and_their_parts_are_added_up_in_their_order():
    (order,) = given(SHARED).orders()
    assert (order.order, order.parts, order.combine) == (ASCENDING, ranges(4), IN_TURN)
    assert order.count == "4*ceil(K/256)"
    assert order.fixed
    assert "in parts 4 ranges of as many k tiles, added up one after the other" in str(order)


def test_a_combination_in_another_order_is_another_class():
    (backward,) = given(SHARED).orders(**mutant(SHARED, ("combine", "q", "-q")))
    (usual,) = given(SHARED).orders()
    assert backward.fixed
    assert backward.combine.startswith(f"{IN_TURN} by ")
    assert Sums((backward,)).digest != Sums((usual,)).digest


def test_a_combination_whose_order_depends_on_the_tile_is_refused():
    changes = mutant(SHARED, ("combine", "q", "2*floor(q/2) + (q + i) mod 2"))
    with pytest.raises(InvarianceError, match="nothing proves how its parts are added up"):
        given(SHARED).orders(**changes)
    (order,) = given(SHARED).orders(invariant=False, **changes)
    assert not Sums((order,)).deterministic


def test_an_order_in_a_part_that_depends_on_the_block_is_refused():
    changes = mutant(SHARED, ("multiply", "k", "2*floor(k/2) + (k + i) mod 2"))
    with pytest.raises(InvarianceError, match=r"others have the order multiply"):
        given(SHARED).orders(**changes)


@pytest.mark.parametrize(
    ("block", "tile", "fixed"),
    [
        ("floor(k/64) mod 4", "floor(k/256)", True),
        ("(floor(k/64) + i) mod 4", "floor(k/256)", False),
        ("(floor(k/64) + floor(j/8)) mod 4", "floor(k/256)", False),
    ],
)
def test_other_ranges_are_another_class_and_ranges_by_the_element_are_refused(block, tile, fixed):
    found = given(SHARED)
    roles, ((_, tiles),), *others = found.rest
    relation = isl.UnionMap(
        f"[M,N,K] -> {{ S0[i,j,k] -> multiply[r,g,t,kk,s,m] : r = {block} and g = 0 and t = 0 and "
        f"kk = {tile} and s = floor((k mod 64)/16) and m = 0 }}"
    )
    if not fixed:
        with pytest.raises(InvarianceError, match="which part takes k depends on the element"):
            sum_orders(found.emitted, roles, [(relation, tiles)], *others, invariant=True)
        return
    (order,), _ = sum_orders(found.emitted, roles, [(relation, tiles)], *others, invariant=True)
    assert order.fixed
    assert order.parts != ranges(4)


def test_a_schedule_with_parts_is_expected_as_it_is_proved():
    program, target = SAMPLES["bf16"].program(), device("sm_90a")
    matched = prospect(program).matched
    _, fit = candidates(replace(program, invariant=()), target, SIZES)
    texts = set()
    for blocks in (2, 4, 8):
        one = next(
            s
            for s in shipped(target)
            if s.cluster.k == blocks and not s.cluster.last and s.roles.computes == "producer"
        )
        fitted = fit(one)
        assert isinstance(fitted, Fitted)
        kernel = SAMPLES["bf16"].kernel("sm_90a", SIZES, schedule=fitted.schedule)
        atom = instruction_for(matched, target, fitted.schedule)
        assert kernel.sums == sums_of(fitted.schedule, atom, matched, ("M",))
        texts.add(kernel.sums.text)
    assert len(texts) == 3


def test_tiles_of_one_split_give_a_row_the_same_bits():
    """On the PTX machine, with two kernels that four blocks of a cluster run together."""
    sample = SAMPLES["to f32"]
    small = {"M": 40, "N": 48, "K": 320}
    given_arrays = arrays(sample.program(), small, seed=9)
    first, second = (
        sample.kernel(
            "sm_90a", SIZES, schedule=next(s for s in shipped("sm_90a") if s.name == name)
        )
        for name in ("cooperative_64x64x64_s11_k4", "cooperative_64x128x64_s6_k4")
    )
    assert first.sums == second.sums
    whole = first.emulate(*given_arrays)
    rows = second.emulate(*rows_of(given_arrays, sample.program(), slice(7, 12)))
    assert (bits(rows) == bits(whole[7:12])).all()
