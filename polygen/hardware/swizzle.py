"""Shared-memory swizzles, and counting bank conflicts.

A swizzle permutes the 16-byte chunks inside each stored row so that the lanes of one access fall
into different banks. Each entry of ``data/swizzles.toml`` is proved at load: its isl relation is a
bijection that keeps rows and equals the XOR formula the emitter writes. Which entry to use is not
decided by a table but by counting: `choose_swizzle` evaluates the real accesses of a kernel.

Counting: shared memory serves one 4-byte word per bank and wavefront. A warp's access of 16 bytes a
lane is served in phases of 8 lanes, of 8 bytes in phases of 16, of 4 bytes or less at once. A phase
takes as many wavefronts as the fullest bank has distinct words (one word for many lanes is one).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen import isl
from polygen.errors import HardwareDataError, VerifyError
from polygen.hardware.data_file import Integers, read, take
from polygen.hardware.device import common_facts

FILE = "swizzles.toml"


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``p = c ^ (multiplier * ((r >> shift) & mask))`` on the 16-byte chunks c of row r."""

    name: str
    block: int  # chunks inside which the XOR stays
    multiplier: int
    shift: int
    mask: int
    map: str  # isl relation: (row, chunk) -> (row, place), one period and one block

    @property
    def period(self) -> int:
        """Rows after which the pattern repeats."""
        return (self.mask + 1) << self.shift if self.mask else 1

    def fits(self, row_bytes: int) -> bool:
        """Whether the XOR stays inside rows of this length."""
        return row_bytes % (self.block * chunk_bytes()) == 0 or self.block == 1

    def place(self, row: Integers, chunk: Integers) -> Integers:
        """The chunk position at which `chunk` of `row` is stored."""
        return np.asarray(chunk ^ (self.multiplier * ((row >> self.shift) & self.mask)))

    def address(self, row: Integers, byte: Integers, row_bytes: int) -> Integers:
        """Byte address of byte `byte` of row `row`, from the start of the buffer."""
        size = chunk_bytes()
        if self.block == 1:
            return np.asarray(row * row_bytes + byte)
        place = self.place(row, byte // size)
        return np.asarray(row * row_bytes + place * size + byte % size)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One warp-wide access, or several alike: where each lane reads or writes.

    Attributes:
        rows: stored row per lane; shape [lanes] or [accesses, lanes]; negative: lane inactive.
        bytes: byte along the row per lane, same shape.
        lane_bytes: bytes each lane moves.
    """

    rows: Integers
    bytes: Integers
    lane_bytes: int


def chunk_bytes() -> int:
    """Size of the unit that swizzles move."""
    size: int = read(FILE)["chunk_bytes"]
    return size


def swizzle_names() -> tuple[str, ...]:
    """All swizzles, simplest first."""
    return tuple(read(FILE)["swizzles"])


@functools.cache
def swizzle(name: str) -> Swizzle:
    """The swizzle of that name, proved on first use.

    Raises:
        HardwareDataError: there is none, or its entry fails the proof.
    """
    if name not in swizzle_names():
        raise HardwareDataError(
            f"unknown swizzle {name!r}",
            where=f"hardware/data/{FILE}",
            nearest=f"Known: {', '.join(swizzle_names())}",
        )
    return build(name, read(FILE)["swizzles"][name])


def build(name: str, table: dict[str, Any]) -> Swizzle:
    """A swizzle from its data table, proved.

    Raises:
        HardwareDataError: the map is not a bijection on its block or differs from the formula.
    """
    where = f"hardware/data/{FILE}, {name}"
    numbers = {key: take(table, key, where) for key in ("block", "multiplier", "shift", "mask")}
    made = Swizzle(name=name, map=take(table, "map", where), **numbers)
    try:
        pairs = isl.points(isl.Map(made.map))
    except (isl.Error, VerifyError) as error:
        raise HardwareDataError(f"not a finite isl map: {error}", where=where) from None
    inputs = {(row, chunk) for row, chunk, _, _ in pairs}
    images = {(row, place) for _, _, row, place in pairs}
    domain = set(np.ndindex(made.period, made.block))
    if not len(pairs) == len(inputs) == len(images):
        raise HardwareDataError("the map is not a bijection", where=where)
    for which, found in (("domain", inputs), ("image", images)):
        if found != domain:
            witness = sorted(found ^ domain)[0]
            raise HardwareDataError(
                f"the {which} is not {made.period} rows x {made.block} chunks: see {witness}",
                where=where,
            )
    rows, chunks, kept_rows, places = np.asarray(pairs).T
    formulas = made.place(rows, chunks)
    for at in np.flatnonzero((kept_rows != rows) | (places != formulas)):
        row, chunk, kept, place = pairs[at]
        raise HardwareDataError(
            f"the map sends row {row} chunk {chunk} to row {kept} chunk {place}",
            where=where,
            why=f"the formula keeps the row and gives chunk {formulas[at]}",
        )
    return made


def wavefronts(addresses: Integers, bytes_per_lane: int) -> int:
    """Wavefronts that warp-wide shared-memory accesses take.

    Args:
        addresses: byte address per lane, shape [lanes] or [accesses, lanes], aligned to
            `bytes_per_lane`; negative: lane inactive.
        bytes_per_lane: 1, 2, 4, 8 or 16.

    Returns:
        The sum over accesses and phases.

    Raises:
        VerifyError: the size is not one of these, or an address is not aligned.
    """
    lanes_per_phase = _lanes_per_phase(bytes_per_lane)
    banks, bank_bytes = common_facts()["shared_banks"], common_facts()["shared_bank_bytes"]
    accesses = np.atleast_2d(addresses)
    if np.any((accesses >= 0) & (accesses % bytes_per_lane != 0)):
        raise VerifyError(f"an address is not a multiple of {bytes_per_lane}", where="wavefronts")
    words_per_lane = max(1, bytes_per_lane // bank_bytes)
    total = 0
    for access in accesses:
        for first in range(0, len(access), lanes_per_phase):
            phase = access[first : first + lanes_per_phase]
            start = phase[phase >= 0] // bank_bytes
            words = np.unique(start[:, None] + np.arange(words_per_lane))
            if words.size:
                total += int(np.bincount(words % banks, minlength=banks).max())
    return total


def ideal_wavefronts(bytes_per_lane: int, lanes: int = 32) -> int:
    """Wavefronts of one access without conflicts.

    Args:
        bytes_per_lane: 1, 2, 4, 8 or 16.
        lanes: active lanes, the first ones of the warp.
    """
    return -(-lanes // _lanes_per_phase(bytes_per_lane))


def choose_swizzle(row_bytes: int, accesses: Sequence[Access]) -> Swizzle:
    """The swizzle under which the accesses take the fewest wavefronts; ties go to the simplest.

    Args:
        row_bytes: length of a stored row.
        accesses: every kind of access to the buffer.
    """
    fitting = [made for made in map(swizzle, swizzle_names()) if made.fits(row_bytes)]
    return min(fitting, key=lambda made: count_wavefronts(made, row_bytes, accesses))


def count_wavefronts(layout: Swizzle, row_bytes: int, accesses: Sequence[Access]) -> int:
    """Wavefronts of all `accesses` when rows of `row_bytes` are stored with a swizzle."""
    total = 0
    for access in accesses:
        active = access.rows >= 0
        addresses = layout.address(np.where(active, access.rows, 0), access.bytes, row_bytes)
        total += wavefronts(np.where(active, addresses, -1), access.lane_bytes)
    return total


def _lanes_per_phase(bytes_per_lane: int) -> int:
    facts = common_facts()
    if bytes_per_lane not in (1, 2, 4, 8, 16):
        raise VerifyError(
            f"{bytes_per_lane} bytes per lane", where="wavefronts", nearest="1, 2, 4, 8 or 16"
        )
    per_wavefront = facts["shared_banks"] * facts["shared_bank_bytes"]
    return min(facts["warp_size"], per_wavefront // bytes_per_lane)
