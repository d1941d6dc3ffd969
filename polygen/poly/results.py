"""How operands come and results leave: what each way is able to move, and in which portions.

1. Copies run in the background if rows of every operand allow it; both share the loop's waits. A
   device that has no such copies stages all of them in registers.
2. A staged epilogue walks a warp tile in vectors of adjacent results.
3. With panels the copy engine moves every matrix of the epilogue, which it can if rows are aligned
   and n is innermost. Otherwise threads move the panels, line by line, or the schedule stores from
   the registers, and says so.
"""

from __future__ import annotations

import math
from dataclasses import replace

from polygen.errors import ScheduleError
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.program import Program
from polygen.hardware.device import Device, common_facts
from polygen.hardware.matrix_layout import spans
from polygen.poly.elements import map_rank
from polygen.poly.match import Match
from polygen.poly.pointwise import Element, Pointwork
from polygen.poly.tiling import Panels, RowVectors
from polygen.schedule.model import PANEL_COLUMNS, Schedule

# Vectors in flight per lane, by the number of matrices that the epilogue reads.
_IN_FLIGHT = (4, 8, 4, 2)
_ROW_BYTES = common_facts()["tensor_map_row_bytes"]
_AXES = common_facts()["tensor_map_axes_most"]
ADJACENT = 8  # elements that a lane reads of a row, where it folds them
_FEW_ROWS = 2
_ON_THE_WAY = 32  # bytes of all matrices, of one column of a lane's rows
_VECTOR_BYTES = 16  # of the narrowest output, in one access


def copies_in_background(match: Match, device: Device) -> bool:
    """Whether all copies of arguments can run in the background: rows of 4-byte alignment, a device
    that can. False where there are none.
    """
    copied = [operand for _, operand in match.copied]
    return (
        device.has("cp_async")
        and bool(copied)
        and all(
            operand.in_rows and operand.alignment >= device.asynchronous_copy_smallest
            for operand in copied
        )
    )


def copies_staged(device: Device) -> bool:
    """Whether copies by warps pass through registers, with products between their two halves."""
    return not device.has("cp_async")


def vector_length(outputs: tuple[DType, ...]) -> int:
    """Adjacent results per lane: 16 bytes of the narrowest 16- or 32-bit output."""
    return _VECTOR_BYTES // max(2, min((dtype.bytes for dtype in outputs), default=4))


def row_vectors(program: Program, schedule: Schedule) -> RowVectors:
    """How a staged epilogue walks a warp tile.

    Reads of full matrices take most of the epilogue's time, so several are kept in flight per lane:
    as many as registers hold, once the sums have left them.
    """
    lanes = common_facts()["warp_size"]
    if schedule.of_elements:
        return RowVectors(ADJACENT, _rows_together(program), lanes)
    if schedule.epilogue.through != "smem":
        return RowVectors(2, 1, lanes)
    vector = vector_length(tuple(t.dtype for t in program.outputs))
    warp = schedule.tile.warp
    per_row = max(1, warp.n // vector)
    items = warp.m * per_row
    if lanes % per_row or items % lanes:
        return RowVectors(vector, 1, lanes)
    operands = {access.name for c in program.contractions for access in c.reads}
    matrices = sum(len(t.dims) >= 2 and t.name not in operands for t in program.inputs)
    batch = math.gcd(items // lanes, _IN_FLIGHT[min(matrices, 3)])
    return RowVectors(vector, batch, lanes)


def _rows_together(program: Program) -> int:
    """Rows of elements that a lane reads before it folds them: as many as registers hold."""
    zeros = {access.name for one in program.contractions for access in one.reads}
    read = [t for t in program.inputs if len(t.dims) > 1 and t.name not in zeros]
    if any(tensor.order[-1] != len(tensor.dims) - 1 for tensor in read):
        return _FEW_ROWS  # every element has an address of its own
    size = sum(tensor.dtype.bytes for tensor in read) * program.real.bytes // F32.bytes
    return next((rows for rows in (8, 4, 2) if rows * size <= _ON_THE_WAY), 1)


def panel_columns(schedule: Schedule) -> int:
    """Columns of a panel, as decided, else the most that divide a consumer's; 0: none do."""
    fitting = (c for c in PANEL_COLUMNS if own_columns(schedule) % c == 0)
    return schedule.epilogue.columns or next(fitting, 0)


def in_runs(schedule: Schedule, work: Pointwork) -> Schedule:
    """The schedule with panels that no reshape cuts, where there are narrower ones."""
    columns, run = panel_columns(schedule), _run(work, "n")
    if not columns or run % columns == 0:
        return schedule
    own = own_columns(schedule)
    fitting = (c for c in PANEL_COLUMNS if own % c == 0 and run % c == 0)
    return replace(schedule, epilogue=replace(schedule.epilogue, columns=next(fitting, 0)))


def _run(work: Pointwork, dim: str) -> int:
    """How many rows, or columns, of results are neighbours in every array; 0: all of them."""
    return math.gcd(*(one.run(dim) for one in (*work.matrices, *work.writes)))


def _narrower_panels(own: int, run: int, columns: int, rows: int) -> str:
    fitting = (c for c in PANEL_COLUMNS if c < columns and own % c == 0 and run % c == 0)
    narrow = 0 if rows else next(fitting, 0)
    return f"Use epilogue.columns = {narrow}" if narrow else 'Use epilogue.through = "registers"'


def own_columns(schedule: Schedule) -> int:
    """Columns of a consumer's tile that it finishes; blocks that share its sums share them."""
    return schedule.tile.warp.n // schedule.cluster.k


def narrower(schedule: Schedule, work: Pointwork) -> tuple[int, ...]:
    """The widths of panels below the schedule's own, widest first."""
    own, now = own_columns(schedule), panel_columns(schedule)
    return tuple(
        c for c in PANEL_COLUMNS if c < now and own % c == 0 and _too_narrow(c, work) is None
    )


def _too_narrow(columns: int, work: Pointwork) -> Element | None:
    """The first matrix whose rows in panels of a width are not whole spans of a swizzle."""
    moved = (*work.matrices, *work.writes)
    return next((one for one in moved if columns * one.tensor.dtype.bytes % spans()[-1]), None)


def panel_name(work: Pointwork, element: Element, number: int) -> str:
    """What the panels of a matrix are called, the `number`-th to come or to leave."""
    return f"p{number}" if work.numbered else element.name


def panels(schedule: Schedule, work: Pointwork, otherwise: str = "lines") -> Panels | None:
    """What the epilogue moves through panels; None without roles.

    Args:
        schedule: how results leave.
        work: what is read and written.
        otherwise: how what the copy engine does not move can leave.

    Raises:
        ScheduleError: a matrix cannot be moved by the copy engine, or not in such panels.
    """
    if not schedule.specialised:
        return None
    if schedule.epilogue.through == "registers":
        return Panels(0, (), ())
    where = f"schedule {schedule.name}, epilogue.through"
    instead = f'Use epilogue.through = "{otherwise}"'
    for one in (*work.matrices, *work.writes) if schedule.epilogue.through == "tma" else ():
        if any(along.group for along in one.index):
            raise ScheduleError(
                f"{one.tensor.name}: the copy engine cannot move rows of groups",
                where=where,
                why="a box goes on into the rows of the next group",
                nearest=instead,
            )
        if any(along.rows for along in one.index):
            raise ScheduleError(
                f"{one.tensor.name}: the copy engine cannot move rows by index",
                where=where,
                why="a box has rows that follow each other",
                nearest=instead,
            )
        if one.kind != "vector" or one.alignment < _ROW_BYTES:
            raise ScheduleError(
                f"{one.tensor.name}: the copy engine cannot move {one.tensor}",
                where=where,
                why=f"it needs n innermost, and rows that start at multiples of {_ROW_BYTES} bytes",
                nearest=instead,
            )
        if map_rank(one.index) > _AXES:
            raise ScheduleError(
                f"{one.tensor.name}: the copy engine cannot move {one.tensor}",
                where=where,
                why=f"{map_rank(one.index)} digits of indices say where its elements lie, and a "
                f"tensor map has at most {_AXES} axes",
                nearest=instead,
            )
        ragged = one.tensor.ends_anywhere and one.name not in work.kept  # lengthened where kept
        if one in work.writes and ragged:
            raise ScheduleError(
                f"{one.tensor.name}: the copy engine cannot store rows of {one.tensor} that end "
                f"inside of {_ROW_BYTES} bytes",
                where=where,
                why=f"it writes whole {_ROW_BYTES} bytes, also where they are no longer the row's",
                nearest=instead,
            )
    own, columns, split = own_columns(schedule), panel_columns(schedule), schedule.cluster.k
    shared = f" shared by {split} blocks" if split > 1 else ""
    if not columns:
        raise ScheduleError(
            f"tile.warp.n = {schedule.tile.warp.n}{shared} with panels",
            where=where,
            nearest=f"Use a multiple of {PANEL_COLUMNS[-1] * split}"
            + (', or epilogue.through = "registers"' if shared else ""),
        )
    if columns not in PANEL_COLUMNS or own % columns:
        fitting = [str(c) for c in PANEL_COLUMNS if own % c == 0]
        raise ScheduleError(
            f"epilogue.columns = {columns} of tile.warp.n = {schedule.tile.warp.n}{shared}",
            where=f"schedule {schedule.name}, epilogue.columns",
            why="panels of one width cover a consumer's columns",
            nearest=f"Use {' or '.join(fitting)}"
            if fitting
            else f"Use a tile.warp.n that is a multiple of {PANEL_COLUMNS[-1] * split}, or "
            'epilogue.through = "registers"',
        )
    narrow = _too_narrow(columns, work)
    if narrow is not None:
        wider = [c for c in PANEL_COLUMNS if own % c == 0 and _too_narrow(c, work) is None]
        raise ScheduleError(
            f"panels of {columns} columns of {narrow.tensor}",
            where=f"schedule {schedule.name}, epilogue.columns",
            why=f"their rows are not whole spans of {spans()[-1]} bytes",
            nearest="Use "
            + "".join(f"epilogue.columns = {c}, or " for c in wider)
            + 'epilogue.through = "registers"',
        )
    for one in (*work.matrices, *work.writes):
        rows = one.run("m") if schedule.epilogue.through == "tma" else 0
        if one.run("n") % columns or rows % schedule.tile.warp.m:
            raise ScheduleError(
                f"panels of {schedule.tile.warp.m} x {columns} of {one.tensor}",
                where=where,
                why=f"a reshape puts {one.run('n') or rows} neighbours on an axis, and the next "
                "ones elsewhere",
                nearest=_narrower_panels(own, _run(work, "n"), columns, rows),
            )
    operands, outputs = (
        tuple(panel_name(work, one, at) for at, one in enumerate(moved))
        for moved in (work.matrices, work.writes)
    )
    return Panels(columns, operands, outputs)
