"""Tiles that cover rows: which schedules have them, and how a shipped one is made to."""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.schedule.model import Schedule

IN_TILE = "tile"


def is_covering(schedule: Schedule) -> bool:
    """Whether a schedule has rows in its tiles."""
    return schedule.epilogue.rows == IN_TILE


def check_rows(schedule: Schedule, match: Match, work: Pointwork) -> None:
    """Refuse tiles that do not cover rows where elements use results of their own row.

    Args:
        schedule: with such tiles, or without.
        match: the products.
        work: the epilogue, with the passes of such tiles.

    Raises:
        ScheduleError: with the field to change.
        UnsupportedProgram: rows do not run along n.
    """
    if not is_covering(schedule):
        return
    where, why = (
        f"schedule {schedule.name}, epilogue.rows",
        "a thread block folds rows that it has whole",
    )
    cta, cluster = schedule.tile.cta, schedule.cluster
    if not work.before:
        raise ScheduleError(
            'epilogue.rows = "tile" where no element uses a result of its own row',
            where=where,
            nearest='Use epilogue.rows = "after", which is what it is left out for',
        )
    for fold in (fold for one in work.before for fold in one.folds):
        if fold.folded != ("n",):
            raise UnsupportedProgram(
                f"{fold.value}, a {fold.monoid}, folds {', '.join(fold.folded)}",
                where=where,
                why="a tile covers rows along n alone",
                nearest='Use epilogue.rows = "after"',
            )
    if schedule.epilogue.through == "smem":
        raise ScheduleError(
            f'epilogue.through = "{schedule.epilogue.through}" with epilogue.rows = "tile"',
            where=where,
            why="results are made of sums that are in registers where the instruction left them",
            nearest='Use epilogue.through = "registers"',
        )
    if cluster.n * cluster.k > 1:
        raise ScheduleError(
            f"cluster {cluster.m} x {cluster.n} x {cluster.k} with rows in a tile",
            where=where,
            why=why,
            nearest="Use cluster.n = 1 and cluster.k = 1",
        )
    if isinstance(match.n, int) and match.n > cta.n:
        raise ScheduleError(
            f"rows of {match.n} elements in tiles of {cta.n} columns",
            where=where,
            why=why,
            nearest=f'Use tile.cta.n = {-(-match.n // 8) * 8}, or epilogue.rows = "after"',
        )


def covering(schedule: Schedule) -> Schedule:
    """A schedule with its rows in tiles."""
    way = replace(schedule.epilogue, rows=IN_TILE)
    if way.through == "smem":
        way = replace(way, through="registers")
    return replace(schedule, epilogue=way)
