"""Sets of barriers with one mistake each are refused, with what goes wrong and where."""

import re

import pytest
from broken_barriers import BROKEN, RING, changing
from polygen.poly.synchronise import derive, verify

from polygen.errors import VerifyError

PAIR = re.compile(r"\w+\[[\d,]+\] -> \w+\[[\d,]+\] with steps = \d+")


@pytest.mark.parametrize("name", BROKEN)
def test_the_set_without_the_mistake_is_proved(name):
    broken = BROKEN[name]
    syncs, proofs = derive(broken.program, broken.in_flight)
    assert verify(broken.program, syncs) == proofs
    assert len(proofs) == 4


@pytest.mark.parametrize("name", BROKEN)
def test_the_mistake_is_refused_with_a_witness(name):
    broken = BROKEN[name]
    syncs, _ = derive(broken.program, broken.in_flight)
    changed = broken.break_(syncs)
    assert changed != syncs
    with pytest.raises(VerifyError) as caught:
        verify(broken.program, changed)
    message = str(caught.value)
    for word in broken.words:
        assert word in message, message
    counted = "never completes" in message or "enforces no" in message
    assert counted or PAIR.search(message), message
    assert message.startswith(f"{broken.program.name}: ")


@pytest.mark.parametrize(("name", "slots"), [("empty_ring", 3), ("full_ring", 5)])
def test_waiting_for_more_than_is_needed_is_legal(name, slots):
    """Other depths than the ring's are sound on the side where they order more."""
    syncs, _ = derive(RING, 1)
    assert verify(RING, changing(name, slots=slots)(syncs))


def test_every_barrier_of_every_program_is_broken_somehow():
    for program in {broken.program for broken in BROKEN.values()}:
        for sync in derive(program, 1 if program.name == "main loop" else 0)[0]:
            uses = [b for b in BROKEN.values() if b.program.name == program.name]
            touched = {s.name for b in uses for s in _difference(b)}
            assert sync.name in touched


def _difference(broken):
    syncs, _ = derive(broken.program, broken.in_flight)
    return set(syncs) ^ set(broken.break_(syncs))


def test_the_list_is_long_and_its_names_are_distinct_words():
    assert len(BROKEN) >= 15
    assert all(re.fullmatch(r"[\w', :]+", name) for name in BROKEN)
