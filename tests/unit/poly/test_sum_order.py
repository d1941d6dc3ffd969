"""The order of sums, as isl finds it in emitted trees; another order is another class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sum_order_samples import (
    ARCHS,
    CLUSTER,
    COOPERATIVE,
    NARROW,
    PINGPONG,
    SIZES,
    WARPS,
    given,
    mutant,
)

from polygen import isl
from polygen.api import fuse
from polygen.errors import InvarianceError
from polygen.poly.sum_order import group_count, sum_orders
from polygen.poly.tiling import Tiling
from polygen.schedule.load import shipped
from polygen.schedule.sums import ASCENDING, DESCENDING, VARIES, Sums


@pytest.mark.parametrize("name", ARCHS)
def test_every_family_takes_k_in_ascending_order(name):
    (order,) = given(name).orders()
    assert order.order == ASCENDING
    assert order.depth == 16
    assert order.count == "4*ceil(K/64)"
    assert order.parts == ""
    assert order.fixed


def test_what_begins_a_sum_and_the_instruction_tell_families_apart():
    warps, roles = given(WARPS).orders()[0], given(COOPERATIVE).orders()[0]
    assert (warps.instruction, roles.instruction) == ("m16n8k16_f32_bf16", "wgmma_m64k16_f32_bf16")
    assert warps.begins != roles.begins
    assert Sums((warps,)).digest != Sums((roles,)).digest


def test_every_product_of_a_pair_has_its_order():
    orders = given(NARROW, "pair").orders()
    assert [one.product for one in orders] == ["S0", "S1"]
    assert {one.order for one in orders} == {ASCENDING}


# Which coordinate the order of neighbouring k tiles depends on. What is swapped is a pair of tiles,
# so that every tile still runs once.
DEPENDENT = {
    "the row in a warp's tile": (WARPS, "mma", "t", "@ - k + 2*floor(k/2) + (k + m) mod 2"),
    "the column in a warp's tile": (WARPS, "mma", "t", "@ - k + 2*floor(k/2) + (k + n) mod 2"),
    "steps by the row": (WARPS, "mma", "s", "2*floor(s/2) + (s + m) mod 2"),
    "the row in a consumer's": (COOPERATIVE, "multiply", "k", "2*floor(k/2) + (k + m) mod 2"),
    "which tile a block is at": (COOPERATIVE, "multiply", "k", "2*floor(k/2) + (k + i) mod 2"),
    "whose turn it is": (PINGPONG, "multiply", "k", "2*floor(k/2) + (k + floor(i/2)) mod 2"),
    "which tile a cluster is at": (CLUSTER, "multiply", "k", "2*floor(k/2) + (k + i) mod 2"),
}


@pytest.mark.parametrize("what", DEPENDENT)
def test_an_order_that_depends_on_more_than_k_is_refused_with_a_pair(what):
    name, *change = DEPENDENT[what]
    changes = mutant(name, tuple(change))
    with pytest.raises(InvarianceError, match=rf"order {change[0]}\[.*\] -> {change[0]}\[.*\]"):
        given(name).orders(**changes)
    (order,) = given(name).orders(invariant=False, **changes)
    assert order.order == VARIES
    assert not order.fixed
    assert not Sums((order,)).deterministic


OTHER = {
    DESCENDING: (WARPS, ("mma", "t", "k_tiles + 2 - k"), ("mma", "s", "-s")),
    "k tiles of 64 descending, ascending inside": (
        COOPERATIVE, ("multiply", "k", "k_tiles - k"), ("multiply", "k", "@"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", OTHER)
def test_another_order_is_another_class(order):
    name, *changes = OTHER[order]
    (found,) = given(name).orders(**mutant(name, *changes))
    (usual,) = given(name).orders()
    assert found.order == order
    assert found.fixed
    assert Sums((found,)).digest != Sums((usual,)).digest


def test_an_order_without_a_name_is_told_by_its_relation():
    swapped = ("multiply", "k", "2*floor(k/2) + (k + 1) mod 2")
    (found,) = given(COOPERATIVE).orders(**mutant(COOPERATIVE, swapped))
    assert found.fixed
    assert found.order.startswith("as k comes before k' in")
    (other,) = given(COOPERATIVE).orders(
        **mutant(COOPERATIVE, ("multiply", "k", "4*floor(k/4) + (k + 1) mod 4"))
    )
    assert other.order != found.order


def test_only_the_product_that_varies_is_refused():
    swapped = ("multiply_1", "k", "2*floor(k/2) + (k + i) mod 2")
    changes = mutant(NARROW, swapped, expression="pair")
    with pytest.raises(InvarianceError, match="S1"):
        given(NARROW, "pair").orders(**changes)
    first, second = given(NARROW, "pair").orders(invariant=False, **changes)
    assert (first.order, second.order) == (ASCENDING, VARIES)


def with_sums_at(cells: str) -> dict[str, Any]:
    """The program of warps whose product adds to other cells of the sum."""
    program = given(WARPS).emitted.program
    statements = tuple(
        replace(s, writes=(cells,)) if s.name == "mma" else s for s in program.statements
    )
    return {"program": replace(program, statements=statements)}


@pytest.mark.parametrize("cells", ["sum[w,m,q] : q = n + 4*(k mod 2)", "sum[w,m,q] : q = n + 4*s"])
def test_sums_in_parts_are_not_taken_for_one(cells):
    changes = with_sums_at(cells)
    with pytest.raises(InvarianceError, match="an element's sum lies in several cells"):
        given(WARPS).orders(**changes)
    (order,) = given(WARPS).orders(invariant=False, **changes)
    assert order.parts
    assert not order.fixed
    assert "added up as they come" in str(order)
    assert replace(order, order=ASCENDING, combine="in the order of the parts").fixed
    assert not replace(order, order=ASCENDING).fixed


def test_elements_that_are_in_other_groups_than_their_k_says_are_refused():
    found = given(WARPS)
    roles, ((_, tiles),), *others = found.rest
    product = isl.UnionMap(
        "[M,N,K] -> { S0[i,j,k] -> mma[w,t,s,m,n] : w = 0 and m = 0 and n = 0 and "
        "t = floor(k/64) and 0 <= s < 4 and s = floor((k mod 64)/16) and i mod 2 = 0; "
        "S0[i,j,k] -> mma[w,t,s,m,n] : w = 0 and m = 0 and n = 0 and "
        "t = floor((k + 16)/64) and s = floor(((k + 16) mod 64)/16) and i mod 2 = 1 }"
    )
    with pytest.raises(InvarianceError, match="which instruction takes k depends on the element"):
        sum_orders(found.emitted, roles, [(product, tiles)], *others, invariant=True)
    (order,), _ = sum_orders(found.emitted, roles, [(product, tiles)], *others, invariant=False)
    assert not order.fixed


@pytest.mark.parametrize("shift", ["k + 8", "2*k"])
def test_groups_that_are_no_runs_of_the_instructions_depth_are_refused(shift):
    found = given(WARPS)
    roles, ((_, tiles),), *others = found.rest
    product = isl.UnionMap(
        f"[M,N,K] -> {{ S0[i,j,k] -> mma[w,t,s,m,n] : w = 0 and m = 0 and n = 0 and "
        f"t = floor(({shift})/64) and s = floor((({shift}) mod 64)/16) }}"
    )
    with pytest.raises(InvarianceError, match="do not take k in runs of 16"):
        sum_orders(found.emitted, roles, [(product, tiles)], *others, invariant=True)


def test_warps_that_share_the_k_of_an_element_hold_parts_of_its_sum():
    """A split of k over agents: no cell is written twice, and yet no cell is the whole sum."""
    found = given(WARPS)
    roles, ((_, tiles),), *others = found.rest
    split = isl.UnionMap(
        "[M,N,K] -> { S0[i,j,k] -> mma[w,t,s,m,n] : w = floor(k/64) mod 4 and m = 0 and n = 0 and "
        "t = floor(k/64) and s = floor((k mod 64)/16) }"
    )
    with pytest.raises(InvarianceError, match="nothing proves how its parts are added up"):
        sum_orders(found.emitted, roles, [(split, tiles)], *others, invariant=True)
    (order,), _ = sum_orders(found.emitted, roles, [(split, tiles)], *others, invariant=False)
    assert order.parts and not order.fixed
    assert "added up as they come" in str(order)


def test_sums_in_memory_that_others_add_to_are_not_fixed():
    program = given(WARPS).emitted.program
    buffers = tuple(replace(b, space="shared") if b.name == "sum" else b for b in program.buffers)
    changes = {"program": replace(program, buffers=buffers)}
    with pytest.raises(InvarianceError, match="sum is memory that others may add to"):
        given(WARPS).orders(**changes)
    (order,) = given(WARPS).orders(invariant=False, **changes)
    assert not Sums((order,)).deterministic


@pytest.mark.parametrize(
    ("depths", "tile", "count"),
    [
        (("K",), 64, "4*ceil(K/64)"),
        (("K",), 16, "ceil(K/16)"),
        ((1024,), 64, "64"),
        ((1024,), 128, "64"),
        ((1000,), 64, "64"),
        ((1000,), 128, "64"),
        ((1030,), 64, "68"),
        ((1030,), 128, "72"),
        (("K", "L"), 64, "4*max(ceil(K/64), ceil(L/64))"),
        (("K", 128), 64, "4*max(ceil(K/64), 2)"),
    ],
)
def test_groups_of_a_sum_are_counted_with_those_behind_its_end(depths, tile, count):
    assert group_count(Tiling((64, 64, tile), (32, 32), (16, 8, 16)), depths) == count


def test_tiles_of_any_depth_that_leave_as_many_groups_are_one_class():
    """A constant K that both divide: k tiles of 32 and of 64 are the same sums."""
    function = fuse(lambda x, w: x @ w.T, name="one")
    by_name = {s.name: s for s in shipped("sm_80")}
    found = [
        function.compile(
            "bf16[M,K]", "bf16[N,K]", arch="sm_80", sizes=SIZES, static=("K",),
            schedule=by_name[name], invariant="M",
        ).sums
        for name in ("64x64x32_w32x32_s4", "64x64x64_w32x32_s4", "128x128x32_w64x64_s4")
    ]  # fmt: skip
    assert len({one.text for one in found}) == 1
    assert "64 group(s)" in found[0].text


def test_sums_of_integers_are_exact_in_any_order():
    function = fuse(lambda x, w: x @ w.T, name="one")
    kernels = [
        function.compile(
            "s8[M,K]", "s8[N,K]", arch="sm_90a", sizes={"M": m, "N": 4096, "K": 4096},
            out_dtype="f32", invariant="M",
        )
        for m in (1, 4096)
    ]  # fmt: skip
    parts = {(one.schedule.tile.cta.k, one.schedule.cluster.k) for one in kernels}
    assert len(parts) == 2
    assert kernels[0].sums == kernels[1].sums
    assert "exact" in kernels[0].sums.text
