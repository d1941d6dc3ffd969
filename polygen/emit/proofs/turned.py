"""Operands that are copied with their axes in another order, as it is written: chunk by chunk.

The first block of rows and the last one are run, with the first chunks of a segment, some behind
them, and those in which rows end. Every chunk of a lane's row is stored once, of the elements that
the program says, with zeros behind the end of the row; nothing outside of the array is read.
"""

from __future__ import annotations

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.rows_before import lanes_of, row_count
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.proofs.threads import Arrays, address, of_kernel, size, words_of
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import mixed
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf, MakePlan
from polygen.lower.realign_work import RowMake
from polygen.poly.realign_program import CHUNKS
from polygen.poly.turn_program import TurnShape

_ROW = 1 << 24  # from one row of the copy to the next, in chunks


@proof("turn_chunks", "threads", RowMake, alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: RowMake, texts: tuple[str, ...]) -> None:
    shape, count = work.shape, work.computed.elements
    assert isinstance(shape, TurnShape)
    own = next(one for one in plan.copies if isinstance(one, MakePlan) and leaf in one.leaves)
    assert own.operand.computed is not None
    (source,) = own.operand.computed.reads
    end = (shape.segment + shape.warps + 2) * count + 1
    names = of_kernel(plan, {str(work.length): end})
    length = size(names, work.length)
    chunks = -(-length // count)
    rows = row_count(work, names)
    steps = range(0, shape.segment, shape.warps)
    last = (chunks - 1) // shape.segment * shape.segment
    cases = [(0, 0, 0, shape.rows - 3)]  # as if rows ended there
    cases += [
        (block, first, chunk, rows - block * shape.rows)
        for block in sorted({0, (rows - 1) // shape.rows})
        for first in sorted({0, last})
        for chunk in sorted({0, steps[min(1, len(steps) - 1)], steps[-1]})
        if first + chunk < chunks
    ]
    lanes = lanes_of(work, names, cases)
    at = {"m": np.zeros_like(lanes.row)} | lanes.at
    names |= lanes.names | {"row": at["m"], CHUNKS: chunks}
    arrays, written, to = Arrays(plan, names), Writes(), lanes.place * _ROW

    def store(called: Called) -> None:
        who, value = called.state.who(), called.arguments[1].value
        if called.arguments[0].width != shape.size:
            raise VerifyError(f"chunks of {shape.size} bytes are not stored at once")
        made = mixed("chunk", *(np.broadcast_to(x, who.shape) for x in value.parts.values()))
        written.append((called.of_all(0)[who], made[who]))

    known = names | {"to": to}
    for text in texts:
        run(read(text), known, len(lanes.row), arrays.handlers() | {"store": store})
    number, inside = lanes.number, lanes.inside & (lanes.number < chunks)
    stored = []
    for e in range(count):
        column = number * count + e
        place = address(names, source.tensor, source.index, at | {"k": column})
        stored.append(np.where(column < length, arrays.stored_in(source.tensor, place), 0))
    made = mixed("chunk", *words_of(stored, work.tensor.dtype.bytes))
    index = (lanes.row[inside], number[inside])
    check_writes(written, [Wanted("the copy", (to + number)[inside], made[inside], index)])
