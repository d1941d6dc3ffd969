"""Swizzles: wavefront counting on known patterns, and the choice for real fragment loads."""

import numpy as np
import pytest

from polygen.hardware.atom import atom
from polygen.hardware.fragment_load import atom_load
from polygen.hardware.swizzle import (
    Access,
    choose_swizzle,
    count_wavefronts,
    ideal_wavefronts,
    swizzle,
    swizzle_names,
    wavefronts,
)

LANE = np.arange(32)


def accesses(load):
    lanes = load.active_lanes
    found = (load.lane_addresses(i) for i in range(load.count))
    return [Access(rows[:lanes], byte[:lanes], load.unit_bytes) for rows, byte in found]


@pytest.mark.parametrize(
    ("addresses", "size", "expected"),
    [
        (4 * LANE, 4, 1),  # consecutive words
        (0 * LANE, 4, 1),  # one word for all
        (128 * LANE, 4, 32),  # one bank
        (8 * LANE, 4, 2),  # every second bank
        (8 * LANE, 8, 2),  # 256 bytes
        (16 * LANE, 16, 4),  # 512 bytes
        (128 * LANE, 16, 32),  # 8-way in each of 4 phases
        (64 * LANE, 16, 16),  # 4-way in each of 4 phases
        (2 * LANE, 2, 1),  # two lanes a word
        (np.where(LANE < 16, 128 * LANE, -1), 4, 16),  # half the lanes inactive
        (np.stack([4 * LANE, 128 * LANE]), 4, 33),  # two accesses
    ],
)
def test_wavefronts(addresses, size, expected):
    assert wavefronts(addresses, size) == expected


def test_ideal():
    assert [ideal_wavefronts(size) for size in (2, 4, 8, 16)] == [1, 1, 2, 4]
    assert ideal_wavefronts(16, 16) == 2


@pytest.mark.parametrize("row_bytes", [32, 64, 80, 96, 128, 160, 192, 256, 512])
@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("k_contiguous", [True, False])
def test_half_loads_become_conflict_free(row_bytes, operand, k_contiguous):
    load = atom_load(atom("m16n8k16_f32_bf16"), operand, k_contiguous)
    chosen = choose_swizzle(row_bytes, accesses(load))
    assert chosen.fits(row_bytes)
    found = count_wavefronts(chosen, row_bytes, accesses(load))
    assert found == load.count * ideal_wavefronts(load.unit_bytes, load.active_lanes)


@pytest.mark.parametrize("row_bytes", [64, 128, 256, 384, 512])
@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("k_contiguous", [True, False])
def test_tf32_loads_become_conflict_free(row_bytes, operand, k_contiguous):
    load = atom_load(atom("m16n8k8_f32_tf32"), operand, k_contiguous)
    chosen = choose_swizzle(row_bytes, accesses(load))
    found = count_wavefronts(chosen, row_bytes, accesses(load))
    assert found == load.count * ideal_wavefronts(load.unit_bytes, load.active_lanes)


def test_published_choices_and_degrees():
    load = atom_load(atom("m16n8k16_f32_f16"), "a", True)
    chosen = {size: choose_swizzle(size, accesses(load)) for size in (64, 128, 256)}
    assert {size: (c.shift, c.mask) for size, c in chosen.items()} == {
        64: (1, 3),
        128: (0, 7),
        256: (0, 7),
    }
    plain = {size: count_wavefronts(swizzle("none"), size, accesses(load)) for size in chosen}
    assert plain == {64: 4 * 4, 128: 4 * 8, 256: 4 * 8}


def test_scalar_columns_take_the_pair_swizzle():
    load = atom_load(atom("m16n8k8_f32_tf32"), "a", False)
    chosen = choose_swizzle(128, accesses(load))
    assert (chosen.multiplier, chosen.shift, chosen.mask) == (2, 0, 3)


def test_ties_go_to_the_simplest():
    assert choose_swizzle(128, [Access(LANE // 8, 16 * (LANE % 8), 16)]).name == "none"


@pytest.mark.parametrize("name", swizzle_names())
def test_every_entry_loads(name):
    found = swizzle(name)
    assert found.name == name and found.period >= 1
