"""Fragments that consumers compute, as they are written: of the elements that they stand for.

All steps of the first k tile and of the last are run, with what is read ahead. Every element of
every fragment is then the program's function of the element of the ring, and of those beside it, in
the row and at the k that the instruction takes it for; behind the end of k it counts as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.element_types import name_of
from polygen.emit.leaf.computed_chunk import element_lines, stored_type
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.threads import Arrays, Memory, of_kernel, of_place, size
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, mixed, number_of, token
from polygen.errors import VerifyError
from polygen.hardware.matrix_layout import copied_to
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan, Leaf

_TILES = 3  # of k, of each block that shares sums


@proof("make", "threads", Make, "read_beside", "take_beside")
def _(plan: KernelPlan, leaf: Leaf, work: Make, texts: tuple[str, ...]) -> None:
    where, (rows, depth), split = f"{plan.entry}: {leaf.statement}", work.tile, plan.tiles.split
    inside = min(2 * work.block, depth)  # of the last tile, which ends with a block
    ends = (2 * rows - 3, (_TILES * split - 1) * depth + inside)
    names = of_kernel(plan, dict(zip(map(str, work.extents), ends, strict=True)))
    own, threads = of_place(plan, leaf.place)
    tiles = -(-size(names, work.extents[1]) // depth)
    names |= {"k_tiles": -(-tiles // split), "rank": split - 1}
    last = tiles - 1 - names["rank"] * names["k_tiles"]
    ring, each = plan.buffer(work.buffer), work.tensor.dtype.bytes
    row, k = (one.ravel() for one in np.indices((rows, depth // work.packed)))
    place = copied_to(ring.matrix, *((row, k * each) if work.k_inner else (k, row * each)))
    slot = min(1, ring.slots - 1)
    for part in range(-(-(rows * depth).bit_length() // (8 * each))):
        for tile in dict.fromkeys((0, last)):
            memory, arrays = Memory(ring.end), Arrays(plan, names)
            content = (row * depth + k + tile) >> 8 * each * part & (1 << 8 * each) - 1
            memory.put(ring.offset + slot * ring.slot_bytes + place, content, each)
            known = names | own | {"k": tile, f"{work.counter}.slot": slot, "s": 0, "m": 0}
            handlers = memory.handlers() | arrays.handlers()
            for text in texts[:-1]:
                known = run(read(text), known, threads, handlers).names
            stored = content.reshape(rows, -1)
            for m in range(work.tile[0] // work.atom[0] // plan.tiles.warps[0]):
                for s in range(depth // work.atom[1]):
                    state = run(read(texts[-1]), known | {"m": m, "s": s}, threads, handlers)
                    held = state.names[f"fragment_{work.operand}"]
                    first = (s % work.slots * plan.tiles.atoms[0] + m) * work.registers
                    found = held.base[first : first + work.registers]
                    _check(plan, work, names, own, arrays, stored, (tile, m, s), found, where)


def _check(
    plan: KernelPlan, work: Make, names: Mapping[str, Any], own: Mapping[str, Any], arrays: Arrays,
    stored: Any, at: tuple[int, int, int], found: Any, where: str,
) -> None:  # fmt: skip
    """A fragment's registers are those of its elements."""
    (tile, m, s), (rows, depth) = at, work.atom
    m_extent, k_extent = (size(names, extent) for extent in work.extents)
    table = plan.atom.a.table[own["thread"] % plan.atom.lanes]
    part = np.broadcast_to(own["w_m"], own["thread"].shape) * plan.tiles.warp[0]
    first_k = tile + (names["rank"] * names["k_tiles"] if plan.tiles.split > 1 else 0)
    per, values, beyond = work.elements // work.registers, [], []
    for e in range(work.elements):
        row, inside = table[:, e, 0] + m * rows + part, table[:, e, 1] + s * depth
        k, whole_row = first_k * work.tile[1] + inside, names["b_m"] * work.tile[0] + row
        last = {"m": np.minimum(whole_row, m_extent - 1), "k": np.minimum(k, k_extent - 1)}
        bits = stored[row, inside // work.packed]
        value = _element(plan, work, names, arrays, bits, last, k % work.packed)
        beyond.append(k >= k_extent)
        values.append(value if work.whole else np.where(beyond[-1], token("0.0f"), value))
    for register in range(work.registers):
        of = slice(register * per, (register + 1) * per)
        behind = np.logical_and.reduce(beyond[of])
        # Rows outside make sums that nobody stores; zeros times whatever is made of them are zeros.
        free = (whole_row >= m_extent) | (behind if work.whole else found[register] == 0) & behind
        wrong = (found[register] != _packed(work, values[of])) & ~free
        if wrong.any():
            thread = int(np.flatnonzero(wrong)[0])
            raise VerifyError(
                f"register {register} of thread {thread} is not of the elements that the "
                f"instruction takes it for: m {m}, step {s}, k tile {tile}",
                where=where,
            )


def _packed(work: Make, values: Sequence[Any]) -> Any:
    """A register of elements, the first in its low bits."""
    if work.dtype.name == "tf32":
        return mixed("cvt.rn.tf32.f32 %0, %1;", 0, *values)
    return mixed(f"pack_{work.dtype.name}", *values)


def _element(
    plan: KernelPlan, work: Make, names: Mapping[str, Any], arrays: Arrays, stored: Any,
    at: Mapping[str, Any], half: Any,
) -> Any:  # fmt: skip
    """What the program makes of elements."""
    fragment = plan.match.operand(work.operand).fragment
    assert fragment is not None
    tensors = {work.name: work.tensor} | {one.name: one.tensor for one in work.beside}
    values = {name: name for name in (*tensors, *(name for name, _ in work.coordinates))}
    kinds = {name: stored_type(tensor) for name, tensor in tensors.items()}
    halves = {value: (kind, f"from_{kind}(bits, half)") for value, kind in work.halves.items()}
    lines, _ = element_lines(work.statements, values, kinds, halves, work.dtype)
    known: dict[str, Any] = {"e": 0, "bits": stored, "half": half}
    known[work.name] = number_of(name_of(work.tensor.dtype), stored)
    for one in fragment.prologue.reads:
        if one.name != work.name:
            known[one.name] = arrays.number(names, one, at)
    known |= {name: along.at(at) for name, along in work.coordinates}
    made = Register(np.zeros((1, len(stored)), np.int64), 0, (1,))
    run(read("\n".join(lines)), known | {"made": made}, len(stored))
    return made.base[0]
