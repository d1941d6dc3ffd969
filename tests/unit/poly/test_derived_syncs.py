"""What is derived for whole kernels: which barriers, with what numbers, and what for."""

from dataclasses import replace

import pytest
from tile_mutants import CASES, ONE_PRODUCT, emitted, kernel
from tile_simulator import fault

from polygen.errors import IllegalSchedule
from polygen.frontend.dtypes import BF16, F32
from polygen.hardware.atom import atoms_for
from polygen.hardware.device import device
from polygen.poly.derive_syncs import derive
from polygen.poly.kernel_parts import Epilogue
from polygen.poly.kernel_program import kernel_program
from polygen.poly.refine import refine
from polygen.poly.tiling import Panels, RowVectors, tiling
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster, CtaTile, Pipeline, Roles, Schedule, Tile, WarpTile
from polygen.schedule.model import Epilogue as Through

ATOMS = {a.scope: a for a in reversed(atoms_for(device("sm_90a"), BF16, BF16, F32))}
ROWS = RowVectors(8, 2, 32)


def derived(schedule, operands=(), outputs=("y0",), *, asynchronous=True):
    tiles = tiling(schedule, ATOMS["warpgroup" if schedule.specialised else "warp"])
    columns = schedule.epilogue.columns or next(
        c for c in (64, 32, 16) if schedule.tile.warp.n % c == 0
    )
    through = schedule.epilogue.through == "tma"
    panels = Panels(columns, operands, outputs) if through else Panels(0, (), ())
    return derive(
        kernel_program(
            tiles, schedule, Epilogue(ROWS, panels), ONE_PRODUCT, asynchronous=asynchronous
        )
    )


def roles(stages=4, consumers=2, cluster=(1, 1), *, in_flight=0, form="cooperative", **epilogue):
    tile = Tile(CtaTile(64 * consumers, 128, 64), WarpTile(64, 128))
    if form == "pingpong":
        tile = Tile(CtaTile(64, 128, 64), WarpTile(64, 128))
    epilogue = {"through": "tma", "slots": 2, "prefetch": 2, **epilogue}
    return Schedule(
        name="roles",
        device="sm_90a",
        tile=tile,
        roles=Roles(form),
        pipeline=Pipeline(stages=stages, in_flight=in_flight),
        epilogue=Through(**epilogue),
        cluster=Cluster(*cluster),
    )


def named(synchronised):
    return {sync.name: sync for sync in synchronised.syncs}


# --- the main loop of a kernel with roles --------------------------------------------------------
@pytest.mark.parametrize("in_flight", [0, 1, 2])
@pytest.mark.parametrize("stages", [3, 4, 6])
def test_a_ring_has_a_full_and_an_empty_barrier_per_slot(stages, in_flight):
    found = named(derived(roles(stages, in_flight=in_flight)))
    full, empty = found["full_ring"], found["empty_ring"]
    assert full.signals[0][0] == "fill" and full.wait == "wait_full_ring"
    assert full.buffers == empty.buffers == ("ring_a", "ring_b")
    assert full.slots == empty.slots == stages
    assert (full.phase, empty.phase) == (0, -1)  # this round's tiles; last round's release
    assert (full.arrivals, empty.arrivals) == (1, 2)
    assert found["retire_empty_ring"].pending == in_flight
    rest = [leaf for leaf, _ in empty.signals[1:]]
    assert rest == (["arrive_empty_ring_rest"] if in_flight else [])
    assert ("retire_empty_ring_rest" in found) == bool(in_flight)


@pytest.mark.parametrize(
    ("consumers", "cluster", "arrivals"),
    [
        (1, (1, 1), 1),
        (2, (1, 1), 2),
        (3, (1, 1), 3),
        (2, (2, 1), 4),  # two consumers of two blocks
        (1, (1, 2), 2),
        (1, (2, 2), 3),  # the block's own, its row's and its column's: no box of blocks
        (2, (2, 2), 6),
        (1, (4, 1), 4),
    ],
)
def test_a_slot_is_empty_when_all_that_share_it_have_multiplied(consumers, cluster, arrivals):
    found = named(derived(roles(2, consumers, cluster, through="registers")))
    assert found["empty_ring"].arrivals == arrivals
    assert found["full_ring"].arrivals == 1  # the producer's own; bytes do the rest


def test_what_the_barriers_of_a_ring_enforce():
    found = named(derived(roles(4, in_flight=1)))
    full, empty = (" ".join(found[name].enforces) for name in ("full_ring", "empty_ring"))
    assert "fill -> multiply (flow through ring_a)" in full
    assert "fill -> multiply (flow through ring_b)" in full
    assert "multiply -> fill (reuse through ring_a, 4 version(s) later)" in empty
    assert "multiply -> fill (reuse through ring_b, 4 version(s) later)" in empty


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_consumers_that_take_turns_pass_a_token_and_skip_tiles(cluster):
    found = named(derived(roles(cluster=cluster, in_flight=1, form="pingpong")))
    turn = found["turn"]
    assert (turn.signals[0][0], turn.wait, turn.arrivals) == ("arrive_turn", "wait_turn", 1)
    assert "parity" in turn.enforces[0]
    assert found["empty_ring"].arrivals == cluster[0]  # one of the two per tile
    for name in ("full_ring", "empty_ring"):
        assert [leaf for leaf, _ in found[name].skips] == ["skip_ring", "skip_ring_first"]
    others = named(derived(roles(cluster=cluster, in_flight=1)))
    assert "turn" not in others and not others["full_ring"].skips


@pytest.mark.parametrize(("stages", "in_flight"), [(1, 1), (2, 2), (3, 3)])
def test_a_release_as_late_as_the_ring_is_deep_is_refused(stages, in_flight):
    """The producer would wait for a release that follows a product that waits for the producer."""
    with pytest.raises(IllegalSchedule) as caught:
        derived(roles(stages, in_flight=in_flight))
    assert f"pipeline.in_flight = {in_flight} with a ring of {stages}" in str(caught.value)
    assert f"pipeline.in_flight = {stages - 1}" in str(caught.value)
    in_time = emitted(derived(roles(stages, in_flight=stages - 1)))
    refine(in_time)
    assert fault(in_time, ({"k_tiles": 9, "tiles": 2},), range(3)) == ""


# --- the epilogue of a kernel with roles ---------------------------------------------------------
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_results_alone_need_one_barrier_of_the_warpgroup(slots):
    found = named(derived(roles(slots=slots)))
    assert found["bar_store"].scope == "agent"
    assert found["wait_store"].pending == slots - 2  # one is written, one is waited for
    assert found["fence_store"].unit == "fence.proxy.async"
    assert found["wait_last_store"].pending == 0


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_panels_of_an_operand_have_barriers_per_warpgroup(prefetch):
    found = named(derived(roles(prefetch=prefetch), ("r",)))
    full, empty = found["full_r"], found["empty_r"]
    assert (full.arrivals, empty.arrivals) == (1, 4)  # one per warp
    assert full.slots == empty.slots == prefetch
    assert (full.phase, empty.phase) == (0, -1)


def test_the_release_of_one_matrix_stands_for_all():
    """`fetch_g` follows `fetch_r` in its thread, and both are read by the same statement."""
    found = named(derived(roles(slots=2), ("r", "g")))
    mbarriers = [s.name for s in found.values() if s.kind == "mbarrier"]
    assert len([name for name in mbarriers if name.startswith("empty_")]) == 2
    assert {"full_r", "full_g", "empty_ring", "full_ring"} <= set(mbarriers)


def test_one_panel_of_results_needs_two_barriers():
    """Its store has to be over before the next panel is written: nothing is left to overlap."""
    tight = derived(roles(slots=1))
    found = named(tight)
    assert {name for name, sync in found.items() if sync.kind == "bar"} == {
        "bar_finish",
        "bar_store",
    }
    assert found["wait_finish"].pending == 0
    refine(emitted(tight))
    assert fault(emitted(tight), ({"k_tiles": 2, "tiles": 3},), range(6)) == ""


# --- every warp does everything ------------------------------------------------------------------
@pytest.mark.parametrize(
    "schedule", [s for s in shipped("sm_80") if not s.without_rings], ids=lambda s: s.name
)
def test_a_pipelined_kernel_has_one_barrier_a_k_tile(schedule):
    found = named(derived(schedule))
    pipeline = schedule.pipeline
    assert found["bar_load_a"].scope == "place"
    assert found["wait_load_a"].pending == pipeline.distance - 1
    main = {name for name in found if name not in ("bar_stage", "bar_store")}
    assert main == {"bar_load_a", "wait_load_a"}
    if schedule.epilogue.through == "smem":
        assert (found["bar_stage"].scope, found["bar_store"].scope) == ("place", "agent")


def test_copies_through_registers_need_no_wait():
    found = named(derived(shipped("sm_80")[0], asynchronous=False))
    assert not any(sync.kind == "retire" for sync in found.values())


# --- numbers of the kernels that are broken elsewhere --------------------------------------------
FACTS = {
    "warps": {"bar_load_a": 0, "wait_load_a": 2, "bar_stage": 0, "bar_store": 0},
    "warps, spread copies": {"bar_load_a": 0, "wait_load_a": 4, "bar_stage": 0, "bar_store": 0},
    "cooperative, residual": {"retire_empty_ring": 1, "retire_empty_ring_rest": 0, "wait_store": 0},
    "cooperative, none in flight": {"retire_empty_ring": 0, "wait_store": 0},
    "ping-pong, residual": {"retire_empty_ring": 1, "wait_store": 0, "wait_last_store": 0},
    "cluster of two": {"retire_empty_ring": 1, "wait_store": 0, "wait_last_store": 0},
}


@pytest.mark.parametrize("name", FACTS)
def test_groups_that_may_be_pending(name):
    found = named(kernel(next(c for c in CASES if c.name == name)))
    assert {key: found[key].pending for key in FACTS[name]} == FACTS[name]


def test_a_set_is_derived_once_and_is_the_same_every_time():
    schedule = roles(3, in_flight=1)
    assert derived(schedule) is derived(schedule)
    derive.cache_clear()
    again = derived(replace(schedule))
    derive.cache_clear()
    assert derived(schedule) == again
