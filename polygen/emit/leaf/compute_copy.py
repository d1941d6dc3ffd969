"""A tile of a computed operand -> its ring, by all threads: read and computed a chunk at a time."""

from __future__ import annotations

from polygen.emit.leaf.computed_chunk import makes, reads
from polygen.emit.leaf.move_cp_async import in_passes, pieces, place_line, positions
from polygen.emit.leaf.table import Text, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Copy

_UNROLLED = " 2"  # passes: each reads in the background of the other


@leaf("compute_copy", "threads", Copy, ("k", "p"), needs=("pack", "chunks", "computed", "places"))
def _(plan: KernelPlan, one: Leaf, c: Copy) -> Text:
    assert c.computed is not None
    of, elements = c.computed, c.computed.elements
    row_base, column_base, rows, columns = positions(plan, c)
    body = [
        f"const int piece = {pieces(c).piece};",
        place_line(pieces(c)),
        f"const int from_row = {row_base} + row, from_column = {column_base} + column;",
        f"const int safe_row = min(from_row, {rows} - 1);",
        f"const int left = from_row < {rows} ? {columns} - from_column : 0;",
        f"unsigned held[{max(1, of.words)}];",
        f"if (left >= {elements}) {{",
        *(f"  {line}" for line in reads(of, "held", "safe_row", "from_column")),
        "} else {",
        *(f"  {line}" for line in reads(of, "held", "safe_row", "from_column", "left")),
        "}",
        *makes(
            of, "held", "from_row", "from_column",
            f"slot + place_{c.buffer}(row, column * {c.element_bytes})", "left", rounded=False,
        ),
    ]  # fmt: skip
    text = in_passes(plan, one, c, [], body, _UNROLLED)
    names = ", ".join(dict.fromkeys(fetch.tensor.name for fetch in of.fetches))
    return Text(text.body, f"{text.comment}; computed from {names or 'coordinates'}")
