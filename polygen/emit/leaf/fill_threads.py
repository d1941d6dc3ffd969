"""Rows at any address -> rings of swizzled tiles, by the threads of the producer.

A chunk of 16 bytes of shared memory lies in two aligned ones of global memory. `get` reads both of
every chunk of a piece into registers, a round of pieces before `put` shifts them into one and
writes it. Where both lie inside the rows that are adjacent in memory they are read whole, else
element by element: nothing outside is read. Rows behind the last are read as the last, and written
as zeros. Of a computed operand `get` reads what its chunks are computed from, and `put` computes
them (`polygen.emit.leaf.computed_chunk`).
"""

from __future__ import annotations

from collections.abc import Callable

from polygen.emit.leaf.computed_chunk import makes, reads
from polygen.emit.leaf.move_cp_async import positions
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import slot_address, walk_lines
from polygen.emit.names import c_name
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.computed import Computed
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Fill, Source

_NEEDS = ("pieces", "cursor")


@leaf("get", "threads", Fill, ("k", "q", "s"), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Fill) -> Text:
    return Text(
        block(*_each(plan, work, lambda source: _read(plan, work, source))),
        f"{one.statement}[i,k,q,s]: piece s of round q, with what lies around it, -> registers",
        (f"unsigned pieces[{work.each}][{work.parts}][{work.words}] = {{}};",),
    )


@leaf("put", "threads", Fill, ("k", "q", "s"), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Fill) -> Text:
    names = ", ".join(f"{s.copy.tensor.name} -> {s.copy.buffer}" for s in work.sources)
    return Text(
        block(*_each(plan, work, lambda source: _write(plan, work, source))),
        f"{one.statement}[i,k,q,s]: {names}, {_done(work)}, zeros outside the arrays; "
        "proved to lie where the copy engine would put it",
    )


def _done(work: Fill) -> str:
    """What threads do to the operands, in words."""
    kinds = {source.copy.computed is not None for source in work.sources}
    words = {False: "shifted into place", True: "computed"}
    return " or ".join(words[kind] for kind in sorted(kinds))


def _each(plan: KernelPlan, work: Fill, lines: Callable[[Source], list[str]]) -> list[str]:
    """The lines of the operand that a piece is of: which one is known where loops are unrolled."""
    found = [
        *walk_lines(plan),
        f"const unsigned own = again(thread % {work.threads});",
        f"const int number = q * {work.each} + s;",
    ]
    for source in work.sources:
        last = source is work.sources[-1]
        test = "" if last else f"if (number < {source.first + source.pieces}) "
        found.append(f"{'} else ' if source is not work.sources[0] else ''}{test}{{")
        first = f" - {source.first}" if source.first else ""
        found.append(f"  const int piece = number{first};")
        found += [line if line.startswith("#") else f"  {line}" for line in lines(source)]
    return [*found, "}"]


def _parts(plan: KernelPlan, work: Fill, source: Source) -> list[str]:
    """The head of a loop over the chunks of a piece: the row and the column of each."""
    c = source.copy
    row_base, column_base, _, columns = positions(plan, c)
    return [
        "#pragma unroll",
        f"for (int e = 0; e < {work.parts}; ++e) {{",
        f"  const int part = piece * {work.parts} + e;",
        f"  const int from_row = {row_base} + {source.row};",
        f"  const int from_column = {column_base} + {source.column};",
        f"  const int left = min({columns} - from_column, {chunk_bytes() // c.element_bytes}) * "
        f"{c.element_bytes};",
    ]


def _is_whole(work: Fill, source: Source) -> bool:
    """Whether all threads have a chunk in every part."""
    return source.pieces * work.parts * work.threads == source.chunks


def _start(source: Source) -> str:
    """The address of the block's matrix."""
    c = source.copy
    return f"(unsigned long long)({' + '.join([c_name(c.tensor.name), *c.base])})"


def _read(plan: KernelPlan, work: Fill, source: Source) -> list[str]:
    c = source.copy
    if c.computed is not None:
        return _read_computed(plan, work, source, c.computed)
    _, _, rows, columns = positions(plan, c)
    size, parts = c.element_bytes, work.parts
    row = [
        *_parts(plan, work, source),
        "  const unsigned long long row = "
        f"start + (long long)min(from_row, {rows} - 1) * {c.stride} * {size};",
        f"  const unsigned long long first = row + (long long)from_column * {size};",
    ]
    return [
        f"const unsigned long long start = {_start(source)};",
        "// Rows without gaps are one range; else every row is one of its own.",
        f"const bool joined = {c.stride} == {columns};",
        f"const long long range = (joined ? (long long){rows} : 1LL) * {columns} * {size};",
        f"unsigned long long at[{parts}];",
        "bool any = false, whole = true;",
        *row,
        "  const unsigned long long low = joined ? start : row, from = "
        f"first & ~{chunk_bytes() - 1}ULL;",
        "  at[e] = from, any = any || left > 0;",
        f"  whole = whole && from >= low && from + {2 * chunk_bytes()} <= low + range;",
        "}",
        "if (!any) return;",
        "if (whole) {",
        "#pragma unroll",
        f"  for (int e = 0; e < {parts}; ++e) read_whole(pieces[s][e], at[e]);",
        "} else {",
        f"  const unsigned own = again(thread % {work.threads});",
        *(line if line.startswith("#") else f"  {line}" for line in row),
        f"    read_edge<{size}>(pieces[s][e], first, left);",
        "  }",
        "}",
    ]


def _read_computed(plan: KernelPlan, work: Fill, source: Source, of: Computed) -> list[str]:
    """Chunks whole where all of a piece are, else what is left of each."""
    c = source.copy
    row_base, column_base, rows, columns = positions(plan, c)
    place = [
        f"  const int part = piece * {work.parts} + p;",
        f"  const int safe_row = min({row_base} + {source.row}, {rows} - 1);",
        f"  const int from_column = {column_base} + {source.column};",
    ]
    head = ["#pragma unroll", f"for (int p = 0; p < {work.parts}; ++p) {{", *place]
    words = "pieces[s][p]"
    part = f"piece * {work.parts}"
    return [
        "bool whole = true;",
        "#pragma unroll",
        f"for (int part = {part}; part < {part} + {work.parts}; ++part) "
        f"whole = whole && {column_base} + {source.column} + {of.elements} <= {columns};",
        "if (whole) {",
        *_indented([*head, *_indented(reads(of, words, "safe_row", "from_column")), "}"]),
        "} else {",
        *_indented(
            [
                f"const unsigned own = again(thread % {work.threads});",
                *head,
                f"  const int left = {columns} - from_column;",
                *_indented(reads(of, words, "safe_row", "from_column", "left")),
                "}",
            ]
        ),
        "}",
    ]


def _indented(lines: list[str]) -> list[str]:
    return [line if line.startswith("#") else f"  {line}" for line in lines]


def _write_computed(
    plan: KernelPlan, work: Fill, source: Source, of: Computed, to: str
) -> list[str]:
    c = source.copy
    row_base, column_base, rows, columns = positions(plan, c)
    own = makes(
        of, "pieces[s][p]", "from_row", "from_column", f"{to} + {source.place}",
        f"(from_row < {rows} ? {columns} - from_column : 0)", rounded=True,
    )  # fmt: skip
    if not _is_whole(work, source):
        own = [f"if (part * {work.threads} + own < {source.chunks}) {{", *_indented(own), "}"]
    return [
        "#pragma unroll",
        f"for (int p = 0; p < {work.parts}; ++p) {{",
        f"  const int part = piece * {work.parts} + p;",
        f"  const int from_row = {row_base} + {source.row};",
        f"  const int from_column = {column_base} + {source.column};",
        *_indented(own),
        "}",
    ]


def _write(plan: KernelPlan, work: Fill, source: Source) -> list[str]:
    c = source.copy
    size = c.element_bytes
    _, _, rows, _ = positions(plan, c)
    to = slot_address(plan.buffer(c.buffer), f"{work.counter}.slot")
    if c.computed is not None:
        return _write_computed(plan, work, source, c.computed, to)
    guard, rounded = "", "true" if c.tensor.dtype.name == "tf32" else "false"
    if not _is_whole(work, source):
        guard = f"if (part * {work.threads} + own < {source.chunks}) "
    return [
        *_parts(plan, work, source),
        f"  const unsigned at = (unsigned){_start(source)} + "
        f"((unsigned)min(from_row, {rows} - 1) * (unsigned){c.stride} + "
        f"(unsigned)from_column) * {size};",
        f"  {guard}write_chunk<{source.alignment}, {rounded}>({to} + {source.place}, pieces[s][e], "
        f"at % {chunk_bytes()}, from_row < {rows} ? left : 0);",
        "}",
    ]
