"""Sums in registers -> pointwise functions -> panels that the copy engine writes.

A thread holds, of a panel, pairs of adjacent columns in two rows of every group of columns: index
[j][half] below. Where they are in a panel is the plan's (`polygen.lower.lanes`): a base address,
and bytes to XOR for every j.
"""

from __future__ import annotations

from polygen.emit.element_types import of_word
from polygen.emit.leaf.elements import combined_at, epilogue_type, outcomes
from polygen.emit.leaf.table import Text, block, filled, leaf
from polygen.emit.leaves import (
    c_type,
    coordinate,
    coordinates,
    element_of,
    extent_names,
    if_stored,
    pair_of_sums,
    position,
    slot_address,
)
from polygen.emit.names import c_name
from polygen.lower.epilogue import column_reads
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Finish, Panel, Read, Store, Visits, Warm, Write
from polygen.poly.match import Along

_WORD_BYTES = 4
_PAIRS = {1: "unsigned short", 2: "unsigned"}  # what holds two elements, by their size


@leaf("prepare", "cache", Warm)
def _(plan: KernelPlan, one: Leaf, work: Warm) -> Text:
    return _columns_near(plan, one, work)


def _columns_near(plan: KernelPlan, one: Leaf, work: Warm) -> Text:
    """Touches the lines of operands with one value per column."""
    own, lines = f"thread % {work.threads}", []
    for visits in work.vectors:  # touch every line of the warpgroup's slice once
        lines.append(f"if ({own} < {visits.count}) warm({_visited(plan, work, visits, own)});")
    comment = (
        f"{one.statement}[i]: operands with one value per column are near "
        "by the time the sums are complete"
    )
    return Text(block(*lines), comment)


def _visited(plan: KernelPlan, work: Warm, visits: Visits, number: str) -> str:
    """The address of a visit, the last row or column instead of one behind it."""
    extents, row = extent_names(plan), "0"
    column = f"min({work.column} + {visits.column.format(number)}, {extents['n']} - 1)"
    if visits.read.m:
        row = f"min({work.row} + {visits.row.format(number)}, {extents['m']} - 1)"
    return position(visits.read, row, column)


@leaf("prepare_rows", "cache", Warm, needs=("near",))
def _(plan: KernelPlan, one: Leaf, work: Warm) -> Text:
    threads = work.threads
    lines = []
    for visits in work.matrices:  # not unrolled: sums are about to need the registers
        lines += [
            "#pragma unroll 1",
            f"for (int at = thread % {threads}; at < {visits.count}; at += {threads}) "
            f"near({_visited(plan, work, visits, 'at')});",
        ]
    text = _columns_near(plan, one, work)
    comment = f"{text.comment}, and matrices that threads read from memory"
    return Text("\n".join(part for part in (text.body, block(*lines)) if part), comment)


@leaf("finish", "threads", Finish, ("p",), needs=("panels_out",))
def _(plan: KernelPlan, one: Leaf, work: Finish) -> Text:
    extents, reads, panel = extent_names(plan), work.epilogue.reads, work.results[0]
    rows, columns = [r for r in reads if r.kind == "row"], column_reads(work)
    record = {
        "per_block": plan.tiles.columns // panel.columns,
        "columns": panel.columns,
        "blocks": _blocks(plan, panel),
        "group_columns": plan.atom.n,
        "column": work.column,
        "lane_column": work.lane_column,
        "n_extent": extents["n"],
        "prelude": _prelude(plan, rows, columns, work),
        "by_column": bool(columns or work.beside)
        or bool(work.epilogue.folds)
        or "n" in {a.dim for _, a in work.epilogue.coordinates},
        "column_places": _column_places(work) + _ends(work, extents),
        "columns_read": [line for r in columns for line in _column_read(r)],
        "columns_clamped": [line for r in columns for line in _column_clamped(r)],
        "panels": [line for p in work.operands for line in _panel_read(plan, p)]
        + [line for p in work.results for line in _result_declared(plan, p)],
        "compute": _compute(plan, work),
        "written": [line for p in work.results for line in _panel_written(plan, p)],
    }
    comment = (
        f"{one.statement}[i,p]: {work.operands[0].rows if work.operands else work.results[0].rows} "
        f"rows by {panel.columns} columns of sums -> pointwise functions -> a panel of results"
    )
    return Text(filled("finish_threads", record), comment)


def _blocks(plan: KernelPlan, panel: Panel) -> int:
    """Groups of columns of one panel."""
    return panel.columns // plan.atom.n


def _prelude(plan: KernelPlan, rows: list[Read], columns: list[Read], work: Finish) -> list[str]:
    """Operands with one value per row, and room for those with one per column."""
    half_rows, m_extent = plan.atom.c.half_rows, extent_names(plan)["m"]
    places = [(name, a) for name, a in work.epilogue.coordinates if a.dim != "n"]
    by_row = bool(rows or work.beside or work.epilogue.folds) or "m" in {a.dim for _, a in places}
    lines = [f"made({total}[block]);" for total in _made_in_flight(plan, work)]
    lines += [f"const int first_row = {work.first_row};"] if by_row else []
    for name, along in places:
        both = [coordinate(along, row, "") for row in ("first_row", f"first_row + {half_rows}")]
        lines.append(f"const float {name}_element[2] = {{{', '.join(both)}}};")
    for read in rows:
        kind = epilogue_type(read.tensor)
        at = [f"min(first_row + {h}, {m_extent} - 1)" for h in (0, half_rows)]
        values = [element_of(read, kind, row, "0") for row in at]
        lines.append(f"const float {read.name}_element[2] = {{{', '.join(values)}}};")
    return lines + [_column_room(read, _blocks(plan, work.results[0])) for read in columns]


def _made_in_flight(plan: KernelPlan, work: Finish) -> list[str]:
    """Sums of a chain: what is done with them stands behind the wait for the last product."""
    states = dict(work.states)
    sums = [total for _, total in work.epilogue.sums if total not in states]
    return sums if plan.chained is not None else []


def _ends(work: Finish, extents: dict[str, str]) -> list[str]:
    """Where terms end that are folded: what lies outside the matrix is none."""
    if not work.epilogue.folds:
        return []
    return [
        f"const int fold_rows = {extents['m']} - first_row, "
        f"fold_columns = {extents['n']} - first_column;"
    ]


def _folded(plan: KernelPlan, work: Finish) -> list[str]:
    """Terms of the two elements of pair [j][half] combined into the registers of their parts."""
    lines = []
    for e in range(2):
        inside = f"half * {plan.atom.c.half_rows} < fold_rows && "
        inside += f"j * {plan.atom.n} + {e} < fold_columns"
        instruction = {"m": "block", "n": "(first_block + j)", "": "0"}
        places = [
            f"[{instruction[fold.along]}][{_slot(fold.slots[e], fold.slots[2 + e])}]"
            f"[{_slot(fold.turns[e], fold.turns[2 + e])}]"
            for fold in work.epilogue.folds
        ]
        lines.append(f"if ({inside}) {{")
        lines += [f"  {line}" for line in combined_at(work.epilogue.folds, places, e)]
        lines.append("}")
    return lines


def _slot(first: int, second: int) -> str:
    """The place of an element among its thread's, of its first row and of its second."""
    return str(first) if first == second else f"(half ? {second} : {first})"


def _column_places(work: Finish) -> list[str]:
    """Coordinates along n, of a lane's first column."""
    return [
        f"const float {name}_first = {coordinate(along, '', 'first_column')};"
        for name, along in work.epilogue.coordinates
        if along.dim == "n" and not along.of_digits
    ]


def _place(name: str, along: Along, group_columns: int, e: int) -> str:
    """A coordinate of element e of pair [j][half]."""
    if along.dim != "n":
        return f"{name}_element[half]"
    if along.of_digits:
        return coordinate(along, "", "first_column", f"j * {group_columns} + {e}")
    return f"{name}_first + {along.scale} * (j * {group_columns} + {e})"


def _column_room(read: Read, blocks: int) -> str:
    """Two adjacent elements for every group of columns: a word, where they have 16 bits.

    Whether the panel lies inside the array or at its edge, words are taken apart in one place.
    """
    if read.tensor.dtype.bytes < _WORD_BYTES:
        return f"unsigned {read.name}_words[{blocks}];"
    return f"float {read.name}_values[{blocks}][2];"


def _column_read(read: Read) -> list[str]:
    """Two adjacent elements, in one access where alignment allows."""
    size, name = read.tensor.dtype.bytes, read.name
    if read.kind != "vector" or read.width < 2 * size:
        return _column_pair(read, "column", "(column + 1)")
    pointer = position(read, "0", "column")
    if size < _WORD_BYTES:
        pair = _PAIRS[size]
        return [f"{name}_words[j] = __ldg(reinterpret_cast<const {pair}*>({pointer}));"]
    return [
        f"const uint2 {name}_words = __ldg(reinterpret_cast<const uint2*>({pointer}));",
        f"{name}_values[j][0] = {of_word(read.tensor.dtype, f'{name}_words.x')};",
        f"{name}_values[j][1] = {of_word(read.tensor.dtype, f'{name}_words.y')};",
    ]


def _column_clamped(read: Read) -> list[str]:
    """The same at the edge: what lies outside is read from the last column, and not stored."""
    return _column_pair(read, "low", "high")


def _column_pair(read: Read, *columns: str) -> list[str]:
    """Two elements, each by itself."""
    if read.shared:
        low, high = (element_of(read, "f32", "0", column) for column in columns)
    else:
        low, high = (f"__ldg({position(read, '0', column)})" for column in columns)
    size = read.tensor.dtype.bytes
    if size < _WORD_BYTES:
        if size == 1:
            low, high = f"(unsigned char){low}", f"(unsigned char){high}"
        return [f"{read.name}_words[j] = {low} | (unsigned){high} << {8 * size};"]
    return [f"{read.name}_values[j][{e}] = {value};" for e, value in enumerate((low, high))]


# --- panels --------------------------------------------------------------------------------------
def _base(plan: KernelPlan, panel: Panel) -> str:
    """Declares the address of a lane's first access."""
    at = slot_address(plan.buffer(panel.buffer), panel.slot, "group")
    return f"const unsigned {panel.name}_at = {at} + {panel.address};"


def _pair_at(panel: Panel) -> str:
    """The address of pair [j][half], where pairs go one by one."""
    per_box, group = panel.step
    box = f" + j / {per_box} * {panel.rows * panel.span}" if panel.boxes > 1 else ""
    base = f"({panel.name}_at ^ j % {per_box} * {group})"
    return f"{base}{box} + half * {panel.half_bytes}"


def _matrices(function: str, plan: KernelPlan, panel: Panel) -> list[str]:
    """All words [j][half] of 16-bit pairs, two groups of columns with both halves at a time."""
    name, shift = panel.name, panel.step[1].bit_length() - 1
    words = ", ".join(f"{name}_words[j + {j}][{h}]" for j in range(2) for h in range(2))
    call = f"{function}({name}_at ^ j << {shift}, {words});"
    return ["#pragma unroll", f"for (int j = 0; j < {_blocks(plan, panel)}; j += 2) {call}"]


def _panel_read(plan: KernelPlan, panel: Panel) -> list[str]:
    name, blocks = panel.name, _blocks(plan, panel)
    if panel.element_bytes == 2:
        words = f"unsigned {name}_words[{blocks}][2];"
        return [words, _base(plan, panel), *_matrices("matrices_read", plan, panel)]
    if panel.element_bytes == 1:
        return [
            f"unsigned {name}_words[{blocks}][2];",
            _base(plan, panel),
            "#pragma unroll",
            f"for (int j = 0; j < {blocks}; ++j)",
            "#pragma unroll",
            f"  for (int half = 0; half < 2; ++half) {name}_words[j][half] = "
            f"two_read({_pair_at(panel)});",
        ]
    return [
        f"unsigned {name}_words[{blocks}][2][2];",
        _base(plan, panel),
        "#pragma unroll",
        f"for (int j = 0; j < {blocks}; ++j)",
        "#pragma unroll",
        f"  for (int half = 0; half < 2; ++half) pair_read({_pair_at(panel)}, "
        f"{name}_words[j][half][0], {name}_words[j][half][1]);",
    ]


def _result_declared(plan: KernelPlan, panel: Panel) -> list[str]:
    """Where results go, and room for packed ones."""
    lines = [_base(plan, panel)]
    if panel.element_bytes == 2:
        lines.append(f"unsigned {panel.name}_words[{_blocks(plan, panel)}][2];")
    return lines


def _compute(plan: KernelPlan, work: Finish) -> list[str]:
    """The fused program on the two adjacent elements of pair [j][half]."""
    operands = {panel.name: panel for panel in work.operands}
    terms = outcomes(work.epilogue)[len(work.epilogue.writes) :]
    written = [write.name for write in work.epilogue.writes]
    lines = [f"float {name}_out[2];" for name in (*written, *terms)]
    states = dict(work.states)
    pairs = [
        (f"{states[total]}[block][half]",) * 2
        if total in states
        else pair_of_sums(
            plan.atom.c.dtype,
            f"{total}[block][first_block + j]",
            ("2 * half + 0", "2 * half + 1"),
            "half",
        )
        for _, total in work.epilogue.sums
    ]
    for e in range(2):
        arguments = [pair[e] for pair in pairs]
        arguments += [_element(read, operands, e) for read in work.epilogue.reads]
        arguments += [_place(name, at, plan.atom.n, e) for name, at in work.epilogue.coordinates]
        arguments += [
            f"{fold.known}[block][{_slot(fold.slots[0], fold.slots[2])}]"
            for fold in work.epilogue.known
        ]
        arguments += [f"{name}_out[{e}]" for name in written]
        arguments += [f"{name}_out[{e}]" for name in terms]
        lines.append(f"compute({', '.join(arguments)});")
    for panel in work.results:
        name, out = panel.name, f"{panel.name}_out"
        if panel.element_bytes == 2:
            kind = epilogue_type(panel.tensor)
            lines.append(f"{name}_words[j][half] = pack_{kind}({out}[0], {out}[1]);")
        elif panel.element_bytes == 1:
            both = f"two_to_{epilogue_type(panel.tensor)}({out}[0], {out}[1])"
            lines.append(f"two_write({_pair_at(panel)}, {both});")
        else:
            lines.append(f"pair_write({_pair_at(panel)}, {out}[0], {out}[1]);")
    lines += [_row_stored(plan, work, write) for write in work.beside]
    return [*lines, *(_folded(plan, work) if work.epilogue.folds else [])]


def _row_stored(plan: KernelPlan, work: Finish, write: Write) -> str:
    """A result of rows leaves the lane that has the first column, with the first panel."""
    half, extents = plan.atom.c.half_rows, extent_names(plan)
    row = f"first_row + half * {half}"
    place, value = position(write, f"({row})", "0"), f"{write.name}_out[0]"
    here = f"first_block + j == 0 && first_column == 0 && {row} < {extents['m']}"
    stored = if_stored(write, f"({row})", "0")
    return f"if ({here}) {stored}*({place}) = to_{epilogue_type(write.tensor)}({value});"


def _element(read: Read, operands: dict[str, Panel], e: int) -> str:
    name = read.name
    if read.kind == "scalar":
        return c_name(read.tensor.name)
    if read.kind == "row":
        return f"{name}_element[half]"
    in_panel = "[half]" if name in operands else ""
    size = read.tensor.dtype.bytes
    if size < _WORD_BYTES:
        word = f"{name}_words[j]{in_panel}" + (f" >> {8 * size}" if e else "")
        return f"from_{epilogue_type(read.tensor)}(({c_type(read.tensor.dtype)})({word}))"
    if name not in operands:
        return f"{name}_values[j][{e}]"
    return of_word(read.tensor.dtype, f"{name}_words[j][half][{e}]")


def _panel_written(plan: KernelPlan, panel: Panel) -> list[str]:
    return _matrices("matrices_write", plan, panel) if panel.element_bytes == 2 else []


# --- to memory -----------------------------------------------------------------------------------
@leaf("store", "tma", Store, ("p",), needs=("tensor_map", "panels_out"))
def _(plan: KernelPlan, one: Leaf, work: Store) -> Text:
    lines = []
    for panel, boxes in work.panels:
        at = slot_address(plan.buffer(panel.buffer), panel.slot, "group")
        lines += [
            f"  box_store(&{boxes.map}, {at} + {j * boxes.box_bytes}, "
            f"{', '.join(coordinates(boxes, j))});"
            for j in range(boxes.count)
        ]
    return Text(
        block(
            f"if (thread % {plan.device.group_threads} == 0) {{",
            *lines,
            '  asm volatile("cp.async.bulk.commit_group;" ::: "memory");',
            "}",
        ),
        f"{one.statement}[i,p]: one thread of the warpgroup has the copy engine write the panel, "
        "clipped at the edges",
    )
