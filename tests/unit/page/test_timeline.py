"""The timeline of a page: everything is run once, in an order that its barriers allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from tile_mutants import CASES, emitted, kernel

from polygen import isl
from polygen.errors import VerifyError
from polygen.page.loops import calls
from polygen.page.timeline import timeline
from polygen.poly.ast import Binary, Block, Call, Const, For, If, Marked, Var

NAMED = {case.name: case for case in CASES}
CHOSEN = (
    "warps",
    "warps, one operand computed",
    "cooperative, residual",
    "ping-pong, residual",
    "cluster of two",
    "shared sums, pair",
    "cooperative, filled by threads",
)
RESIDUAL, TURNS = NAMED["cooperative, residual"], NAMED["ping-pong, residual"]


def run(of, k_tiles=100, **changes):
    made = emitted(of, **changes)
    return timeline(made.program, made.leaves, made.syncs, made.trees, k_tiles)


def agents(track):
    """How many agents a track stands for."""
    many = 1
    for part in track.agents.split(", ") if track.agents else []:
        words = part.split()
        many *= int(words[-1]) - int(words[1]) + 1
    return many


@pytest.mark.parametrize("name", CHOSEN)
def test_every_instance_is_run_once(name):
    of = kernel(NAMED[name])
    found = run(of)
    counted: Counter[str] = Counter()
    for track in found.tracks:
        for event in track.events:
            if not event.sync:
                counted[event.leaf] += event.count * agents(track)
    sizes = dict(found.sizes)
    for statement in of.program.statements:
        if statement.op in ("frame", "commit"):
            assert statement.name not in counted
            continue
        domain = isl.Set(f"{of.program.prefix}{{ {statement.domain} }}")
        for parameter, value in sizes.items():
            place = domain.find_dim_by_name(isl.dim_type.param, parameter)
            domain = domain.fix_val(isl.dim_type.param, place, isl.Val(value))
        points = domain.project_out(isl.dim_type.param, 0, domain.dim(isl.dim_type.param))
        assert counted[statement.name] == isl.count(points), statement.name


@pytest.mark.parametrize("name", CHOSEN)
def test_agents_do_one_thing_at_a_time(name):
    found = run(kernel(NAMED[name]))
    assert max(t.events[-1].end for t in found.tracks) == found.steps
    for track in found.tracks:
        clock = 0
        for event in track.events:
            assert event.start == clock and event.end >= event.start
            clock = event.end


def by_tile(found, leaf):
    """When a statement runs for each (i, k): its first start and its last end."""
    starts, ends = defaultdict(list), defaultdict(list)
    for track in found.tracks:
        for event in track.events:
            if event.leaf == leaf and not event.sync:
                starts[event.at].append(event.start)
                ends[event.at].append(event.end)
    return {at: (min(starts[at]), max(ends[at])) for at in starts}


@pytest.mark.parametrize("case", [RESIDUAL, TURNS], ids=lambda c: c.name)
def test_the_ring_comes_round_and_is_respected(case):
    of = kernel(case)
    found = run(of)
    slots = of.program.buffer("ring_a").slots
    sizes = dict(found.sizes)
    assert sizes["k_tiles"] > slots
    fills, products = by_tile(found, "fill"), by_tile(found, "multiply")
    order = [f"i {i}, k {k}" for i in range(sizes["tiles"]) for k in range(sizes["k_tiles"])]
    for at in order:
        assert products[at][0] >= fills[at][1], f"{at} is multiplied before it is there"
    for at, later in zip(order, order[slots:], strict=False):
        assert fills[later][0] >= products[at][0], f"{later} is filled while {at} is needed"


def test_consumers_take_turns_beside_each_other():
    found = run(kernel(TURNS))
    first, second = (t for t in found.tracks if t.place == "consumer")
    assert {first.agents, second.agents} == {"turn 0", "turn 1"}
    waited = [e for e in second.events if e.sync == "turn" and e.end > e.start]
    assert waited and waited[0].start == next(e.end for e in second.events if e.end)
    spans = [
        [(e.start, e.end) for e in t.events if not e.sync and e.leaf == "finish"]
        for t in (first, second)
    ]
    products = [(e.start, e.end) for e in second.events if e.leaf == "multiply"]
    assert any(a < end and start < b for a, b in spans[0] for start, end in products)


def test_fewer_k_tiles_are_run_where_there_are_fewer():
    assert dict(run(kernel(RESIDUAL), 2).sizes)["k_tiles"] == 2


def test_alike_agents_are_one_track():
    of = kernel(NAMED["warps"])
    (track,) = run(of).tracks
    (count,) = of.program.places[0].counts
    assert track.agents == f"w 0 to {count - 1}"


def test_what_nobody_signals_is_noticed():
    of = kernel(RESIDUAL)
    without = tuple(leaf for leaf in of.leaves if not leaf.name.startswith("arrive_empty_ring"))

    def dropped(node):
        if hasattr(node, "children"):
            kept = tuple(dropped(c) for c in node.children if not is_arrival(c))
            return replace(node, children=kept)
        if hasattr(node, "child"):
            return replace(node, child=dropped(node.child))
        return node

    def is_arrival(node):
        leaf = node.child if hasattr(node, "child") else node
        return getattr(leaf, "name", "").startswith("arrive_empty_ring")

    with pytest.raises(VerifyError, match=r"nothing goes on: .*wait_empty_ring"):
        run(of, tree=dropped(of.tree), leaves=without)


def test_loops_are_walked_as_they_are_written():
    t = Var("t")
    even = Binary("==", Binary("%", t, Const(2)), Const(0))
    branch = If(even, Call("b", (Binary("max", t, Const(1)),)), Call("c", ()))
    body = Block((Call("a", (t,)), branch))
    loop = Marked("t", For("t", Const(0), Binary("<", t, Var("n")), 1, body, False))
    assert list(calls(loop, {"n": 3})) == [
        ("a", (0,)), ("b", (1,)), ("a", (1,)), ("c", ()), ("a", (2,)), ("b", (2,)),
    ]  # fmt: skip
