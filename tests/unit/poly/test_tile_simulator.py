"""The bounded model: kernels as derived run clean; it notices what it is for."""

from dataclasses import replace

import pytest
from tile_mutants import CASES, emitted, kernel, mutants
from tile_simulator import Model, Wrong, fault, numbers

from polygen.poly import place_trees

WARPS = ({"k_tiles": 1}, {"k_tiles": 3}, {"k_tiles": 8})
ROLES = (
    {"k_tiles": 1, "tiles": 0},
    {"k_tiles": 1, "tiles": 3},
    {"k_tiles": 2, "tiles": 3},
    {"k_tiles": 5, "tiles": 2},
    {"k_tiles": 9, "tiles": 1},
)
NAMED = {case.name: case for case in CASES}
RESIDUAL, TURNS = NAMED["cooperative, residual"], NAMED["ping-pong, residual"]


def sizes(case):
    return WARPS if case.name.startswith("warps") else ROLES


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_as_derived_runs_clean(case):
    of = kernel(case)
    for values in numbers(of.program, sizes(case)):
        model = Model(emitted(of), values)
        for seed in range(2 if case.name.startswith("warps") else 12):
            assert model.run(seed) == sum(map(len, model.programs.values()))


def changed(case, wanted):
    return next(made for what, made in mutants(kernel(case)) if what == wanted)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("case", "what", "words"),
    [
        ("cooperative, residual", "wait_full_ring is not emitted", ""),
        ("cooperative, residual", "wait_empty_ring is not emitted", "is at it"),
        ("cooperative, residual", "retire_empty_ring: one more pending", "is at it"),
        ("cooperative, residual", "empty_ring: one arrival more", "nothing moves"),
        ("cooperative, residual", "empty_ring: one arrival fewer", ""),
        ("cooperative, residual", "full_ring: the other phase", ""),
        ("cooperative, residual", "bar_store is not emitted", ""),
        ("cooperative, residual", "fence_store is not emitted", "without a fence"),
        ("cooperative, residual", "fence_multiply is not emitted", "without a fence"),
        ("cooperative, residual", "wait_last_store is not emitted", "ends while"),
        ("cooperative, residual", "fill without its last k", "missing or more than once"),
        ("cluster of two", "empty_ring: arrivals at the own block alone", "nothing moves"),
        ("ping-pong, residual", "wait_turn is not emitted", ""),
        ("ping-pong, residual", "skip_ring is not emitted", ""),
        ("warps", "bar_load_a is not emitted", ""),
        ("warps", "wait_load_a: one more pending", "is under way"),
        ("warps", "bar_stage is not emitted", ""),
    ],
)
def test_it_notices(case, what, words):
    found = fault(changed(NAMED[case], what), sizes(NAMED[case]), range(25))
    assert found and words in found, found


@pytest.mark.slow
def test_it_finds_most_mistakes_of_a_kernel():
    """The rest are equivalent, claims about what the loops do anyway, or chance."""
    case = NAMED["ping-pong, from registers"]
    found = [bool(fault(made, ROLES[1:3], range(3))) for _, made in mutants(kernel(case))]
    assert sum(found) > len(found) // 2


def test_it_takes_nothing_from_the_records_but_numbers():
    """Another number of slots in a record alone shows, in a barrier or in memory."""
    of = kernel(RESIDUAL)
    full = next(s for s in of.syncs if s.name == "full_ring")
    syncs = tuple(replace(s, slots=3) if s is full else s for s in of.syncs)
    assert fault(emitted(of, syncs=syncs), ROLES[1:], range(10))


def test_runs_are_repeatable():
    model = Model(emitted(kernel(TURNS)), ROLES[2])
    assert [model.run(7) for _ in range(3)] == [model.run(7)] * 3


def test_loops_that_run_too_little_are_found_without_a_run():
    of = kernel(RESIDUAL)
    trees = place_trees.place_trees(of.program, of.tree, of.leaves)
    with pytest.raises(Wrong, match="missing or more than once"):
        Model(replace(emitted(of), trees=trees[:1]), ROLES[1])
