"""What sums over several axes that are joined are refused for, by name (`polygen.poly.joined`)."""

from __future__ import annotations

import math

from polygen.errors import ScheduleError
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import GROUP_ROWS
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.fills import by_threads
from polygen.poly.joined import axis_of_run
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.pointwise import Pointwork
from polygen.poly.results import copies_staged
from polygen.schedule.model import Schedule


def check_joined(schedule: Schedule, match: Match, work: Pointwork, device: Device) -> None:
    """Refuse operands whose taps no copy finds; nothing where sums are not joined.

    Args:
        schedule: any.
        match: the products as the schedule has them run, behind a copy if it has one.
        work: their epilogue.
        device: the target.

    Raises:
        ScheduleError: with what cannot be joined.
    """
    if match.joined is None:
        return
    if work.numbered:
        why = "all sections go through as many k tiles, counted by axes of their own"
        raise _refused(schedule, "several sections", why)
    for _, operand in match.operands:
        if not schedule.specialised:
            chunk = chunk_bytes()
            if copies_staged(device) and operand.k_contiguous and operand.alignment < chunk:
                raise _refused(
                    schedule,
                    f"{operand} on {device}",
                    f"a thread holds {chunk} bytes of a row on their way, which are of one tap",
                )
            continue
        if any(sum(term.dim == "k" for term in one.terms) > 1 for one in operand.index):
            why = "a reshape put what is summed along several axes on one, and boxes are of one tap"
            raise _refused(schedule, str(operand), why)
        rows = not operand.k_contiguous
        patterns = math.gcd(schedule.tile.cta.k, operand.run) % GROUP_ROWS == 0
        if rows and (schedule.cluster.tiles > 1 or not patterns):
            why = (
                f"its rows are of taps: boxes of one have multiples of {GROUP_ROWS}, for one block"
            )
        elif operand.in_rows and _whole(operand, match):
            if not by_threads(operand):
                continue
            why = (
                f"threads fill rings with rows at multiples of {operand.alignment} bytes, and do "
                "not look for taps"
            )
        else:
            why = (
                "a box of the copy engine has whole chunks of one tap; behind its last channel are "
                "zeros only where the array ends with it"
            )
        raise _refused(schedule, str(operand), why)


def _whole(operand: Operand, match: Match) -> bool:
    """Whether runs are what is summed along their axis, or what lies behind is outside."""
    assert match.joined is not None
    _, depth = match.joined.dims[-1]
    axis = axis_of_run(operand.index)
    own = operand.index[axis]
    whole = (own.offset, own.more, operand.tensor.dims[axis]) == (0, (), depth)
    return match.joined.run == depth or whole


def _refused(schedule: Schedule, what: str, why: str) -> ScheduleError:
    return ScheduleError(
        f"tile.joined with {what}",
        where=f"schedule {schedule.name}",
        why=why,
        nearest="Leave tile.joined out",
    )
