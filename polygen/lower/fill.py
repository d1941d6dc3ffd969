"""Threads fill a ring: where every thread's pieces come from, and where they go.

1. Pieces are numbered through the operands, and those of one operand in the order in which its tile
   lies in shared memory before the swizzle: box by box, row by row, chunk by chunk. Consecutive
   threads write consecutive chunks, and read consecutive ones of a stored row.
2. So a thread's place in every piece is the same, but for a step from piece to piece: the swizzles'
   patterns repeat before it. The formula is proved against the layout of the copy engine, which is
   proved against what the instruction's descriptors read.
"""

from __future__ import annotations

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware.formula import value
from polygen.hardware.matrix_layout import MatrixLayout, copied_to, span_swizzle
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.given import Given
from polygen.lower.operands import copy
from polygen.lower.work import Fill, Source
from polygen.poly.fills import PIECE_CHUNKS, filling_threads, rounds


def fill(given: Given, layouts: dict[str, MatrixLayout], counter: str) -> Fill:
    """What the threads of the producer fill.

    Args:
        given: the kernel.
        layouts: of the operands' tiles, by name.
        counter: of the rings' slots.

    Raises:
        VerifyError: a thread would write to another place than the layout says.
    """
    sources, first = [], 0
    for ring in given.tree.main.rings:
        if not ring.pieces:
            continue
        operand = given.match.operand(ring.name)
        layout, size = layouts[ring.name], operand.tensor.dtype.bytes
        row, column, place = _formulas(layout, size)
        source = Source(
            copy=copy(given, ring.name, operand, asynchronous=False),
            alignment=operand.alignment,
            first=first,
            pieces=ring.pieces,
            chunks=layout.bytes // chunk_bytes(),
            row=row,
            column=column,
            place=place,
        )
        prove(source, layout)
        sources.append(source)
        first += ring.pieces
    held = given.tree.main.held
    count, each = rounds(first, given.schedule.roles.producer_registers, held)
    words = held.words
    return Fill(tuple(sources), filling_threads(), PIECE_CHUNKS, count, each, counter, words)


def _formulas(layout: MatrixLayout, element: int) -> tuple[str, str, str]:
    """A thread's chunk: its stored row, first element, and place in shared memory.

    Formulas over `part`, which of the thread's chunks of the operand, and `own`, its number.
    """
    size, swizzle, threads = chunk_bytes(), span_swizzle(layout.span), filling_threads()
    per_row, boxes = layout.span // size, layout.boxes
    in_box = layout.rows * per_row
    column = f"own % {per_row} * {size // element}"
    if boxes == 1:
        row = f"part * {threads // per_row} + own / {per_row}"
    elif in_box % threads == 0:
        each = in_box // threads
        row = f"part % {each} * {threads // per_row} + own / {per_row}"
        column = f"part / {each} * {layout.span // element} + {column}"
    else:
        chunk = f"(part * {threads} + own)"
        row = f"{chunk} % {in_box} / {per_row}"
        column = f"{chunk} / {in_box} * {layout.span // element} + {column}"
    shift = (per_row.bit_length() - 1) + swizzle.shift
    place = f"part * {threads * size} + (own ^ (own >> {shift} & {swizzle.mask})) * {size}"
    return row, column, place


def prove(source: Source, layout: MatrixLayout) -> None:
    """Every chunk of the tile is written by one thread, and lies where the copy engine puts it.

    Raises:
        VerifyError: with the operand, and a chunk for which that is not so.
    """
    threads, element = filling_threads(), source.copy.element_bytes
    number = np.arange(source.pieces * PIECE_CHUNKS * threads)
    number = number[: source.chunks]
    names = {"part": number // threads, "own": number % threads}
    row, column, place = (value(text, names) for text in (source.row, source.column, source.place))
    byte = column * element
    chunks = row * (layout.row_bytes // chunk_bytes()) + byte // chunk_bytes()
    inside = (row < layout.rows) & (byte < layout.row_bytes) & (byte % chunk_bytes() == 0)
    whole = source.chunks == len(number) == layout.bytes // chunk_bytes() == len(np.unique(chunks))
    where = source.copy.tensor.name
    if not whole or not inside.all():
        raise VerifyError("threads do not write every chunk of a tile once", where=where)
    wrong = np.argwhere(copied_to(layout, row, byte) != place)
    if len(wrong):
        first = int(wrong[0, 0])
        raise VerifyError(
            f"threads write the chunk of row {int(row[first])} from byte {int(byte[first])} on to "
            f"byte {int(place[first])}, where the copy engine would not",
            where=where,
        )
