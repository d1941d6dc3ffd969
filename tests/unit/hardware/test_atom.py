"""Atoms: their tables against the PTX ISA's formulas, written here a second time."""

import numpy as np
import pytest

from polygen.hardware.atom import atom, atom_names, atoms_for
from polygen.hardware.device import device

LANE = np.arange(32)[:, None]
GROUP, THREAD = LANE // 4, LANE % 4


def expected(kind, operand):
    count = {("16", "a"): 8, ("16", "b"): 4, ("32", "a"): 4, ("32", "b"): 2}
    count |= {("8", "a"): 16, ("8", "b"): 8}
    e = np.arange(4 if operand == "c" else count[kind, operand])[None, :]
    zero = 0 * e
    match kind, operand:
        case _, "c":
            return GROUP + 8 * (e >= 2), 2 * THREAD + (e & 1)
        case "16", "a":
            low = (e == 0) | (e == 1) | (e == 4) | (e == 5)
            return np.where(low, GROUP, GROUP + 8), 2 * THREAD + (e & 1) + 8 * (e >= 4)
        case "16", "b":
            return 2 * THREAD + (e & 1) + 8 * (e >= 2), GROUP + zero
        case "32", "a":
            return GROUP + 8 * (e & 1), THREAD + 4 * (e >= 2)
        case "32", "b":
            return THREAD + 4 * e, GROUP + zero
        case "8", "a":
            low = (e < 4) | ((e >= 8) & (e < 12))
            return np.where(low, GROUP, GROUP + 8), 4 * THREAD + (e & 3) + 16 * (e >= 8)
        case "8", "b":
            return 4 * THREAD + (e & 3) + 16 * (e >= 4), GROUP + zero


@pytest.mark.parametrize("name", atom_names())
@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_table_equals_the_published_formula(name, operand):
    found = atom(name)
    rows, columns = expected(str(found.a.dtype.bits), operand)
    table = found.fragment(operand).table
    assert np.array_equal(table[..., 0], np.broadcast_to(rows, table.shape[:2]))
    assert np.array_equal(table[..., 1], np.broadcast_to(columns, table.shape[:2]))


@pytest.mark.parametrize("name", atom_names())
def test_record_fits_its_name(name):
    found = atom(name)
    assert found.name == f"m{found.m}n{found.n}k{found.k}_{found.c.dtype}_{found.a.dtype}"
    assert f"m{found.m}n{found.n}k{found.k}" in found.ptx
    assert found.a.shape == (found.m, found.k) and found.b.shape == (found.k, found.n)
    assert found.a.elements_per_register == 32 // found.a.dtype.bits
    assert not found.a.table.flags.writeable
    assert atom(name) is found


def test_choice_by_dtype_and_feature():
    ampere, ada = device("sm_80"), device("sm_89")
    assert [a.name for a in atoms_for(ampere, "f16", "f16")] == [
        "m16n8k16_f32_f16",
        "m16n8k16_f16_f16",
    ]
    assert [a.name for a in atoms_for(ampere, "f16", "f16", "f16")] == ["m16n8k16_f16_f16"]
    assert atoms_for(ampere, "e4m3", "e4m3") == ()
    assert [a.name for a in atoms_for(ada, "e4m3", "e4m3")] == ["m16n8k32_f32_e4m3"]
    assert atoms_for(ampere, "f16", "bf16") == ()
    assert atom("m16n8k32_f32_e4m3").runs_on(ada)
    assert not atom("m16n8k32_f32_e4m3").runs_on(ampere)
