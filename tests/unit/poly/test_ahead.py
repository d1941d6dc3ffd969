"""What comes early: who waits for the grids before, and which mistakes the proofs refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from matrix import dots, roles
from plan_changes import with_program
from tile_mutants import emitted, mutants

import polygen as pg
from polygen.api import target
from polygen.errors import ScheduleError, VerifyError
from polygen.frontend.program import InOrder
from polygen.kernel import Kernel
from polygen.lower.verify import _check_outside
from polygen.poly.ahead import settled_operands
from polygen.poly.refine import refine
from polygen.poly.tile_tree import insert, loops_around, without
from polygen.schedule.model import Launches, Roles

SIGNATURE = ("bf16[M,K]", "bf16[N,K]")
SIZES = {"M": 72, "N": 48, "K": 520}
SCHEDULES = {
    "roles": roles("two", through="registers"),
    "lanes": dots((2, 8, 512), (2, 2)),
}
# Mistakes that are none, by the beginnings of their descriptions.
HARMLESS = {
    "ring_a: one slot fewer": "each ring has barriers of its own, which have one fewer as well",
    "ring_b: one slot fewer": "likewise",
    "locate_consumer after wait_full": "where a tile is, is known without what is in it",
    "retire_": "the last products are waited for by whoever reads the sums",
    "arrive_empty_ring_a +1": "a release that is late is a release",
    "arrive_empty_ring_b +1": "likewise",
    "load_b after wait_grids_warps": "it is read later than it might be",
    "wait_grids_warps before load_b": "likewise",
}


@cache
def kernel(name: str, settled: tuple[str, ...] = ("w",)) -> Kernel:
    launch = Launches(dependent=True, ahead=True)
    schedule = replace(SCHEDULES[name], launch=launch)
    made = pg.fuse(lambda x, w: x @ w.T, name="early")
    alone = made.compile(*SIGNATURE, arch="sm_90a", sizes=SIZES)
    program = replace(alone.program, in_order=InOrder(settled=settled))
    return Kernel(program, target("sm_90a"), SIZES, schedule)


@pytest.mark.parametrize("name", SCHEDULES)
def test_mistakes_in_kernels_that_read_early_are_refused(name):
    of = kernel(name).passes.plan.synchronised
    assert refine(emitted(of))
    accepted, tried = set(), 0
    for what, changed in mutants(of):
        tried += 1
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        accepted.add(what)
    assert tried > (15 if name == "lanes" else 150)
    assert {one for one in accepted if not one.startswith(tuple(HARMLESS))} == set()


@pytest.mark.parametrize("name", ["roles", "lanes"])
def test_a_wait_that_comes_later_or_not_at_all_is_refused(name):
    of = kernel(name).passes.plan.synchronised
    for leaf in (one for one in of.leaves if one.kind == "grid"):
        rest = tuple(x for x in of.leaves if x is not leaf)
        gone = without(of.tree, leaf.name)
        needs = [s.name for s in of.program.statements if s.place == leaf.place and s.outside]
        level = len(loops_around(of.tree, needs[0]))
        when = ("0", "1") if name == "lanes" else ("0",) * level  # chunks run a step ahead
        late = insert(gone, level, needs[:1], leaf.name, when, after=True)
        fewer = tuple(s for s in of.syncs if s.wait != leaf.name)
        for changed in (
            emitted(of, tree=gone, leaves=rest, syncs=fewer),
            emitted(of, tree=late),
        ):
            with pytest.raises(VerifyError):
                refine(changed, necessary=False)


def test_a_statement_that_is_said_to_be_settled_reads_and_does_nothing_else():
    plan = kernel("lanes").passes.plan
    program = plan.tile_program
    said = tuple(replace(s, settled=True) if s.name == "store" else s for s in program.statements)
    with pytest.raises(VerifyError, match="store waits for nobody, and may have to"):
        _check_outside(with_program(plan, replace(program, statements=said)))


def test_rings_that_threads_fill_leave_no_warp_that_fills_others_early():
    """And an automatic choice asks for none."""
    made = pg.fuse(lambda x, w: pg.relu(x) @ w.T, name="computed").program(*SIGNATURE)
    program = replace(made, in_order=InOrder(settled=("w",)))
    for rows in (1, 16, 64):
        one = Kernel(program, target("sm_90a"), {"M": rows, "N": 4096, "K": 4096}, "auto")
        assert not one.schedule.launch.ahead
    given = replace(
        SCHEDULES["roles"], roles=Roles("cooperative", 120, 184),
        launch=Launches(dependent=True, ahead=True),
    )  # fmt: skip
    with pytest.raises(ScheduleError, match="no operand can come early"):
        Kernel(program, target("sm_90a"), SIZES, given)


def test_what_is_not_settled_makes_its_place_wait():
    """The same kernel, whose early statement is said to be one like others."""
    of = kernel("roles").passes.plan.synchronised
    plain = tuple(replace(s, settled=False) for s in of.program.statements)
    changed = emitted(of, program=replace(of.program, statements=plain))
    with pytest.raises(VerifyError, match=r"grids: fill_ahead\[.*\].* may touch global memory"):
        refine(changed, necessary=False)


@pytest.mark.parametrize(
    ("name", "settled", "early"),
    [
        ("roles", ("w",), ("b",)),
        ("roles", ("x",), ("a",)),
        ("roles", ("x", "w"), ()),  # all of them: there is nothing to wait for
        ("roles", ("z",), ()),
        ("lanes", ("w",), ("b",)),
        ("lanes", ("x",), ()),  # which does not stream
        ("lanes", ("x", "w"), ()),
    ],
)
def test_which_operands_come_early(name, settled, early):
    made = kernel(name)
    program = replace(made.program, in_order=InOrder(settled=settled))
    assert settled_operands(program, made.passes.plan.match, SCHEDULES[name]) == early
