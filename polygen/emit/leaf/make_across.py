"""The launch before a kernel: chunks of an operand that it makes of what lies across its rows.

A lane has a chunk of a row, and reads what it is computed from, element by element, a step apart;
what lanes with chunks of neighbouring rows read at a time are neighbours. It is computed and
written as where a lane's chunks lie beside each other (`polygen.emit.leaf.make_chunks`).
"""

from __future__ import annotations

from polygen.emit.leaf.computed_chunk import reads
from polygen.emit.leaf.make_chunks import made_chunk
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import size_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.realign_work import RowMake
from polygen.poly.realign_program import CHUNK, CHUNKS, ROWS
from polygen.poly.turn_program import TurnShape


@leaf("make_across", "threads", RowMake, (CHUNK,), needs=("store_computed",))
def _(plan: KernelPlan, one: Leaf, work: RowMake) -> Text:
    of, shape, length = work.computed, work.shape, size_name(work.length)
    assert isinstance(shape, TurnShape)
    inside = [
        f"const int from_column = own * {of.elements}, left = {length} - from_column;",
        f"unsigned held[{max(of.words, 1)}] = {{}};",
        f"if (left >= {of.elements}) {{",
        *reads(of, "held", "row", "from_column"),
        "} else {",
        *reads(of, "held", "row", "from_column", "left"),
        "}",
        *made_chunk(plan, work, "held", "left"),
    ]
    lines = [
        f"const int own = {shape.own};",
        f"if (own < {CHUNKS} && {shape.lane_row} < {ROWS}) {{",
        *(line if line.startswith("#") else f"  {line}" for line in inside),
        "}",
    ]
    note = (
        f"{one.statement}: a chunk of each lane's row of {work.tensor.name}, from {CHUNK}, made "
        "of what lies across its rows; zeros behind the end of a row"
    )
    return Text(block(*lines), note)
