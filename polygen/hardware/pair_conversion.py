"""How two stored numbers of few bits become a pair of 16-bit floats: sequences as data, proved.

A half of a word has a stored number in its low bits, and anything in the others. Two patterns of
its bits are numbers of the type, whose sum is the stored one. Loading the data computes that for
all bits that a half may have and compares it with the type's own meaning.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.errors import HardwareDataError
from polygen.frontend.dtypes import NAMED
from polygen.hardware.conversion import conversions, meaning
from polygen.hardware.data_file import read

FILE = "pair_conversions.toml"
TYPES = ("bf16", "f16")  # of which a word has two


@dataclass(frozen=True, slots=True)
class PairConversion:
    """How two stored numbers become a pair.

    Attributes:
        stored: the type of the numbers, as in signatures.
        to: that of the pair.
        keep: bits of a half that the first pattern takes.
        flip: bits that are turned over in it.
        plus: bits that are turned over in the second one.
        high: bits of a half that this takes.
        again: bits of a number that is added as well; 0: none.
    """

    stored: str
    to: str
    keep: int
    flip: int
    plus: int
    high: int = 0
    again: int = 0

    @property
    def name(self) -> str:
        """Under which the data has it."""
        return f"{self.stored}_{self.to}"

    def values(self, halves: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, Any]:
        """What it makes of halves of words, as f32, each sum rounded to the type of the pair."""
        kind = NAMED[self.to].numpy
        first, second = halves & self.keep ^ self.flip, halves & self.high ^ self.plus
        found = np.asarray(first, np.uint16).view(kind) + np.asarray(second, np.uint16).view(kind)
        if self.again:
            found = found + np.uint16(self.again).view(kind)
        return np.asarray(found, np.float32)


@functools.cache
def pair_conversions() -> dict[tuple[str, str], PairConversion]:
    """The sequences, by what is stored and what becomes of it.

    Raises:
        HardwareDataError: one gives another number than the type's.
    """
    found = {}
    for source in read(FILE).values():
        for name, entry in source.items():
            stored, to = name.split("_")
            found[stored, to] = PairConversion(stored, to, **entry)
            prove(found[stored, to])
    return found


def prove(one: PairConversion) -> None:
    """Every half that has a stored number in its low bits becomes that number, +0 as +0.

    Raises:
        HardwareDataError: with the first for which that is not so.
    """
    halves = np.arange(1 << 16, dtype=np.uint16)
    bits = (1 << conversions()[one.stored].bits) - 1
    made, wanted = one.values(halves), meaning(one.stored)[halves & bits]
    same = (made == wanted) & (np.signbit(made) == np.signbit(wanted))
    wrong = np.flatnonzero(~same)
    if len(wrong):
        first = int(wrong[0])
        raise HardwareDataError(
            f"a half of {first:#x} has the {one.stored} {wanted[first]}, its conversion to "
            f"{one.to} says {made[first]}",
            where=FILE,
        )
