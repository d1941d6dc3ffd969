"""Two numbers of few bits become a pair by sequences that are proved for all bits of a half."""

import dataclasses

import numpy as np
import pytest

from polygen.errors import HardwareDataError
from polygen.hardware.conversion import meaning
from polygen.hardware.pair_conversion import pair_conversions, prove


@pytest.mark.parametrize("name", pair_conversions())
def test_every_half_becomes_the_number_in_its_low_bits(name):
    stored, _ = name
    wanted = meaning(stored)
    halves = np.arange(1 << 16, dtype=np.uint16)
    found = pair_conversions()[name].values(halves)
    np.testing.assert_array_equal(found, wanted[halves % len(wanted)])
    assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize(
    "name, change",
    [
        (("i4", "bf16"), {"flip": 0x4300}),
        (("i4", "bf16"), {"keep": 0x1F}),
        (("u4", "f16"), {"plus": 0xE408}),
        (("s8", "bf16"), {"high": 0}),
        (("s8", "bf16"), {"plus": 0xC380}),
        (("s8", "bf16"), {"keep": 0xFF}),
        (("u8", "bf16"), {"again": 0}),
        (("s8", "f16"), {"flip": 0x6400}),
    ],
)
def test_a_sequence_that_is_wrong_for_one_half_is_refused(name, change):
    with pytest.raises(
        HardwareDataError, match=f"has the {name[0]} .*, its conversion to {name[1]}"
    ):
        prove(dataclasses.replace(pair_conversions()[name], **change))
