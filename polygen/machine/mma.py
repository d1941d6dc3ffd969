"""Warp-level matrix instructions, mma.sync, ldmatrix, stmatrix, movmatrix, as the PTX ISA has them.

With lane l, ``g = l / 4`` and ``t = l % 4``, a 32-bit register holds ``per`` neighbouring elements:

- A, register v, element w: row ``g + 8 (v & 1)``, k ``per t + w + 4 per (v >> 1)``;
- B, register v, element w: k ``per t + w + 4 per v``, column ``g``;
- C and D, element e: row ``g + 8 (e >> 1)``, column ``2 t + (e & 1)``.

This one rule covers m16n8k4 and k8 (tf32), k8 and k16 (16-bit), k16 and k32 (8-bit), and the upper
half of it m8n8k16 (8-bit integers). m8n8k4 works
on four quad-pairs of lanes and has its own rule, and so have the shapes of f64, m8n8k4 and
m16n8k4 to k16: `doubles`. Operands are widened to float32, multiplied as
stacks of small matrices, and accumulated in float32, float16 or int32.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.arithmetic import EIGHT_TO_SINGLE, from_bf16, one_nan
from polygen.machine.data import spread
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import locate_shared
from polygen.machine.report import Stop
from polygen.machine.rounding import fused_wide

if TYPE_CHECKING:
    from polygen.machine.state import Machine

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


@cache
def operand_table(side: str, rows: int, columns: int, bits: int) -> Vector:
    """Where each element of A (rows × k) or B (k × columns) lies: register × lane × element."""
    per = 32 // bits
    registers = rows * columns * bits // 32 // 32
    table = np.empty((rows, columns), np.intp)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for v in range(registers):
            for w in range(per):
                if side == "a":
                    place = g + 8 * (v & 1), per * t + w + 4 * per * (v >> 1)
                else:
                    place = per * t + w + 4 * per * v, g
                table[place] = (v * 32 + lane) * per + w
    return table.ravel()


@cache
def accumulator_table(elements: int = 4) -> Vector:
    """Entry 32 e + l: where accumulator element e of lane l lies in a row-major matrix.

    It is 16 × 8, or 8 × 8 where lanes have two elements.
    """
    lane, e = np.arange(32)[None, :], np.arange(elements)[:, None]
    return ((lane // 4 + 8 * (e >> 1)) * 8 + 2 * (lane % 4) + (e & 1)).ravel()


@cache
def inverse_accumulator(elements: int = 4) -> Vector:
    """For every place of the matrix, the entry 32 e + l that holds it."""
    return np.argsort(accumulator_table(elements))


def widen(words: Vector, kind: str) -> Vector:
    """Registers (…, n) of u32 to float32 elements (…, n × per)."""
    if kind == "f16":
        return words.view("f2").astype("f4")
    if kind == "bf16":
        return from_bf16(words.view("u2"))
    if kind in ("tf32", "f32"):  # the low 13 mantissa bits do not take part
        return (words & np.uint32(0xFFFFE000)).view("f4")
    if kind in EIGHT_TO_SINGLE:
        return EIGHT_TO_SINGLE[kind][words.view("u1")]
    return words.view("i1" if kind == "s8" else "u1").astype("f4")


def require_complete(machine: Machine, lanes: Lanes, position: int) -> None:
    """Stop unless the lanes are complete warps."""
    if not lanes.complete:
        machine.findings.add(
            "divergent-warp-operation",
            f"{lanes.name(0)} executes it without all 32 lanes of its warp",
            position,
        )
        raise Stop


def words_of(lanes: Lanes, registers: Any) -> Vector:
    """Registers of whole warps -> (warps, 32 × registers), a register after the other."""
    return np.concatenate([full(lanes, one).reshape(-1, 32) for one in registers], 1)


def pack_operand(machine: Machine, lanes: Lanes, *rest: Any) -> Vector:
    """Registers of all lanes -> (warps, rows, columns) float32.

    rest: registers, side, rows, columns, kind, position.
    """
    *registers, side, rows, columns, kind, position = rest
    require_complete(machine, lanes, position)
    warps = lanes.count // 32
    elements = widen(words_of(lanes, registers), kind)
    table = operand_table(side, rows, columns, BITS[kind])
    return elements.take(table, axis=1).reshape(warps, rows, columns)


def pack_accumulator(machine: Machine, lanes: Lanes, *registers: Any) -> Vector:
    """Four registers of f32 or s32, or two of packed f16, -> (warps, 16, 8); two of s32: 8 rows."""
    warps = lanes.count // 32
    rows = [full(lanes, register).reshape(warps, 1, 32) for register in registers]
    stacked = np.concatenate(rows, 1)
    if len(registers) == 2 and stacked.dtype.kind == "i":
        return stacked.reshape(warps, 64).take(inverse_accumulator(2), axis=1).reshape(warps, 8, 8)
    if len(registers) == 2:  # (warps, 2, 32) words -> (warps, 4, 32) halves
        halves = stacked.view("f2").reshape(warps, 2, 32, 2).transpose(0, 1, 3, 2)
        stacked = halves.astype("f4")
    return stacked.reshape(warps, 128).take(inverse_accumulator(), axis=1).reshape(warps, 16, 8)


def unpack_accumulator(matrix: Vector) -> Vector:
    """(warps, 16, 8) -> (4, lanes); (warps, 8, 8) -> (2, lanes); floats with their one NaN."""
    warps, count = len(matrix), matrix.shape[1] // 4
    flat = one_nan(matrix).reshape(warps, count * 32)
    lanes = flat.take(accumulator_table(count), axis=1).reshape(warps, count, 32)
    return np.ascontiguousarray(lanes.transpose(1, 0, 2)).reshape(count, warps * 32)


def unpack_halves(matrix: Vector) -> Vector:
    """(warps, 16, 8) float32 -> (2, lanes) packed f16 pairs."""
    parts = unpack_accumulator(matrix).astype("f2").view("u2").astype("u4")
    return parts[0::2] | (parts[1::2] << np.uint32(16))


def product_of(a: Vector, b: Vector) -> Vector:
    """``A B`` for stacks of float32 matrices, rounded once.

    Sums are found in float64, which has them exactly or nearly so. In float32 their last bit would
    depend on how NumPy's library adds: in other orders on other processors, and in other rows.
    """
    return np.matmul(a.astype("f8"), b.astype("f8")).astype("f4")


def multiply(a: Vector, b: Vector, c: Vector) -> Vector:
    """``D = A B + C`` for stacks of matrices; integer accumulators wrap."""
    product = product_of(a, b)
    if c.dtype.kind == "i":
        return c + product.astype(c.dtype)
    return c + product


def round_halves(matrix: Vector) -> Vector:
    """float32 values rounded to f16, kept as float32."""
    return matrix.astype("f2").astype("f4")


# --- m8n8k4: four independent 8 × 8 × 4 products per warp ---------------------------------------
def quad_pair(machine: Machine, lanes: Lanes, *rest: Any) -> tuple[Vector, ...]:
    """``mma.m8n8k4`` with f16 operands; rest: A and B registers, C registers, layouts, position."""
    a0, a1, b0, b1, *c, a_layout, b_layout, position = rest
    require_complete(machine, lanes, position)
    warps, lane = lanes.count // 32, np.arange(32)
    quad, u, h = lane >> 2 & 3, lane & 3, lane >> 4
    a_words = np.stack([full(lanes, a0), full(lanes, a1)], 1).reshape(warps, 32, 2)
    b_words = np.stack([full(lanes, b0), full(lanes, b1)], 1).reshape(warps, 32, 2)
    a_in = a_words.view("f2").astype("f4")
    b_in = b_words.view("f2").astype("f4")
    a, b = np.empty((warps, 4, 8, 4), "f4"), np.empty((warps, 4, 4, 8), "f4")
    for e in range(4):
        if a_layout == "row":
            a[:, quad, u + 4 * h, e] = a_in[:, :, e]
        else:
            a[:, quad, e + 4 * h, u] = a_in[:, :, e]
        if b_layout == "row":
            b[:, quad, u, e + 4 * h] = b_in[:, :, e]
        else:
            b[:, quad, e, u + 4 * h] = b_in[:, :, e]
    product = product_of(a, b)
    if len(c) == 8:
        result = []
        for e in range(8):
            row, column = (lane & 1) + (e & 2) + 4 * h, (e & 4) + (lane & 2) + (e & 1)
            part = product[:, quad, row, column].reshape(-1)
            result.append(one_nan(full(lanes, c[e]) + part))
        return tuple(result)
    halves = np.stack([full(lanes, word) for word in c], 1).view("f2").astype("f4")
    total = halves.reshape(warps, 32, 8)
    for e in range(8):
        total[:, :, e] += product[:, quad, u + 4 * h, e]
    words = one_nan(total).astype("f2").view("u4").reshape(-1, 4)
    return tuple(np.ascontiguousarray(words.T))


# --- f64: a register for each element -----------------------------------------------------------
def doubles(machine: Machine, lanes: Lanes, *rest: Any) -> tuple[Vector, ...]:
    """``mma`` with f64 operands; rest: A, B and C registers, how many of A, of B, position.

    Every product is added by one fused step, in the order of k.
    """
    *registers, of_a, of_b, position = rest
    require_complete(machine, lanes, position)
    warps, lane = lanes.count // 32, np.arange(32)
    held = [full(lanes, one).reshape(warps, 32) for one in registers]
    a, b, c = held[:of_a], held[of_a : of_a + of_b], held[of_a + of_b :]
    halves, g, t = len(c) // 2, lane >> 2, lane & 3
    total = np.empty((warps, 8 * halves, 8))
    left, right = np.empty((warps, 8 * halves, 4 * of_b)), np.empty((warps, 4 * of_b, 8))
    for v, one in enumerate(a):
        left[:, g + 8 * (v % halves), t + 4 * (v // halves)] = one
    for v, one in enumerate(b):
        right[:, t + 4 * v, g] = one
    place = [(g + 8 * (e >> 1), 2 * t + (e & 1)) for e in range(len(c))]
    for at, one in zip(place, c, strict=True):
        total[:, *at] = one
    for k in range(4 * of_b):
        total = fused_wide(left[:, :, k, None], right[:, None, k, :], total)
    return tuple(total[:, *at].reshape(-1) for at in place)


# --- ldmatrix, stmatrix --------------------------------------------------------------------------
def _row_lanes(lanes: Lanes, matrices: int) -> tuple[Lanes, Vector | None]:
    """The lanes whose addresses count: eight per matrix."""
    if matrices == 4:
        return lanes, None
    chosen = np.flatnonzero(np.arange(lanes.count) % 32 < 8 * matrices)
    return lanes.pick(chosen), chosen


def load_matrix(
    machine: Machine, lanes: Lanes, address: Any, matrices: int, transposed: bool, position: int
) -> tuple[Vector, ...]:
    """``ldmatrix``: lane l of matrix q gets row ``l / 4``, columns ``2 (l % 4)`` and the next."""
    require_complete(machine, lanes, position)
    sources, chosen = _row_lanes(lanes, matrices)
    address = full(lanes, address)
    if chosen is not None:
        address = address[chosen]
    at, good = locate_shared(machine, sources, address, 16, position)
    if machine.shadow is not None:
        if good is None:
            machine.shadow.read(sources, at, 16, position)
        else:
            machine.shadow.read(sources.pick(good), at[good], 16, position)
    memory, warps = machine.shared.view("c16"), lanes.count // 32
    if good is None:  # row by row of all first matrices, then of the second ones
        rows = memory.take(at.reshape(warps, matrices, 8).transpose(1, 0, 2).ravel() >> 4)
    else:
        (rows,) = spread(len(at), good, (memory.take(at[good] >> 4),))
        rows = rows.reshape(warps, matrices, 8).transpose(1, 0, 2).ravel()
    if transposed:
        halves = rows.view("u2").reshape(matrices, warps, 8, 8).transpose(0, 1, 3, 2)
        return tuple(np.ascontiguousarray(halves).view("u4").reshape(matrices, warps * 32))
    return tuple(rows.view("u4").reshape(matrices, warps * 32))


def move_matrix(machine: Machine, lanes: Lanes, value: Any, position: int) -> tuple[Vector]:
    """``movmatrix``: lanes hold a matrix as `load_matrix` leaves it, and get its transpose."""
    require_complete(machine, lanes, position)
    halves = np.ascontiguousarray(full(lanes, value)).view("u2").reshape(-1, 8, 8)
    return (np.ascontiguousarray(halves.transpose(0, 2, 1)).view("u4").ravel(),)


def store_matrix(machine: Machine, lanes: Lanes, address: Any, *rest: Any) -> None:
    """``stmatrix``, the inverse of `load_matrix`; rest: registers, transposed, position."""
    *registers, transposed, position = rest
    require_complete(machine, lanes, position)
    matrices, warps = len(registers), lanes.count // 32
    targets, chosen = _row_lanes(lanes, matrices)
    address = full(lanes, address)
    if chosen is not None:
        address = address[chosen]
    at, good = locate_shared(machine, targets, address, 16, position)
    words = np.stack([full(lanes, one).reshape(warps, 32) for one in registers], 1)
    halves = np.ascontiguousarray(words).view("u2").reshape(warps, matrices, 8, 8)
    if transposed:
        halves = halves.transpose(0, 1, 3, 2)
    rows = np.ascontiguousarray(halves).view("u4").reshape(-1, 4)
    if good is not None:
        targets, at, rows = targets.pick(good), at[good], rows[good]
    if machine.shadow is not None:
        machine.shadow.write(targets, at, 16, position)
    machine.shared.view("u4").reshape(-1, 4)[at // 16] = rows
