"""Operand tiles of a specialised kernel: their layout in shared memory, and the boxes copied there.

A tile's stored rows are cut among the blocks of the cluster that share it; each copies its part of
every box and multicasts it.
"""

from __future__ import annotations

from polygen.errors import ScheduleError
from polygen.hardware.atom import Atom
from polygen.hardware.matrix_layout import (
    GROUP_ROWS,
    MatrixLayout,
    box_rows_most,
    matrix_layout,
)
from polygen.lower.role_plan import Fill
from polygen.poly.footprint import Footprint
from polygen.poly.match import Operand
from polygen.schedule.model import Schedule


def major(operand: Operand) -> str:
    """The innermost dim of an operand: k, or m and n."""
    return "k" if operand.k_contiguous else "mn"


def operand_layout(
    name: str, operand: Operand, extents: tuple[int, int], schedule: Schedule, atom: Atom
) -> MatrixLayout:
    """The layout of an operand's tile, proved.

    Args:
        name: "a" or "b".
        operand: it.
        extents: elements of the tile along m or n, and along k.
        schedule: whose consumers read it, and whose clusters share it.
        atom: the instruction.

    Raises:
        ScheduleError: the tile has none, or blocks of a cluster cannot share it.
    """
    side = 0 if name == "a" else 1
    tensor, cluster = operand.tensor, schedule.cluster
    own = atom.m if side == 0 else schedule.tile.warp.n
    where = f"schedule {schedule.name}, {tensor.name}"
    size = tensor.dtype.bytes
    field = "tile.cta.k" if operand.k_contiguous else ("tile.cta.m", "tile.warp.n")[side]
    layout = matrix_layout(major(operand), *extents, size, atom.k, own, f"{where}, {field}")
    parts = _parts(name, schedule)
    if layout.rows % (GROUP_ROWS * parts):
        raise ScheduleError(
            f"a cluster of {cluster.m} x {cluster.n} cannot share {tensor.name}",
            where=where,
            why=f"{layout.rows} stored rows of its tile are cut into {parts} groups of "
            f"{GROUP_ROWS}",
            nearest="Use a cluster of 1",
        )
    if layout.rows // parts > box_rows_most():
        raise ScheduleError(
            f"{tensor.name}: a box of {layout.rows // parts} rows",
            where=where,
            why=f"the copy engine moves at most {box_rows_most()} rows at once",
            nearest=f"Use a tile of {box_rows_most() * parts}",
        )
    return layout


def _parts(name: str, schedule: Schedule) -> int:
    """Blocks of the cluster that share an operand's tile."""
    return schedule.cluster.n if name == "a" else schedule.cluster.m


def fill(name: str, operand: Operand, footprint: Footprint, schedule: Schedule, atom: Atom) -> Fill:
    """The copies of one operand's footprint."""
    tile, tile_k = footprint.size[operand.role_axis], footprint.size[operand.k_axis]
    layout = operand_layout(name, operand, (tile, tile_k), schedule, atom)
    tensor, parts = operand.tensor, _parts(name, schedule)
    size = tensor.dtype.bytes
    return Fill(
        name, tensor, f"map_{name}", f"ring_{name}", layout, operand.role, tile, tile_k, size,
        parts, (layout.rows // parts, layout.span // size),
    )  # fmt: skip
