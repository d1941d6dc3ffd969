"""A tile of one operand -> its ring, by all threads, in the background (``cp.async``)."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, filled, leaf
from polygen.emit.leaves import (
    c_type,
    extent_names,
    scaled,
    size_name,
    slot_address,
    walk_lines,
)
from polygen.emit.names import c_name
from polygen.lower.operands import K_INSIDE
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.shares import Share
from polygen.lower.work import Copy

_ALL_UNROLLED = 16  # passes


def copy_function(c: Copy) -> str:
    """The name of the copy instruction's wrapper."""
    return f"copy_{c.width}_ragged" if c.ragged else f"copy_{c.width}"


@leaf("move", "cp.async", Copy, ("k", "p"), needs=("copies", "words", "places"))
def _(plan: KernelPlan, one: Leaf, c: Copy) -> Text:
    elements, share = c.moved, pieces(c)
    if share.step:
        prelude, body = _regular(plan, c, share)
    else:
        prelude, (position, left) = [], general_position(plan, c)
        inside = f"from_row < {left[0]}{row_inside(c, 'from_row', 'from_column')}"
        body = [
            *position,
            _left(c, elements, left[1]),
            f"{copy_function(c)}(to, from, {_amount(c, inside)});",
        ]
    return in_passes(plan, one, c, prelude, body)


def pieces(c: Copy) -> Share:
    """Which pieces of its tile each thread of the block moves."""
    assert c.share is not None
    return c.share


def in_passes(
    plan: KernelPlan,
    one: Leaf,
    c: Copy,
    prelude: list[str],
    body: list[str],
    unroll: str = "",
) -> Text:
    """A copy leaf: `p` says which part of the tile.

    `unroll`: how many passes are unrolled; "": as many as are worth it.
    """
    buffer, share = plan.buffer(c.buffer), pieces(c)
    passes = -(-c.rows * c.columns // (c.moved * plan.launch.threads))
    if share.beyond:
        body = [f"if ({share.beyond}) break;", *body]
    ranges = (f"{c.tile} of {c.role}", f"{c.tile_k} of k")
    part = f", part p of {c.parts}" if c.parts > 1 else ""
    record = {
        "slot": slot_address(buffer, f"(k % {buffer.slots})"),
        "prelude": [*walk_lines(plan), *prelude],
        "body": body,
        "first": share.first,
        "end": share.end,
        "unroll": unroll or ("" if passes <= _ALL_UNROLLED else " 8"),
    }
    comment = (
        f"{one.statement}[k,p]: {c.tensor.name}, {ranges[0]} x {ranges[1]}{part} -> "
        f"{c.buffer}[k % {buffer.slots}], {c.moved * c.element_bytes} bytes at a time, "
        "zeros beyond it"
    )
    return Text(filled("move_by_threads", record), comment)


def positions(plan: KernelPlan, c: Copy) -> tuple[str, str, str, str]:
    """Where a tile starts, and the array's extents, along stored rows and columns."""
    k = K_INSIDE if plan.match.sums else "k"
    role_base = c.starts[0] or f"b_{c.role} * {c.tile}"
    k_base = c.starts[1] or f"{k} * {c.tile_k}"
    starts = (role_base, k_base) if c.k_contiguous else (k_base, role_base)
    rows, columns = map(size_name, c.extents)
    if c.role == "m" and plan.match.groups:  # zeros behind the last row of the group
        own = extent_names(plan)["m"]
        rows, columns = (own, columns) if c.k_contiguous else (rows, own)
    return *starts, rows, columns


def row_inside(c: Copy, row: str, column: str) -> str:
    """Further conditions of an element of a row, as C: that axes with zeros around them have it."""
    conditions = (
        f" && (unsigned)({one.place(row, column)}) < (unsigned){size_name(one.extent)}"
        for one in c.padded
    )
    return "".join(conditions)


def chunk_source(c: Copy, row: str, column: str) -> str:
    """The address of an element of a tile's rows."""
    parts = [
        scaled(step.of(variable), step.stride)
        for variable, steps in zip((row, column), c.lie, strict=True)
        for step in steps
    ]
    return " + ".join([c_name(c.tensor.name), *c.base, *parts])


def _regular(plan: KernelPlan, c: Copy, share: Share) -> tuple[list[str], list[str]]:
    row_base, column_base, row_extent, column_extent = positions(plan, c)
    rows, row_bytes = share.step, plan.buffer(c.buffer).rows.row_bytes
    prelude = [
        place_line(share),
        f"const int rows_left = {row_extent} - ({row_base} + row);",
        _left(c, c.moved, f"{column_extent} - ({column_base} + column)"),
        f"const {c_type(c.tensor.dtype)}* from = "
        f"{chunk_source(c, f'({row_base} + row)', f'({column_base} + column)')};",
        f"const unsigned to = slot + place_{c.buffer}(row, column * {c.element_bytes});",
    ]
    own_row, own_column = f"({row_base} + row + i * {rows})", f"({column_base} + column)"
    inside = f"i * {rows} < rows_left{row_inside(c, own_row, own_column)}"
    later = "from" if c.stride == "0" else f"from + (long long)(i * {rows}) * {c.stride}"
    body = [f"{copy_function(c)}(to + i * {rows * row_bytes}, {later}, {_amount(c, inside)});"]
    return prelude, body


def _left(c: Copy, elements: int, left: str) -> str:
    if c.ragged:
        return f"const int bytes = min(max({left}, 0), {elements}) * {c.element_bytes};"
    return f"const bool inside = {left} > 0;"


def _amount(c: Copy, row: str) -> str:
    return f"{row} ? bytes : 0" if c.ragged else f"inside && {row}"


def place_line(share: Share) -> str:
    """The row of a piece, and its first element."""
    return f"const int row = {share.row}, column = {share.column};"


def general_position(plan: KernelPlan, c: Copy) -> tuple[list[str], tuple[str, str]]:
    """Where piece i of a thread comes from and goes to; the rows' end, and elements left in one."""
    row_base, column_base, row_extent, column_extent = positions(plan, c)
    lines = [
        f"const int piece = {pieces(c).piece};",
        place_line(pieces(c)),
        f"const int from_row = {row_base} + row, from_column = {column_base} + column;",
        f"const {c_type(c.tensor.dtype)}* from = {chunk_source(c, 'from_row', 'from_column')};",
        f"const unsigned to = slot + place_{c.buffer}(row, column * {c.element_bytes});",
    ]
    return lines, (row_extent, f"{column_extent} - from_column")
