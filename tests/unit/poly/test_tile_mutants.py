"""Kernels with one mistake each are refused; what is accepted is listed, with a reason.

What is accepted runs in one order at random, in three with POLYGEN_MUTANTS=all, which also takes
the kernels that differ little from others.
"""

import os
from dataclasses import replace

import pytest
from tile_mutants import CASES, EQUIVALENT, Case, emitted, equivalents, kernel, mutants
from tile_simulator import fault, numbers

from polygen.errors import VerifyError
from polygen.poly.refine import refine
from polygen.poly.tile_tree import depth, insert, loops_around

ALL = os.environ.get("POLYGEN_MUTANTS") == "all"
ORDERS = range(3 if ALL else 1)
QUICK = ("warps", "ping-pong, from registers", "cooperative, filled by threads")
MORE = (
    "warps, copies through registers", "cooperative, residual", "cooperative, two outputs",
    "cooperative, none in flight", "shared sums, residual", "ping-pong, shared pair",
    "warps, some tiles alone", "cooperative, residual of some tiles",
    "ping-pong, sums in blocks", "last round shared, residual",
)  # fmt: skip
SAMPLE = [pytest.mark.slow, pytest.mark.sample(6)]
EVERY = [
    pytest.param(c, id=c.name, marks=() if c.name in QUICK else SAMPLE)
    for c in CASES
    if ALL or c.name not in MORE
]
WARPS = ({"k_tiles": 2}, {"k_tiles": 6})
ROLES = ({"k_tiles": 1, "tiles": 3}, {"k_tiles": 2, "tiles": 4}, {"k_tiles": 7, "tiles": 2})

# Classes of bugs that other generators of such kernels shipped: the beginnings of descriptions.
CLASSES = (
    "slot released while products read",
    "published before it is complete",
    "fence behind the barrier",
    "fence behind the arrival",
    "the producer overruns by an iteration",
    "a leaf of another role",
    "one barrier for two loops",
    "an arrival counted twice",
    "arrive count of another role",
)


def sizes(case: Case):
    known = WARPS if case.name.startswith("warps") else ROLES
    if "k_tiles mod 2" in kernel(case).program.context:  # blocks have all of their k tiles
        return [one | {"k_tiles": 2 * -(-one["k_tiles"] // 2)} for one in ROLES]
    return numbers(kernel(case).program, known)


@pytest.mark.parametrize("case", EVERY)
def test_every_mistake_is_refused_and_what_is_accepted_is_no_mistake(case):
    accepted = set()
    for what, changed in mutants(kernel(case)):
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        accepted.add(what)
    assert accepted == equivalents(case)


@pytest.mark.parametrize("case", EVERY)
def test_what_is_no_mistake_goes_wrong_in_no_order(case):
    """A second opinion on the list: the bounded model, which knows nothing of the proof."""
    harmless = equivalents(case)
    tried = 0
    for what, changed in mutants(kernel(case)):
        if what in harmless:
            tried += 1
            assert fault(changed, sizes(case), ORDERS) == "", what
    assert tried == len(harmless) > 0


@pytest.mark.parametrize("case", EVERY)
def test_the_kernels_themselves_are_proved_with_nothing_to_spare(case):
    proofs = refine(emitted(kernel(case)))
    assert proofs[-1].claim == "no synchronisation can be dropped"


@pytest.mark.slow
def test_there_are_many_mistakes_of_many_kernels_and_of_known_classes():
    found = {c.name: [what for what, _ in mutants(kernel(c))] for c in CASES}
    assert len(found) >= 8
    assert sum(map(len, found.values())) >= 900
    assert all(len(set(names)) == len(names) for names in found.values())
    everything = [what for names in found.values() for what in names]
    for beginning in CLASSES:
        assert any(what.startswith(f"{beginning}: ") for what in everything), beginning


def test_every_exception_has_a_reason_and_a_kernel():
    for one in EQUIVALENT:
        assert one.reason
        assert any(c.name.startswith(name) for c in CASES for name in one.cases), one
    listed = [(what, name) for one in EQUIVALENT for what in one.what for name in one.cases]
    assert len(set(listed)) == len(listed)


def test_a_barrier_too_many_is_refused_for_enforcing_nothing():
    """Order is kept as well with it: the claim that it breaks is that nothing can be dropped."""
    of = kernel(CASES[0])
    bar = next(s for s in of.syncs if s.name == "bar_load_a")
    leaf = next(x for x in of.leaves if x.name == "bar_load_a")
    extra = replace(leaf, name="bar_more", domain=leaf.domain.replace("bar_load_a", "bar_more"))
    tree = _beside(of.tree, "bar_load_a", "bar_more")
    syncs = (*of.syncs, replace(bar, name="bar_more", wait="bar_more"))
    twice = emitted(of, tree=tree, leaves=(*of.leaves, extra), syncs=syncs)
    refine(twice, necessary=False)
    with pytest.raises(VerifyError, match=r"necessary: bar_\w+ enforces nothing"):
        refine(twice)


def _beside(tree, near, name):
    when = tuple(one.time(near) for one in loops_around(tree, near))
    return insert(tree, depth(tree, near), (near,), name, when, after=True)
