"""Fragment loads: a NumPy ldmatrix, from the PTX ISA's prose, must deliver fragments."""

import numpy as np
import pytest

from polygen.hardware.atom import atom, atom_names
from polygen.hardware.data_file import read
from polygen.hardware.fragment_load import atom_load, delivers

WORD_BYTES = 4


def stored_tile(load, fragment):
    """A stored tile whose elements are numbered; [stored rows, bytes]."""
    shape = (load.tile_mn, load.tile_k) if load.k_contiguous else (load.tile_k, load.tile_mn)
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[fragment.dtype.bytes]
    return (np.arange(shape[0] * shape[1]).reshape(shape) % 251).astype(kind)


def execute(load, tile):
    """Registers [32, count * registers, 4 bytes] after the load's instructions."""
    memory = tile.view(np.uint8)
    results = []
    for instruction in range(load.count):
        rows, offsets = load.lane_addresses(instruction)
        if not load.uses_ldmatrix:
            for first in range(0, WORD_BYTES * load.results, WORD_BYTES):
                places = zip(rows, offsets + first, strict=True)
                results.append(np.array([memory[r, o : o + WORD_BYTES] for r, o in places]))
            continue
        for matrix in range(load.matrices):
            lanes = range(8 * matrix, 8 * matrix + 8)
            eight = np.array([memory[rows[i], offsets[i] : offsets[i] + 16] for i in lanes])
            halves = eight.view(np.uint16)
            halves = halves.T if load.transposed else halves
            pairs = np.ascontiguousarray(halves).reshape(32, 2)
            results.append(pairs.view(np.uint8))
    return np.stack(results, axis=1)


WARP = [name for name in atom_names() if atom(name).scope == "warp"]
CASES = [
    (name, operand, k_contiguous, count)
    for name in WARP
    for operand in "ab"
    for k_contiguous in (True, False)
    for count in (4, 2, 1)
]


@pytest.mark.parametrize(("name", "operand", "k_contiguous", "count"), CASES)
def test_load_delivers_the_fragment(name, operand, k_contiguous, count):
    of = atom(name)
    load = atom_load(of, operand, k_contiguous, count)
    fragment = of.fragment(operand)
    told = of.ptx.split(".")[3:6]  # of several instructions: how operands lie
    lies = {"a": ("row", "col"), "b": ("col", "row")}[operand][not k_contiguous]
    if of.parts and told["ab".index(operand) + 1] != lies:
        assert load is None
        return
    if not k_contiguous and fragment.dtype.bytes == 1:
        assert load is None
        return
    assert count % load.subtiles == 0
    tile = stored_tile(load, fragment)
    registers = execute(load, tile)
    logical = tile if load.k_contiguous else tile.T  # [m or n, k]
    extent = of.m if operand == "a" else of.n
    for result, (subtile, register) in enumerate(load.register_map):
        words = registers[:, result]
        if fragment.dtype.bytes > WORD_BYTES:  # the element that a register begins
            if register % 2:
                continue
            following = load.register_map.index((subtile, register + 1))
            words = np.concatenate([words, registers[:, following]], axis=1)
            register //= 2
        found = np.ascontiguousarray(words).view(tile.dtype)
        per = max(1, fragment.elements_per_register)
        at = fragment.table[:, register * per : register * per + per]
        mn, k = (at[..., 0], at[..., 1]) if operand == "a" else (at[..., 1], at[..., 0])
        assert np.array_equal(found, logical[mn + extent * subtile, k])


def test_choice_of_instruction():
    half, tf32 = atom("m16n8k16_f32_bf16"), atom("m16n8k8_f32_tf32")
    assert atom_load(half, "a", True).ptx.startswith("ldmatrix.sync.aligned.m8n8.x4.shared")
    assert atom_load(half, "a", False).transposed
    assert not atom_load(half, "b", True).transposed
    assert [atom_load(half, "b", True, count).tile_mn for count in (4, 2, 1)] == [16, 16, 8]
    short, byte = atom("m16n8k8_f32_f16"), atom("m8n8k16_s32_s8")
    for count in (1, 2, 4):  # instructions' tiles that one load serves, as many as there are
        assert atom_load(short, "b", False, count).tile_mn == 8 * count
        assert atom_load(byte, "a", True, count).tile_mn == 8 * count
    assert atom_load(short, "a", True, 6).ptx.startswith("ldmatrix.sync.aligned.m8n8.x4.shared")
    assert atom_load(short, "b", True, 6).subtiles == 2
    assert atom_load(tf32, "a", True).uses_ldmatrix
    assert not atom_load(tf32, "a", False).uses_ldmatrix
    assert atom_load(tf32, "b", False).unit_bytes == 4


def test_published_lane_formulas():
    half = atom("m16n8k16_f32_f16")
    lane = np.arange(32)
    row, byte = atom_load(half, "b", True).lane_addresses()
    assert np.array_equal(row, lane % 8 + 8 * (lane // 16))
    assert np.array_equal(byte, 16 * ((lane // 8) % 2))


def test_a_wrong_register_order_does_not_deliver():
    table = dict(read("ldmatrix.toml")["loads"]["a_k"])
    assert delivers(table, atom("m16n8k16_f32_f16"))
    table["registers"] = [[0, 0], [0, 2], [0, 1], [0, 3]]
    assert not delivers(table, atom("m16n8k16_f32_f16"))
