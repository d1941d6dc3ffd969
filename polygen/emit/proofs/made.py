"""Operands that a launch before the kernel makes, as it is written: chunk by chunk.

The first block of rows is run at the end of its first segment, and the last one where rows end.
Every chunk of a row is stored once, of what the program makes of the elements of its own row and
columns, as far as the row goes; nothing outside of an array is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.make_chunks import rounded
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.computed import chunks, spaced, words_of_chunks, writing
from polygen.emit.proofs.rows_before import lanes_of, row_count
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import Arrays, of_kernel, size
from polygen.emit.text_functions import run
from polygen.lower.plan import KernelPlan, Leaf, MakePlan
from polygen.lower.realign_work import RowMake
from polygen.poly.elements import Element
from polygen.poly.realign_program import CHUNKS, RealignShape
from polygen.poly.turn_program import TurnShape

_ROW = 1 << 34  # from one row of the operand to the next, in bytes


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
    chunks_of_row = -(-length // count)
    rows = row_count(work, names)
    last = (chunks_of_row - 1) // shape.segment * shape.segment
    behind = (rows - 1) // shape.rows
    every = {(0, 0, shape.segment - step), *((behind, last, chunk) for chunk in (0, step))}
    cases = [
        (block, first, chunk, rows - block * shape.rows)
        for block, first, chunk in sorted(every)
        if chunk < shape.segment and first + chunk < chunks_of_row
    ]
    across = isinstance(shape, TurnShape)
    if across:  # lanes have rows: as if they ended inside of a block
        cases.append((0, 0, 0, shape.rows - 3))
    lanes = lanes_of(work, names, cases)
    own = np.ones_like(lanes.inside) if across else lanes.inside  # who runs it
    to = lanes.place * _ROW
    names |= {name: value[own] for name, value in lanes.names.items()}
    names |= {"row": lanes.at[work.computed.dims[0]][own], "to": to[own], CHUNKS: chunks_of_row}
    arrays, written = Arrays(plan, names), Writes()
    apart = spaced(arrays)
    handlers = {"store_computed": writing(written), "read_spaced": apart, "read_wide": apart}
    for text in texts:
        run(read(text), names, int(own.sum()), arrays.handlers() | handlers)
    reads = _reads(plan, leaf)
    wanted = []
    for u in range(beside):
        mine = lanes.number + shape.lanes * u
        inside = lanes.inside & (mine < chunks_of_row)
        if not inside.any():
            continue
        first = mine[inside] * count
        dims = {dim: one[inside] for dim, one in lanes.at.items()}
        words = words_of_chunks(
            work.computed, reads, names, arrays, dims, first, length, rounded=rounded(plan)
        )
        value = chunks(words, np.minimum(length - first, count) * work.tensor.dtype.bytes)
        place = (to + mine * shape.size)[inside]
        wanted.append(Wanted("the operand", place, value, (lanes.row[inside], mine[inside])))
    check_writes(written, wanted)


def _reads(plan: KernelPlan, leaf: Leaf) -> tuple[Element, ...]:
    """What an operand is computed from."""
    of = next(one for one in plan.copies if isinstance(one, MakePlan) and leaf in one.leaves)
    assert of.operand.computed is not None
    return of.operand.computed.reads
