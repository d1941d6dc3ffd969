"""The copy that goes before a kernel: edges of rows, and chunks that are shifted together."""

from __future__ import annotations

from polygen.emit.leaf.shifting import shift_words
from polygen.emit.leaf.table import INDENT, Text, block, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.realign_work import RowCopy
from polygen.poly.realign_program import CHUNK, CHUNKS, LAST, SOURCES, WHOLE

_LETTERS = "xyzw"  # the words of a chunk in a register of four


@leaf("read_edges", "threads", RowCopy, needs=("row_edge",))
def _(plan: KernelPlan, one: Leaf, work: RowCopy) -> Text:
    words, size = work.words, work.shape.size
    lines = [
        f"row_edge<{work.item}>(head, base, begin, end);",
        f"row_edge<{work.item}>(tail, base + {size}ULL * {LAST}, begin, end);",
    ]
    note = f"{one.statement}: the first and the last {size} bytes that the row touches, by elements"
    return Text(block(*lines), note, (f"unsigned head[{words}], tail[{words}];",))


@leaf("shift_chunks", "threads", RowCopy, (CHUNK,))
def _(plan: KernelPlan, one: Leaf, work: RowCopy) -> Text:
    shape, words, size = work.shape, work.words, work.shape.size
    both = SOURCES * words
    whole = " && ".join(test.format("g") for test in WHOLE)
    parts = ", ".join(
        f"from[u][{words} * h + {at}] = part.{letter}" for at, letter in enumerate(_LETTERS)
    )
    edges = "g == 0 ? head[i] : tail[i]"
    each = [
        "#pragma unroll",
        f"for (int u = 0; u < {shape.together}; ++u)",
        "#pragma unroll",
        f"  for (int h = 0; h < {SOURCES}; ++h) {{",
        f"    const int g = {shape.own} + h;",
    ]
    loads = [
        f"unsigned from[{shape.together}][{both}];",
        *each,  # no branch between the reads, which are on their way together
        "    uint4 part = {};",
        f"    if ({whole}) part = __ldg(reinterpret_cast<const uint4*>(base + {size}ULL * g));",
        f"    {parts};",
        "  }",
        *each,
        f"    if (g == 0 || g == {LAST})",
        "#pragma unroll",
        f"      for (int i = 0; i < {words}; ++i) from[u][{words} * h + i] = {edges};",
        "  }",
    ]
    shifts = shift_words(work.shifts, "from[u]", "shift")
    made = ", ".join(f"words[{at}]" for at in range(words))
    stores = [
        "#pragma unroll",
        f"for (int u = 0; u < {shape.together}; ++u) {{",
        *(line if line.startswith("#") else "  " + line for line in shifts),
        f"  const int own = {shape.own};",
        f"  if (own < {CHUNKS}) reinterpret_cast<uint4*>(to)[own] = make_uint4({made});",
        "}",
    ]
    note = f"{one.statement}: chunks of {size} bytes, {shape.together} of each lane, from {CHUNK}"
    body = "\n".join(line if line.startswith("#") else INDENT + line for line in loads + stores)
    return Text(body, note)
