"""Successors of versions, and dependences of small programs written by hand."""

import itertools

import pytest

from polygen import isl
from polygen.errors import IllegalSchedule
from polygen.hardware.units import unit
from polygen.poly.tile_program import Buffer, Place, TileProgram, TileStatement
from polygen.poly.tile_tree import loop, steps
from polygen.poly.versions import TileModel, same_agent, successor, with_parts

THREADS = unit("threads")
COPIER, WORKER = Place("copier"), Place("worker", ("g",), (2,), 128)


def pairs(relation, **sizes):
    """The pairs of a relation for fixed parameters."""
    for name, value in sizes.items():
        at = relation.find_dim_by_name(isl.dim_type.param, name)
        if at >= 0:
            relation = relation.fix_val(isl.dim_type.param, at, isl.Val(value))
    relation = relation.project_out(isl.dim_type.param, 0, relation.dim(isl.dim_type.param))
    size = relation.dim(isl.dim_type.in_)
    return [(p[:size], p[size:]) for p in isl.points(relation)]


# --- successors ----------------------------------------------------------------------------------
def test_the_next_version_is_the_next_step_or_the_first_of_the_next_tile():
    cells = isl.Set("[K] -> { ring[i, k] : 0 <= i < 2 and 0 <= k < K }")
    assert pairs(successor(cells, 2), K=3) == [
        ((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (1, 0)), ((1, 0), (1, 1)), ((1, 1), (1, 2)),
    ]  # fmt: skip


def test_versions_that_are_not_there_are_passed_over():
    cells = isl.Set("{ ring[k] : k = 1 or k = 4 or k = 9 }")
    assert pairs(successor(cells, 1)) == [((1,), (4,)), ((4,), (9,))]


def test_every_owner_has_versions_of_its_own():
    cells = isl.Set("{ panel[i, g] : 0 <= i < 4 and 0 <= g < 2 and (i - g) mod 2 = 0 }")
    assert pairs(successor(cells, 1)) == [((0, 0), (2, 0)), ((1, 1), (3, 1))]


def test_triangular_trip_counts():
    cells = isl.Set("{ ring[t, k] : 0 <= t < 3 and 0 <= k <= t }")
    order = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert pairs(successor(cells, 2)) == list(itertools.pairwise(order))


def test_without_versions_nothing_follows():
    assert successor(isl.Set("{ sum[g] : 0 <= g < 2 }"), 0).is_empty()


def test_parts_are_carried_along():
    step = successor(isl.Set("{ ring[k] : 0 <= k < 2 }"), 1)
    found = with_parts(step, 1, "ring").intersect_domain(isl.Set("{ ring[k, p] : 0 <= p < 2 }"))
    assert pairs(found) == [((0, 0), (1, 0)), ((0, 1), (1, 1))]
    assert with_parts(step, 0, "ring") is step


def test_pairs_of_one_agent():
    every = isl.Map("{ A[g, i] -> B[h, j] : 0 <= g, h < 2 and i = 0 and j = 5 }")
    assert pairs(same_agent(every, 1)) == [((0, 0), (0, 5)), ((1, 0), (1, 5))]


# --- dependences ---------------------------------------------------------------------------------
def statement(name, place, reads, writes, *, loops=("k",), bounds="0 <= k < K", on=THREADS):
    return TileStatement(name, loops, bounds, reads, writes, "map", on, place)


def program(buffers, statements, order, schedule=None, **changes):
    return TileProgram(("K",), "K >= 1", buffers, statements, order, schedule or order, **changes)


def ring(slots=2, **changes):
    """A copier fills a ring that two workers read."""
    fill = statement("fill", COPIER, (), ("ring[k]",), on=unit("tma.load"))
    use = statement("use", WORKER, ("ring[k]",), ())
    tree = loop("k", steps("fill", "use"))
    return program((Buffer("ring", "shared", 1, 0, slots),), (fill, use), tree, **changes)


def named(model):
    return {(d.kind, d.source.name, d.target.name, d.local): d for d in model.dependences()}


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_slot_is_used_again_after_all_who_touched_it(slots):
    found = named(TileModel(ring(slots)))
    assert set(found) == {
        ("flow", "fill", "use", False), ("reuse", "use", "fill", False),
        ("reuse", "fill", "fill", True),
    }  # fmt: skip
    flow = found["flow", "fill", "use", False]
    assert pairs(flow.relation, K=2) == [
        ((0,), (0, 0)), ((0,), (1, 0)), ((1,), (0, 1)), ((1,), (1, 1)),
    ]  # fmt: skip
    again = found["reuse", "use", "fill", False]
    assert pairs(again.relation, K=slots + 1) == [((0, 0), (slots,)), ((1, 0), (slots,))]
    assert f"{slots} version(s) later" in str(again)


def test_sums_flow_from_product_to_product_and_are_written_over_in_order():
    first = statement("zero", WORKER, (), ("sum[g]",), loops=(), bounds="1 = 1")
    add = statement("add", WORKER, ("sum[g]",), ("sum[g]",))
    tree = steps("zero", loop("k", "add"))
    found = named(TileModel(program((Buffer("sum", "register", 0, 1),), (first, add), tree)))
    assert ("flow", "zero", "add", True) in found
    assert pairs(found["flow", "add", "add", True].relation, K=3) == [
        ((0, 0), (0, 1)), ((0, 1), (0, 2)), ((1, 0), (1, 1)), ((1, 1), (1, 2)),
    ]  # fmt: skip
    assert ("output", "zero", "add", True) in found
    assert all(local for *_, local in found)


def test_a_value_that_another_agent_reads_is_split_off():
    put = statement("put", WORKER, (), ("part[k,g]",))
    take = statement("take", WORKER, ("part[k,h] : 0 <= h < 2",), ())
    tree = loop("k", steps("put", "take"))
    found = named(TileModel(program((Buffer("part", "shared", 1, 1, 8),), (put, take), tree)))
    own = found["flow", "put", "take", True].relation
    across = found["flow", "put", "take", False].relation
    assert pairs(own, K=1) == [((0, 0), (0, 0)), ((1, 0), (1, 0))]
    assert pairs(across, K=1) == [((0, 0), (1, 0)), ((1, 0), (0, 0))]


def test_bytes_under_another_name_come_after_every_use_of_the_first():
    late = statement("late", WORKER, (), ("scratch[g]",), loops=(), bounds="1 = 1")
    base = ring()
    buffers = (*base.buffers, Buffer("scratch", "shared", 0, 1, overlays=("ring",)))
    over = program(buffers, (*base.statements, late), steps(base.order, "late"))
    found = named(TileModel(over))
    for source in ("fill", "use"):
        relation = found["overlay", source, "late", False].relation
        assert len(pairs(relation, K=2)) >= 2
    assert len(pairs(found["overlay", "use", "late", True].relation, K=2)) == 4


def test_a_fence_stands_where_the_data_says_so():
    put = statement("put", WORKER, (), ("panel[k,g]",))
    away = TileStatement(
        "away", ("k",), "0 <= k < K", ("panel[k,g]",), (), "move", unit("tma.store"), WORKER,
        "one", "away",
    )  # fmt: skip
    tree = loop("k", steps("put", "away"))
    found = named(TileModel(program((Buffer("panel", "shared", 1, 1, 2),), (put, away), tree)))
    assert found["flow", "put", "away", True].fence.name == "fence.proxy.async"
    assert found["reuse", "away", "put", True].fence is None


def test_a_cell_that_nothing_wrote_is_refused():
    base = ring()
    early = program(base.buffers, base.statements, loop("k", steps("use", "fill")))
    with pytest.raises(
        IllegalSchedule, match=r"ring is read before it is written: use\["
    ) as caught:
        TileModel(early).dependences()
    assert "K = 1" in str(caught.value)


def test_next_by_count_is_next_repeated():
    model = TileModel(ring())
    one, three = model.next("ring"), model.next("ring", 3)
    assert three.is_equal(one.apply_range(one).apply_range(one))
    assert pairs(model.next("ring", 0), K=2) == [((0,), (0,)), ((1,), (1,))]
