"""The panel epilogue as template records: sums in registers to panels that the copy engine moves.

A thread holds, of 64 rows by `columns` columns, the pairs (row, row + 8) x (two adjacent columns)
of every 8 columns: index [j][half] below. Panels are swizzled by XORing the 16-byte chunk with bits
of the row, which are the same for row and row + 8, so that the address of every j is the lane's
base XOR a constant.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.epilogue import epilogue_type, position
from polygen.emit.leaves import extent_names
from polygen.emit.names import c_name
from polygen.emit.role_barriers import address, releases_of, waits_of
from polygen.hardware.matrix_layout import span_swizzle
from polygen.lower.plan import KernelPlan, Read
from polygen.lower.role_plan import Panel, RoleWork
from polygen.poly.tiling import Tiling


def part(tiles: Tiling, axis: int, group: str, step: int) -> str:
    """Where a warpgroup's part of a tile begins along m (0) or n (1), as a term; "" at 0.

    Args:
        tiles: of which each consumer that cooperates has one warp tile.
        axis: 0 or 1.
        group: C text for the warpgroup.
        step: from one part to the next.
    """
    return f" + {group} * {step}" if tiles.warps[axis] > 1 else ""


def finish(plan: KernelPlan, work: RoleWork) -> dict[str, Any]:
    """The finish, staged and store leaves."""
    tiles, extents = plan.tiles, extent_names(plan)
    per_block = tiles.warp[1] // work.panel_columns
    panels = per_block * tiles.atoms[0]
    operands = {panel.name: panel for panel in work.operands}
    rows = [r for r in plan.epilogue.reads if r.kind == "row"]
    columns = [r for r in plan.epilogue.reads if _is_column(r, operands)]
    row = f"b_m * {tiles.cta[0]}{part(tiles, 0, 'group', tiles.warp[0])}"
    column = f"b_n * {tiles.cta[1]}{part(tiles, 1, 'group', tiles.warp[1])}"
    first_row = f"{row} + block * {plan.atom.m} + quarter + lane / 4"
    cursors = {f"panel_{p.name}": f"finish_{p.name}" for p in work.operands}
    released = {b.barrier.memory for b in releases_of(work, "finish")}
    (staged,) = work.groups
    blocks = work.panel_columns // 8
    slots = {p.name: _slot(work, p, panels, f"{p.name}_written.slot") for p in work.results}
    return {
        "rows": plan.atom.m,
        "columns": work.panel_columns,
        "blocks": blocks,
        "per_block": per_block,
        "column": column,
        "n_extent": extents["n"],
        "cursors": [
            f"Cursor<{work.region(p.region).slots}> finish_{p.name};" for p in work.operands
        ]
        + [
            f"Cursor<{work.region(p.region).slots}> {p.name}_written;"
            for p in work.results
            if ".slot" in slots[p.name]
        ],
        "waits": waits_of(work, "finish", cursors, "group"),
        "warmed": [line for r in columns for line in _warmed(r, plan, column, extents["n"])],
        "prelude": _prelude(rows, columns, blocks, first_row, extents["m"]),
        "columns_read": [line for r in columns for line in _column_read(r)],
        "columns_clamped": [line for r in columns for line in _column_clamped(r)],
        "panels_read": [line for p in work.operands for line in _panel_read(work, p, panels)],
        "declarations": _result_declarations(work, slots),
        "compute": _compute(plan, work, operands),
        "panels_written": [line for p in work.results for line in _panel_written(work, p)],
        "advance": [
            f"finish_{p.name}.advance();"
            for p in work.operands
            if f"panel_{p.name}" not in released
        ],
        "releases": [
            {
                "name": b.barrier.name,
                "comment": f"arrive_{b.barrier.name}: {'; '.join(b.barrier.dependences)}",
                "address": address(b, f"{cursors[b.barrier.memory]}.slot", "group"),
                "advance": f"{cursors[b.barrier.memory]}.advance();",
            }
            for b in releases_of(work, "finish")
        ],
        "staged": {
            "comment": f"{staged.name}[i,p]: {'; '.join(staged.dependences)}",
            "pending": staged.pending,
            "threads": plan.device.group_threads,
        },
        "store": [
            line for p in work.results for line in _store(plan, work, p, slots[p.name], row, column)
        ],
        "store_advance": [
            f"{p.name}_written.advance();" for p in work.results if ".slot" in slots[p.name]
        ],
    }


def _is_column(read: Read, operands: dict[str, Panel]) -> bool:
    return read.kind in ("vector", "strided") and read.name not in operands


def _slot(work: RoleWork, panel: Panel, panels: int, cursor: str) -> str:
    """Which slot panel p of a tile uses: known when the panels of a tile fill whole rounds."""
    slots = work.region(panel.region).slots
    return f"p % {slots}" if panels % slots == 0 else cursor


def _at(work: RoleWork, panel: Panel, slot: str) -> str:
    region = work.region(panel.region)
    return (
        f"shared + {region.offset} + group * {region.slots * region.slot_bytes} "
        f"+ {slot} * {region.slot_bytes}"
    )


def _prelude(
    rows: list[Read], columns: list[Read], blocks: int, first_row: str, m_extent: str
) -> list[str]:
    """Operands with one value per row, and room for those with one per column."""
    lines = []
    if rows:
        lines.append(f"const int first_row = {first_row};")
    for read in rows:
        from_ = f"from_{epilogue_type(read.tensor)}"
        values = [
            f"{from_}(__ldg({position(read, f'min(first_row + {8 * h}, {m_extent} - 1)', '0')}))"
            for h in range(2)
        ]
        lines.append(f"const float {read.name}_element[2] = {{{', '.join(values)}}};")
    lines += [f"float {read.name}_values[{blocks}][2];" for read in columns]
    return lines


def _warmed(read: Read, plan: KernelPlan, first: str, n_extent: str) -> list[str]:
    """Touch every line of a warpgroup's slice once."""
    if read.kind != "vector":
        return []
    columns, threads = plan.tiles.warp[1], plan.device.group_threads
    per_line = plan.device.cache_line_bytes // read.tensor.dtype.bytes
    element = f"min({first} + thread % {threads} * {per_line}, {n_extent} - 1)"
    lines = -(-columns // per_line) + 1
    return [f"if (thread % {threads} < {lines}) warm({position(read, '0', element)});"]


def _column_read(read: Read) -> list[str]:
    """Two adjacent elements, in one access where alignment allows."""
    kind, size, name = epilogue_type(read.tensor), read.tensor.dtype.bytes, f"{read.name}_values"
    if read.kind == "vector" and read.width >= 2 * size:
        pointer = position(read, "0", "column")
        if size == 2:
            return [
                f"const unsigned {name}_word = "
                f"__ldg(reinterpret_cast<const unsigned*>({pointer}));",
                f"{name}[j][0] = from_{kind}((unsigned short){name}_word);",
                f"{name}[j][1] = from_{kind}((unsigned short)({name}_word >> 16));",
            ]
        return [
            f"const uint2 {name}_words = __ldg(reinterpret_cast<const uint2*>({pointer}));",
            f"{name}[j][0] = __uint_as_float({name}_words.x);",
            f"{name}[j][1] = __uint_as_float({name}_words.y);",
        ]
    return [
        f"{name}[j][{e}] = from_{kind}(__ldg({position(read, '0', f'(column + {e})')}));"
        for e in range(2)
    ]


def _column_clamped(read: Read) -> list[str]:
    """The same at the edge: what lies outside is read from the last column, and not stored."""
    kind, name = epilogue_type(read.tensor), f"{read.name}_values"
    return [
        f"{name}[j][{e}] = from_{kind}(__ldg({position(read, '0', column)}));"
        for e, column in enumerate(("low", "high"))
    ]


def _swizzle(span: int, row: str) -> str:
    """The bits of a row that a panel's chunks are XORed with, as the data proves them."""
    of = span_swizzle(span)
    assert of.multiplier == 1
    shifted = f"{row} >> {of.shift}" if of.shift else row
    return f"({shifted} & {of.mask})"


def _matrix_base(panel: Panel) -> str:
    """Where lane's row of 8x8 matrices begins: rows 0-15 of the quarter, one chunk or the next."""
    row = f"(quarter + lane % 16) * {panel.span}"
    return f"{row} + ((lane / 16 ^ {_swizzle(panel.span, 'lane % 8')}) << 4)"


def _pair_base(panel: Panel) -> str:
    """Where a lane's pair of f32 lies in the first 8 columns."""
    row = f"(quarter + lane / 4) * {panel.span}"
    return f"{row} + ((lane % 4 / 2 ^ {_swizzle(panel.span, '(lane / 4)')}) << 4) + lane % 2 * 8"


def _pair_at(panel: Panel, base: str) -> str:
    """The address of pair [j][half]."""
    per_box = panel.span // 32
    box = f" + j / {per_box} * {panel.rows * panel.span}" if panel.boxes > 1 else ""
    return f"({base} ^ j % {per_box} * 32){box} + half * {8 * panel.span}"


def _panel_read(work: RoleWork, panel: Panel, panels: int) -> list[str]:
    name, blocks = panel.name, work.panel_columns // 8
    slot = _slot(work, panel, panels, f"finish_{name}.slot")
    if panel.element_bytes == 2:
        words = ", ".join(f"{name}_words[j + {j}][{h}]" for j in range(2) for h in range(2))
        return [
            f"unsigned {name}_words[{blocks}][2];",
            f"const unsigned {name}_at = {_at(work, panel, slot)} + {_matrix_base(panel)};",
            "#pragma unroll",
            f"for (int j = 0; j < {blocks}; j += 2) matrices_read({name}_at ^ j << 4, {words});",
        ]
    return [
        f"unsigned {name}_words[{blocks}][2][2];",
        f"const unsigned {name}_at = {_at(work, panel, slot)} + {_pair_base(panel)};",
        "#pragma unroll",
        f"for (int j = 0; j < {blocks}; ++j)",
        "#pragma unroll",
        f"  for (int half = 0; half < 2; ++half) pair_read({_pair_at(panel, f'{name}_at')}, "
        f"{name}_words[j][half][0], {name}_words[j][half][1]);",
    ]


def _compute(plan: KernelPlan, work: RoleWork, operands: dict[str, Panel]) -> list[str]:
    """The fused program on the two adjacent elements of pair [j][half]."""
    lines = [f"float {p.name}_out[2];" for p in work.results]
    for e in range(2):
        arguments = [f"sum[block][first_block + j][2 * half + {e}]"]
        arguments += [_element(read, operands, e) for read in plan.epilogue.reads]
        arguments += [f"{p.name}_out[{e}]" for p in work.results]
        lines.append(f"compute({', '.join(arguments)});")
    for panel in work.results:
        name, out = panel.name, f"{panel.name}_out"
        if panel.element_bytes == 2:
            kind = epilogue_type(panel.tensor)
            lines.append(f"{name}_words[j][half] = pack_{kind}({out}[0], {out}[1]);")
        else:
            lines.append(f"pair_write({_pair_at(panel, f'{name}_at')}, {out}[0], {out}[1]);")
    return lines


def _element(read: Read, operands: dict[str, Panel], e: int) -> str:
    name = read.name
    if read.kind == "scalar":
        return c_name(read.tensor.name)
    if read.kind == "row":
        return f"{name}_element[half]"
    if name not in operands:
        return f"{name}_values[j][{e}]"
    if operands[name].element_bytes == 2:
        word = f"{name}_words[j][half]" + (" >> 16" if e else "")
        return f"from_{epilogue_type(read.tensor)}((unsigned short)({word}))"
    return f"__uint_as_float({name}_words[j][half][{e}])"


def _panel_written(work: RoleWork, panel: Panel) -> list[str]:
    name, blocks = panel.name, work.panel_columns // 8
    if panel.element_bytes != 2:
        return []
    words = ", ".join(f"{name}_words[j + {j}][{h}]" for j in range(2) for h in range(2))
    return [
        "#pragma unroll",
        f"for (int j = 0; j < {blocks}; j += 2) matrices_write({name}_at ^ j << 4, {words});",
    ]


def _result_declarations(work: RoleWork, slots: dict[str, str]) -> list[str]:
    """Room for packed results, and where they go."""
    lines = []
    for panel in work.results:
        base = _matrix_base(panel) if panel.element_bytes == 2 else _pair_base(panel)
        at = f"{_at(work, panel, slots[panel.name])} + {base}"
        lines.append(f"const unsigned {panel.name}_at = {at};")
        if panel.element_bytes == 2:
            lines.append(f"unsigned {panel.name}_words[{work.panel_columns // 8}][2];")
    return lines


def _store(
    plan: KernelPlan, work: RoleWork, panel: Panel, slot: str, row: str, column: str
) -> list[str]:
    per_block = plan.tiles.warp[1] // work.panel_columns
    outer = f"{row} + p / {per_block} * {panel.rows}"
    inner = f"{column} + p % {per_block} * {panel.columns}"
    box_bytes = panel.rows * panel.span
    return [
        f"box_store(&{panel.map}, {_at(work, panel, slot)} + {j * box_bytes}, "
        f"{inner} + {j * panel.box[1]}, {outer});"
        for j in range(panel.boxes)
    ]
