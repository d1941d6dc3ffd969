"""A tile of one operand -> registers of all threads, and from there -> its ring, in two leaves.

Every thread holds chunks of 16 bytes of the tile, which lie in shared memory where its number says.
A chunk is read in accesses as wide as the rows' alignment allows, element by element where a row
ends inside it; what lies outside the array is zeros. Products run between the two leaves.
"""

from __future__ import annotations

from polygen.emit.leaf.move_cp_async import (
    chunk_source,
    pieces,
    place_line,
    positions,
    row_inside,
)
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import c_type, slot_address, walk_lines
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Copy, chunk_passes


@leaf("fetch_chunks", "threads", Copy, ("k",), needs=("chunks",))
def _(plan: KernelPlan, one: Leaf, c: Copy) -> Text:
    row_base, column_base, rows, columns = positions(plan, c)
    elements, size = chunk_bytes() // c.element_bytes, c.element_bytes
    words = f"{c.staging}[i]"
    spaced = f"read_spaced<4, {size}>({words}, from, {_step(c)}, left);"
    inside = row_inside(c, "from_row", "from_column")
    body = [
        *_piece(c),
        f"const int from_row = {row_base} + row, from_column = {column_base} + column;",
        f"const int left = from_row < {rows}{inside} ? {columns} - from_column : 0;",
        f"const {c_type(c.tensor.dtype)}* from = {chunk_source(c, 'from_row', 'from_column')};",
    ]
    if c.spread == "1":
        body += [
            f"if (left >= {elements}) read_run<{chunk_bytes()}, {c.width}>({words}, from);",
            f"else {_zeros(words) if c.in_whole_pieces else spaced}",
        ]
    else:
        body += [spaced]
    passes = chunk_passes(c, plan.launch.threads)
    ranges = f"{c.tile} of {c.role} x {c.tile_k} of k"
    walked = block(*walk_lines(plan)) + "\n" if plan.match.sums else ""
    return Text(
        walked + _loop(c, body),
        f"{one.statement}[k,p]: {c.tensor.name}, {ranges} -> registers, "
        f"{chunk_bytes()} bytes at a time, zeros beyond it",
        (f"unsigned {c.staging}[{passes}][4];",),
    )


@leaf("write_chunks", "threads", Copy, ("k",), needs=("staged", "places"))
def _(plan: KernelPlan, one: Leaf, c: Copy) -> Text:
    buffer = plan.buffer(c.buffer)
    body = [
        *_piece(c),
        f"write_held(slot + place_{c.buffer}(row, column * {c.element_bytes}), {c.staging}[i]);",
    ]
    slot = f"  const unsigned slot = {slot_address(buffer, f'(k % {buffer.slots})')};\n"
    return Text(
        slot + _loop(c, body),
        f"{one.statement}[k,p]: registers -> {c.buffer}[k % {buffer.slots}]",
    )


def _piece(c: Copy) -> list[str]:
    """Row and first element of a thread's i-th chunk; threads beyond the tile have none."""
    share = pieces(c)
    lines = [f"const int piece = {share.piece};"]
    if share.beyond:
        lines.append(f"if ({share.beyond}) break;")
    return [*lines, place_line(share)]


def _loop(c: Copy, body: list[str]) -> str:
    """Over a thread's chunks, unrolled: registers have no index."""
    share = pieces(c)
    head = ["#pragma unroll", f"for (int i = {share.first}; i < {share.end}; ++i) {{"]
    return block(*head, *(f"  {line}" for line in body), "}").replace("  #pragma", "#pragma")


def _step(c: Copy) -> str:
    """Bytes from an element of a row to the next."""
    return str(c.element_bytes) if c.spread == "1" else f"{c.element_bytes}LL * {c.spread}"


def _zeros(words: str) -> str:
    return f"{words}[0] = {words}[1] = {words}[2] = {words}[3] = 0;"
