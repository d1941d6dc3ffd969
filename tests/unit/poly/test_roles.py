"""Role programs and the loops of each role, against brute force and a run of the loops."""

import itertools
from collections import Counter, defaultdict

import pytest
from block_simulator import run_loops
from matrix import CLUSTERS, HOPPER, case, roles
from polygen.poly.roles import PREFIX, panel_program, ring_program
from role_simulator import cells

from polygen import isl
from polygen.lower.work import Finish

RINGS = {
    "alone": ring_program(3, 1, (1, 1), pingpong=False),
    "two consumers": ring_program(2, 2, (1, 1), pingpong=False),
    "cluster along m": ring_program(3, 2, (2, 1), pingpong=False),
    "cluster along n": ring_program(3, 1, (1, 2), pingpong=False),
    "square cluster": ring_program(2, 1, (2, 2), pingpong=False),
    "turns": ring_program(3, 2, (2, 1), pingpong=True),
}
PANELS = {
    "nothing in": panel_program((), ("y0",), 2, 2, 2),
    "one in": panel_program(("r",), ("y0",), 3, 1, 1),
    "two in, two out": panel_program(("r", "g"), ("y0", "y1"), 2, 3, 2),
}
PROGRAMS = RINGS | PANELS
STEPS = 5


def relation(union, steps=STEPS):
    """The pairs of a union map for one number of steps: {(source, target)} with names."""
    found = set()
    maps = union.get_map_list()
    for i in range(maps.n_map()):
        one = maps.get_at(i)
        names = [one.get_tuple_name(side) for side in (isl.dim_type.in_, isl.dim_type.out)]
        one = one.fix_val(isl.dim_type.param, 0, isl.Val(steps))
        one = one.project_out(isl.dim_type.param, 0, 1)
        for point in isl.points(one):
            found.add(((names[0], point[:4]), (names[1], point[4:])))
    return found


def brute_force(program):
    """Flow, anti and output dependences, by running the program cell by cell."""
    accesses = {
        (s.name, kind): cells(program, s.name, kind, STEPS)
        for s in program.statements
        for kind in ("reads", "writes")
    }
    last, readers, found = {}, {}, set()
    for step in range(STEPS):
        for statement in program.statements:
            places = list(itertools.product(*map(range, statement.counts)))
            instances = [(statement.name, (*place, step)) for place in places]
            for instance in instances:
                for cell in accesses[statement.name, "reads"].get(instance[1], ()):
                    if cell in last:
                        found.add((last[cell], instance))
                    readers.setdefault(cell, set()).add(instance)
            for instance in instances:
                for cell in accesses[statement.name, "writes"].get(instance[1], ()):
                    found |= {(reader, instance) for reader in readers.pop(cell, ())}
                    if cell in last:
                        found.add((last[cell], instance))
                    last[cell] = instance
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_dependences_are_those_of_a_run(name):
    """isl may leave out an anti or output dependence that others imply, and add none."""
    program = PROGRAMS[name]
    found = set()
    for memory, _ in program.memories:
        found |= relation(program.dependences(memory))
    wanted = brute_force(program)
    flows = {(s, t) for s, t in wanted if s[1][3] == t[1][3]}
    assert flows and flows <= found
    assert found <= wanted
    assert {(s[0], t[0]) for s, t in found} == {(s[0], t[0]) for s, t in wanted}
    assert closed(found) == closed(wanted)


def closed(pairs):
    """The transitive closure: what follows what."""
    after = defaultdict(set)
    for source, target in pairs:
        after[source].add(target)
    grown = True
    while grown:
        grown = False
        for targets in list(after.values()):
            more = set().union(*(after.get(target, ()) for target in targets)) - targets
            targets |= more
            grown |= bool(more)
    return dict(after)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_cell_that_is_read_was_written_in_the_same_step(name):
    program = PROGRAMS[name]
    written = {}
    for step in range(STEPS):
        for statement in program.statements:
            for kind in ("reads", "writes"):
                for instance, found in cells(program, statement.name, kind, STEPS).items():
                    if instance[3] != step:
                        continue
                    for cell in found:
                        if kind == "writes":
                            written[cell] = step
                        else:
                            assert written[cell] == step


@pytest.mark.parametrize("cluster", [*CLUSTERS, (4, 1), (2, 3)])
def test_blocks_of_a_cluster_fill_every_part_of_every_slot_once(cluster):
    """Each block copies one part of each operand, to all that multiply with it."""
    along, across = cluster
    program = ring_program(2, 1, cluster, pingpong=False)
    filled = Counter(
        cell
        for (*_, g), found in cells(program, "fill", "writes", 1).items()
        for cell in found
        if g == 0
    )
    blocks, parts = along * across, {0: across, 1: along}
    assert set(filled.values()) == {1}
    assert set(filled) == {
        ("ring", (block, 0, operand, part))
        for block in range(blocks) for operand in (0, 1) for part in range(parts[operand])
    }  # fmt: skip
    read = {c for found in cells(program, "multiply", "reads", 1).values() for c in found}
    assert read == set(filled)


def test_consumers_that_take_turns_count_as_one_that_has_no_order():
    turns = RINGS["turns"].statement("multiply")
    assert turns.counts == (2, 1, 1) and not turns.serial
    both = RINGS["cluster along m"].statement("multiply")
    assert both.counts == (2, 2, 1) and both.serial


def test_the_statements_of_an_epilogue():
    program = PANELS["two in, two out"]
    assert [s.name for s in program.statements] == ["fetch_r", "fetch_g", "finish", "store"]
    assert [s.engine for s in program.statements] == ["copy", "copy", "threads", "store"]
    assert program.statement("finish").counts == (1, 2, 4)  # four warps
    assert dict(program.memories) == {
        "panel_r": 3, "panel_g": 3, "result_y0": 2, "result_y1": 2,
    }  # fmt: skip


# --- the order of one thread ---------------------------------------------------------------------
def test_copies_complete_in_no_order():
    program = RINGS["alone"]
    started = relation(program.thread_order(completed=False))
    completed = relation(program.thread_order(completed=True))
    first, second = ("fill", (0, 0, 0, 0)), ("fill", (0, 0, 0, 1))
    assert (first, second) in started and (first, second) not in completed
    assert (first, first) in completed
    multiply = [("multiply", (0, 0, 0, g)) for g in (0, 1)]
    assert (multiply[0], multiply[1]) in completed  # the tensor cores work in order
    assert completed < started


def test_threads_of_different_places_or_roles_have_no_order():
    for program in PROGRAMS.values():
        role = {s.name: s.role for s in program.statements}
        for source, target in relation(program.thread_order(completed=False)):
            assert role[source[0]] == role[target[0]]
            assert source[1][:3] == target[1][:3] and source[1][3] <= target[1][3]


def test_consumers_that_take_turns_have_no_order_of_their_own():
    program = RINGS["turns"]
    pairs = relation(program.thread_order(completed=False))
    assert all(s == t for s, t in pairs if s[0] == "multiply")


def test_a_warp_finishes_a_panel_before_its_first_thread_stores_it():
    pairs = relation(PANELS["nothing in"].thread_order(completed=True))
    finish, store = ("finish", (0, 1, 0, 2)), ("store", (0, 1, 0, 2))
    assert (finish, store) in pairs and (store, finish) not in pairs
    assert (("finish", (0, 1, 3, 2)), store) not in pairs  # other warps need a barrier


def test_domains_are_empty_without_steps():
    for program in PROGRAMS.values():
        none = program.domain.intersect_params(isl.Set(f"{PREFIX}{{ : steps = 0 }}"))
        assert none.is_empty()


# --- loops ---------------------------------------------------------------------------------------
LOOPS = {c.name: c for c in HOPPER if "stages" in c.name}
LOOPS |= {
    name: case(name, "nt", "bf16", "gate", arch="sm_90a", schedule=schedule)
    for name, schedule in {
        "gate": roles("two", 128, in_flight=2, stages=4),
        "gate_turns": roles("pingpong", 96, prefetch=1),
        "gate_registers": roles("pingpong", 64, through="registers", in_flight=0),
    }.items()
}


@pytest.fixture(scope="module", params=LOOPS)
def plan(request):
    return LOOPS[request.param].kernel().passes.plan


def traces(plan, role, k_tiles, tiles):
    """What one role does; those that take turns one after the other."""
    loops = plan.place(role).loops
    turns = plan.schedule.roles.form == "pingpong" and role != "producer"
    for turn in range(2 if turns else 1):
        trace = run_loops(loops, {"k_tiles": k_tiles, "tiles": tiles, "turn": turn})
        first, step = (turn, 2) if turns else (0, 1)
        yield trace, range(first, tiles, step)


SIZES = [(1, 0), (1, 1), (1, 3), (2, 2), (3, 1), (4, 3), (7, 2), (8, 5)]


@pytest.mark.parametrize(("k_tiles", "tiles"), SIZES)
def test_the_producer_fills_every_step_in_order(plan, k_tiles, tiles):
    ((trace, items),) = traces(plan, "producer", k_tiles, tiles)
    wanted = []
    for i in items:
        wanted.append(("locate", (i,)))
        for k in range(k_tiles):
            wanted += [("wait_empty_ring", (i, k)), ("fill", (i, k))]
    assert trace == wanted


@pytest.mark.parametrize(("k_tiles", "tiles"), SIZES)
def test_the_consumer_multiplies_and_releases_every_step_in_order(plan, k_tiles, tiles):
    in_flight = plan.schedule.pipeline.in_flight
    steps, blocks = plan.tiles.k_steps, plan.tiles.atoms[0]
    done = Counter()
    for trace, items in traces(plan, "consumer", k_tiles, tiles):
        running, fenced, released = [], None, []
        for name, arguments in trace:
            done[name.removesuffix("_rest")] += 1
            if name == "wait_full_ring":
                assert fenced is None
                fenced = arguments
            elif name == "multiply":
                assert arguments[:2] == fenced and arguments[2] < steps and arguments[3] < blocks
            elif name == "commit":
                running.append(arguments)
                fenced = None
            elif name == "retire":
                running = running[max(0, len(running) - in_flight) :]
            elif name == "drain":
                running = []
            elif name in ("arrive_empty_ring", "arrive_empty_ring_rest"):
                assert arguments not in running
                released.append(arguments)
            elif name in ("finish", "store"):
                assert not running and released[-1] == (arguments[0], k_tiles - 1)
        assert released == [(i, k) for i in items for k in range(k_tiles)]
    assert done["multiply"] == tiles * k_tiles * steps * blocks
    assert done["wait_full_ring"] == done["commit"] == done["arrive_empty_ring"] == tiles * k_tiles
    assert done["locate"] == tiles


@pytest.mark.parametrize(("k_tiles", "tiles"), SIZES)
def test_consumers_that_take_turns_hand_over_once_per_tile(plan, k_tiles, tiles):
    for trace, items in traces(plan, "consumer", k_tiles, tiles):
        names = [name for name, _ in trace]
        turns = [call for call in trace if call[0] in ("wait_turn", "arrive_turn", "skip")]
        if plan.schedule.roles.form != "pingpong":
            assert not turns
            continue
        assert turns == [
            (name, (i,)) for i in items for name in ("wait_turn", "arrive_turn", "skip")
        ]
        for i in items:
            start, end = trace.index(("wait_turn", (i,))), trace.index(("arrive_turn", (i,)))
            assert names[start:end].count("commit") == k_tiles


def test_the_epilogue_of_each_tile(plan):
    work = next(iter(plan.of(Finish)), None)
    for trace, items in traces(plan, "consumer", 2, 3):
        stores = [arguments for name, arguments in trace if name == "store"]
        if work is None:
            assert stores == [(i, m) for i in items for m in range(plan.tiles.atoms[0])]
            continue
        panels = plan.tiles.atoms[0] * plan.tiles.warp[1] // work.columns
        assert stores == [(i, p) for i in items for p in range(panels)]
        names = [name for name, _ in trace if name not in ("locate", "prepare")]
        part = names[names.index("finish") - len(work.operands) :][: 4 + 2 * len(work.operands)]
        waits = [f"wait_full_{panel.name}" for panel in work.operands]
        releases = [p.name for p in plan.syncs if p.signal == "finish"]
        wanted = [*waits, "finish", *(f"arrive_{n}" for n in releases), "staged", "store"]
        assert part[: len(wanted)] == wanted


def test_the_loader_brings_the_panels_that_are_finished(plan):
    loaded = {}
    for place in plan.places:
        assert place.name in ("producer", "loader", "consumer")
        if place.name != "producer":
            loaded[place.name] = [
                [a for name, a in trace if name.startswith(("fetch_", "finish"))]
                for trace, _ in traces(plan, place.name, 2, 5)
            ]
    operands = [panel for work in plan.of(Finish) for panel in work.operands]
    assert ("loader" in loaded) == bool(operands)
    if operands:
        assert loaded["loader"] == loaded["consumer"]
