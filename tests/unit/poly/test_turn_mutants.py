"""Mistakes in turns and skips are refused, of two consumers, of three and of more."""

import contextlib
import re
from dataclasses import replace

import pytest
from tile_mutants import HALF_FILLED, ON, Case, emitted, program
from tile_simulator import fault, numbers
from turn_mutants import EQUIVALENT, turn_mutants

from polygen.errors import VerifyError
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.refine import refine

TWO = Case("two", "sm_90a/pingpong_64x96x64_s10.toml", ("r",), stages=4)
THREE = replace(TWO, name="three", schedule="sm_90a/pingpong_64x192x64_t3_s5.toml")
ONWARD = replace(THREE, name="three, sums that go on", main=ON, operands=())
CASES = (
    TWO,
    THREE,
    ONWARD,
    replace(THREE, name="three, two slots", operands=(), stages=2, in_flight=1),
    replace(THREE, name="three, one operand by threads", main=HALF_FILLED, registers=120),
    replace(TWO, name="three, in a cluster", turns=3, cluster=(2, 1)),
    replace(TWO, name="four", turns=4),
)
QUICK = ("three",)
SIZES = ({"k_tiles": 1, "tiles": 2}, {"k_tiles": 1, "tiles": 7}, {"k_tiles": 3, "tiles": 5})
EVERY = [
    pytest.param(c, id=c.name, marks=() if c.name in QUICK else pytest.mark.slow) for c in CASES
]


def kernel(case: Case) -> Synchronised:
    """The synchronised program of a case."""
    return derive(program(case))


@pytest.mark.parametrize("case", EVERY)
def test_every_mistake_is_refused_and_what_is_accepted_is_no_mistake(case):
    of = kernel(case)
    refine(emitted(of))
    found = list(turn_mutants(of))
    assert len({what for what, _ in found}) == len(found) > 100
    for what, changed in found:
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        assert any(re.match(one, what) for one in EQUIVALENT), what
        assert fault(changed, numbers(of.program, SIZES), range(1)) == "", what


@pytest.mark.slow
def test_what_is_listed_as_harmless_is_accepted_of_some_kernel():
    accepted = set()
    for what, changed in turn_mutants(kernel(ONWARD)):
        kinds = {one for one in EQUIVALENT if re.match(one, what)} - accepted
        with contextlib.suppress(VerifyError):
            refine(changed, necessary=False) if kinds else None
            accepted |= kinds
    assert accepted == set(EQUIVALENT)
    assert all(EQUIVALENT.values())


@pytest.mark.parametrize("turns", [2, 3, 4, 5, 7])
def test_any_number_of_consumers_takes_turns(turns):
    """How many there are in a block, registers and loaders limit; the proofs do not."""
    of = kernel(replace(TWO, turns=turns))
    refine(emitted(of))
    assert fault(emitted(of), numbers(of.program, SIZES), range(2)) == ""
