"""The barriers that are derived for a role program: which, with what counts, and what for.

That a set suffices is also seen by running it (`role_simulator`), in many random orders.
"""

import dataclasses
import re

import pytest
from broken_barriers import BROKEN
from polygen.poly.roles import RoleProgram, RoleStatement, panel_program, ring_program
from polygen.poly.synchronise import GroupBarrier, Turn, derive, guaranteed, verify
from role_simulator import fault

from polygen.errors import IllegalSchedule, VerifyError


def ring(stages=4, consumers=2, cluster=(1, 1), *, pingpong=False):
    return ring_program(stages, consumers, cluster, pingpong=pingpong)


def panels(operands=("r",), outputs=("y0",), slots=2, prefetch=2, consumers=2):
    return panel_program(operands, outputs, slots, prefetch, consumers)


def named(program, in_flight=0):
    return {sync.name: sync for sync in derive(program, in_flight)[0]}


# --- the main loop -------------------------------------------------------------------------------
@pytest.mark.parametrize("in_flight", [0, 1, 2])
@pytest.mark.parametrize("stages", [3, 4, 6])
def test_a_ring_has_a_full_and_an_empty_barrier_per_slot(stages, in_flight):
    found = named(ring(stages), in_flight)
    assert list(found) == ["full_ring", "empty_ring"]
    full, empty = found.values()
    assert (full.signal, full.wait) == ("fill", "multiply")
    assert (empty.signal, empty.wait) == ("multiply", "fill")
    assert full.slots == empty.slots == stages
    assert (full.phase, empty.phase) == (0, -1)  # this round's tiles; last round's release
    assert (full.arrivals, empty.arrivals) == (1, 2)
    assert (full.lag, full.pending) == (0, 0)
    assert (empty.lag, empty.pending) == (in_flight, in_flight)
    assert not any(b.remote or b.per_group for b in (full, empty))


@pytest.mark.parametrize(
    ("consumers", "cluster", "arrivals"),
    [
        (1, (1, 1), 1),
        (2, (1, 1), 2),
        (3, (1, 1), 3),
        (2, (2, 1), 4),  # two consumers of two blocks
        (1, (1, 2), 2),
        (1, (2, 2), 3),  # the block's own, its row's and its column's
        (2, (2, 2), 6),
        (1, (4, 1), 4),
        (1, (2, 3), 4),
    ],
)
def test_a_slot_is_empty_when_all_that_share_it_have_multiplied(consumers, cluster, arrivals):
    found = named(ring(2, consumers, cluster))
    assert found["empty_ring"].arrivals == arrivals
    assert found["full_ring"].arrivals == 1  # the producer's; bytes do the rest
    shared = cluster != (1, 1)
    assert (found["full_ring"].remote, found["empty_ring"].remote) == (shared, shared)


def test_what_the_barriers_of_a_ring_enforce():
    full, empty = derive(ring(4), 1)[0]
    assert full.dependences == (
        "fill[g] -> fill[g + 4] (through ring)",
        "fill[g] -> multiply[g] (through ring)",
    )
    assert empty.dependences == (
        "fill[g] -> fill[g + 4] (through ring)",
        "multiply[g] -> fill[g + 4] (through ring)",
    )


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_consumers_that_take_turns_need_a_turn(cluster):
    """A parity bit does not tell a phase from the next but one: who skips tiles has to be told."""
    found = named(ring(cluster=cluster, pingpong=True), 1)
    assert list(found) == ["full_ring", "empty_ring", "turn"]
    assert isinstance(found["turn"], Turn) and found["turn"].statement == "multiply"
    assert found["turn"].dependences == (
        "multiply[g] -> multiply[h] (starts, in the order of steps)",
    )
    assert found["empty_ring"].arrivals == cluster[0]  # one of the two per step
    assert "turn" not in named(ring(cluster=cluster), 1)


def test_a_set_is_derived_once_and_is_the_same_every_time():
    program = ring()
    first = derive(program, 1)
    assert derive(ring(), 1) == first
    assert verify(program, first[0]) == first[1]


# --- the epilogue --------------------------------------------------------------------------------
@pytest.mark.parametrize("slots", [2, 3, 5])
def test_results_alone_need_one_barrier_of_the_warpgroup(slots):
    (staged,) = derive(panels((), slots=slots))[0]
    assert isinstance(staged, GroupBarrier)
    assert (staged.before, staged.after) == ("finish", "store")
    assert staged.pending == slots - 2  # of the others, one is written and one is waited for
    assert staged.dependences == (
        "finish[g] -> store[g] (through result_y0)",
        f"store[g] -> finish[g + {slots}] (through result_y0)",
    )


def test_several_results_share_the_barrier():
    (staged,) = derive(panels((), ("y0", "y1")))[0]
    assert " ".join(staged.dependences).count("through result_y1") == 2


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_panels_of_an_operand_have_barriers_per_warpgroup(prefetch):
    found = named(panels(prefetch=prefetch))
    assert list(found) == ["full_r", "empty_r", "staged"]
    full, empty = found["full_r"], found["empty_r"]
    assert full.per_group and empty.per_group
    assert (full.arrivals, empty.arrivals) == (1, 4)  # one per warp
    assert full.slots == empty.slots == prefetch
    assert (full.phase, empty.phase) == (0, -1)


def test_the_release_of_one_matrix_stands_for_all():
    """`fetch_g` follows `fetch_r` in its thread, and both are read by the same statement."""
    found = named(panels(("r", "g")))
    assert list(found) == ["full_r", "empty_r", "full_g", "staged"]
    text = " ".join(found["empty_r"].dependences)
    assert "finish[g] -> fetch_r[g + 2]" in text and "finish[g] -> fetch_g[g + 2]" in text
    assert "panel_g" not in " ".join(found["full_r"].dependences)
    assert list(named(panels(("r", "g", "h"), consumers=1))) == [
        "full_r", "empty_r", "full_g", "full_h", "staged",
    ]  # fmt: skip


def test_one_panel_of_results_can_not_be_ordered():
    with pytest.raises(IllegalSchedule) as caught:
        derive(panels(slots=1))
    message = str(caught.value)
    assert re.search(r"store\[0,0,0,0\] -> finish\[0,0,0,1\] with steps = 2", message)
    assert "copy engine may still read" in message
    assert "Raise epilogue.slots to 2 or more" in message


# --- what cannot be derived ----------------------------------------------------------------------
def edited(read):
    """A ring of 4 whose consumer reads another cell."""
    program = ring(4, 1)
    fill, multiply = program.statements
    return dataclasses.replace(
        program, statements=(fill, dataclasses.replace(multiply, reads=(read,)))
    )


def test_a_slot_that_is_used_out_of_turn_is_refused():
    """Step g reads what step g + 1 wrote over: its slot's barriers count other rounds."""
    program = edited("ring[c, (g + 3) mod 4, 0, p] : 0 <= p < 1")
    with pytest.raises(IllegalSchedule, match="not a whole round of the ring apart") as caught:
        derive(program)
    assert re.search(r"\[[\d,]+\] -> \w+\[[\d,]+\] with steps", str(caught.value))
    assert "Change pipeline.stages" in str(caught.value)


def test_a_dependence_without_a_constant_distance_is_refused():
    program = edited("ring[c, g mod 3, 0, p] : 0 <= p < 1")
    with pytest.raises(IllegalSchedule, match="no constant distance"):
        derive(program)


def test_a_barrier_between_statements_that_share_nothing_is_refused():
    program = panels(("r", "g"))
    syncs = derive(program)[0]
    full = next(s for s in syncs if s.name == "full_r")
    stray = dataclasses.replace(full, name="stray", wait="store")
    with pytest.raises(VerifyError, match="stray: nothing depends from fetch_r to store"):
        verify(program, (*syncs, stray))


# --- what a barrier guarantees -------------------------------------------------------------------
def test_a_turn_orders_starts_only():
    assert guaranteed(ring(pingpong=True), Turn("turn", "multiply")).is_empty()


def test_a_count_that_is_too_small_guarantees_nothing():
    empty = named(ring(), 1)["empty_ring"]
    assert not guaranteed(ring(), empty).is_empty()
    assert guaranteed(ring(), dataclasses.replace(empty, arrivals=1)).is_empty()


def test_products_in_flight_push_a_guarantee_back():
    """An arrival while one product may run says nothing of the last one, only of that before."""
    program, empty = ring(4), named(ring(4), 1)["empty_ring"]
    drained = dataclasses.replace(empty, lag=0, pending=0)
    early = dataclasses.replace(empty, lag=0)
    assert guaranteed(program, empty) == guaranteed(program, drained)
    assert not guaranteed(program, early).is_empty()
    assert guaranteed(program, early).intersect(guaranteed(program, empty)).is_empty()


# --- proofs --------------------------------------------------------------------------------------
def test_four_proofs_and_the_number_of_barriers():
    _, proofs = derive(panels(("r",)))
    assert len({proof.claim for proof in proofs}) == 4
    assert {proof.subject for proof in proofs} == {"epilogue, 3 barrier(s)"}


# --- runs ----------------------------------------------------------------------------------------
SHAPES = {
    "alone": (ring(3, 1), 0),
    "two consumers, two products": (ring(4, 2), 2),
    "as many in flight as can be": (ring(3, 2), 2),
    "a cluster along m": (ring(3, 2, (2, 1)), 1),
    "a square cluster": (ring(2, 1, (2, 2)), 1),
    "turns": (ring(4, pingpong=True), 1),
    "turns in a cluster": (ring(3, cluster=(1, 2), pingpong=True), 1),
    "results": (panels((), ("y0", "y1"), 3), 0),
    "one operand": (panels(prefetch=1), 0),
    "two operands": (panels(("r", "g"), slots=4, prefetch=3, consumers=1), 0),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("k_tiles", [1, 2, 5])
def test_a_derived_set_survives_every_order(name, k_tiles):
    program, in_flight = SHAPES[name]
    syncs = derive(program, in_flight)[0]
    assert fault(program, syncs, range(12), k_tiles, tiles=15 // k_tiles) == ""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_goes_wrong_in_some_order(name):
    """All but the one that only has too much."""
    broken = BROKEN[name]
    syncs = broken.break_(derive(broken.program, broken.in_flight)[0])
    found = fault(broken.program, syncs, range(60))
    assert bool(found) == (name != "a barrier that others imply")


MUTATED = ("alone", "two consumers, two products", "a cluster along m", "turns", "one operand")
FIELDS = {"arrivals": 1, "slots": 1, "phase": None, "lag": 0, "pending": 0}  # least values


def mutations(name):
    """Every number of every barrier one more and one less, and every barrier left out."""
    program, in_flight = SHAPES[name]
    syncs = derive(program, in_flight)[0]
    for sync in syncs:
        rest = tuple(s for s in syncs if s is not sync)
        yield f"no {sync.name}", rest
        for field, least in FIELDS.items():
            value = getattr(sync, field, None)
            for other in () if value is None else (value - 1, value + 1):
                if least is None or other >= least:
                    changed = dataclasses.replace(sync, **{field: other})
                    yield f"{sync.name}.{field} = {other}", (*rest, changed)


@pytest.mark.parametrize("name", MUTATED)
def test_what_is_proved_goes_wrong_in_no_order(name):
    program, _ = SHAPES[name]
    proved = 0
    for what, syncs in mutations(name):
        try:
            verify(program, syncs)
        except VerifyError:
            continue
        proved += 1
        assert fault(program, syncs, range(25)) == "", what
    assert proved


@pytest.mark.parametrize("lag", [4, 5])
def test_a_release_that_comes_too_late_waits_for_ever(lag):
    """The producer waits for a release that follows a product that waits for the producer."""
    program = ring(4)
    with pytest.raises(IllegalSchedule) as caught:
        derive(program, lag)
    assert f"pipeline.in_flight = {lag} with a ring of 4" in str(caught.value)
    assert "pipeline.in_flight = 3" in str(caught.value)
    full, empty = derive(program, 1)[0]
    late = (full, dataclasses.replace(empty, lag=lag, pending=lag))
    assert "wait for ever" in fault(program, late, range(3))
    in_time = (full, dataclasses.replace(empty, lag=3, pending=3))
    assert fault(program, in_time, range(12)) == ""


def test_a_barrier_that_warpgroups_share_by_mistake_is_refused():
    program = panels()
    syncs = tuple(
        dataclasses.replace(s, per_group=False) if s.name == "empty_r" else s
        for s in derive(program)[0]
    )
    assert fault(program, syncs, range(10))
    with pytest.raises(VerifyError):
        verify(program, syncs)


def test_statements_name_their_place():
    statement = RoleStatement("fill", "producer", (2, 1, 1))
    assert statement.instance == "fill[c,w,v,g]"
    assert "0 <= c < 2" in statement.bounds and "0 <= g < steps" in statement.bounds
    program = RoleProgram("p", (statement,), ())
    assert program.statement("fill") is statement
    assert derive(program)[0] == ()
