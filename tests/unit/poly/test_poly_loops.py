"""The generated loops against the oracle: every instance once, every wait and barrier needed."""

import dataclasses

import pytest
from block_simulator import (
    Violation,
    barriers_of,
    breaks,
    check_loops,
    check_trace,
    loops_with_every_barrier,
    loops_without,
    map_sample,
    shape_of,
)
from matrix import UNUSUAL, pipeline, small, tiled
from tile_simulator import run_loops

from polygen.poly import ast
from polygen.schedule.load import shipped
from polygen.schedule.model import Epilogue

SUBJECTS = [(name, asynchronous) for name in UNUSUAL for asynchronous in (True, False)]


@pytest.fixture(scope="module")
def mapped():
    """Trees by schedule name, built once."""
    known = {}

    def get(name, asynchronous):
        if (name, asynchronous) not in known:
            known[name, asynchronous] = map_sample(UNUSUAL[name], asynchronous=asynchronous)
        return known[name, asynchronous]

    return get


@pytest.mark.parametrize(("name", "asynchronous"), SUBJECTS)
def test_every_instance_runs_once_and_sees_what_it_must(mapped, name, asynchronous):
    tree = mapped(name, asynchronous)
    check_loops(tree.loops(), shape_of(tree, UNUSUAL[name], asynchronous))


@pytest.mark.parametrize(("name", "asynchronous"), SUBJECTS)
def test_no_barrier_is_superfluous(mapped, name, asynchronous):
    tree = mapped(name, asynchronous)
    assert barriers_of(tree)
    for dropped in barriers_of(tree):
        loops, shape = loops_without(tree, UNUSUAL[name], dropped, asynchronous=asynchronous)
        assert breaks(loops, shape), dropped


@pytest.mark.parametrize("name", UNUSUAL)
def test_no_wait_could_leave_more_groups_in_flight(mapped, name):
    tree = mapped(name, True)
    waiting = [b for b in barriers_of(tree) if b.pending is not None]
    assert len(waiting) == 1
    more = tuple(
        dataclasses.replace(b, pending=b.pending + 1) if b.pending is not None else b
        for b in barriers_of(tree)
    )
    shape = dataclasses.replace(shape_of(tree, UNUSUAL[name]), barriers=more)
    assert breaks(tree.loops(), shape)


@pytest.mark.parametrize(
    "schedule", [s for s in shipped("sm_80") if not s.without_rings], ids=lambda s: s.name
)
def test_shipped_schedules_pass_the_oracle(schedule):
    tree = map_sample(schedule)
    check_loops(tree.loops(), shape_of(tree, schedule), range(1, 7))


def places(**changes):
    """Before what the barriers of a block stand."""
    tree = map_sample(small(**changes))
    return [b.before for b in barriers_of(tree) if b.scope == "block"]


def test_one_warp_needs_its_barriers_too():
    """Lanes run apart: one may copy or stage over what its neighbours have yet to read."""
    one = tiled((32, 32, 32), (32, 32), pipeline=pipeline(1, 0))
    found = [b.before for b in barriers_of(map_sample(one))]
    assert sorted(found) == ["copy_a", "load_a", "stage", "store"]


def test_no_staging_no_epilogue_barriers():
    tree = map_sample(small(epilogue=Epilogue("registers")))
    assert [b.phase for b in barriers_of(tree)] == ["main"]


def test_a_spare_stage_saves_a_barrier():
    """With as many stages as distance, copies and products need a barrier on both sides."""
    tight = places(pipeline=pipeline(2, 2, ("mma", "copy")))
    spare = places(pipeline=pipeline(3, 2))
    assert (len(tight), len(spare)) == (3, 2)


def test_copies_through_registers_are_not_waited_for():
    tree = map_sample(small(), asynchronous=False)
    assert all(b.pending is None for b in barriers_of(tree))


def test_what_each_barrier_enforces_is_named():
    bars = [s for s in map_sample(small()).synchronised.syncs if s.kind == "bar"]
    for bar in bars:
        assert bar.enforces
        assert all("->" in text and " through " in text for text in bar.enforces)
    first = " ".join(bars[0].enforces)
    assert "load_a (flow through ring_a" in first
    assert "copy_b (reuse through ring_b, 3 version(s) later" in first


@pytest.mark.parametrize("name", UNUSUAL)
def test_barriers_everywhere_are_accepted_by_the_oracle(name):
    """So that its refusal of an illegal schedule is not about where these barriers stand."""
    loops, shape = loops_with_every_barrier(UNUSUAL[name])
    check_loops(loops, shape, range(1, 4))


def test_a_barrier_that_runs_once_is_preferred_to_one_per_k_tile():
    tree = map_sample(small(pipeline=pipeline(4, 1, ("mma", "copy"))))
    block = [b for b in barriers_of(tree) if b.scope == "block"]
    assert sorted(b.phase for b in block) == ["epilogue", "main"]


def test_prologue_copies_without_multiplying_and_the_tail_multiplies_without_copying():
    schedule = small(pipeline=pipeline(4, 3))
    tree = map_sample(schedule)
    names = [name for name, _ in run_loops(tree.loops(), {"k_tiles": 8})]
    first_product = names.index("mma")
    assert names[:first_product].count("copy_a") == 4  # distance, and the first steady step
    last_copy = max(i for i, name in enumerate(names) if name == "copy_b")
    assert names[last_copy:].count("mma") == 4 * names.count("mma") // 8


def _nodes(node):
    yield node
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        for child in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(child):
                yield from _nodes(child)


def test_the_loops_hold_nothing_of_isl():
    tree = map_sample(small())
    kinds = (ast.For, ast.If, ast.Marked, ast.Call, ast.Block, ast.Const, ast.Var, ast.Binary)
    nodes = list(_nodes(tree.loops()))
    assert all(isinstance(node, kinds) for node in nodes)
    marks = {node.name for node in nodes if isinstance(node, ast.Marked)}
    assert {"t", "s", "m", "n"} <= marks


def test_unrolled_loops_have_constant_bounds_and_the_k_loop_is_not_unrolled():
    loops = [node for node in _nodes(map_sample(small()).loops()) if isinstance(node, ast.For)]
    for loop in loops:
        if loop.unroll and isinstance(loop.condition, ast.Binary):
            assert (
                not isinstance(loop.condition.right, ast.Var) or loop.first == loop.condition.right
            )
    assert any(loop.iterator == "t" and not loop.unroll for loop in loops)


def test_loops_print_with_named_iterators():
    text = ast.text(map_sample(small()).loops())
    for part in ("# t", "for t = ", "copy_a(", "load_b(", "mma(", "commit(t)", "zero()"):
        assert part in text


class TestTheOracleItself:
    """The oracle must notice what it is there to notice."""

    schedule = small(pipeline=pipeline(3, 2))

    def parts(self):
        tree = map_sample(self.schedule)
        return run_loops(tree.loops(), {"k_tiles": 5}), shape_of(tree, self.schedule)

    def test_accepts_the_unchanged_sequence(self):
        trace, shape = self.parts()
        check_trace(trace, shape, 5)

    def test_missing_instance(self):
        trace, shape = self.parts()
        trace.remove(("load_a", (2, 1)))
        with pytest.raises(Violation, match="missing or more than once"):
            check_trace(trace, shape, 5)

    def test_doubled_instance(self):
        trace, shape = self.parts()
        trace.append(("store", (0,)))
        with pytest.raises(Violation, match="missing or more than once"):
            check_trace(trace, shape, 5)

    def test_wait_after_the_barrier(self):
        trace, shape = self.parts()
        place = next(i for i, (name, _) in enumerate(trace) if name.startswith("wait"))
        trace[place], trace[place + 1] = trace[place + 1], trace[place]
        with pytest.raises(Violation, match="no barrier after the copies landed"):
            check_trace(trace, shape, 5)

    def test_copy_before_the_slot_is_free(self):
        trace, shape = self.parts()
        early = trace.index(("copy_a", (4, 0)))
        target = trace.index(("load_a", (1, 1)))
        trace.insert(target, trace.pop(early))
        with pytest.raises(Violation):
            check_trace(trace, shape, 5)

    def test_sums_out_of_order(self):
        trace, shape = self.parts()
        first, second = trace.index(("mma", (0, 0, 0, 0))), trace.index(("mma", (0, 1, 0, 0)))
        trace[first], trace[second] = trace[second], trace[first]
        with pytest.raises(Violation, match=r"sum\[0,0\]"):
            check_trace(trace, shape, 5)
