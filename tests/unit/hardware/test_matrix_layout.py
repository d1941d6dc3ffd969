"""Operand tiles in shared memory: what the copy engine writes is what the instruction reads.

Both sides are written here a second time, element by element and with their swizzle, from the prose
of the PTX ISA; the module's own formulas leave the swizzle out.
"""

import copy
import dataclasses

import numpy as np
import pytest

from polygen.errors import ScheduleError, VerifyError
from polygen.hardware import matrix_layout as module
from polygen.hardware.atom import atom, atom_names
from polygen.hardware.data_file import read
from polygen.hardware.matrix_layout import matrix_layout

SLICE = 32  # bytes along k of one instruction, whatever the element type
HALF = 16  # elements along k of one instruction of 16-bit elements

# major, elements along m or n, along k, bytes of one, elements of m or n per instruction, span
TILES = [
    # k innermost: the span is what divides a row of the k tile
    ("k", 64, 64, 2, 64, 128),
    ("k", 256, 64, 2, 64, 128),
    ("k", 160, 64, 2, 160, 128),
    ("k", 128, 32, 2, 64, 64),
    ("k", 64, 96, 2, 64, 64),  # three spans a row
    ("k", 64, 16, 2, 64, 32),
    ("k", 96, 48, 2, 96, 32),
    ("k", 64, 128, 2, 64, 128),  # two spans a row
    ("k", 128, 32, 4, 64, 128),
    ("k", 64, 8, 4, 64, 32),
    ("k", 64, 128, 1, 64, 128),
    ("k", 208, 64, 1, 208, 64),
    # m or n innermost: the span is what divides a row of the tile
    ("mn", 64, 64, 2, 64, 128),
    ("mn", 192, 64, 2, 64, 128),
    ("mn", 256, 32, 2, 256, 128),
    ("mn", 96, 64, 2, 96, 64),
    ("mn", 160, 16, 2, 160, 64),
    ("mn", 208, 64, 2, 208, 32),
    ("mn", 16, 64, 2, 16, 32),
]


def layout(major, tile, tile_k, element, block, _=0):
    return matrix_layout(major, tile, tile_k, element, SLICE // element, block, "here")


def swizzled(address, span):
    """Bits 4 and up are XORed with as many from bit 7 on: 3 of them for 128 bytes, 2, 1."""
    bits = {128: 7, 64: 3, 32: 1}[span]
    return address ^ ((address >> 7 & bits) << 4)


def written(found, major, element, along, k):
    """Where the copy engine puts an element: boxes of one span, one after the other."""
    row, byte = (along, k * element) if major == "k" else (k, along * element)
    box, inside = divmod(byte, found.span)
    return swizzled(box * found.box_bytes + row * found.span + inside, found.span)


def multiplied(found, major, element, along, k, block):
    """Where an instruction finds it: its start, and the two distances in its descriptor."""
    descriptor = found.descriptor
    leading, stride = (16 * (descriptor >> bit & 0x3FFF) for bit in (16, 32))
    span = {1: 128, 2: 64, 3: 32}[descriptor >> 62]
    start = along // block * found.block + found.k_steps[k * element // SLICE]
    along, byte = along % block, k * element % SLICE
    if major == "k":
        inside = along // 8 * stride + along % 8 * span + byte
    else:
        k = byte // element
        spans, rest = divmod(along * element, span)
        inside = spans * leading + k // 8 * stride + k % 8 * span + rest
    return swizzled(start + inside, span)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_element_is_multiplied_from_where_it_was_written(tile):
    major, rows, depth, element, block, span = tile
    found = layout(*tile)
    assert found.span == span
    seen = set()
    for along in range(rows):
        for k in range(depth):
            at = written(found, major, element, along, k)
            assert at == multiplied(found, major, element, along, k, block), (along, k)
            seen.add(at)
    assert seen == set(range(0, found.bytes, element))
    assert found.bytes == rows * depth * element == found.boxes * found.box_bytes


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_patterns_begin_where_a_box_and_a_block_begin(tile):
    """The swizzle works on address bits, so that both sides agree only from whole patterns on."""
    found = layout(*tile)
    pattern = 8 * found.span
    assert found.box_bytes % pattern == 0
    if tile[1] > tile[4]:
        assert found.block % pattern == 0
    assert all(step % 16 == 0 for step in found.k_steps)
    assert len(found.k_steps) == tile[2] * tile[3] // SLICE
    assert len(set(found.k_steps)) == len(found.k_steps)


@pytest.mark.parametrize("span", [128, 64, 32])
def test_the_fields_of_a_descriptor(span):
    along = layout("k", 64, span // 2, 2, 64)
    assert along.descriptor & 0x3FFF == 0  # the address is the slot's
    assert along.descriptor >> 32 & 0x3FFF == 8 * span // 16
    assert along.descriptor >> 62 == {128: 1, 64: 2, 32: 3}[span]
    columns = 3 * span // 2
    across = layout("mn", columns, 64, 2, columns)
    assert across.descriptor >> 16 & 0x3FFF == 64 * span // 16  # from span to span: one box
    assert across.descriptor >> 32 & 0x3FFF == 8 * span // 16
    # Nothing else is set: no base offset, no other mode.
    fields = 0x3FFF << 16 | 0x3FFF << 32 | 3 << 62
    assert across.descriptor & ~fields == along.descriptor & ~fields == 0


def test_every_warpgroup_instruction_has_a_layout_for_each_way_it_reads():
    for name in atom_names():
        of = atom(name)
        for major in of.majors:
            element = of.a.dtype.bytes
            assert of.k * element == SLICE
            assert matrix_layout(major, 128, 4 * of.k, element, of.k, of.m, name).span == 128


def test_a_layout_says_what_it_is():
    assert str(layout("k", 64, 64, 2, 64)) == "k innermost, 1 box(es) of 64 x 128 B, swizzled"
    assert str(layout("mn", 96, 64, 2, 96)) == "m or n innermost, 3 box(es) of 64 x 64 B, swizzled"


# --- the proof -----------------------------------------------------------------------------------
WRONG = [
    (("k", 128, 64, 2, 64, 0), {"stride": 512}),
    (("k", 128, 64, 2, 64, 0), {"block": 4096}),
    (("k", 128, 64, 2, 64, 0), {"k_steps": (0, 32, 64, 64)}),
    (("k", 64, 128, 2, 64, 0), {"k_steps": tuple(32 * s for s in range(8))}),  # into the next box
    (("k", 64, 64, 2, 64, 0), {"span": 64}),
    (("mn", 128, 64, 2, 128, 0), {"leading": 4096}),
    (("mn", 128, 64, 2, 128, 0), {"stride": 2048}),
    (("mn", 128, 64, 2, 128, 0), {"leading": 1024, "stride": 8192}),  # the two exchanged
    (("mn", 128, 64, 2, 64, 0), {"block": 64}),
    (("mn", 128, 64, 2, 128, 0), {"k_steps": (0, 32, 64, 96)}),
    (("mn", 128, 64, 2, 128, 0), {"major": "k"}),
]


@pytest.mark.parametrize(("tile", "changes"), WRONG, ids=str)
def test_a_wrong_layout_is_refused_with_an_element(tile, changes):
    _, rows, depth, element, block, _ = tile
    right = layout(*tile)
    arguments = (rows, depth, element, SLICE // element, block, "here")
    module._prove(right, *arguments)
    wrong = dataclasses.replace(right, **changes)
    assert wrong != right
    with pytest.raises(
        VerifyError, match=r"^here: element \(\d+, \d+\) .* is written at byte \d+ "
    ):
        module._prove(wrong, *arguments)


def test_fields_that_an_instruction_does_not_use_do_not_matter():
    """One span along m or n: nothing is a leading distance away; with k innermost, never."""
    for tile in (("mn", 64, 64, 2, 64), ("k", 64, 64, 2, 64)):
        right = layout(*tile)
        module._prove(dataclasses.replace(right, leading=4096), 64, 64, 2, HALF, 64, "here")


@pytest.mark.parametrize(
    ("side", "old", "new"),
    [
        ("mn", "row / 8 * stride", "row / 4 * stride"),
        ("mn", "byte / span * leading + ", ""),
        ("k", "row % 8 * span", "row % 16 * span"),
        ("copy_engine", "byte / span * rows * span + ", ""),
    ],
)
def test_a_mistake_in_the_data_is_found(side, old, new, monkeypatch):
    data = copy.deepcopy(read(module.FILE))
    assert old in data[side]["offset"]
    data[side]["offset"] = data[side]["offset"].replace(old, new)
    monkeypatch.setattr(module, "read", lambda name: data)
    major = "mn" if side == "mn" else "k"
    module._check.cache_clear()  # of what was proved before
    with pytest.raises(VerifyError, match=r"^here: element .* is written at byte"):
        matrix_layout(major, 128, 128, 2, HALF, 128, "here")


def test_a_tile_that_schedules_have_in_common_is_looked_at_once(monkeypatch):
    looked: list[object] = []
    monkeypatch.setattr(module, "_prove", lambda *given: looked.append(given))
    module._check.cache_clear()
    for name in ("one", "another"):
        matrix_layout("k", 72, 64, 2, HALF, 72, f"schedule {name}")
    assert len(looked) == 1
    module._check.cache_clear()


# --- refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tile", "words"),
    [
        (("k", 64, 24, 2, 64), ("rows of 48 bytes", "128, 64 or 32 bytes", "multiples of 16 elem")),
        (("k", 64, 4, 4, 64), ("rows of 16 bytes", "Use multiples of 8 elements")),
        (("mn", 24, 64, 2, 24), ("rows of 48 bytes", "Use multiples of 16 elements")),
        (("k", 60, 64, 2, 60), ("60 stored rows", "groups of 8 rows", "multiple of 8")),
        (("mn", 48, 64, 2, 24), ("rows of 96 bytes", "in parts of 48", "multiples of 16 elements")),
    ],
)
def test_a_tile_without_a_layout_is_refused(tile, words):
    with pytest.raises(ScheduleError) as caught:
        layout(*tile)
    for word in ("here", *words):
        assert word in str(caught.value)


def test_the_formulas_are_checked_on_every_element():
    """One wrong element of many is enough."""
    right = layout("k", 64, 128, 2, 64)
    steps = list(right.k_steps)
    steps[-1] += 16
    with pytest.raises(VerifyError) as caught:
        module._prove(
            dataclasses.replace(right, k_steps=tuple(steps)), 64, 128, 2, HALF, 64, "here"
        )
    assert "element (0, 112)" in str(caught.value)
    assert np.count_nonzero(np.array(steps) != np.array(right.k_steps)) == 1
