"""Rows that the blocks of a cluster cover together: what is derived, proved and refused of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matrix import roles
from tile_mutants import ONE_PRODUCT, emitted, mutants

import polygen as pg
from polygen.errors import IllegalSchedule, VerifyError
from polygen.frontend.dtypes import BF16, F32
from polygen.hardware.atom import atoms_for
from polygen.hardware.device import device
from polygen.lower import folds as lowered
from polygen.lower import row_exchange as exchange
from polygen.poly import by_roles, fold_parts, mapping, row_exchange
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.frame import Frame, frame
from polygen.poly.kernel_parts import Epilogue
from polygen.poly.kernel_program import kernel_program
from polygen.poly.refine import refine
from polygen.poly.tile_tree import Steps, leaves, without
from polygen.poly.tiling import Panels, RowVectors, tiling
from polygen.poly.versions import TileModel
from polygen.schedule import model
from polygen.schedule.model import Schedule
from polygen.small_problem import trial_sizes

IN_TILE = model.Epilogue(through="registers", rows="tile")


def schedule(form: str = "one", cluster: tuple[int, int] = (1, 2)) -> Schedule:
    return replace(roles(form, through="registers", cluster=cluster), epilogue=IN_TILE)


@cache
def kernel(
    form: str = "one", cluster: tuple[int, int] = (1, 2), holds: tuple[bool, ...] = (False,)
) -> Synchronised:
    own = schedule(form, cluster)
    fitting = atoms_for(device("sm_90a"), BF16, BF16, F32)
    tiles = tiling(own, next(one for one in fitting if one.scope == "warpgroup"))
    out = Epilogue(RowVectors(2, 1, 32), Panels(0, (), ()), False, holds)
    return derive(kernel_program(tiles, own, out, ONE_PRODUCT, asynchronous=True))


def build(cluster: tuple[int, int] = (1, 2), *signature: str):
    function = pg.fuse(lambda x, w: x @ w.T - np.max(x @ w.T, axis=1, keepdims=True))
    given = signature or ("bf16[M,K]", "bf16[N,K]")
    return function.compile(*given, arch="sm_90a", schedule=schedule(cluster=cluster)).passes


# --- what is derived -----------------------------------------------------------------------------
def test_what_is_folded_is_handed_over_by_one_barrier_that_counts_its_bytes():
    of = kernel()
    syncs = {sync.name: sync for sync in of.syncs}
    full = syncs["full_given_r0"]
    assert [name for name, _ in full.signals] == ["give_r0"]
    assert (full.slots, full.phase, full.arrivals) == (2, 0, 1)
    assert "give_r0 -> take_r0 (flow through given_r0)" in full.enforces
    assert "take_r0 -> give_r0 (reuse through given_r0, 2 version(s) later)" in full.enforces
    assert "empty_given_r0" not in syncs
    proofs = refine(emitted(of))
    assert proofs[-1].claim == "no synchronisation can be dropped"


@pytest.mark.slow
@pytest.mark.parametrize("holds", [(False, False), (True, True)])
@pytest.mark.parametrize(("form", "cluster"), [("two", (2, 2)), ("pingpong", (1, 4))])
def test_two_passes_make_two_exchanges(form, cluster, holds):
    """Blocks below one another tell each other nothing, and consumers only their own like."""
    of = kernel(form, cluster, holds)
    cells = {s.name: dict(s.signals) for s in of.syncs if s.name.startswith("full_given")}
    assert list(cells) == ["full_given_r0", "full_given_r1"]
    assert ("mod 2 = 0" in cells["full_given_r0"]["give_r0"].partition("k_tiles")[0]) == (
        cluster == (2, 2) or form == "pingpong"
    )
    assert refine(emitted(of))


@pytest.mark.slow
def test_a_block_is_told_that_its_one_landing_area_is_free(monkeypatch):
    """With one slot and one pass nothing implies that it is: the barrier for that is found."""
    monkeypatch.setattr(row_exchange, "LANDING_SLOTS", 1)
    of = kernel.__wrapped__("one", (1, 4), (False,))
    empty = next(sync for sync in of.syncs if sync.name == "empty_given_r0")
    blocks, warps = 4, 4
    assert (empty.slots, empty.phase, empty.arrivals) == (1, -1, (blocks - 1) * warps)
    assert refine(emitted(of))


def test_the_plan_shows_the_exchange_and_says_its_order():
    function = pg.fuse(lambda x, w: x @ w.T - np.sum(x @ w.T, axis=1, keepdims=True))
    made = function.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=schedule(cluster=(1, 4))
    )
    shown, plan = made.show("plan"), made.passes.plan
    assert "clusters of 1 x 4 share operands and cover rows of 256 elements" in shown
    assert "full_given_r0: 2 mbarriers; wait_full_given_r0 waits for 1024 bytes of give_r0" in shown
    claims = [str(proof) for proof in plan.proofs]
    assert "proved: no dependence connects two clusters of 4 thread blocks (grid)" in claims
    assert any("lanes that use a row's result have every term of it" in one for one in claims)
    assert any("every block of a row combines one part of each of them" in one for one in claims)
    (order,) = made.sums.folds
    assert order.order.endswith("; those of 4 blocks in the order of their columns")
    rows, blocks, numbers = 64, 4, 1
    area = plan.buffer("given_r0")
    assert (area.slots, area.slot_bytes) == (2, rows * blocks * numbers * 4)
    (condition,) = (one for one in made._generated.source.conditions if one.kind == "cover")
    assert (condition.dim, condition.multiple) == ("N", 256)
    assert trial_sizes(plan)["N"] == 256  # what it is checked with, if nobody says otherwise


# --- hand-broken trees ---------------------------------------------------------------------------
def refused(of: Synchronised, **changes: object) -> str:
    with pytest.raises(VerifyError) as error:
        refine(emitted(of, **changes), necessary=False)
    return str(error.value)


def test_results_that_are_not_waited_for_are_refused():
    """The wait is not emitted; or the barrier is forgotten altogether."""
    of = kernel()
    name = "wait_full_given_r0"
    rest = tuple(leaf for leaf in of.leaves if leaf.name != name)
    tree = without(of.tree, name)
    assert f"instances: {name}" in refused(of, tree=tree, leaves=rest)
    gone = next(one for what, one in mutants(of) if what == f"the barrier of {name} is gone")
    with pytest.raises(VerifyError, match="order: nothing keeps give_r0 -> take_r0"):
        refine(gone, necessary=False)


def moved(of: Synchronised, name: str, before: str) -> Steps:
    """The tree with a leaf in front of another of the same steps."""

    def walk(node):
        if isinstance(node, Steps):
            whole = [walk(child) for child in node.children]
            at = [list(leaves(child)) for child in whole]
            if [name] in at and any(before in names for names in at):
                leaf = whole.pop(at.index([name]))
                whole.insert(next(n for n, c in enumerate(whole) if before in leaves(c)), leaf)
            return Steps(tuple(whole))
        return replace(node, child=walk(node.child)) if hasattr(node, "child") else node

    return walk(of.tree)


@pytest.mark.parametrize(
    ("name", "before", "what"),
    [
        ("take_r0", "wait_full_given_r0", "counters|order|phases"),
        ("take_r0", "give_r0", "counters|order|live"),
        ("wait_full_given_r0", "give_r0", "live"),
    ],
)
def test_rows_that_are_taken_too_early_are_refused(name, before, what):
    of = kernel()
    tree = moved(of, name, before)
    assert tree != of.tree
    with pytest.raises(VerifyError, match=what):
        refine(emitted(of, tree=tree), necessary=False)


@pytest.mark.parametrize(
    "bounds", ["rank < 1", "rank > 0", "i = 0"], ids=["last", "first", "later tiles"]
)
def test_a_part_that_a_block_does_not_send_is_refused(bounds):
    of = kernel()
    give = of.program.statement("give_r0")
    fewer = replace(give, bounds=f"{give.bounds} and {bounds}")
    statements = tuple(fewer if s.name == "give_r0" else s for s in of.program.statements)
    said = refused(of, shown=replace(of.program, statements=statements))
    assert "instances: give_r0" in said and "is never executed" in said


def test_a_block_that_leaves_early_is_refused():
    """Others arrive at its barriers still: for slots of the ring, which they share."""
    of = kernel()
    assert of.frame == Frame("cluster", "cluster")
    assert "frame: " in refused(of, frame=Frame("cluster", "none"))
    assert "frame: " in refused(of, frame=Frame("block", "cluster"))


def test_a_block_stays_while_numbers_land_that_it_does_not_wait_for():
    """What is waited for has landed; a landing area that nobody waits for keeps the cluster."""
    of = kernel()
    syncs = tuple(s for s in of.syncs if s.name != "empty_ring")  # arrivals of other blocks
    model_of = TileModel(of.program)
    assert frame(model_of, syncs) == Frame("cluster", "none")
    others = tuple(s for s in syncs if s.name != "full_given_r0")
    assert frame(model_of, others) == Frame("cluster", "cluster")


REASONS = {
    "retire_empty_ring is not run the last time": "the drain behind the loop waits for all",
    "locate_consumer after wait_full_ring": "only the epilogue asks where the tile is",
    "unfold_r0 before arrive_empty_ring_rest": "registers of one thread",
    "arrive_empty_ring +1 iteration(s)": "the slot is released later, and nobody waits for it yet",
}


@pytest.mark.slow
def test_every_mistake_is_refused_but_for_those_that_are_none():
    of, accepted = kernel(), set()
    for what, changed in mutants(of):
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        accepted.add(what)
    assert accepted == set(REASONS)


# --- broken statements, relations and records ----------------------------------------------------
def broken(plain, **texts: tuple[str, str]):
    """`between_blocks` with other cells: what is sent, or what is combined."""

    def between(*given):
        statements, landing = plain(*given)
        found = []
        for one, key in zip(statements, ("sent", "taken"), strict=True):
            old, new = texts.get(key, ("", ""))
            cells = one.writes if key == "sent" else one.reads
            assert old in cells[0]
            changed = (cells[0].replace(old, new),) if old else cells
            found.append(replace(one, **{"writes" if key == "sent" else "reads": changed}))
        return tuple(found), landing

    return between


UNWRITTEN = "given_r0 is read before it is written"


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        # The last block's part is left out; nobody gets what another has; or the first gets
        # nothing from the last.
        ({"taken": ("q < 2", "q < 1")}, "a part is not combined: give_r0.1,0,0. -> take_r0"),
        pytest.param({"sent": ("0 <= d < 2", "d = rank")}, UNWRITTEN, marks=pytest.mark.slow),
        pytest.param({"sent": ("0 <= d < 2", "d <= rank")}, UNWRITTEN, marks=pytest.mark.slow),
    ],
)
def test_parts_that_are_left_out_are_refused(monkeypatch, texts, what):
    """Elements use results of their own row, all of it: the order between blocks is missing."""
    monkeypatch.setattr(fold_parts, "between_blocks", broken(row_exchange.between_blocks, **texts))
    with pytest.raises((VerifyError, IllegalSchedule), match=what):
        build()


@pytest.mark.slow
def test_passes_that_do_not_meet_between_blocks_are_refused(monkeypatch):
    """Every block takes its own columns for the row."""
    plain = by_roles.passed
    monkeypatch.setattr(by_roles, "passed", lambda *given, cluster: plain(*given))
    with pytest.raises(VerifyError, match="tiles of the program run in the wrong order"):
        build()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mod 128)/64", "mod 128)/128"),  # the first block has all columns
        pytest.param("1*floor((j mod 128)", "2*floor((j mod 128)", marks=pytest.mark.slow),
    ],
)
def test_columns_of_other_blocks_are_refused(monkeypatch, old, new):
    plain = mapping.tile_map

    def changed(*given):
        text = plain(*given)
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(mapping, "tile_map", changed)
    with pytest.raises(VerifyError):
        build()


@pytest.mark.slow
def test_rows_of_several_clusters_are_refused(monkeypatch):
    """Without the schedule's check, and without what is said of rows."""
    monkeypatch.setattr("polygen.decide.check_rows", lambda *_: None)
    monkeypatch.setattr(mapping, "_rows_in_tiles", lambda *_: "1 = 1")
    with pytest.raises(IllegalSchedule, match="a dependence connects two thread blocks"):
        build((1, 2), "bf16[M,K]", "bf16[129,K]")


@pytest.mark.slow
def test_room_for_fewer_blocks_is_refused(monkeypatch):
    plain = exchange.exchanged

    def fewer(*given):
        return tuple(
            replace(leaf, work=replace(leaf.work, cluster=(1, 1))) for leaf in plain(*given)
        )

    monkeypatch.setattr("polygen.lower.warpgroups.exchanged", fewer)
    with pytest.raises(VerifyError, match=r"no block has whole rows|bytes, copies bring"):
        build()


@pytest.mark.slow
def test_landing_areas_of_other_sizes_are_refused(monkeypatch):
    monkeypatch.setattr(exchange, "LANDING_SLOTS", 1)
    with pytest.raises(VerifyError, match="2 parts of 256 bytes in"):
        build()


@pytest.mark.slow
def test_lanes_that_do_not_meet_before_they_send_are_refused(monkeypatch):
    plain = lowered._axis

    def fewer(table, along):
        offsets, masks = plain(table, along)
        return offsets, masks[1:]

    monkeypatch.setattr(lowered, "_axis", fewer)
    with pytest.raises(VerifyError, match="lanes meet by"):
        build()
