"""``wmma``: loads, products and stores of fragments whose layout nobody is told.

1. Where an element of a matrix lies among the registers of a warp is the hardware's own affair, so
   that any rule will do: here element ``e`` of the row-major matrix is in lane ``e % 32``, at place
   ``e / 32`` of its registers. Fragments with more room than elements hold them repeatedly, as
   those of f16 do on hardware.
2. A product has the roundings of ``mma``: sums in float32 (float64, int32), rounded once.
3. A kernel that counts on more than that, as on which element ``x[0]`` is, gets wrong values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.arithmetic import one_nan
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import load, load_generic, store, store_generic
from polygen.machine.mma import multiply as product
from polygen.machine.mma import require_complete, widen
from polygen.machine.module import Instruction, items
from polygen.machine.writer import Writer, opcode

if TYPE_CHECKING:
    from polygen.machine.state import Machine

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "s8": 8, "u8": 8, "f64": 64}
_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), ("m16n16k16", "m32n8k16", "m8n32k16")),
    "tf32": ("m16n16k8",),
    "f64": ("m8n8k4",),
}
_SPACES = ("shared", "global")
ALIGNMENT = 16  # of a matrix and of its rows, in bytes


@opcode("wmma")
def wmma(w: Writer, one: Instruction) -> None:
    """``wmma.load``, ``wmma.mma`` and ``wmma.store``."""
    shape = next((part for part in one.parts if re.fullmatch(r"m\d+n\d+k\d+", part)), "")
    kinds = tuple(part for part in one.parts if part in BITS)
    layouts = tuple(part for part in one.parts if part in ("row", "col"))
    known = {"wmma", "load", "mma", "store", "sync", "aligned", shape, "a", "b", "c", "d", "rn"}
    known.update((*kinds, *layouts, *_SPACES, "shared::cta"))
    if any(part not in known for part in one.parts):
        raise w.refuse(one)
    sides = tuple(int(side) for side in re.findall(r"\d+", shape))
    action = one.parts[1]
    if action == "mma":
        _multiply(w, one, shape, kinds)
        return
    if not shape or len(kinds) != 1 or len(layouts) != 1:
        raise w.refuse(one)
    space = next((part.split("::")[0] for part in one.parts if part.split("::")[0] in _SPACES), "")
    rows, columns = _matrix(one.parts[2], sides)
    place, registers = (0, 1) if action == "store" else (1, 0)
    where = w.address(one.operands[place])
    least = columns if layouts[0] == "row" else rows
    step = w.read(one.operands[2], "u4") if len(one.operands) > 2 else w.constant(np.uint32(least))
    names = items(one.operands[registers])
    _check_count(w, one, len(names), rows * columns, kinds[0])
    dtype = f"u{max(4, BITS[kinds[0]] // 8)}"
    tail = f", ({rows}, {columns}, {layouts[0]!r}, {kinds[0]!r}, {space!r}, {w.position})"
    if action == "load":
        tail = f", {len(names)}{tail}"
        w.call("wmma.load_fragment", [where, step], tail, names, dtype)
    else:
        values = [w.read(name, dtype) for name in names]
        w.call("wmma.store_fragment", [where, step, *values], tail)


def _matrix(side: str, sides: tuple[int, ...]) -> tuple[int, int]:
    m, n, k = sides
    return {"a": (m, k), "b": (k, n)}.get(side, (m, n))


def _check_count(w: Writer, one: Instruction, count: int, elements: int, kind: str) -> None:
    room = count * 32 * max(32 // BITS[kind], 1)
    if room < elements or room % elements:
        raise w.refuse(one, why=f"{count} registers cannot hold {elements} elements of {kind}")


def _multiply(w: Writer, one: Instruction, shape: str, kinds: tuple[str, ...]) -> None:
    if len(kinds) == 2:  # of f16: only the kinds of the accumulators are written
        kinds = (kinds[0], "f16", "f16", kinds[1])
    if len(kinds) != 4 or shape not in _SHAPES.get(kinds[1], ()):
        raise w.refuse(one, why="this shape does not exist for the types")
    m, n, k = (int(side) for side in re.findall(r"\d+", shape))
    arrays, counts = [], []
    parts = zip(one.operands[1:], kinds[1:], ((m, k), (k, n), (m, n)), strict=True)
    for operand, kind, (rows, columns) in parts:
        names = items(operand)
        _check_count(w, one, len(names), rows * columns, kind)
        counts.append(len(names))
        arrays += [w.read(name, f"u{max(4, BITS[kind] // 8)}") for name in names]
    targets = items(one.operands[0])
    _check_count(w, one, len(targets), m * n, kinds[0])
    tail = f", {tuple(counts)}, {(m, n, k)}, {kinds}, {len(targets)}, {w.position}"
    w.call("wmma.multiply", arrays, tail, targets, f"u{max(4, BITS[kinds[0]] // 8)}")


# --- what runs -----------------------------------------------------------------------------------
def _places(
    machine: Machine, lanes: Lanes, address: Any, step: Any, given: tuple[Any, ...]
) -> list[Vector]:
    """Addresses of the elements, one vector per place of the registers of a lane."""
    rows, columns, layout, kind, _, position = given
    require_complete(machine, lanes, position)
    size = BITS[kind] // 8
    base, stride = full(lanes, address).astype("i8"), full(lanes, step).astype("i8")
    wrong = (base % ALIGNMENT != 0) | (stride * size % ALIGNMENT != 0)
    if wrong.any():
        lane = int(wrong.argmax())
        machine.findings.add(
            "misaligned",
            f"{lanes.name(lane)} names a matrix whose rows do not all begin at multiples of "
            f"{ALIGNMENT} bytes: address {int(base[lane])}, {int(stride[lane])} elements a step",
            position,
            count=int(wrong.sum()),
        )
    found = []
    for place in range(-(-rows * columns // 32)):
        element = place * 32 + (lanes.index & 31)
        row, column = element // columns, element % columns
        major, minor = (row, column) if layout == "row" else (column, row)
        found.append((base + (major * stride + minor) * size).astype("u8"))
    return found


def load_fragment(
    machine: Machine, lanes: Lanes, address: Any, step: Any, registers: int, given: tuple[Any, ...]
) -> tuple[Vector, ...]:
    """``wmma.load``; given: rows, columns, layout, kind, space, position."""
    kind, space, position = given[3:]
    dtype = f"u{BITS[kind] // 8}"
    elements: list[Vector] = []
    for at in _places(machine, lanes, address, step, given):
        if space:
            elements += load(machine, lanes, at, dtype, 1, space, position)
        else:
            elements += load_generic(machine, lanes, at, dtype, 1, position)
    per = max(32 // BITS[kind], 1)
    wide = [elements[place % len(elements)] for place in range(registers * per)]
    return tuple(
        np.stack(wide[first : first + per], 1).view(f"u{max(4, BITS[kind] // 8)}").ravel()
        for first in range(0, registers * per, per)
    )


def store_fragment(machine: Machine, lanes: Lanes, address: Any, step: Any, *rest: Any) -> None:
    """``wmma.store``; rest: registers, then as `load_fragment`."""
    *registers, given = rest
    kind, space, position = given[3:]
    dtype = f"u{BITS[kind] // 8}"
    words = np.stack([full(lanes, one) for one in registers], 1)
    elements = np.ascontiguousarray(words).view(dtype)
    for place, at in enumerate(_places(machine, lanes, address, step, given)):
        value = np.ascontiguousarray(elements[:, place])
        if space:
            store(machine, lanes, at, value, dtype, space, position)
        else:
            store_generic(machine, lanes, at, value, dtype, position)


def _elements(lanes: Lanes, registers: list[Any], rows: int, columns: int, kind: str) -> Vector:
    """(warps, rows, columns) of what the registers of every warp hold."""
    words = np.stack([full(lanes, one) for one in registers], 1)
    if kind in ("f64", "s32", "f32"):
        values = words.view({"f64": "f8", "s32": "i4", "f32": "f4"}[kind])
    else:
        values = widen(np.ascontiguousarray(words), kind)
    by_place = values.reshape(lanes.count // 32, 32, -1).transpose(0, 2, 1)
    return by_place.reshape(len(by_place), -1)[:, : rows * columns].reshape(-1, rows, columns)


def multiply(machine: Machine, lanes: Lanes, *rest: Any) -> tuple[Vector, ...]:
    """``wmma.mma``; rest: registers of A, B and C, their counts, sides, kinds, of D, position."""
    *registers, counts, sides, kinds, results, position = rest
    require_complete(machine, lanes, position)
    m, n, k = sides
    first, second = counts[0], counts[0] + counts[1]
    a = _elements(lanes, registers[:first], m, k, kinds[1])
    b = _elements(lanes, registers[first:second], k, n, kinds[2])
    c = _elements(lanes, registers[second:], m, n, kinds[3])
    total = one_nan(product(a, b, c))
    kind = kinds[0]
    stored = total.astype({"f16": "f2", "f32": "f4", "s32": "i4", "f64": "f8"}[kind])
    by_place = stored.reshape(len(stored), -1, 32).transpose(0, 2, 1)
    words = np.ascontiguousarray(by_place).view(f"u{max(4, BITS[kind] // 8)}")
    return tuple(np.ascontiguousarray(words.reshape(-1, results).T))
