"""Operands that a launch before the kernel makes, as it is written: chunk by chunk.

The first block of rows is run at the end of its first segment, and the last one where rows end.
Every chunk of a row is stored once, of what the program makes of the elements of its own row and
columns, as far as the row goes; nothing outside of an array is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.computed_chunk import element_lines, of_bytes, packing, stored_type
from polygen.emit.leaf.make_chunks import rounded
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import (
    Arrays,
    Integers,
    address,
    coordinate,
    of_kernel,
    size,
    words_of,
)
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, mixed
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf, MakePlan
from polygen.lower.realign_work import RowMake
from polygen.poly.realign_program import CHUNK, CHUNKS, FIRST, ROWS, WARP, RealignShape
from polygen.poly.turn_program import TurnShape

_ROW = 1 << 34  # from one row of the operand to the next, in bytes
_WORD, _WORDS = 4, 4  # bytes of one, and how many a chunk has


@proof("make_chunks", "threads", RowMake)
def _(plan: KernelPlan, leaf: Leaf, work: RowMake, texts: tuple[str, ...]) -> None:
    _check(plan, leaf, work, texts)


@proof("make_across", "threads", RowMake)
def _(plan: KernelPlan, leaf: Leaf, work: RowMake, texts: tuple[str, ...]) -> None:
    _check(plan, leaf, work, texts)


def _check(plan: KernelPlan, leaf: Leaf, work: RowMake, texts: Sequence[str]) -> None:
    """Rows of which a turn is full, and those that all but fill it, with parts of a chunk more."""
    shape, count = work.shape, work.computed.elements
    step = shape.step if isinstance(shape, RealignShape) else shape.warps
    whole = (shape.segment + step) * count
    ends = (whole + count - 1, whole - count + count // 2)
    found = (of_kernel(plan, {str(work.length): end}) for end in ends)
    by_length = {size(names, work.length): names for names in found}
    for names in by_length.values():
        _check_rows(plan, leaf, work, texts, names)


def _check_rows(
    plan: KernelPlan, leaf: Leaf, work: RowMake, texts: Sequence[str], names: dict[str, Any]
) -> None:
    """Run the text in the threads of some blocks, and compare what they store."""
    shape, count = work.shape, work.computed.elements
    beside = shape.together if isinstance(shape, RealignShape) else 1
    step = shape.step if isinstance(shape, RealignShape) else shape.warps
    length = size(names, work.length)
    chunks = -(-length // count)
    extents = [size(names, extent) for _, extent in work.outer]
    rows = int(np.prod(extents, dtype=np.int64))
    last = (chunks - 1) // shape.segment * shape.segment
    behind = (rows - 1) // shape.rows
    every = {(0, 0, shape.segment - step), *((behind, last, chunk) for chunk in (0, step))}
    cases = [
        (block, first, chunk)
        for block, first, chunk in sorted(every)
        if chunk < shape.segment and first + chunk < chunks
    ]
    each = shape.warps * shape.lanes
    case = np.repeat(np.arange(len(cases)), each)
    block, first, chunk = np.array(cases)[case].T
    lane = np.tile(np.arange(shape.lanes), len(cases) * shape.warps)
    warp = np.tile(np.repeat(np.arange(shape.warps), shape.lanes), len(cases))
    if isinstance(shape, TurnShape):
        of_block = warp % shape.beside * shape.group + lane % shape.group
        number = first + chunk + warp // shape.beside * shape.beside + lane // shape.group
    else:
        of_block, number = warp, first + chunk + lane
    row = block * shape.rows + of_block
    own = np.ones_like(row, bool) if isinstance(shape, TurnShape) else row < rows  # who is there
    names |= {"lane": lane[own], WARP: warp[own]}
    names |= {FIRST: first[own], CHUNK: chunk[own], CHUNKS: chunks}
    names |= {ROWS: (rows - block * shape.rows)[own]}
    at, rest = dict[str, Any](), row
    for (dim, _), extent in zip(work.outer, extents, strict=True):
        at[dim], rest = rest % extent, rest // extent
    to = (case * shape.rows + of_block) * _ROW
    names |= {name: value[own] for name, value in at.items()} | {"to": to[own]}
    names["row"] = names[work.computed.dims[0]]
    arrays, written = Arrays(plan, names), Writes()

    def store(called: Called) -> None:
        who, held = called.state.who(), called.arguments[1].held(_WORDS)
        place, amount = called.of_all(0)[who], called.of_all(2)[who]
        words = [np.broadcast_to(one, who.shape)[who] for one in held]
        written.append((place, _stored(words, amount)))

    handlers = arrays.handlers() | {"store_computed": store, "read_spaced": _spaced(arrays)}
    for text in texts:
        run(read(text), names, int(own.sum()), handlers)
    of = _Chunks(plan, leaf, work, names, arrays)
    wanted = []
    for u in range(beside):
        mine = number + shape.lanes * u
        inside = (row < rows) & (mine < chunks)
        if not inside.any():
            continue
        left = np.minimum(length - mine[inside] * count, count)
        words = of.words({dim: one[inside] for dim, one in at.items()}, mine[inside], length)
        place = (to + mine * shape.size)[inside]
        value = _stored(words, left * work.tensor.dtype.bytes)
        wanted.append(Wanted("the operand", place, value, (row[inside], mine[inside])))
    check_writes(written, wanted)


def _stored(words: Sequence[Any], amount: Integers) -> Any:
    """A chunk, as far as it goes: words that it fills, and how many bytes it has."""
    kept = [np.where(amount >= _WORD * (at + 1), one, 0) for at, one in enumerate(words)]
    return mixed("chunk", *kept, amount)


def _spaced(arrays: Arrays) -> Any:
    """What reads elements that are so many bytes apart, as far as there are any."""

    def spaced(called: Called) -> None:
        words, each = map(int, called.template)
        first, step, left = (called.of_all(number) for number in range(1, 4))
        who, found = called.state.who(), []
        if each < 1 or (step % each).any():
            raise VerifyError(f"elements of {each} bytes are read {int(step.max())} bytes apart")
        for at in range(words * _WORD // each):
            place, own = first + at * step // each, who & (left > at)
            value: Any = 0
            if own.any():
                begin, tensor = arrays.of(place, own)
                if tensor.dtype.bytes != each:
                    raise VerifyError(f"elements of {tensor.name} are read as {each} bytes")
                value = arrays.element(place, own, begin, tensor)
            found.append(np.where(own, value, 0))
        called.arguments[0].fill(words_of(found, each))

    return spaced


@dataclass(frozen=True, slots=True)
class _Chunks:
    """What chunks have to be."""

    plan: KernelPlan
    leaf: Leaf
    work: RowMake
    names: Mapping[str, Any]
    arrays: Arrays

    def words(self, at: Mapping[str, Any], number: Integers, length: int) -> list[Any]:
        """The words of chunks, by where their rows are and their numbers.

        Elements behind the end of a row are those of its last one; nobody stores them.
        """
        of, count, threads = self.work.computed, self.work.computed.elements, len(number)
        column = np.minimum(number * count + np.arange(count)[:, None], length - 1).ravel()
        where = {dim: np.tile(one, count) for dim, one in at.items()} | {of.dims[1]: column}
        copy = next(
            one for one in self.plan.copies if isinstance(one, MakePlan) and self.leaf in one.leaves
        )
        assert copy.operand.computed is not None
        reads = copy.operand.computed.reads
        names = {one.name: one.name for one in reads} | {name: name for name, _ in of.coordinates}
        kinds = {one.name: stored_type(one.tensor) for one in reads}
        halves, known = {}, dict[str, Any]({"e": 0, "half": column % 2})
        for result, kind, fetch in of_bytes(of):
            source = next(one for one in reads if one.name == fetch.name)
            place = address(self.names, source.tensor, source.index, where)
            known[f"{fetch.name}_bits"] = self.arrays.stored(place)
            halves[result] = kind, f"from_{kind}({fetch.name}_bits, half)"
        lines, _ = element_lines(of.statements, names, kinds, halves, of.dtype)
        known |= {one.name: self.arrays.number(self.names, one, where) for one in reads}
        known |= {name: coordinate(self.names, along, where) for name, along in of.coordinates}
        made = Register(np.zeros((1, len(column)), np.int64), 0, (1,))
        run(read("\n".join(lines)), known | {"made": made}, len(column))
        elements = Register(made.base[0].reshape(count, threads), 0, (count,))
        words = Register(np.zeros((_WORDS, threads), np.int64), 0, (_WORDS,))
        pack = packing(of, rounded=rounded(self.plan))
        loop = f"for (int i = 0; i < {_WORDS}; ++i) {pack}"
        run(read(loop), {"made": elements, "w": words}, threads)
        return list(words.base)
