"""The copy that goes before a kernel, as it is written: chunks of rows that begin anywhere.

All shifts are run at once, for rows within a chunk, for some chunks and for more than a warp copies
at a time, from the beginning of a row and from the middle. Every chunk of the copy is stored once,
of its own bytes, with zeros behind the end of the row; nothing outside of the row is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.stored import Wanted, Writes, check_writes
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Part, mixed
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.realign_work import WORD, RowCopy
from polygen.poly.realign_program import CHUNK, CHUNKS, FIRST, LAST

_ROW, _COPY = 1 << 34, 1 << 24  # from one row to the next, in bytes; of its copy, in chunks


@proof("shift_chunks", "threads", RowCopy, "read_edges", alone=True)
def _(plan: KernelPlan, leaf: Leaf, work: RowCopy, texts: tuple[str, ...]) -> None:
    shape, size, step = work.shape, work.shape.size, work.shape.step
    lengths = [work.item, size, 3 * size + work.item, step * size + 5 * work.item]
    lengths.append((shape.segment + step + 3) * size - work.item)
    cases = [
        (shift, length, first, chunk)
        for shift in range(0, size, work.item)
        for length in lengths
        for first, chunk in {(0, 0), (0, step), (shape.segment, step)}
        if first + chunk < -(-length // size)
    ]
    threads, lane = len(cases) * shape.lanes, np.tile(np.arange(shape.lanes), len(cases))
    shift, length, first, chunk = (
        np.repeat(np.array(one), shape.lanes) for one in zip(*cases, strict=True)
    )
    number = np.repeat(np.arange(len(cases)), shape.lanes)
    base, copy = (1 + number) * _ROW, number * _COPY
    begin, chunks = base + shift, -(-length // size)
    names = {"lane": lane, "begin": begin, "base": base, "end": begin + length, "shift": shift}
    names |= {CHUNKS: chunks, LAST: (shift + length - 1) // size, FIRST: first, CHUNK: chunk}
    written = Writes()

    def bytes_of(place: Any) -> list[Any]:
        """Words of the row from an address on; what lies outside is 0."""
        each = [
            np.where((place + at >= begin) & (place + at < begin + length), _byte(place + at), 0)
            for at in range(size)
        ]
        parts = (each[at : at + WORD] for at in range(0, size, WORD))
        return [sum(one << 8 * at for at, one in enumerate(part)) for part in parts]

    def edge(called: Called) -> None:
        if called.template != (str(work.item),):
            raise VerifyError(f"elements of {work.item} bytes are read by {called.template}")
        if any((called.of_all(at) != names[of]).any() for at, of in ((2, "begin"), (3, "end"))):
            raise VerifyError("an edge is read of a row that begins or ends elsewhere")
        called.arguments[0].fill(bytes_of(called.of_all(1)))

    def whole(called: Called) -> Part:
        place, who = called.of_all(0), called.state.who()
        outside = (place < begin) | (place + size > begin + length) | (place % size != 0)
        if (outside & who).any() or called.arguments[0].width != size:
            raise VerifyError("a chunk is read that is not whole in its row")
        return Part(dict(zip("xyzw", bytes_of(place), strict=True)))

    def store(called: Called) -> None:
        who, value = called.state.who(), called.arguments[1].value
        if called.arguments[0].width != size:
            raise VerifyError(f"chunks of {size} bytes are not stored at once")
        made = mixed("chunk", *(np.broadcast_to(x, who.shape) for x in value.parts.values()))
        written.append((called.of_all(0)[who], made[who]))

    known = names | {"to": copy}
    for text in texts:
        handlers = {"row_edge": edge, "__ldg": whole, "store": store}
        known = run(read(text), known, threads, handlers).names
    wanted = []
    for u in range(shape.together):
        own = first + chunk + shape.lanes * u + lane
        inside = own < chunks
        made = mixed("chunk", *bytes_of(begin + size * own))
        index = (shift[inside], own[inside])
        wanted.append(Wanted("the copy", (copy + own)[inside], made[inside], index))
    check_writes(written, wanted)


def _byte(place: Any) -> Any:
    """What lies at an address."""
    return mixed("byte", place) & 0xFF
