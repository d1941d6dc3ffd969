"""Shared-memory layouts: the swizzle of every buffer, chosen by counting bank conflicts.

1. List the accesses a buffer sees: the copy's writes, the fragment loads; or staging writes and row
   reads.
2. Count wavefronts under every swizzle of the data that fits the row, and take the first with the
   fewest.
3. The data proves each swizzle a bijection, and each load equal to the fragment map, so what a copy
   wrote at (row, byte) is what the MMA reads.
"""

from __future__ import annotations

import numpy as np

from polygen.errors import ScheduleError
from polygen.hardware.data_file import Integers
from polygen.hardware.device import common_facts
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.swizzle import (
    Access,
    Swizzle,
    choose_swizzle,
    chunk_bytes,
    count_wavefronts,
    ideal_wavefronts,
    swizzle,
    swizzle_names,
)
from polygen.lower.buffers import Rows

_LANES = np.arange(common_facts()["warp_size"], dtype=np.int64)


def ring(
    name: str,
    rows: int,
    row_bytes: int,
    width: int,
    load: FragmentLoad,
    wanted: str,
) -> Rows:
    """The tiles of one operand's ring.

    Args:
        name: the buffer.
        rows: stored rows of a tile.
        row_bytes: bytes of a stored row.
        width: bytes per copy instruction.
        load: how fragments are read.
        wanted: a swizzle's name, or "auto".
    """
    written = max(width, 4)
    per_row = row_bytes // written
    copies = Access(_LANES // per_row, (_LANES % per_row) * written, written)
    accesses = [copies]
    for instruction in range(load.count):
        row, byte = load.lane_addresses(instruction)
        if load.uses_ldmatrix:
            active = load.active_lanes > _LANES
            accesses.append(Access(np.where(active, row, -1), byte, chunk_bytes()))
        else:
            accesses.append(Access(row, byte, load.unit_bytes))
    chosen = _swizzle(name, row_bytes, accesses, wanted)
    # An address pattern of 16-byte lanes is served in phases of 8 lanes whatever lanes are active.
    ideal = sum(ideal_wavefronts(a.lane_bytes, int((a.rows >= 0).sum())) for a in accesses)
    counted = count_wavefronts(chosen, row_bytes, accesses)
    return Rows(rows, row_bytes, chosen, (counted, ideal))


def scratch(
    name: str,
    tile: tuple[int, int],
    vector: int,
    fragment: Integers,
    atom_n: int,
    wanted: str,
) -> Rows:
    """The staging area of the epilogue: the f32 sums of a warp tile.

    Args:
        name: the buffer.
        tile: rows and columns of a warp tile.
        vector: adjacent columns one lane reads.
        fragment: accumulator table [lanes, elements, 2] -> row, column.
        atom_n: columns of one instruction.
        wanted: a swizzle's name, or "auto".
    """
    rows, columns = tile
    row_bytes = 4 * columns
    accesses = [
        Access(fragment[:, element, 0], 4 * (fragment[:, element, 1] + first), 8)
        for first in range(0, columns, atom_n)
        for element in range(0, fragment.shape[1], 2)
    ]
    per_row = columns // vector
    items = np.where(rows * per_row > _LANES, _LANES, -1)
    for part in range(0, vector, 4):
        row = np.where(items >= 0, items // per_row, -1)
        accesses.append(Access(row, 4 * ((_LANES % per_row) * vector + part), 16))
    chosen = _swizzle(name, row_bytes, accesses, wanted)
    ideal = sum(ideal_wavefronts(a.lane_bytes, int((a.rows >= 0).sum())) for a in accesses)
    counted = count_wavefronts(chosen, row_bytes, accesses)
    return Rows(rows, row_bytes, chosen, (counted, ideal))


def _swizzle(name: str, row_bytes: int, accesses: list[Access], wanted: str) -> Swizzle:
    if wanted == "auto":
        return choose_swizzle(row_bytes, accesses)
    chosen = swizzle(wanted)
    if not chosen.fits(row_bytes):
        fitting = [n for n in swizzle_names() if swizzle(n).fits(row_bytes)]
        raise ScheduleError(
            f"swizzle {wanted} does not fit rows of {row_bytes} bytes",
            where=f"smem.swizzle, {name}",
            why=f"it moves chunks inside blocks of {chosen.block * chunk_bytes()} bytes",
            nearest=f"Legal: auto, {', '.join(fitting)}",
        )
    return chosen
