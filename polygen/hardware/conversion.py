"""How numbers of 8 bits and fewer become f32: sequences as data, proved for every number.

A sequence is a pattern of bits computed from the stored ones, read as f32 or f16, from which a
number is taken or which is multiplied by a power of two; both are exact. Loading the data runs each
sequence for all stored numbers and compares what it gives with the type's own meaning.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from polygen.errors import HardwareDataError
from polygen.frontend.dtypes import DType
from polygen.hardware.data_file import read
from polygen.hardware.formula import value

FILE = "conversions.toml"
Bits = np.ndarray[Any, np.dtype[np.uint32]]
_BYTE = 8
_BITS = {"s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "i4": 4, "u4": 4, "bool": 8}


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a stored number becomes f32.

    Attributes:
        name: of the type, as in signatures.
        bits: of a stored number.
        pattern: C expression over `b`, the stored bits, an unsigned number.
        kind: "f32" or "f16": what the pattern is a number of.
        less: what is taken from it.
        times: what it is multiplied by.
        nan: C condition over `b` under which it is no number; "": never but as the pattern says.
        above: what three bytes the pattern has above the stored byte, after an exclusive or with
            `flip`; None: it is none of that kind.
        flip: a byte.
    """

    name: str
    bits: int
    pattern: str
    kind: str
    less: float = 0.0
    times: float = 1.0
    nan: str = ""
    above: int | None = None
    flip: int = 0

    def patterns(self) -> tuple[Bits, Bits]:
        """All stored numbers, and the pattern of each."""
        b = np.arange(1 << self.bits, dtype=np.uint32)
        return b, np.asarray(value(self.pattern, {"b": b}), np.uint32)

    def values(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What it makes of every stored number, by its bits."""
        b, pattern = self.patterns()
        if self.kind == "f16":
            found = pattern.astype(np.uint16).view(np.float16).astype(np.float32)
        else:
            found = pattern.view(np.float32)
        with np.errstate(invalid="ignore"):  # of infinities and what is no number
            found = (found - np.float32(self.less)) * np.float32(self.times)
        if self.nan:
            found = np.where(value(self.nan, {"b": b}), np.float32(np.nan), found)
        return np.asarray(found, np.float32)


def meaning(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The number that the stored bits of a type are, for all of them."""
    bits = _BITS[name]
    stored = np.arange(1 << bits, dtype=np.int64)
    if name == "bool":
        return np.asarray(stored != 0, np.float32)
    if name[0] in "si":
        stored = np.where(stored >= 1 << bits - 1, stored - (1 << bits), stored)
    if name[0] != "e":
        return stored.astype(np.float32)
    kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[name]
    return np.asarray(stored.astype(np.uint8).view(kind), np.float32)


@functools.cache
def conversions() -> dict[str, Conversion]:
    """The sequences, by type.

    Raises:
        HardwareDataError: one gives another number than the type's.
    """
    found = {}
    for source in read(FILE).values():
        for name, entry in source.items():
            found[name] = Conversion(
                name, _BITS[name], entry["bits"], entry["as"], entry.get("less", 0.0),
                entry.get("times", 1.0), entry.get("nan", ""), entry.get("above"),
                entry.get("flip", 0),
            )  # fmt: skip
            prove(found[name])
    return found


@functools.cache
def is_exact(name: str, dtype: DType) -> bool:
    """Whether a type has every number of a stored type of few bits; False of wider stored types."""
    if name not in _BITS:
        return False
    values = meaning(name)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = values.astype(dtype.numpy).astype(np.float32)
    return bool(np.array_equal(rounded, values, equal_nan=True))


def prove(one: Conversion) -> None:
    """Every stored number becomes what it is, zeros with their sign, by either form.

    Raises:
        HardwareDataError: with the first for which that is not so.
    """
    made, wanted = one.values(), meaning(one.name)
    same = (made == wanted) & (np.signbit(made) == np.signbit(wanted))
    wrong = np.flatnonzero(~(same | (np.isnan(made) & np.isnan(wanted))))
    if len(wrong):
        first = int(wrong[0])
        raise HardwareDataError(
            f"the bits {first:#x} of {one.name} are {wanted[first]}, its conversion says "
            f"{made[first]}",
            where=FILE,
        )
    if one.above is not None:
        b, pattern = one.patterns()
        apart = np.flatnonzero((one.above << 8 | b ^ one.flip) != pattern)
        if one.bits != _BYTE or len(apart):
            raise HardwareDataError(
                f"bytes of {one.name} are not what its conversion has below {one.above:#x}",
                where=FILE,
            )
