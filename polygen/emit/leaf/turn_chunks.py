"""The launch before a kernel: chunks of an operand that it copies with its axes in another order.

A lane has a chunk of a row, and reads its elements one by one, a step apart; what lanes with chunks
of neighbouring rows read at a time are neighbours. All reads of a chunk are on their way at once,
and it is written whole, with zeros behind the end of the row. Elements are moved as they are
stored.
"""

from __future__ import annotations

from polygen.emit.leaf.computed_chunk import address
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import size_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.realign_work import WORD, RowMake
from polygen.poly.realign_program import CHUNK, CHUNKS, ROWS
from polygen.poly.turn_program import TurnShape


@leaf("turn_chunks", "threads", RowMake, (CHUNK,), needs=("chunks",))
def _(plan: KernelPlan, one: Leaf, work: RowMake) -> Text:
    (fetch,) = work.computed.fetches
    shape, size, count = work.shape, work.tensor.dtype.bytes, work.computed.elements
    assert isinstance(shape, TurnShape)
    words, per = shape.size // WORD, WORD // size
    place = "words[e]" if per == 1 else f"words[e / {per}]"
    shift = "" if per == 1 else f" << e % {per} * {8 * size}"
    made = ", ".join(f"words[{at}]" for at in range(words))
    lines = [
        f"const int own = {shape.own};",
        f"if (own < {CHUNKS} && {shape.lane_row} < {ROWS}) {{",
        f"  unsigned words[{words}] = {{}};",
        "#pragma unroll",
        f"  for (int e = 0; e < {count}; ++e) {{",
        f"    const int column = own * {count} + e;",
        f"    if (column < {size_name(work.length)})",
        f"      {place} |= read_one<{size}>({address(fetch, 'row', 'column')}){shift};",
        "  }",
        f"  reinterpret_cast<uint4*>(to)[own] = make_uint4({made});",
        "}",
    ]
    note = (
        f"{one.statement}: a chunk of each lane's row of {work.tensor.name}, which is "
        f"{fetch.tensor.name} with its axes in another order; zeros behind the end of a row"
    )
    return Text(block(*lines), note)
