"""Closed forms of what the hardware data says of lanes, found by trying and proved on all of them.

A fragment map sends lanes to rows and columns of an instruction's tile, `stmatrix` sends them to
the rows of 8x8 matrices that they give the addresses of. A kernel needs the same as a formula over
`lane`; a formula is taken only if it has the value of the data in every lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from polygen import remembered
from polygen.errors import ScheduleError, VerifyError
from polygen.hardware.atom import Atom
from polygen.hardware.data_file import Integers, read
from polygen.hardware.device import common_facts
from polygen.hardware.fragment_load import FILE as LOADS
from polygen.hardware.matrix_layout import span_swizzle
from polygen.hardware.swizzle import Swizzle, chunk_bytes

_LANES = np.arange(common_facts()["warp_size"], dtype=np.int64)
_MATRICES = "ldmatrix_x4"  # `stmatrix` takes addresses and registers in the same way
_MATRIX_ROWS = 8
_PAIR = 2  # adjacent elements that a lane holds, in every accumulator


def closed_form(values: np.ndarray[Any, Any]) -> str:
    """A formula over `lane` that equals `values` for all 32 lanes, found and proved by trying.

    Raises:
        ScheduleError: no sum of forms ``factor * ((lane / divisor) % modulus)`` fits.
    """
    if not values.any():
        return "0"
    found = _quotient(values)
    if found is None:
        return " + ".join(closed_form(part) for part in _runs(values))
    divisor, modulus, factor = found
    text = "lane" if divisor == 1 else f"(lane / {divisor})"
    if divisor * modulus < len(_LANES):
        text = f"({text} % {modulus})"
    return text if factor == 1 else f"{factor} * {text}"


def flat_form(values: np.ndarray[Any, Any]) -> str:
    """The same without parentheses: ``lane % 4 * 2``, ``lane % 4 / 2``; as a term or a factor.

    Raises:
        ScheduleError: no such form fits.
    """
    sizes = (1, 2, 4, 8, 16, 32)
    for modulus, divisor, factor in product(reversed(sizes), sizes, sizes):
        if np.array_equal(_LANES % modulus // divisor * factor, values):
            steps = (("%", modulus, len(_LANES)), ("/", divisor, 1), ("*", factor, 1))
            return "lane" + "".join(f" {op} {n}" for op, n, nothing in steps if n != nothing)
    raise ScheduleError("the accumulator fragment has no simple closed form", where="epilogue")


def _runs(values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The values as a sum, each part of a run of bits of `lane` that weigh twice as much each time.

    Raises:
        ScheduleError: a bit weighs another thing beside others than alone.
    """
    bits = [bit for bit in range(len(_LANES).bit_length() - 1) if values[1 << bit]]
    parts: list[np.ndarray[Any, Any]] = []
    for bit in bits:
        own = (_LANES >> bit & 1) * values[1 << bit]
        if parts and values[1 << bit] == 2 * values[1 << bit >> 1]:
            parts[-1] = parts[-1] + own
        else:
            parts.append(own)
    if len(parts) < 2 or not np.array_equal(sum(parts), values):
        raise ScheduleError("the accumulator fragment has no simple closed form", where="epilogue")
    return parts


def _quotient(values: np.ndarray[Any, Any]) -> tuple[int, int, int] | None:
    for divisor in (1, 2, 4, 8, 16):
        for modulus in (2, 4, 8, 16, 32):
            for factor in (1, 2, 4, 8):
                if np.array_equal(factor * ((_LANES // divisor) % modulus), values):
                    return divisor, modulus, factor
    return None


@dataclass(frozen=True, slots=True)
class PanelLanes:
    """How the lanes of a warp reach their pairs of an accumulator in a swizzled panel.

    A lane's base address holds its access to the first columns; XORed with `step[1]` for every
    group of columns inside a box it is the access to that group; `half_bytes` lead from the lane's
    first row to its second.
    """

    address: str  # over lane, with `quarter` for the warp's first row
    step: tuple[int, int]  # groups of columns in a box, bytes XORed for each
    half_bytes: int


@cache
def panel_lanes(atom: Atom, element_bytes: int, span: int) -> PanelLanes:
    """The lanes' accesses to panels of an element size, proved against the fragment map.

    Pairs of 16-bit elements are words of 8x8 matrices, which a warp writes four at a time, two
    groups of columns with both halves of the rows; wider pairs go one by one.

    Raises:
        VerifyError: the formula leads a lane to another place than the swizzle.
        ScheduleError: there is none.
    """
    table = atom.c.table[: len(_LANES)]  # of a warpgroup, its first warp
    chunk, swizzle = chunk_bytes(), span_swizzle(span)
    half = int(table[0, _PAIR, 0] - table[0, 0, 0])
    if element_bytes == 2:
        rows, chunks = matrix_lanes(atom)
        byte = chunk * chunks
        group = chunk  # bytes of one group of columns
    else:
        rows, byte = table[:, 0, 0], element_bytes * table[:, 0, 1]
        group = element_bytes * atom.n
    period = rows % _MATRIX_ROWS
    inside = byte % chunk
    text = f"(quarter + {flat_form(rows)}) * {span} + (({flat_form(byte // chunk)} ^ "
    text += f"{_spread(swizzle, period)}) << {chunk.bit_length() - 1})"
    text += f" + {flat_form(inside)}" if inside.any() else ""
    mixed = byte // chunk ^ (period >> swizzle.shift) & swizzle.mask
    base = rows * span + mixed * chunk + inside
    # One access of a word of matrices takes two groups of columns, and both halves of the rows.
    groups = range(0, span, 2 * group if element_bytes == 2 else group)
    halves = (0,) if element_bytes == 2 else (0, half)
    starts = atom.c.table[:: len(_LANES), 0, 0]  # of the warps
    for first, offset, start in product(groups, halves, starts):
        wanted = swizzle.address(rows + offset + start, byte + first, span)
        if not np.array_equal((base ^ first) + (offset + start) * span, wanted):
            raise VerifyError(
                f"lanes reach other places of a panel than its swizzle of {span} bytes",
                where=atom.name,
            )
    return PanelLanes(text, (span // group, group), half * span)


def _spread(swizzle: Swizzle, row: Integers) -> str:
    """The bits of a row that a panel's chunks are XORed with."""
    assert swizzle.multiplier == 1
    text = flat_form(row)
    text = f"({text})" if "/" in text else text
    shifted = f"{text} >> {swizzle.shift}" if swizzle.shift else text
    return f"({shifted} & {swizzle.mask})"


def matrix_lanes(atom: Atom) -> tuple[Integers, Integers]:
    """The row and the chunk whose address each lane gives, for words [group][half] in order.

    Raises:
        VerifyError: the matrices' words are not the accumulator's pairs.
    """
    entry = read(LOADS)["instructions"][_MATRICES]
    words = [(group, half) for group in range(2) for half in range(2)]
    table = atom.c.table[: len(_LANES)]
    for lane, register, byte, matrix, row, at in remembered.points_said(entry["result"]):
        group, half = words[register]
        element = _PAIR * half + byte // 2
        wanted = (int(table[lane, element, 0]), atom.n * group + int(table[lane, element, 1]))
        held = words[matrix]
        found = (_MATRIX_ROWS * held[1] + row, atom.n * held[0] + at // 2)
        if found != wanted:
            raise VerifyError(
                f"lane {lane} holds {wanted} where the matrix has {found}", where=atom.name
            )
    rows, chunks = np.zeros_like(_LANES), np.zeros_like(_LANES)
    for lane, matrix, row in remembered.points_said(entry["address"]):
        chunks[lane], rows[lane] = words[matrix][0], _MATRIX_ROWS * words[matrix][1] + row
    return rows, chunks
