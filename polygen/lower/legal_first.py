"""Operands with folds over their own rows: what no launch before a kernel makes, by name.

Without roles that launch makes them under every schedule, with roles where the schedule says so.
"""

from __future__ import annotations

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.lower.legal_folds import FOLLOWS_NONE, follows_none
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.schedule.model import Schedule

_ALONE = "Compute the operand before the call, and pass it as an argument"


def _by_rows(matched: Match) -> str:
    """The first operand with folds over its rows; "" without any."""
    found = (one for _, one in matched.operands if one.computed is not None)
    return next((one.tensor.name for one in found if one.computed and one.computed.passes), "")


def check_first_beside(matched: Match, work: Pointwork) -> None:
    """Refuse such operands where no kernel follows a launch that makes them.

    Args:
        matched: the products.
        work: what is behind them.

    Raises:
        UnsupportedProgram: with the operand.
    """
    name = _by_rows(matched)
    if not name:
        return
    what = f"the operand {name}, in which are folds over its rows,"
    beside = follows_none(matched, work)
    if beside:
        raise UnsupportedProgram(f"{what} {beside}", why=FOLLOWS_NONE, nearest=_ALONE)


def check_first(matched: Match, schedule: Schedule) -> None:
    """Refuse schedules whose kernels would compute what only a launch before them makes.

    Raises:
        ScheduleError: with the operand.
    """
    name = _by_rows(matched)
    if name and schedule.specialised and not schedule.makes_first:
        raise ScheduleError(
            f"the operand {name}, in which are folds over its rows, made by the kernel that "
            "multiplies it",
            where=f"schedule {schedule.name}",
            why="a tile has parts of rows, whose folds are known when whole rows are read",
            nearest='roles.computes = "before"',
        )
