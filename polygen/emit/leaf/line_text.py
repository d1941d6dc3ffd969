"""What leaves that move lines of panels have in common: where they begin, and where they end."""

from __future__ import annotations

from polygen.emit.leaves import extent_names, position, slot_address, stored_row
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Line, Read, Write
from polygen.lower.shares import edge


def stored(line: Line, inside: str) -> tuple[list[str], list[str]]:
    """Where rows are stored by index: which one it is, as a declaration, and whether it is one."""
    access = line.access
    if not isinstance(access, Write) or access.by_index is None:
        return [], []
    found, name = stored_row(access, "to_row", "to_column"), f"{access.name}_stored"
    return [f"  const int {name} = {inside} ? {found} : -1;"], [f"{name} >= 0"]


def source(plan: KernelPlan, line: Line) -> str:
    """Where a portion is read: behind the end of rows by index, where the last one's would be."""
    access, ends = line.access, extent_names(plan)
    by_index = access.rows if isinstance(access, Read) else (None, None)
    row = "to_row" if by_index[0] is None else f"min(to_row, {ends['m']} - 1)"
    column = "to_column" if by_index[1] is None else f"min(to_column, {ends['n']} - 1)"
    return position(access, row, column)


def element_type(size: int) -> str:
    """The type of an element, or of a portion, by its bytes."""
    return {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}[size]


def panel_start(plan: KernelPlan, line: Line) -> list[str]:
    """Where the panel is in shared memory and in the array."""
    name = line.panel.name
    at = slot_address(plan.buffer(line.panel.buffer), line.panel.slot, "group")
    return [
        f"const unsigned {name}_at = {at};",
        f"const int {name}_row = {line.row}, {name}_column = {line.column};",
    ]


def edges(plan: KernelPlan, line: Line, column: str = "to_column") -> tuple[str, str, str]:
    """Whether a portion's row is inside of the array, the whole portion too, and what is left."""
    of, extents = edge(line.share.elements, "to_row", column), extent_names(plan)
    row, whole, left = (one.format(**extents) for one in (of.row, of.whole, of.left))
    return row, f"{row} && {whole}", left
