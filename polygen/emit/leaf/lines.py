"""Panels between shared memory and arrays at any address, by the threads of a warpgroup.

Consecutive threads move consecutive portions of a line, each as wide as the array's alignment
allows. Where a portion reaches beyond the array, its elements go one by one.
"""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import extent_names, position, slot_address, stored_row
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Line, Lines, Read, Write
from polygen.lower.shares import edge


@leaf("store", "lines", Lines, ("p",), needs=("portions", "panels_out"))
def _(plan: KernelPlan, one: Leaf, work: Lines) -> Text:
    lines: list[str] = []
    for line in work.moved:
        size, wide = line.panel.element_bytes, _type(line.width)
        at, row_inside, inside, left = (f"{line.panel.name}_at + {line.place}", *_edge(plan, line))
        access, named = line.access, []
        if isinstance(access, Write) and access.by_index is not None:
            stored = stored_row(access, "to_row", "to_column")
            both = f"{row_inside} && {left} > 0"
            named = [f"  const int {access.name}_stored = {both} ? {stored} : -1;"]
            inside, row_inside = (
                f"{access.name}_stored >= 0 && {one}" for one in (inside, row_inside)
            )
        lines += [
            *_head(plan, line),
            f"for (int i = {line.share.first}; i < {line.share.end}; ++i) {{",
            *_portion(line),
            *named,
            f"  {_type(size)}* const to = "
            f"({_type(size)}*)({position(line.access, 'to_row', 'to_column')});",
            f"  const {wide} portion = read_portion<{wide}>({at});",
        ]
        if line.width == size:
            lines.append(f"  if ({inside}) *to = portion;")
        else:
            lines += [
                f"  if ({inside}) *({wide}*)to = portion;",
                f"  else if ({row_inside})",
                f"    for (int e = 0; e < {left}; ++e) "
                f"to[e] = read_portion<{_type(size)}>({at} + e * {size});",
            ]
        lines += ["}"]
    return Text(
        block(*lines),
        f"{one.statement}[i,p]: the panel -> memory, a line by consecutive threads",
    )


@leaf("fetch", "lines", Lines, ("p",), needs=("portions", "panels_out"))
def _(plan: KernelPlan, one: Leaf, work: Lines) -> Text:
    lines: list[str] = []
    for line in work.moved:
        size, wide, share = line.panel.element_bytes, _type(line.width), line.share
        batch, (row_inside, inside, left) = line.together, _edge(plan, line)
        lines += [
            *_head(plan, line, unrolled=False),
            f"for (int j = {share.first}; j < {share.end}; j += {batch}) {{",
            f"  {wide} held[{batch}];",
            "#pragma unroll",
            f"  for (int r = 0; r < {batch}; ++r) {{",
            "    const int i = j + r;",
            *(f"  {text}" for text in _portion(line)),
            f"    const {_type(size)}* const from = (const {_type(size)}*)({_source(plan, line)});",
            "    held[r] = {};",
            f"    if ({inside}) held[r] = __ldg((const {wide}*)from);",
        ]
        if line.width != size:
            lines += [
                f"    else if ({row_inside}) {{",
                f"      {_type(size)} part[{share.elements}] = {{}};",
                "#pragma unroll",
                f"      for (int e = 0; e < {share.elements}; ++e) "
                f"if (e < {left}) part[e] = __ldg(from + e);",
                f"      held[r] = joined_portion<{wide}>(part);",
                "    }",
            ]
        lines += [
            "  }",
            "#pragma unroll",
            f"  for (int r = 0; r < {batch}; ++r) {{",
            "    const int i = j + r;",
            *(f"  {text}" for text in _portion(line)),
            f"    write_portion({line.panel.name}_at + {line.place}, held[r]);",
            "  }",
            "}",
        ]
    return Text(
        block(*lines),
        f"{one.statement}[i,p]: memory -> the panel, a line by consecutive threads, zeros outside",
    )


def _source(plan: KernelPlan, line: Line) -> str:
    """Where a portion is read: behind the end of rows by index, where the last one's would be."""
    access, ends = line.access, extent_names(plan)
    by_index = access.rows if isinstance(access, Read) else (None, None)
    row = "to_row" if by_index[0] is None else f"min(to_row, {ends['m']} - 1)"
    column = "to_column" if by_index[1] is None else f"min(to_column, {ends['n']} - 1)"
    return position(access, row, column)


def _type(size: int) -> str:
    return {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}[size]


def _head(plan: KernelPlan, line: Line, *, unrolled: bool = True) -> list[str]:
    """Where the panel is in shared memory and in the array."""
    name = line.panel.name
    at = slot_address(plan.buffer(line.panel.buffer), line.panel.slot, "group")
    return [
        f"const unsigned {name}_at = {at};",
        f"const int {name}_row = {line.row}, {name}_column = {line.column};",
        "#pragma unroll" + (" 4" if unrolled else " 1"),
    ]


def _portion(line: Line) -> list[str]:
    """Which one it is: its row and column in the panel, its place in the array."""
    name = line.panel.name
    return [
        f"  const int row = {line.share.row}, column = {line.share.column};",
        f"  const int to_row = {name}_row + row, to_column = {name}_column + column;",
    ]


def _edge(plan: KernelPlan, line: Line) -> tuple[str, str, str]:
    """Whether a portion's row is inside of the array, the whole portion too, and what is left."""
    of, extents = edge(line.share.elements, "to_row", "to_column"), extent_names(plan)
    row, whole, left = (one.format(**extents) for one in (of.row, of.whole, of.left))
    return row, f"{row} && {whole}", left
