"""Dependent launches: every place waits for the grids before it; trees that do not are refused."""

from dataclasses import replace
from functools import lru_cache

import pytest
from tile_mutants import CASES, emitted, program

from polygen.errors import VerifyError
from polygen.hardware.units import grid_wait
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.refine import refine
from polygen.poly.tile_tree import insert, loops_around, without

NAMES = (
    "warps", "cooperative, residual", "ping-pong, residual", "cooperative, filled by threads",
    "shared sums, residual", "cluster of two",
)  # fmt: skip
QUICK = ("warps", "ping-pong, residual", "cooperative, filled by threads")
EVERY = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES]


@lru_cache(maxsize=8)
def kernel(name: str) -> Synchronised:
    case = next(c for c in CASES if c.name == name)
    return derive(replace(program(case), dependent=True))


def waits(of: Synchronised):
    return [leaf for leaf in of.leaves if leaf.kind == "grid"]


@pytest.mark.parametrize("name", EVERY)
def test_every_place_waits_once_and_nothing_else_changes(name):
    of = kernel(name)
    assert [leaf.place for leaf in waits(of)] == list(of.program.places)
    assert all(not leaf.loops and leaf.executes == "all" for leaf in waits(of))
    alone = derive(replace(of.program, dependent=False))
    assert without(of.tree, *(leaf.name for leaf in waits(of))) == alone.tree
    assert [s for s in of.syncs if s.kind != "grid"] == list(alone.syncs)
    claims = [proof.claim for proof in refine(emitted(of))]
    assert "nothing touches global memory before the grids before are complete" in claims


def moved(of: Synchronised, leaf, near: str, level: int, *, after: bool = False):
    """The tree with a wait elsewhere; in loops it runs in the first iteration alone."""
    tree = without(of.tree, leaf.name)
    times = tuple("0" for _ in loops_around(tree, near)[:level])
    return insert(tree, level, (near,), leaf.name, times, after=after)


def first_outside(of: Synchronised, place) -> str:
    return next(s.name for s in of.program.statements if s.place == place and s.outside)


def mistakes(of: Synchronised):
    for leaf in waits(of):
        place, rest = leaf.place, tuple(x for x in of.leaves if x is not leaf)
        gone = without(of.tree, leaf.name)
        fewer = tuple(s for s in of.syncs if s.wait != leaf.name)
        yield f"{leaf.name} is gone", emitted(of, tree=gone, leaves=rest, syncs=fewer)
        yield f"{leaf.name} is not emitted", emitted(of, tree=gone)
        own = [s.name for s in of.program.statements if s.place == place]
        every = moved(of, leaf, first_outside(of, place), 0, after=True)
        yield f"{leaf.name} behind everything", emitted(of, tree=every)
        if place.threads > 1:
            one = replace(leaf, executes="one")
            yield f"{leaf.name} by one thread", emitted(of, leaves=(*rest, one))
        if place.counts and place.counts[-1] > 1:
            agent = place.agents[-1]
            some = replace(leaf, domain=f"{{ {leaf.name}[{','.join(place.agents)}] : "
                           f"{place.bounds} and {agent} = 0 }}")  # fmt: skip
            yield f"{leaf.name} by one agent", emitted(of, leaves=(*rest, some))
        other = next((p for p in of.program.places if p != place), None)
        if other is not None:
            domain = f"{{ {leaf.name}[{','.join(other.agents)}] : {other.bounds} }}"
            there = replace(leaf, place=other, domain=domain)
            yield f"{leaf.name} in another place", emitted(of, leaves=(*rest, there))
        assert own
    sync = next(s for s in of.syncs if s.kind == "grid")
    changed = tuple(replace(s, unit="griddepcontrol") if s is sync else s for s in of.syncs)
    yield "another instruction", emitted(of, syncs=changed)


@pytest.mark.parametrize("name", EVERY)
def test_accesses_before_the_wait_are_refused(name):
    of, found = kernel(name), 0
    for what, changed in mistakes(of):
        with pytest.raises(VerifyError) as caught:
            refine(changed, necessary=False)
        assert str(caught.value).startswith("refinement: "), what
        found += 1
    assert found >= 4


def test_the_refusal_names_an_instance():
    of = kernel("warps")
    (leaf,) = waits(of)
    late = moved(of, leaf, first_outside(of, leaf.place), 0, after=True)
    with pytest.raises(VerifyError, match=r"grids: \w+\[.*\].* may touch global memory"):
        refine(emitted(of, tree=late), necessary=False)


def test_a_wait_that_nothing_needs_is_refused():
    """A kernel that is not launched dependently has no use for one."""
    of = kernel("warps")
    with pytest.raises(VerifyError, match="necessary: wait_grids_warps enforces nothing"):
        refine(emitted(of, program=replace(of.program, dependent=False)))


def test_the_instruction_is_data():
    assert grid_wait() == "griddepcontrol.wait"
