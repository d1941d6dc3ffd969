"""Fragments that consumers compute, as they are written: of the elements that they stand for.

All steps of the first k tile and of the last are run, side by side, with what is read ahead. Every
element of every fragment is then the program's function of the element of the ring, and of those
beside it, in the row and at the k that the instruction takes it for; behind the end of k it counts
as zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.element_types import name_of
from polygen.emit.leaf.computed_chunk import element_lines, stored_type
from polygen.emit.leaf.fragment_pairs import pair_lines
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.shared_bytes import Memory
from polygen.emit.proofs.threads import (
    APART,
    SHARED,
    Arrays,
    coordinate,
    of_kernel,
    of_place,
    size,
    times,
)
from polygen.emit.text_functions import run
from polygen.emit.text_values import (
    Register,
    as_float,
    mixed,
    number_from,
    number_of,
    pair_of,
    token,
)
from polygen.errors import VerifyError
from polygen.frontend.dtypes import NAMED
from polygen.hardware.matrix_layout import copied_to
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan, Leaf

_TILES = 3  # of k, of each block that shares sums


@proof("make", "threads", Make, "read_beside", "take_beside")
def _(plan: KernelPlan, leaf: Leaf, work: Make, texts: tuple[str, ...]) -> None:
    (rows, depth), split = work.tile, plan.tiles.split
    # The last tile ends with a block, inside of a step where there are several in one.
    inside = 3 * work.block if 3 * work.block <= depth else work.block
    ends = (2 * rows - 3, (_TILES * split - 1) * depth + inside)
    names = of_kernel(plan, dict(zip(map(str, work.extents), ends, strict=True)))
    tiles = -(-size(names, work.extents[1]) // depth)
    names |= {"k_tiles": -(-tiles // split), "rank": split - 1}
    last = tiles - 1 - names["rank"] * names["k_tiles"]
    own, threads = of_place(plan, leaf.place)
    # A ring holds numbers of elements, or as many of their bits as an element has.
    parts = -(-(rows * depth).bit_length() // _bits(work))
    rings = tuple(itertools.product(range(parts), dict.fromkeys((0, last))))
    steps = (rows // work.atom[0] // plan.tiles.warps[0], depth // work.atom[1])
    copies = np.array(list(np.ndindex(len(rings), *steps)))
    ring, m, s = (np.repeat(one, threads) for one in copies.T)
    names |= times(own, len(copies))
    memory, stored = _rings(plan, work, rings)
    slot = min(1, plan.buffer(work.buffer).slots - 1)
    k = np.array(rings)[ring, 1]
    names |= {"k": k, "m": m, "s": s, f"{work.counter}.slot": slot, "shared": SHARED + ring * APART}
    arrays, known = Arrays(plan, names), names
    for text in texts:
        handlers = memory.handlers() | arrays.handlers()
        known = run(read(text), known, len(ring), handlers).names
    name = f"fragment_{work.operand}"
    held, first = known[name].base, (s % work.slots * plan.tiles.atoms[0] + m) * work.registers
    number = np.arange(len(held))[:, None]
    others = (number < first) | (number >= first + work.registers)
    if (others & (held != token(name))).any():
        raise VerifyError(f"registers of other fragments of {name} are written")
    found = [held[first + at, np.arange(len(ring))] for at in range(work.registers)]
    _Fragments(plan, work, names, arrays).check(stored, ring, found)


def _rings(plan: KernelPlan, work: Make, rings: Sequence[tuple[int, int]]) -> tuple[Memory, Any]:
    """Shared memory in which each copy of the ring has its numbers, and these, by ring and place.

    Args:
        plan: the kernel.
        work: what reads the ring.
        rings: which part of numbers each holds, and of which tile.
    """
    (rows, depth), each, ring = work.tile, work.tensor.dtype.bytes, plan.buffer(work.buffer)
    row, k = (one.ravel() for one in np.indices((rows, depth // work.packed)))
    element = row * depth + k * work.packed
    place = copied_to(ring.matrix, *((row, k * each) if work.k_inner else (k, row * each)))
    place = place + ring.offset + min(1, ring.slots - 1) * ring.slot_bytes
    memory, stored = Memory((len(rings) - 1) * APART + ring.end), []
    for number, (part, tile) in enumerate(rings):
        content = 0 * element
        for half in range(work.packed):
            digit = element + half + tile >> _bits(work) * part & (1 << _bits(work)) - 1
            content |= digit << _bits(work) * half
        memory.put(number * APART + place, content, each)
        stored.append(content.reshape(rows, -1))
    return memory, np.array(stored)


def _bits(work: Make) -> int:
    """Of an element as the ring has it."""
    return 8 * work.tensor.dtype.bytes // work.packed


@dataclass(frozen=True, slots=True)
class _Fragments:
    """What fragments have to be, in all threads."""

    plan: KernelPlan
    work: Make
    names: Mapping[str, Any]
    arrays: Arrays

    def check(self, stored: Any, ring: Any, found: Sequence[Any]) -> None:
        """A fragment's registers are those of its elements.

        Args:
            stored: elements of rings.
            ring: of each thread.
            found: by register.

        Raises:
            VerifyError: with a register that is not.
        """
        plan, work, names = self.plan, self.work, self.names
        m_extent, k_extent = (size(names, extent) for extent in work.extents)
        table = plan.atom.a.table[names["thread"] % plan.atom.lanes].transpose(2, 1, 0)
        row = table[0] + names["m"] * work.atom[0] + names["w_m"] * plan.tiles.warp[0]
        inside = table[1] + names["s"] * work.atom[1]
        first_k = names["k"]
        if plan.tiles.split > 1:
            first_k = first_k + names["rank"] * names["k_tiles"]
        k, whole_row = first_k * work.tile[1] + inside, names["b_m"] * work.tile[0] + row
        last = {"m": np.minimum(whole_row, m_extent - 1), "k": np.minimum(k, k_extent - 1)}
        bits = stored[ring, row, inside // work.packed]
        beyond = k >= k_extent
        per = work.elements // work.registers
        of_each = list(zip(bits, last["m"], last["k"], k, beyond, strict=True))
        if work.pairs is not None:
            wanted = [self._pair(*of_each[at : at + per]) for at in range(0, len(bits), per)]
        else:
            values = [self._made(*one) for one in of_each]
            if not work.whole:
                values = list(np.where(beyond, as_float(0), values))
            wanted = [_packed(work, values[at : at + per]) for at in range(0, len(bits), per)]
        for register, one in enumerate(found):
            of = slice(register * per, (register + 1) * per)
            # Rows outside make sums that nobody stores; zeros times whatever is made of them are
            # zeros.
            behind = beyond[of].all(axis=0)
            free = (whole_row[of] >= m_extent).all(axis=0)
            if not work.ended:
                free |= behind if work.whole else behind & (one == 0)
            wrong = (one != wanted[register]) & ~free
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                m, s, tile, thread = (int(names[name][at]) for name in ("m", "s", "k", "thread"))
                raise VerifyError(
                    f"register {register} of thread {thread} is not of the elements that the "
                    f"instruction takes it for: m {m}, step {s}, k tile {tile}"
                )

    def _pair(self, *elements: tuple[Any, Any, Any, Any, Any]) -> Any:
        """What instructions on pairs make of two elements, by their bits and where they are."""
        work, pairs = self.work, self.work.pairs
        assert pairs is not None
        (name, kind), *_ = work.whole_numbers.items()
        values = []
        for stored, row, column, k, beyond in elements:
            known = self._beside(row, column, beyond)
            place = k % work.packed if name in work.halves else 0
            known[name] = number_from(kind, stored >> place * NAMED[kind].bits)
            values.append(known)
        known = {one: pair_of(*(each[one] for each in values)) for one in values[0]}
        text = "\n".join(pair_lines(work))
        found = run(read(text), known, len(elements[0][0])).names
        return found[pairs.result]

    def _beside(self, row: Any, column: Any, beyond: Any) -> dict[str, Any]:
        """Numbers that elements are computed of beside those of the ring, by name: zeros, or those
        of the last k, beyond the end.
        """
        fragment, at = self.plan.match.operand(self.work.operand).fragment, {"m": row, "k": column}
        assert fragment is not None
        reads = (one for one in fragment.prologue.reads if one.name != self.work.name)
        found = {}
        for one in reads:
            number = self.arrays.number(self.names, one, at)
            zero = number_of(name_of(one.tensor.dtype), 0)
            ended = one.name in self.work.ended
            found[one.name] = np.where(beyond, zero, number) if ended else number
        return found

    def _made(self, stored: Any, row: Any, column: Any, k: Any, beyond: Any) -> Any:
        """What the program makes of elements, by their bits and where they are."""
        work, names, at = self.work, self.names, {"m": row, "k": column}
        tensors = {work.name: work.tensor} | {one.name: one.tensor for one in work.beside}
        values = {name: name for name in (*tensors, *(name for name, _ in work.coordinates))}
        kinds = {name: stored_type(tensor) for name, tensor in tensors.items()}
        halves = {value: (kind, f"from_{kind}(bits, half)") for value, kind in work.halves.items()}
        lines, _ = element_lines(work.statements, values, kinds, halves, work.dtype)
        known: dict[str, Any] = {"e": 0, "bits": stored, "half": k % work.packed}
        known[work.name] = number_of(name_of(work.tensor.dtype), stored)
        known |= self._beside(row, column, beyond)
        known |= {name: coordinate(names, along, at) for name, along in work.coordinates}
        made = Register(np.zeros((1, len(stored)), np.int64), 0, (1,))
        run(read("\n".join(lines)), known | {"made": made}, len(stored))
        return made.base[0]


def _packed(work: Make, values: Sequence[Any]) -> Any:
    """A register of elements, the first in its low bits."""
    if work.dtype.name == "tf32":
        return mixed("cvt.rn.tf32.f32 %0, %1;", 0, *values)
    return mixed(f"pack_{work.dtype.name}", *values)
