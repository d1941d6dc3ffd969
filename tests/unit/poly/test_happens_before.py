"""What is ordered, in programs of two places small enough to say it by hand."""

from dataclasses import replace

import pytest
from test_versions import COPIER, WORKER, pairs, ring, statement

from polygen import isl
from polygen.errors import IllegalSchedule, VerifyError
from polygen.hardware.units import unit
from polygen.poly.agent_order import LeafFacts
from polygen.poly.ast import text
from polygen.poly.derivation import Derivation
from polygen.poly.derive_syncs import derive
from polygen.poly.emitted import emitted_of
from polygen.poly.handover import arrivals
from polygen.poly.place_trees import place_trees
from polygen.poly.refine import refine
from polygen.poly.tile_program import Buffer, Place, Sync, TileProgram, TileStatement
from polygen.poly.tile_tree import leaves, loop, loops_around, steps, without
from polygen.poly.versions import forget


def derived(program=None):
    return derive(program or ring())


def emitted(of, **changes):
    trees = changes.pop("trees", None)
    found = emitted_of(replace(of, **changes))
    return found if trees is None else replace(found, trees=trees)


# --- order inside an agent -----------------------------------------------------------------------
def test_before_is_the_order_of_one_agent():
    order = Derivation(ring()).order()
    assert pairs(order.before("fill", "fill"), K=3) == [
        ((0,), (1,)), ((0,), (2,)), ((1,), (2,)),
    ]  # fmt: skip
    found = pairs(order.before("use", "use"), K=2)
    assert found == [((0, 0), (0, 1)), ((1, 0), (1, 1))]


def grouped(pending):
    """A thread's copies, closed in groups of one, and a wait for them a step later."""
    put = TileStatement(
        "put", ("k",), "0 <= k < K", (), ("cell[k,g]",), "move", unit("cp.async"), WORKER,
        group="close",
    )  # fmt: skip
    close = statement("close", WORKER, (), ())
    retire = statement("late", WORKER, (), ())
    tree = loop("k", steps("put", "close", "late"))
    buffers = (Buffer("cell", "shared", 1, 1, 4),)
    work = Derivation(TileProgram(("K",), "K >= 1", buffers, (put, close, retire), tree, tree))
    sync = Sync("retire", "late", "late", unit="cp.async", pending=pending)
    return work.order((sync,))


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_a_group_is_complete_when_enough_later_ones_are_closed(pending):
    order = grouped(pending)
    assert pairs(order.group_of("put"), K=2) == [
        ((g, k), (g, k)) for g in (0, 1) for k in (0, 1)
    ]  # fmt: skip
    found = pairs(order.complete_at("put", "late", pending), K=4)
    wanted = [((g, k), (g, at)) for g in (0, 1) for k in range(4) for at in range(k + pending, 4)]
    assert found == wanted


def test_bytes_are_never_complete_by_a_thread_s_own_order():
    order = Derivation(ring()).order()
    found = order.complete("fill", "fill")
    assert found is None or found.is_empty()
    assert order.complete("fill", "use") is None  # another place


# --- order between places ------------------------------------------------------------------------
def test_a_ring_gets_a_full_and_an_empty_barrier():
    of = derived()
    found = {sync.name: sync for sync in of.syncs}
    assert set(found) == {"full_ring", "empty_ring"}
    full, empty = found["full_ring"], found["empty_ring"]
    assert (full.signals[0][0], full.wait, full.phase) == ("fill", "wait_full_ring", 0)
    assert (empty.signals[0][0], empty.wait) == ("arrive_empty_ring", "wait_empty_ring")
    assert (empty.phase, full.slots, empty.slots) == (-1, 2, 2)
    assert leaves(of.tree) == (
        "wait_empty_ring", "fill", "wait_full_ring", "use", "arrive_empty_ring",
    )  # fmt: skip


def test_without_a_barrier_the_dependences_it_keeps_are_open():
    work = Derivation(ring())
    of = derived()
    work.tree, work.leaves = of.tree, {x.name: x for x in of.leaves}
    work.facts |= {x.name: LeafFacts.of(x) for x in of.leaves}
    order = work.order(of.syncs)
    for need in work.dependences:
        rest, used = order.open_part(need)
        assert rest.is_empty() and used
    full = tuple(s for s in of.syncs if s.name == "full_ring")
    alone = order.having(full)
    (flow,) = (d for d in work.dependences if d.kind == "flow")
    assert alone.open_part(flow)[0].is_empty()
    empty = tuple(s for s in of.syncs if s.name == "empty_ring")
    assert order.having(empty).open_part(flow)[0].is_equal(flow.relation)
    (again,) = (d for d in work.dependences if d.source.name == "use")
    rest, _ = alone.open_part(again)
    assert rest.is_equal(again.relation)


def test_a_path_says_which_syncs_it_takes():
    of = derived()
    work = Derivation(of.program)
    work.tree, work.leaves = of.tree, {x.name: x for x in of.leaves}
    work.facts |= {x.name: LeafFacts.of(x) for x in of.leaves}
    order = work.order(of.syncs)
    (flow,) = (d for d in work.dependences if d.kind == "flow")
    rest, used = order.uncovered("fill", "use", flow.relation)
    assert rest.is_empty() and used == {"full_ring"}


def ordered(of):
    """A derivation that has what another one derived, and its order."""
    work = Derivation(of.program)
    work.tree, work.leaves = of.tree, {x.name: x for x in of.leaves}
    work.facts |= {x.name: LeafFacts.of(x) for x in of.leaves}
    return work, work.order(of.syncs)


def test_what_is_open_is_told_from_what_is_kept_by_pairs_or_by_all():
    work, order = ordered(derived())
    assert not any(order.is_open(need) for need in work.dependences)
    full, empty = order.syncs if order.syncs[0].name == "full_ring" else order.syncs[::-1]
    for gone, kind in ((full, "flow"), (empty, "reuse")):
        less = order.having(tuple(s for s in order.syncs if s is not gone))
        for need in work.dependences:
            is_open = not less.open_part(need)[0].is_empty()
            assert less.is_open(need, gone) == is_open
            assert is_open or need.kind != kind or need.local


def test_a_dependence_that_is_open_for_one_pair_of_many_is_open():
    """No pair at hand need be the one: then all are followed."""
    work, order = ordered(derived())
    (flow,) = (d for d in work.dependences if d.kind == "flow")
    pieces = isl.Map("[K] -> { fill[k] -> use[g, k] : 0 <= g < 2 and 0 <= k < K }")
    backward = isl.Map("[K] -> { fill[7] -> use[1, 6] : K > 7 }")
    assert not order.is_open(replace(flow, relation=pieces))
    assert order.is_open(replace(flow, relation=pieces.union(backward)))
    hull = pieces.union(isl.Map("[K] -> { fill[k] -> use[1, j] : k = 7 and 6 <= j <= 7 < K }"))
    assert order.is_open(replace(flow, relation=hull.coalesce()))


def test_what_is_derived_does_not_depend_on_what_was_derived_before():
    """isl rewrites sets in place; none that is printed is shared."""
    first = derived(ring(3))
    for slots in (1, 2, 3):
        refine(emitted(derived(ring(slots))))
    for forgets in (lambda: None, forget):
        derive.cache_clear()
        forgets()
        again = derived(ring(3))
        assert again == first
        assert emitted(again) == emitted(first)


# --- arrivals ------------------------------------------------------------------------------------
def facts(place, executes="all"):
    return LeafFacts("arrive", place, executes, "arrive")


@pytest.mark.parametrize(("executes", "each"), [("all", 128), ("warps", 4), ("one", 1)])
def test_arrivals_of_all_agents_and_threads(executes, each):
    cells = isl.Map("[K] -> { arrive[g, k] -> ring[k] : 0 <= g < 2 and 0 <= k < K }")
    assert arrivals([(facts(WORKER, executes), cells)]) == 2 * each


def test_arrivals_of_a_square_cluster_are_those_of_no_box():
    """Block 0 hears of itself, of its row and of its column, and not of the block across."""
    place = Place("worker", ("rank",), (4,), 128, 1)
    meets = "rank mod 2 = d mod 2 or floor(rank/2) = floor(d/2)"  # a column, a row of 2 x 2 blocks
    cells = isl.Map(
        "[K] -> { arrive[rank, k] -> ring[k, d] : "
        f"0 <= rank, d < 4 and 0 <= k < K and ({meets}) }}"
    )
    assert arrivals([(facts(place, "one"), cells)]) == 3


def test_arrivals_in_two_parts_add_up():
    early = isl.Map("[K] -> { arrive[g, k] -> ring[k] : 0 <= g < 2 and 0 <= k < K - 1 }")
    late = isl.Map("[K] -> { rest[g, k] -> ring[k] : 0 <= g < 2 and k = K - 1 and K > 0 }")
    signals = [(facts(WORKER, "one"), early), (facts(WORKER, "one"), late)]
    assert arrivals(signals) == 2


def test_versions_that_are_met_by_different_numbers_are_refused():
    cells = isl.Map("[K] -> { arrive[g, k] -> ring[k] : 0 <= g < 2 and g <= k < K }")
    with pytest.raises(IllegalSchedule, match="different numbers of arrivals: 1 to 2"):
        arrivals([(facts(WORKER, "one"), cells)])


# --- what places run -----------------------------------------------------------------------------
def test_every_place_runs_its_part_of_the_tree():
    of = derived()
    copier, worker = place_trees(of.program, of.tree, of.leaves)
    assert (copier.place, worker.place) == (COPIER, WORKER)
    assert copier.variables == worker.variables == ("k",)
    names = {"wait_empty_ring", "fill"}
    for tree, own in ((copier, names), (worker, set(leaves(of.tree)) - names)):
        domain = isl.Schedule(tree.text).get_domain()
        each = domain.get_set_list()
        found = {str(each.get_at(n).get_tuple_name()) for n in range(each.n_set())}
        assert found == own
    assert not any(c for c in (copier.calls, worker.calls))


def test_an_agent_that_matters_is_a_parameter_of_its_place_s_tree():
    base = ring()
    fill, use = base.statements
    use = replace(use, bounds="0 <= k < K and (k - g) mod 2 = 0", calls="work")
    odd = replace(base, statements=(fill, use))
    _, worker = place_trees(odd, odd.schedule, ())
    assert "0 <= g < 2" in worker.context
    assert worker.calls == (("work", "use"),)
    assert "k = g; (k < K); += 2" in text(worker.loops())


# --- the proof, on the smallest program ----------------------------------------------------------
def test_what_is_derived_is_proved():
    claims = [proof.claim for proof in refine(emitted(derived()))]
    assert claims[0] == "every place runs exactly its instances of the program"
    assert claims[-1] == "no synchronisation can be dropped"
    assert [p.claim for p in refine(emitted(derived()), necessary=False)] == claims[:-1]


def counter(of, name):
    return next(c for c in of.counters if c.name == name)


def test_each_place_counts_its_versions():
    of = derived()
    found = {(c.place, tuple(leaf for leaf, _ in c.uses)) for c in of.counters}
    assert found == {
        ("copier", ("wait_empty_ring", "fill")),
        ("worker", ("wait_full_ring", "use", "arrive_empty_ring")),
    }
    ends = {c.place: [leaf for leaf, _ in c.advances] for c in of.counters}
    assert ends == {"copier": ["fill"], "worker": ["arrive_empty_ring"]}


def changes(of):
    """Each with the claim that fails."""
    full, empty = (next(s for s in of.syncs if s.name == n) for n in ("full_ring", "empty_ring"))

    def syncs(old, **new):
        return {"syncs": tuple(replace(s, **new) if s is old else s for s in of.syncs)}

    def counters(place, **new):
        return {
            "counters": tuple(replace(c, **new) if c.place == place else c for c in of.counters)
        }

    copier, worker = of.counters if of.counters[0].place == "copier" else of.counters[::-1]
    trees = place_trees(of.program, of.tree, of.leaves)
    shorter = trees[0].text.replace("fill[k] : 0 <= k < K", "fill[k] : 0 <= k < K - 1")
    reordered = _with_last_first(of)
    yield "instances: fill", {"trees": (replace(trees[0], text=shorter), trees[1])}
    yield (
        "instances: arrive_empty_ring of empty_ring is in no tree",
        {
            "tree": without(of.tree, "arrive_empty_ring"),
            "leaves": tuple(x for x in of.leaves if x.name != "arrive_empty_ring"),
        },
    )
    yield "arrivals: full_ring expects 2", syncs(full, arrivals=2)
    yield "slots: full_ring has 3, ring has 2", syncs(full, slots=3)
    yield "order: nothing keeps use -> fill (reuse", {"syncs": (full,), **_without_empty(of)}
    yield "order: nothing keeps fill -> use (flow", syncs(full, phase=-1)
    yield "live: empty_ring waits for ever", syncs(empty, phase=0)
    yield "counters: nothing says which slot", {"counters": (worker,)}
    yield "use runs when its counter has gone on", counters("worker", advances=worker.uses[:1])
    yield "fill runs when its counter has gone on", counters("copier", advances=copier.uses[:1])
    yield "order: nothing keeps", {"tree": reordered}


def _without_empty(of):
    gone = ("wait_empty_ring", "arrive_empty_ring")
    kept = tuple(
        replace(
            c,
            uses=tuple(u for u in c.uses if u[0] not in gone),
            advances=tuple(
                u if u[0] not in gone else next(x for x in c.uses if x[0] == "use")
                for u in c.advances
            ),
        )
        for c in of.counters
    )
    return {
        "tree": without(of.tree, *gone),
        "leaves": tuple(x for x in of.leaves if x.name not in gone),
        "counters": kept,
    }


def _with_last_first(of):
    """The worker uses what it has yet to wait for."""
    around = loops_around(of.tree, "use")[0]
    order = ("wait_empty_ring", "fill", "use", "wait_full_ring", "arrive_empty_ring")
    return replace(around, child=steps(*order))


CLAIMS = [claim for claim, _ in changes(derived())]


@pytest.mark.parametrize("number", range(len(CLAIMS)), ids=CLAIMS)
def test_a_claim_that_does_not_hold_is_named_with_a_witness(number):
    of = derived()
    claim, change = list(changes(of))[number]
    with pytest.raises(VerifyError) as caught:
        refine(emitted(of, **change), necessary=False)
    assert claim in str(caught.value)


def test_what_can_be_dropped_is_refused():
    of = derived()
    full = next(s for s in of.syncs if s.name == "full_ring")
    again = replace(full, name="full_again")
    with pytest.raises(VerifyError, match=r"necessary: full_(ring|again) enforces nothing"):
        refine(emitted(of, syncs=(*of.syncs, again)))
