"""Numbers of few bits become f32 by sequences that are proved for all of them."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from polygen.emit.c_text import read
from polygen.emit.element_types import byte_of_word
from polygen.emit.text_functions import run
from polygen.errors import HardwareDataError
from polygen.frontend.dtypes import BF16, E4M3, F16, F32
from polygen.hardware.conversion import conversions, is_exact, meaning, prove


@pytest.mark.parametrize("name", conversions())
def test_every_stored_number_becomes_what_it_is(name):
    one = conversions()[name]
    made, wanted = one.values(), meaning(name)
    assert len(made) == 2**one.bits == len(wanted)
    np.testing.assert_array_equal(made, wanted)
    assert (np.signbit(made) == np.signbit(wanted))[~np.isnan(wanted)].all(), "of zeros too"


def test_the_meanings_are_those_of_the_types():
    """Values from the formats' definitions, beside the library that `meaning` asks."""
    assert list(meaning("i4")) == [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]
    assert list(meaning("u4")) == list(range(16))
    assert list(meaning("s8")) == [*range(128), *range(-128, 0)]
    assert list(meaning("u8")) == list(range(256))
    e4m3 = [
        (-1) ** (b >> 7)
        * (2.0 ** ((b >> 3 & 15) - 7) * (1 + (b & 7) / 8) if b >> 3 & 15 else (b & 7) / 512)
        for b in range(256)
        if b & 127 != 127
    ]
    found = meaning("e4m3")
    assert np.isnan(found[[127, 255]]).all()
    assert list(np.delete(found, [127, 255])) == e4m3
    assert meaning("e5m2")[0x7B] == float(ml_dtypes.finfo(ml_dtypes.float8_e5m2).max)
    assert np.isinf(meaning("e5m2")[[0x7C, 0xFC]]).all()


def test_which_types_have_all_numbers_of_others():
    assert all(is_exact(name, kind) for name in conversions() for kind in (BF16, F16, F32))
    assert not is_exact("s8", E4M3), "17 has five bits"
    assert not is_exact("e5m2", E4M3) and is_exact("i4", E4M3)
    assert not is_exact("bf16", F32), "of types that no sequence converts nothing is known"


@pytest.mark.parametrize(
    "name, change",
    [
        ("s8", {"less": 8388608.0}),
        ("s8", {"pattern": "0x4B000000u | b"}),
        ("u8", {"pattern": "0x4B000000u | (b ^ 128u)"}),
        ("i4", {"less": 8388608.0}),
        ("e4m3", {"times": 128.0}),
        ("e4m3", {"nan": ""}),
        ("e4m3", {"nan": "(b & 127u) >= 126u"}),
        ("e5m2", {"pattern": "b << 7"}),
    ],
)
def test_a_sequence_that_is_wrong_for_one_number_is_refused(name, change):
    with pytest.raises(HardwareDataError, match=f"of {name} are .*, its conversion says"):
        prove(dataclasses.replace(conversions()[name], **change))


@pytest.mark.parametrize(
    "name, change",
    [
        ("s8", {"flip": 0}),
        ("s8", {"flip": 0x81}),
        ("u8", {"above": 0x4B0001}),
        ("i4", {"above": 0x4B0000, "flip": 8}),  # no byte
    ],
)
def test_what_a_byte_lies_below_is_compared_with_the_pattern(name, change):
    with pytest.raises(HardwareDataError, match=f"bytes of {name} are not what"):
        prove(dataclasses.replace(conversions()[name], **change))


@pytest.mark.parametrize("name", [one.name for one in conversions().values() if one.above])
@pytest.mark.parametrize("at", range(4))
def test_the_text_that_takes_a_byte_of_a_word_gives_its_number(name, at):
    one, byte = conversions()[name], np.arange(256)
    beside = (byte * 37 + 11 & 255) << 8 * ((at + 1) % 4)
    text = byte_of_word(one).removeprefix("__uint_as_float(").removesuffix(f") - {one.less}f")
    names = {"word": byte << 8 * at | beside, "at": at}
    bits = np.asarray(run(read(f"const unsigned made = {text};"), names, 256).names["made"])
    found = bits.astype(np.uint32).view(np.float32) - np.float32(one.less)
    assert np.array_equal(found, meaning(name))
