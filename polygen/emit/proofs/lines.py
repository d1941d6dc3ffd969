"""Lines of panels, as they are written: every element inside is moved once, and no other.

A panel's lines are moved for all panels of a tile that ends outside, and for one of a tile that
does not, in an array whose rows begin anywhere. Shared memory holds a number for every element, or
global memory does; where elements of the matrix lie behind, their own numbers are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.blocks import blocks
from polygen.emit.proofs.panels import BlockPanels
from polygen.emit.proofs.shared_bytes import Memory
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import SHARED, Arrays, address, words_of
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.emit.text_values import LETTERS, WIDTHS, Part, Pointer, Register, Wide, mixed
from polygen.errors import VerifyError
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Line, Lines

_WORD = 4  # bytes


@proof("store", "lines", Lines, alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: Lines, texts: tuple[str, ...]) -> None:
    moved = _Moved.of(plan, leaf, work)
    block, memory, wanted = moved.own.block, moved.own.memory(), []
    for line in work.moved:
        row, column, place = moved.own.places(line.panel)
        content = mixed(f"panel {line.panel.name}", row, column) & _most(line.panel.element_bytes)
        memory.put(place - SHARED, content, line.panel.element_bytes)
        inside = block.inside(row, column)
        row, column = row[inside], column[inside]
        to = moved.address(line, row, column)
        wanted.append(Wanted(line.panel.name, to, content[inside], (row, column)))
    run(read(texts[0]), block.names, block.threads, moved.handlers(memory))
    check_writes(block.stored, wanted)


@proof("fetch", "lines", Lines, alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: Lines, texts: tuple[str, ...]) -> None:
    moved = _Moved.of(plan, leaf, work)
    block, wanted = moved.own.block, []
    for line in work.moved:
        row, column, place = moved.own.places(line.panel)
        last = block.clamped(row, column)
        inside = block.inside(row, column)
        content = np.where(inside, block.arrays.stored(moved.address(line, *last)), 0)
        for part in range(0, line.panel.element_bytes, moved.each):
            own = content >> 8 * part & _most(moved.each)
            index = row, column
            wanted.append(Wanted(line.panel.name, place + part, own, index, inside))
    run(read(texts[0]), block.names, block.threads, moved.handlers(Memory(0)))
    check_writes(moved.written, wanted)


@dataclass(frozen=True, slots=True)
class _Moved:
    """Lines that the threads of agents move, each of its panels.

    Attributes:
        own: the panels.
        aligned: bytes of the widest access for which addresses are what they are.
        each: bytes by which shared memory is compared.
        written: to shared memory.
    """

    own: BlockPanels
    aligned: int
    each: int
    written: Writes

    @staticmethod
    def of(plan: KernelPlan, leaf: Leaf, work: Lines) -> _Moved:
        """What is moved, of a block that ends outside and of the first."""
        panel = work.moved[0].panel
        per_row = plan.tiles.columns // panel.columns
        block = blocks(plan, leaf.place, plan.epilogue, "p", per_row * plan.tiles.atoms[0])
        aligned = chunk_bytes() if all(line.shifted for line in work.moved) else 0
        each = min(line.panel.element_bytes for line in work.moved)
        return _Moved(BlockPanels(block, per_row), aligned, each, [])

    def address(self, line: Line, row: Any, column: Any) -> Any:
        """Where elements of the array are."""
        work = self.own.block.work
        element = next(e for e in (*work.reads, *work.writes) if e.name == line.panel.name)
        return address(self.own.block.names, element.tensor, element.index, {"m": row, "n": column})

    # --- what functions do -----------------------------------------------------------------------
    def handlers(self, memory: Memory) -> dict[str, Handler]:
        """Of the functions that texts call; `memory`: what panels hold."""
        arrays = self.own.block.arrays.handlers()

        def portion(called: Called) -> Any:
            width = WIDTHS[called.template[0]]
            words = memory.words(called.arguments[0].value, width, called.state.who())
            return words[0] if width <= _WORD else _part(words)

        def loaded(called: Called) -> Any:
            pointer = called.arguments[0].pointer
            if isinstance(pointer, Pointer):
                self._check_aligned(called, pointer.address * (pointer.stepped or pointer.bytes))
            return arrays["__ldg"](called)

        return arrays | {
            "read_portion": portion,
            "write_portion": self._write,
            "joined_portion": _joined,
            "row_edge": self._edge,
            "store": self._store,
            "__ldg": loaded,
        }

    def _check_aligned(self, called: Called, byte: Any) -> None:
        """What is read or written in wide pieces begins with one."""
        pointer = called.arguments[0].pointer
        width, who = getattr(pointer, "bytes", 0), called.state.who()
        if width == self.aligned and (np.broadcast_to(byte, who.shape)[who] % width).any():
            raise VerifyError(f"{width} bytes of an array begin where no {width} bytes do")

    def _store(self, called: Called) -> None:
        """Elements side by side, from an address on."""
        pointer, value = called.arguments[0].pointer, called.arguments[1].value
        if not isinstance(pointer, Pointer):
            raise VerifyError("an array is written, and not by how many bytes")
        who, arrays = called.state.who(), self.own.block.arrays
        size = arrays.of(pointer.address, who)[1].dtype.bytes
        if pointer.stepped not in (0, size) or pointer.bytes % size:
            raise VerifyError(f"elements of {size} bytes are written by {pointer.bytes}")
        self._check_aligned(called, pointer.address * size)
        for at, one in enumerate(_elements(value, pointer.bytes, size)):
            places, values = np.broadcast_to(pointer.address + at, who.shape), one
            self.own.block.stored.append((places[who], np.broadcast_to(values, who.shape)[who]))

    def _write(self, called: Called) -> None:
        """A portion, to shared memory."""
        first, who = called.of_all(0), called.state.who()
        value, given = called.arguments[1].value, called.arguments[1].pointer
        if isinstance(value, Register):  # of several words
            value = _part(called.arguments[1].held(len(LETTERS[value.kind])))
        kind = given.kind if isinstance(given, Register) else ""
        width = _WORD * len(value.parts) if isinstance(value, Part) else WIDTHS[kind]
        if (first % width)[who].any():
            raise VerifyError(f"{width} bytes are written where they do not begin")
        for at, one in enumerate(_elements(value, width, self.each)):
            self.written.append((first[who] + at * self.each, np.broadcast_to(one, who.shape)[who]))

    def _edge(self, called: Called) -> None:
        """The elements of a chunk that are a row's; zeros for the others."""
        at, begin, end = (one.bits if isinstance(one, Wide) else one for one in called.values[1:])
        size, who = int(called.template[0]), called.state.who()
        if (np.broadcast_to(at, who.shape)[who] % chunk_bytes()).any():
            raise VerifyError("a chunk of an array is read where none begins")
        found = []
        for byte in range(0, chunk_bytes(), size):
            place = at + byte
            own = who & (place >= begin) & (place < end)
            found.append(self._one(self.own.block.arrays, place, size, own))
        called.arguments[0].fill(words_of(found, size))

    @staticmethod
    def _one(arrays: Arrays, byte: Any, size: int, who: Any) -> Any:
        """The element at a byte, where it is read; 0 elsewhere."""
        if not who.any():
            return np.zeros(who.shape, np.int64)
        first, tensor = arrays.of(byte // size, who)
        if tensor.dtype.bytes != size:
            raise VerifyError(f"elements of {tensor} are read by {size} bytes")
        return np.where(who, arrays.element(byte // size, who, first, tensor), 0)


def _most(size: int) -> int:
    return (1 << 8 * size) - 1


def _part(words: Sequence[Any]) -> Part:
    return Part(dict(zip("xyzw", words, strict=False)))


def _elements(value: Any, width: int, size: int) -> list[Any]:
    """Elements of so many bytes, of a value of `width` bytes."""
    words = list(value.parts.values()) if isinstance(value, Part) else [value]
    if len(words) * _WORD != max(width, _WORD):
        raise VerifyError(f"{len(words)} words are written as {width} bytes")
    return [words[at // _WORD] >> 8 * (at % _WORD) & _most(size) for at in range(0, width, size)]


def _joined(called: Called) -> Any:
    """A portion of elements that were read one by one."""
    part, width = called.arguments[0].place, WIDTHS[called.template[0]]
    size = WIDTHS[part.kind]
    held = [one & _most(size) for one in called.arguments[0].held(width // size)]
    words = words_of(held, size)
    return words[0] if width <= _WORD else _part(words)
