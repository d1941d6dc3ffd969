"""Panels between shared memory and arrays at any address, by the threads of a warpgroup.

Consecutive threads move consecutive portions of a line, each as wide as the array's alignment
allows. Where a portion reaches beyond the array, its elements go one by one.
"""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import extent_names, position, slot_address, stored_row
from polygen.hardware.matrix_layout import span_swizzle
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Line, Lines, Read, Write

_IN_FLIGHT = 8  # registers of a thread with reads that are on their way together
_WORD_BYTES = 4


@leaf("store", "lines", Lines, ("p",), needs=("portions", "panels_out"))
def _(plan: KernelPlan, one: Leaf, work: Lines) -> Text:
    lines: list[str] = []
    for line in work.moved:
        size, wide = line.panel.element_bytes, _type(line.width)
        inside, at, row_inside = _inside(plan, line), _address(line), _row_inside(plan)
        access, named = line.access, []
        if isinstance(access, Write) and access.by_index is not None:
            stored = stored_row(access, "to_row", "to_column")
            both = f"{row_inside} && {_left(plan)} > 0"
            named = [f"  const int {access.name}_stored = {both} ? {stored} : -1;"]
            inside, row_inside = (
                f"{access.name}_stored >= 0 && {one}" for one in (inside, row_inside)
            )
        lines += [
            *_head(plan, work, line),
            f"for (int i = 0; i < {_count(work, line)}; ++i) {{",
            *_portion(work, line),
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
                f"    for (int e = 0; e < {_left(plan)}; ++e) "
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
        size, wide, count = line.panel.element_bytes, _type(line.width), _count(work, line)
        batch = min(count, _IN_FLIGHT // max(1, line.width // _WORD_BYTES))
        lines += [
            *_head(plan, work, line, unrolled=False),
            f"for (int j = 0; j < {count}; j += {batch}) {{",
            f"  {wide} held[{batch}];",
            "#pragma unroll",
            f"  for (int r = 0; r < {batch}; ++r) {{",
            "    const int i = j + r;",
            *(f"  {text}" for text in _portion(work, line)),
            f"    const {_type(size)}* const from = (const {_type(size)}*)({_source(plan, line)});",
            "    held[r] = {};",
            f"    if ({_inside(plan, line)}) held[r] = __ldg((const {wide}*)from);",
        ]
        if line.width != size:
            lines += [
                f"    else if ({_row_inside(plan)}) {{",
                f"      {_type(size)} part[{line.width // size}] = {{}};",
                "#pragma unroll",
                f"      for (int e = 0; e < {line.width // size}; ++e) "
                f"if (e < {_left(plan)}) part[e] = __ldg(from + e);",
                f"      held[r] = joined_portion<{wide}>(part);",
                "    }",
            ]
        lines += [
            "  }",
            "#pragma unroll",
            f"  for (int r = 0; r < {batch}; ++r) {{",
            "    const int i = j + r;",
            *(f"  {text}" for text in _portion(work, line)),
            f"    write_portion({_address(line)}, held[r]);",
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


def _head(plan: KernelPlan, work: Lines, line: Line, *, unrolled: bool = True) -> list[str]:
    """Where the panel is in shared memory and in the array."""
    name = line.panel.name
    at = slot_address(plan.buffer(line.panel.buffer), line.panel.slot, "group")
    return [
        f"const unsigned {name}_at = {at};",
        f"const int {name}_row = {line.row}, {name}_column = {line.column};",
        "#pragma unroll" + (" 4" if unrolled else " 1"),
    ]


def _count(work: Lines, line: Line) -> int:
    """Portions of every thread."""
    return line.panel.bytes // line.width // work.threads


def _portion(work: Lines, line: Line) -> list[str]:
    """Which one it is: its row, column and first byte in the panel, its place in the array."""
    panel, elements = line.panel, line.width // line.panel.element_bytes
    number = f"(i * {work.threads} + thread % {work.threads})"
    per_line = panel.columns // elements if line.along == "n" else panel.rows
    outer, inner = f"{number} / {per_line}", f"{number} % {per_line}"
    inner += f" * {elements}" if elements > 1 else ""
    row, column = (outer, inner) if line.along == "n" else (inner, outer)
    name = panel.name
    return [
        f"  const int row = {row}, column = {column};",
        f"  const int to_row = {name}_row + row, to_column = {name}_column + column;",
    ]


def _address(line: Line) -> str:
    """Of a portion in shared memory, by the swizzle of its panel."""
    panel, size = line.panel, chunk_bytes()
    swizzle = span_swizzle(panel.span)
    per_box = panel.span // panel.element_bytes
    inside = "column" if panel.boxes == 1 else f"column % {per_box}"
    byte = f"{inside} * {panel.element_bytes}"
    spread = f"(row >> {swizzle.shift} & {swizzle.mask})"
    box = "" if panel.boxes == 1 else f"column / {per_box} * {panel.rows * panel.span} + "
    return (
        f"{panel.name}_at + {box}row * {panel.span} + "
        f"(({byte} / {size} ^ {spread}) * {size} + {byte} % {size})"
    )


def _row_inside(plan: KernelPlan) -> str:
    return f"to_row < {extent_names(plan)['m']}"


def _left(plan: KernelPlan) -> str:
    return f"{extent_names(plan)['n']} - to_column"


def _inside(plan: KernelPlan, line: Line) -> str:
    elements = line.width // line.panel.element_bytes
    end = f"to_column + {elements} <=" if elements > 1 else "to_column <"
    return f"{_row_inside(plan)} && {end} {extent_names(plan)['n']}"
