"""Parts of the keys: why they combine, and the counterexample where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.rewrite.chain import Chain, State, chain
from polygen.rewrite.parts import correction_number, parts_combine
from polygen.rewrite.separation import STATE, Factor

SIGNATURE = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")


def _chain(function) -> Chain:
    found = chain(pg.fuse(function).program(*SIGNATURE))
    assert found is not None
    return found


def _softmax() -> Chain:
    return _chain(lambda q, k, v: pg.softmax((q @ k.mT) * 0.125) @ v)


def test_softmax_has_parts() -> None:
    found = _softmax()
    assert "c(m, m'') = c(m, m') c(m', m'')" in parts_combine(found)[-1]
    assert correction_number(found.correction, 8.0, 16.0) == pytest.approx(0.36787944)


def test_sums_alone_add_up() -> None:
    (claim,) = parts_combine(_chain(lambda q, k, v: pg.sigmoid(q @ k.mT) @ v))
    assert "add up" in claim


def test_a_correction_that_does_not_compose_is_refused_with_numbers() -> None:
    wrong = replace(_softmax(), correction=(Factor("tanh", STATE),))
    with pytest.raises(UnsupportedProgram) as found:
        parts_combine(wrong)
    assert "c(0.25, 1.5) = 0.848284" in str(found.value) and "tile.part" in str(found.value)


def test_states_of_two_numbers_are_refused() -> None:
    found = _softmax()
    wrong = replace(found, states=(*found.states, State("v9", "argmax", "v1", rescaled=False)))
    with pytest.raises(UnsupportedProgram, match="the argmax of a row"):
        parts_combine(wrong)
