"""Formulas over `lane` say what fragment maps, matrices and swizzles say."""

import dataclasses
import re

import numpy as np
import pytest

from polygen.errors import ScheduleError, VerifyError
from polygen.hardware.atom import atom, atom_names
from polygen.hardware.matrix_layout import span_swizzle, spans
from polygen.lower.lanes import closed_form, flat_form, panel_lanes

WARPGROUP = [name for name in atom_names() if atom(name).scope == "warpgroup"]
LANES = np.arange(32)


def value(text, **names):
    """A formula's value in every lane."""
    return eval(text.replace("/", "//"), {"lane": LANES, **names})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lane / 4", LANES // 4),
        ("lane % 4 * 2", LANES % 4 * 2),
        ("lane % 4 / 2", LANES % 4 // 2),
        ("lane % 16", LANES % 16),
        ("lane", LANES),
    ],
)
def test_flat_forms(text, values):
    assert flat_form(values) == text
    assert np.array_equal(value(closed_form(values)) if text != "lane % 4 / 2" else values, values)


def test_values_without_a_form():
    for form in (closed_form, flat_form):
        with pytest.raises(ScheduleError, match="no simple closed form"):
            form(LANES**2)


@pytest.mark.parametrize("name", WARPGROUP)
@pytest.mark.parametrize("span", spans())
def test_lanes_reach_their_pairs_of_32_bits(name, span):
    of, swizzle = atom(name), span_swizzle(span)
    found = panel_lanes(of, 4, span)
    groups, step = found.step
    assert groups * step == span
    for quarter in range(0, of.m, of.m // 4):
        base = value(found.address, quarter=quarter)
        for group in range(groups):
            for half in range(2):
                at = (base ^ group * step) + half * found.half_bytes
                rows, columns = of.c.table[:32, 2 * half].T
                wanted = swizzle.address(rows + quarter, 4 * (columns + of.n * group), span)
                assert np.array_equal(at, wanted)


@pytest.mark.parametrize("name", WARPGROUP)
@pytest.mark.parametrize("span", spans())
def test_lanes_give_the_addresses_of_matrices_of_16_bits(name, span):
    """Lane l gives row l % 8 of matrix l / 8; matrix q has half q % 2 of group j + q / 2."""
    of, swizzle = atom(name), span_swizzle(span)
    found = panel_lanes(of, 2, span)
    groups, step = found.step
    base = value(found.address, quarter=0)
    for j in range(0, groups, 2):
        rows = LANES % 8 + 8 * (LANES // 8 % 2)
        chunks = j + LANES // 16
        wanted = swizzle.address(rows, 16 * chunks, span)
        assert np.array_equal(base ^ j * step, wanted)


def test_panels_of_another_fragment_are_refused():
    """Lanes that hold other columns than the matrices' words have."""
    of = atom(WARPGROUP[0])
    table = of.c.table.copy()
    table[[0, 1]] = table[[1, 0]]
    other = dataclasses.replace(of, c=dataclasses.replace(of.c, table=table))
    with pytest.raises(VerifyError, match=re.escape("lane 0 holds (0, 2) where the matrix has")):
        panel_lanes.__wrapped__(other, 2, spans()[0])


def test_steps_that_leave_the_swizzle_are_refused():
    """An XOR of the address reaches the next group only if the swizzle is one on chunks."""
    of = atom(WARPGROUP[0])
    table = of.c.table.copy()
    table[..., 1] = table[..., 1] + 2  # columns 2 .. 9: groups overlap chunks
    other = dataclasses.replace(of, c=dataclasses.replace(of.c, table=table))
    with pytest.raises((VerifyError, ScheduleError)):
        panel_lanes.__wrapped__(other, 4, spans()[0])
