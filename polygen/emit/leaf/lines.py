"""Panels between shared memory and arrays at any address, by the threads of a warpgroup.

Consecutive threads move consecutive portions of a line, each as wide as the array's alignment
allows. Where a portion reaches beyond the array, its elements go one by one. Lines that begin
anywhere go by chunks of the array, which are shifted on their way (`shifted_lines`).
"""

from __future__ import annotations

from polygen.emit.leaf.line_text import edges, element_type, panel_start, source, stored
from polygen.emit.leaf.shifted_lines import fetch_shifted, store_shifted
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import position
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Line, Lines


def _each_in_a_scope(texts: list[list[str]]) -> list[str]:
    """Lines of several panels: what one of them declares is not known to the next."""
    if len(texts) == 1:
        return texts[0]
    return [line for text in texts for line in ("{", *(f"  {one}" for one in text), "}")]


@leaf("store", "lines", Lines, ("p",), needs=("portions", "panels_out"))
def _(plan: KernelPlan, one: Leaf, work: Lines) -> Text:
    texts = [(store_shifted if line.shifted else _store)(plan, line) for line in work.moved]
    return Text(
        block(*_each_in_a_scope(texts)),
        f"{one.statement}[i,p]: the panel -> memory, a line by consecutive threads",
    )


def _store(plan: KernelPlan, line: Line) -> list[str]:
    size, wide = line.panel.element_bytes, element_type(line.width)
    element, place = element_type(size), position(line.access, "to_row", "to_column")
    at, (row_inside, inside, left) = f"{line.panel.name}_at + {line.place}", edges(plan, line)
    named, known = stored(line, f"{row_inside} && {left} > 0")
    inside, row_inside = (" && ".join([*known, one]) for one in (inside, row_inside))
    lines = [
        *panel_start(plan, line),
        "#pragma unroll 4",
        f"for (int i = {line.share.first}; i < {line.share.end}; ++i) {{",
        *_portion(line),
        *named,
        f"  {element}* const to = ({element}*)({place});",
        f"  const {wide} portion = read_portion<{wide}>({at});",
    ]
    if line.width == size:
        lines.append(f"  if ({inside}) *to = portion;")
    else:
        lines += [
            f"  if ({inside}) *({wide}*)to = portion;",
            f"  else if ({row_inside})",
            f"    for (int e = 0; e < {left}; ++e) "
            f"to[e] = read_portion<{element}>({at} + e * {size});",
        ]
    return [*lines, "}"]


@leaf("fetch", "lines", Lines, ("p",), needs=("portions", "panels_out"))
def _(plan: KernelPlan, one: Leaf, work: Lines) -> Text:
    texts = [(fetch_shifted if line.shifted else _fetch)(plan, line) for line in work.moved]
    return Text(
        block(*_each_in_a_scope(texts)),
        f"{one.statement}[i,p]: memory -> the panel, a line by consecutive threads, zeros outside",
    )


def _fetch(plan: KernelPlan, line: Line) -> list[str]:
    size, wide, share = line.panel.element_bytes, element_type(line.width), line.share
    element = element_type(size)
    batch, (row_inside, inside, left) = line.together, edges(plan, line)
    lines = [
        *panel_start(plan, line),
        "#pragma unroll 1",
        f"for (int j = {share.first}; j < {share.end}; j += {batch}) {{",
        f"  {wide} held[{batch}];",
        "#pragma unroll",
        f"  for (int r = 0; r < {batch}; ++r) {{",
        "    const int i = j + r;",
        *(f"  {text}" for text in _portion(line)),
        f"    const {element}* const from = (const {element}*)({source(plan, line)});",
        "    held[r] = {};",
        f"    if ({inside}) held[r] = __ldg((const {wide}*)from);",
    ]
    if line.width != size:
        lines += [
            f"    else if ({row_inside}) {{",
            f"      {element} part[{share.elements}] = {{}};",
            "#pragma unroll",
            f"      for (int e = 0; e < {share.elements}; ++e) "
            f"if (e < {left}) part[e] = __ldg(from + e);",
            f"      held[r] = joined_portion<{wide}>(part);",
            "    }",
        ]
    return [
        *lines,
        "  }",
        "#pragma unroll",
        f"  for (int r = 0; r < {batch}; ++r) {{",
        "    const int i = j + r;",
        *(f"  {text}" for text in _portion(line)),
        f"    write_portion({line.panel.name}_at + {line.place}, held[r]);",
        "  }",
        "}",
    ]


def _portion(line: Line) -> list[str]:
    """Which one it is: its row and column in the panel, its place in the array."""
    name = line.panel.name
    return [
        f"  const int row = {line.share.row}, column = {line.share.column};",
        f"  const int to_row = {name}_row + row, to_column = {name}_column + column;",
    ]
