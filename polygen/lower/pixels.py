"""Boxes of pixels in a kernel: where parts of them begin, and what schedules of them are refused.

1. A tile of pixels is moved in parts: among blocks of a cluster, or a panel at a time. A part is
   some rows that follow each other, and a box itself; the digits of its first row say where.
2. What moves pixels is the copy engine, which leaves out what lies outside of the result. Threads
   that walk rows along m (stores from registers, lines, folds, values by row) are refused by name.
"""

from __future__ import annotations

from polygen.errors import ScheduleError
from polygen.frontend.program import Tensor
from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import box_rows_most
from polygen.lower.accesses import row_step
from polygen.poly.elements import Along
from polygen.poly.fills import by_threads
from polygen.poly.match import Match
from polygen.poly.pixel_boxes import M, PixelBox
from polygen.poly.pointwise import Pointwork
from polygen.schedule.model import Schedule


def part_of(box: PixelBox, rows: int) -> PixelBox:
    """The box of so many of a tile's rows.

    Raises:
        ScheduleError: they are no box.
    """
    found = box.part(rows)
    if found is None:
        raise ScheduleError(
            f"{rows} rows of a tile of {box} pixels",
            where="tile.pixels",
            why="the copy engine moves boxes, of which rows that follow each other here are none",
            nearest="Use sides that are powers of two, the outermost excepted",
        )
    return found


def starts(box: PixelBox, own: PixelBox, first: str) -> dict[str, str]:
    """Where a part of a tile begins along each dim, as C.

    Args:
        box: of the tile.
        own: of the part.
        first: its first row, as C; "": the tile's.
    """
    found = {}
    for dim, side in box.sides:
        at = dim
        if dim == M:
            at = f"b_{M} * {side}" if side > 1 else f"b_{M}"
        cut = first and own.side(dim) < side
        found[dim] = f"{at} + {box.digit(dim, first)}" if cut else at
    return found


def check_pixels(schedule: Schedule, match: Match, work: Pointwork) -> None:
    """Refuse what tiles of pixels are not made for; nothing where rows run along one axis.

    Args:
        schedule: with boxes, or without.
        match: the products as the schedule has them run, behind a copy if it has one.
        work: their epilogue, likewise.

    Raises:
        ScheduleError: with the field to change.
    """
    if not schedule.tile.pixels:
        return
    _check_fields(schedule, match, work)
    panel = common_facts()["warpgroup_rows"]
    for rows in (schedule.tile.cta.m // schedule.cluster.n, panel):  # moved at a time
        part_of(match.box, rows)
    for dim, extent in match.batches:
        if match.box.side(dim) > 1 and not isinstance(extent, int):
            raise _refused(
                schedule,
                f"{match.box.side(dim)} indices of {extent} in a tile",
                "tiles along it are counted before the kernel is made, unless it is the first "
                "axis of rows without a number",
                f"Use a side of 1 along {extent}",
            )
    for _, operand in match.operands:
        if operand.role != M:
            continue
        if by_threads(operand) or not operand.k_contiguous:
            raise _refused(
                schedule,
                str(operand),
                "boxes of pixels are moved by the copy engine, with what is summed innermost",
                "Leave tile.pixels out",
            )
        _check_steps(schedule, operand.tensor, operand.index, match.box)
    wanted = {M, "n", *(dim for dim, side in match.box.sides if side > 1)}
    for one in (*work.reads, *work.writes):
        if one in work.writes or any(one.axis(dim) is not None for dim, _ in match.box.sides):
            if any(one.axis(dim) is None for dim in wanted):
                raise _refused(
                    schedule,
                    f"{one.tensor} beside tiles of {match.box}",
                    "the epilogue moves whole matrices in the boxes of the tile, and reads vectors "
                    "along columns; values of a row, or of an image, are neither",
                    "Leave tile.pixels out",
                )
            _check_steps(schedule, one.tensor, one.index, match.box)
    for ring in work.ring_folds(match):
        if ring.role == M and ring.outputs:
            raise _refused(
                schedule,
                f"{ring.outputs[0].tensor}, of rows, beside tiles of {match.box}",
                "threads store numbers of rows one after another, and rows of boxes are none",
                "Leave tile.pixels out",
            )


def _check_fields(schedule: Schedule, match: Match, work: Pointwork) -> None:
    """Fields and kinds of programs that have rows along m alone."""
    rows = {dim for dim, _ in match.box.sides}
    placed = any(term.dim in rows for _, one in work.coordinates for term in one.terms)
    others = {
        "without roles": not schedule.specialised,
        "with exchange": schedule.exchange,
        'with roles.computes = "consumer"': schedule.from_registers,
        f'with epilogue.through = "{schedule.epilogue.through}"': schedule.epilogue.through
        != "tma",
        "with folds": bool(work.folds or work.before or work.operands.folds),
        "with coordinates of rows": placed,
        "with several sections": work.numbered,
        "with rows in groups": match.groups is not None,
    }
    for what, asked in others.items():
        if asked:
            raise _refused(
                schedule,
                f"tile.pixels {what}",
                "threads that walk the rows of a tile take them for neighbours along one axis; the "
                "copy engine moves boxes of pixels",
                'Use roles and epilogue.through = "tma", or leave tile.pixels out',
            )


def _check_steps(
    schedule: Schedule, tensor: Tensor, index: tuple[Along, ...], box: PixelBox
) -> None:
    """Sides that no box of a tensor map has, and pixels that are no neighbours on an axis."""
    far = common_facts()["tensor_map_every_most"]
    for dim, side in box.sides:
        terms = [term for one in index for term in one.terms if term.dim == dim]
        if side == 1:
            continue
        step = row_step(index, dim)
        if any((one.per, one.modulo, one.rows) != (1, 0, "") for one in terms) or len(terms) != 1:
            raise _refused(
                schedule,
                f"{tensor.name} is read at {', '.join(map(str, terms)) or 'one place'} of {side}",
                "pixels of a box follow each other on an axis of their own",
                "Leave tile.pixels out",
            )
        if step > far or side * step > box_rows_most():
            raise _refused(
                schedule,
                f"{side} pixels of {tensor.name}, every {step} elements",
                f"a box spans at most {box_rows_most()} elements, and has every {far}th at least",
                f"Use a side of {box_rows_most() // step}" if step <= far else "Use a side of 1",
            )


def _refused(schedule: Schedule, what: str, why: str, nearest: str) -> ScheduleError:
    return ScheduleError(
        what, where=f"schedule {schedule.name}, tile.pixels", why=why, nearest=nearest
    )
