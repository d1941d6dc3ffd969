"""Which programs threads run that only fold elements: their products are of zeros."""

from __future__ import annotations

from polygen.errors import ScheduleError
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.schedule.model import Schedule


def check_elements(schedule: Schedule, match: Match, work: Pointwork) -> None:
    """Refuse threads that fold elements where more has to be done; nothing of other schedules.

    Raises:
        ScheduleError: with what that is.
    """
    if not schedule.of_elements:
        return
    where = f"schedule {schedule.name}, atom"
    stored = [one.tensor.name for one in work.writes]
    within = [fold.value for one in work.before for fold in one.folds]
    within += [one.fold.write.name for one in work.operands.folds]
    what = ""
    if not match.of_zeros:
        what = f"{match.contraction.name}, a product of other numbers than 0"
    elif stored:
        what = f"{stored[0]}, a matrix that is stored"
    elif within or not work.folds:
        what = f"{within[0]}, a fold inside of the kernel" if within else "nothing that is folded"
    if what:
        raise ScheduleError(
            f'atom = "{schedule.atom}" with {what}',
            where=where,
            why="threads fold elements, and nothing else",
            nearest='Use atom = "auto"',
        )
    rows, _ = schedule.read_together
    if any("m" in fold.kept for fold in work.folds) and schedule.tile.warp.m > rows:
        raise ScheduleError(
            f"tile.warp.m = {schedule.tile.warp.m} with a fold of rows",
            where=f"schedule {schedule.name}",
            why="every row has registers of its own, of which a warp reads as many together",
            nearest=f"Use tile.warp.m = {rows}",
        )
