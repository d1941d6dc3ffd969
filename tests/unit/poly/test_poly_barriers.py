"""Barriers are derived from dependences; a set edited by hand is refused with a witness."""

import dataclasses
import re

import pytest
from block_simulator import ROWS, map_sample, sample_atom
from matrix import pipeline, small, tiled
from polygen.poly.block import Barrier, candidates
from polygen.poly.tiles import tile_program

from polygen.errors import VerifyError
from polygen.poly.barriers import derive, verify
from polygen.poly.tiling import tiling
from polygen.schedule.model import Epilogue

PAIR = re.compile(r"\w+\[[-\d,]+\] -> \w+\[[-\d,]+\] with k_tiles = \d+")
SCHEDULE = small(pipeline=pipeline(3, 2))


def program(schedule=SCHEDULE):
    return tile_program(tiling(schedule, sample_atom()), schedule, ROWS)


def derived(schedule=SCHEDULE, asynchronous=True):
    return derive(program(schedule), schedule, asynchronous=asynchronous)[0]


def check(barriers, schedule=SCHEDULE, asynchronous=True):
    return verify(program(schedule), schedule, barriers, asynchronous=asynchronous)


def test_the_derived_set_verifies():
    assert len(check(derived())) == 3


@pytest.mark.parametrize("place", range(3))
def test_a_dropped_barrier_is_found(place):
    barriers = derived()
    assert len(barriers) == 3
    with pytest.raises(VerifyError, match="not ordered by any barrier") as caught:
        check(barriers[:place] + barriers[place + 1 :])
    assert re.search(r"\w+\[[-\d,]+\] -> \w+\[[-\d,]+\]", str(caught.value))


def changed(**changes):
    """The derived set with its waiting barrier changed."""
    return tuple(
        dataclasses.replace(b, **changes) if b.pending is not None else b for b in derived()
    )


def test_waiting_for_too_few_groups_is_found():
    pending = next(b.pending for b in derived() if b.pending is not None)
    with pytest.raises(VerifyError, match="not ordered by any barrier") as caught:
        check(changed(pending=pending + 1))
    assert PAIR.search(str(caught.value))
    assert "copy_a" in str(caught.value)


def test_waiting_for_more_groups_than_needed_is_legal():
    assert check(changed(pending=0))


def test_a_barrier_without_its_wait_is_found():
    with pytest.raises(VerifyError, match="copy_a") as caught:
        check(changed(pending=None))
    assert PAIR.search(str(caught.value))


def test_a_barrier_at_the_wrong_place_is_found():
    """Before the multiplications, copies of this step may overwrite what the last one reads."""
    assert any(b.before == "copy" for b in derived())
    with pytest.raises(VerifyError, match="not ordered by any barrier") as caught:
        check(changed(name="bar_mma", before="mma", pending=1))
    assert PAIR.search(str(caught.value))
    assert "load_a" in str(caught.value)


def test_a_superfluous_barrier_is_found():
    extra = Barrier("bar_mma", "block", "main", "mma", None)
    with pytest.raises(VerifyError, match="bar_mma enforces no dependence"):
        check((*derived(), extra))


def test_a_warp_barrier_does_not_order_two_warps():
    with pytest.raises(VerifyError, match="not ordered by any barrier"):
        check(changed(scope="warp"))


def test_one_warp_needs_its_barriers_too():
    """Lanes run apart: one may copy or stage over what its neighbours have yet to read."""
    one = tiled((32, 32, 32), (32, 32), pipeline=pipeline(1, 0))
    assert [b.before for b in derived(one) if b.scope == "block"] == ["copy", "mma", "stage"]


def test_no_staging_no_epilogue_barriers():
    schedule = small(epilogue=Epilogue("registers"))
    assert [b.phase for b in derived(schedule)] == ["main"]


def test_a_spare_stage_saves_a_barrier():
    """With as many stages as distance, copies and products need a barrier on both sides."""
    tight = derived(small(pipeline=pipeline(2, 2, ("mma", "copy"))))
    spare = derived(small(pipeline=pipeline(3, 2)))
    main = [sum(b.phase == "main" for b in found) for found in (tight, spare)]
    assert main == [2, 1]


def test_copies_through_registers_are_not_waited_for():
    assert all(b.pending is None for b in derived(asynchronous=False))


def test_candidates_have_distinct_names():
    names = [b.name for b in candidates(SCHEDULE)]
    assert len(set(names)) == len(names)
    assert all(b.wait.startswith("wait") for b in candidates(SCHEDULE))


def test_what_each_barrier_enforces_is_named():
    tree = map_sample(SCHEDULE)
    assert [entry.barrier for entry in tree.enforced] == list(tree.barriers)
    for entry in tree.enforced:
        assert entry.dependences
        assert all("->" in text and " through " in text for text in entry.dependences)
    first = " ".join(tree.enforced[0].dependences)
    assert "flow through ring_a" in first
    assert "anti through ring_b" in first
