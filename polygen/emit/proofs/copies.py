"""Copies of operands by threads, as they are written: every piece of a tile, once, to its place.

All parts of a tile are copied, of a block and a k tile that are the last ones and end inside. Every
piece is then where the ring's layout has it, of its own elements as far as they are inside of the
array, with zeros behind them; and nothing else is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.move_cp_async import copy_function, positions
from polygen.emit.leaf.table import proof
from polygen.emit.leaves import size_name
from polygen.emit.proofs.computed import chunks, spaced, words_of_chunks, writing
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import (
    IN_FRONT,
    SHARED,
    Arrays,
    address,
    coordinate,
    evaluated,
    of_kernel,
    of_place,
    size,
    times,
    words_of,
)
from polygen.emit.run_text import Called, Handler
from polygen.emit.text_functions import run
from polygen.emit.text_values import held, mixed
from polygen.errors import VerifyError
from polygen.lower.accesses import ROWS_BEFORE, ROWS_OF_GROUP
from polygen.lower.operands import walk
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.ring_tiles import operands_of
from polygen.lower.tallies import stored_at
from polygen.lower.work import Copy
from polygen.poly.key_tiles import FIRST

_WORD, _WORDS = 4, 4  # bytes; of a chunk
_TURNS = re.compile(r"for \(int i = ([^;]+); i < ([^;]+); \+\+i\) \{")
_MOST_TURNS = 256  # side by side


@proof("move", "cp.async", Copy)
def _(plan: KernelPlan, leaf: Leaf, c: Copy, texts: tuple[str, ...]) -> None:
    tile = _Tile.of(plan, leaf, c)
    tile.run(texts)
    check_writes(tile.written, [tile.whole()])


@proof("move", "threads", Copy)
def _(plan: KernelPlan, leaf: Leaf, c: Copy, texts: tuple[str, ...]) -> None:
    tile = _Tile.of(plan, leaf, c)
    tile.run(texts, {"__ldg": tile.load})
    tile.check_loaded()
    check_writes(tile.written, tile.words())


@proof("write_chunks", "threads", Copy, "fetch_chunks")
def _(plan: KernelPlan, leaf: Leaf, c: Copy, texts: tuple[str, ...]) -> None:
    tile = _Tile.of(plan, leaf, c)
    tile.run(texts)
    check_writes(tile.written, tile.words())


@proof("compute_copy", "threads", Copy)
def _(plan: KernelPlan, leaf: Leaf, c: Copy, texts: tuple[str, ...]) -> None:
    tile = _Tile.of(plan, leaf, c)
    tile.run(texts, {"write_computed": writing(tile.written)})
    check_writes(tile.written, [tile.computed()])


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile's copies, in a copy of the threads for each part.

    Attributes:
        plan: the kernel.
        copy: what is copied.
        names: what the threads know.
        threads: how many, of all copies.
        arrays: that are read.
        written: to shared memory.
        loaded: elements one by one: their addresses, and who reads them.
    """

    plan: KernelPlan
    copy: Copy
    names: dict[str, Any]
    threads: int
    arrays: Arrays
    written: Writes
    loaded: list[tuple[Any, Any]]

    @staticmethod
    def of(plan: KernelPlan, leaf: Leaf, c: Copy) -> _Tile:
        """The last tile, which ends inside if sizes are not numbers."""
        names = last_tile(plan, c)
        own, threads = of_place(plan, leaf.place)
        part = np.repeat(np.arange(c.parts), threads)
        names |= times(own, c.parts) | {"p": part}
        return _Tile(plan, c, names, len(part), Arrays(plan, names), [], [])

    def run(self, texts: Sequence[str], more: Mapping[str, Handler] | None = None) -> None:
        """Run texts one behind the other, with the turns of their loops side by side.

        A turn knows nothing of others; a thread that leaves its loop has no piece behind.
        """
        turns = [self._turns(text) for text in texts]
        known, threads = dict(self.names), self.threads
        (first, count), *others = turns
        if count and all(one[1] == count and np.array_equal(one[0], first) for one in others):
            known, threads = times(known, count), threads * count
            known["i"] = np.tile(np.broadcast_to(first, self.threads), count)
            known["i"] = known["i"] + np.repeat(np.arange(count), self.threads)
            texts = [
                _TURNS.sub(r"for (int turn = 0; turn < 1; ++turn) if (i < \2) {", text)
                for text in texts
            ]
        handlers = self.handlers() | dict(more or {})
        for text in texts:
            known = run(read(text), known, threads, handlers).names

    def _turns(self, text: str) -> tuple[Any, int]:
        """The first turn of a text's loop, and how many there are; 0: it is none of that kind."""
        found = _TURNS.search(text)
        if found is None:
            return 0, 0
        first, end = (evaluated(one, self.names, self.threads) for one in found.groups())
        count = int(np.max(end - first))
        return first, count if 0 < count <= _MOST_TURNS else 0

    def handlers(self) -> dict[str, Handler]:
        """What functions do that say where a ring has a byte, and bring some there."""
        layout = self.plan.buffer(self.copy.buffer).layout
        assert layout is not None
        place = stored_at(layout)
        return self.arrays.handlers() | {
            f"place_{self.copy.buffer}": lambda called: place(*map(np.asarray, called.values)),
            copy_function(self.copy): self._bring,
            "read_spaced": spaced(self.arrays),
            "read_wide": spaced(self.arrays),
            "write_word": lambda called: self._write(called, [called.arguments[1].value]),
            "write_held": lambda called: self._write(called, called.arguments[1].held(_WORDS)),
        }

    def load(self, called: Called) -> Any:
        """An element of the operand's array; whether it has one is asked of all at once."""
        place = called.of_all(0)
        self.loaded.append((place, called.state.who()))
        return held(self.copy.tensor.dtype, self.arrays.stored_in(self.copy.tensor, place))

    def check_loaded(self) -> None:
        """What was loaded are elements of the operand's array.

        Raises:
            VerifyError: one of them is outside.
        """
        place, who = map(np.concatenate, zip(*self.loaded, strict=True))
        first, tensor = self.arrays.of(place, who)
        if tensor != self.copy.tensor:
            raise VerifyError(f"{tensor.name} is read in the place of {self.copy.tensor.name}")
        self.arrays.element(place, who, first, tensor)

    def _write(self, called: Called, words: Sequence[Any]) -> None:
        """Words side by side."""
        who = called.state.who()
        to = called.of_all(0)[who]
        if (to % (_WORD * len(words))).any():
            raise VerifyError(f"{_WORD * len(words)} bytes are written where they do not begin")
        for place, content in self._stored(to, words):
            self.written.append((place, np.broadcast_to(content, who.shape)[who]))

    def _stored(self, place: Any, words: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Words side by side, as they are told apart: those of a double may come one by one."""
        if self.copy.element_bytes <= _WORD:
            return [(place, _chunk(words))]
        return [(place + at * _WORD, _chunk([word])) for at, word in enumerate(words)]

    def _bring(self, called: Called) -> None:
        """As many bytes of a piece as are inside, and zeros behind them."""
        c, who = self.copy, called.state.who()
        to, first, amount = (called.of_all(number)[who] for number in range(3))
        if (to % c.width).any():
            raise VerifyError(f"{c.width} bytes are written where they do not begin")
        count = amount // c.element_bytes if c.ragged else np.where(amount, c.moved, 0)
        self.written.append((to, _piece(first, count)))

    # --- what has to be there ---------------------------------------------------------------------
    def _pieces(self) -> _Pieces:
        """Every piece of the tile."""
        c, plan, known = self.copy, self.plan, dict(self.names)
        ring, depth = plan.buffer(c.buffer), self.names["k"]
        row_base, column_base, *ends = bounds(plan, c, known)
        piece = np.indices((c.rows, c.columns // c.moved)).reshape(2, -1)
        row, column = piece[0], piece[1] * c.moved
        place = stored_at(ring.layout)(row, column * c.element_bytes)  # type: ignore[arg-type]
        place = place + SHARED + ring.offset + depth % ring.slots * ring.slot_bytes
        return _Pieces(self, known, place, row_base + row, column_base + column, tuple(ends))

    def whole(self) -> Wanted:
        """The piece that is in each place of the ring: neighbours in the array."""
        c, every = self.copy, self._pieces()
        ends = [every.element(at)[1] for at in range(c.moved)] if c.ragged else []
        first, inside = every.element(0)
        last, _ = every.element(c.moved - 1)
        if (inside & (last != first + c.moved - 1)).any():
            raise VerifyError(f"elements of a piece of {c.tensor.name} are not neighbours")
        count = sum(ends) if ends else inside * c.moved
        return every.wanted(_piece(first, count), every.place)

    def computed(self) -> Wanted:
        """The chunk that is in each place of the ring: what the program makes of its elements."""
        every = self._pieces()
        content = chunks_made(
            self.plan, self.copy, every.known, self.arrays, (every.row, every.column), every.ends,
            rounded=False,
        )  # fmt: skip
        return every.wanted(content, every.place)

    def words(self) -> list[Wanted]:
        """The words that are in each place of the ring."""
        c, every = self.copy, self._pieces()
        stored = []
        for at in range(c.moved):
            first, inside = every.element(at)
            stored.append(np.where(inside, self.arrays.stored_in(c.tensor, first), 0))
        words = words_of(stored, c.element_bytes)
        return [every.wanted(one, place) for place, one in self._stored(every.place, words)]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces of a tile, and where they are in shared memory and in the operand."""

    tile: _Tile
    known: dict[str, Any]
    place: Any
    row: Any
    column: Any
    ends: tuple[Any, ...]

    def element(self, at: int) -> tuple[Any, Any]:
        """The addresses of an element of every piece, and which of them are inside."""
        c, names = self.tile.copy, self.known
        column = self.column + at
        dims = (c.role, "k") if c.k_contiguous else ("k", c.role)
        own = {dim: names[dim] for dim, _ in self.tile.plan.match.sums}
        own |= dict(zip(dims, (self.row, column), strict=True))
        inside = (self.row < self.ends[0]) & (column < self.ends[1])
        index = operands_of(self.tile.plan)[c.operand].index
        for axis, one in enumerate(index):
            if one.padded:
                number = coordinate(names, one, own)
                inside = inside & (number >= 0) & (number < size(names, c.tensor.dims[axis]))
        return address(names, c.tensor, index, own), inside

    def wanted(self, content: Any, place: Any) -> Wanted:
        """So much, each in its place."""
        return Wanted(self.tile.copy.buffer, place, content, (self.row, self.column))


def bounds(plan: KernelPlan, c: Copy, known: dict[str, Any], count: int = 1) -> list[Any]:
    """Where tiles start along stored rows and columns, and where these end.

    Args:
        plan: the kernel.
        c: of the operand.
        known: of the tiles; where k lies in sums over several axes is entered.
        count: of tiles, or of what is asked of them.
    """
    for name, text in walk(plan.match, plan.tiles, size_name):
        known[name] = evaluated(text, known, count)
    return [evaluated(one, known, count) for one in positions(plan, c)]


def chunks_made(
    plan: KernelPlan, c: Copy, known: Mapping[str, Any], arrays: Arrays, place: tuple[Any, Any],
    ends: Sequence[Any], *, rounded: bool,
) -> Any:  # fmt: skip
    """What the program makes of the elements of chunks, as far as they are inside.

    Args:
        plan: the kernel.
        c: of the operand.
        known: of the tiles that chunks are in.
        arrays: what is read.
        place: the stored row of each, and its first element there.
        ends: of rows and columns.
        rounded: whether f32 is rounded to tf32.
    """
    made, (row, column), (rows, length) = operands_of(plan)[c.operand].computed, place, ends
    assert c.computed is not None and made is not None
    at = {c.computed.dims[0]: np.minimum(row, rows - 1)}
    words = words_of_chunks(
        c.computed, made.reads, known, arrays, at, column, length, rounded=rounded
    )
    left = np.clip(length - column, 0, c.computed.elements)
    return chunks(words, left * (row < rows) * c.element_bytes)


def last_tile(plan: KernelPlan, c: Copy) -> dict[str, Any]:
    """What a block knows of an operand's last tile, which ends inside if sizes are not numbers."""
    dims = (c.role, "k") if c.k_contiguous else ("k", c.role)
    each = {c.role: c.tile, "k": c.tile_k}
    extents = dict(zip(dims, c.extents, strict=True))
    whole = {"k": 2 * plan.buffer(c.buffer).slots - 1, c.role: 3}  # blocks are 1 and 2
    ends = {}
    for dim in dims:
        inside = min(each[dim] // 2 + 3, each[dim])
        if dim == dims[1] and c.in_whole_pieces:
            inside = max(inside // c.moved * c.moved, c.moved)
        ends[str(extents[dim])] = whole[dim] * each[dim] + inside
    rows = ends[str(extents[c.role])]
    if plan.match.groups and c.role == "m":
        ends[str(extents["m"])] = 1 << 14
    names = of_kernel(plan, ends) | {ROWS_BEFORE: IN_FRONT, ROWS_OF_GROUP: rows}
    lengths = {dim: size(names, extents[dim]) for dim in dims}
    if plan.match.groups and c.role == "m":
        lengths["m"] = rows
    block, k = ((lengths[dim] - 1) // each[dim] for dim in (c.role, "k"))
    names |= {"k": k, f"b_{c.role}": block}
    if plan.key_tiles is not None:  # tiles of keys are counted from the first that is visited
        names |= {FIRST: min(k, 1), "k": k - min(k, 1)}
    return names


def _piece(first: Any, count: Any) -> Any:
    """What stands for so many elements of an array, from an address on."""
    return np.where(count > 0, mixed("piece", first, count), 0)


def _chunk(words: Sequence[Any]) -> Any:
    """What stands for words side by side."""
    return mixed("chunk", *words)
