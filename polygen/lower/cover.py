"""Tiles and clusters that cover rows: which schedules have them, how a shipped one is made to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import box_rows_most
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.schedule.idle import not_shared
from polygen.schedule.model import IN_TILE, Cluster, Schedule

_GROUP = 8  # columns that all instructions have, or several times as many


def check_rows(
    schedule: Schedule, match: Match, work: Pointwork, sizes: Mapping[str, int] | None = None
) -> None:
    """Refuse tiles that do not cover rows where elements use results of their own row.

    Args:
        schedule: with such tiles, or without.
        match: the products.
        work: the epilogue, with the passes of such tiles.
        sizes: of symbolic dims, as far as they are known: a kernel that none of their calls could
            run is not made.

    Raises:
        ScheduleError: with the field to change.
        UnsupportedProgram: rows do not run along n.
    """
    if not schedule.covers_rows:
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
    if cluster.k > 1:
        raise ScheduleError(
            f"cluster {cluster.m} x {cluster.n} x {cluster.k} with rows in a tile",
            where=where,
            why=why,
            nearest=f"Use {not_shared(schedule)}",
        )
    if cluster.n > 1 and schedule.tile.warp.n != cta.n:
        raise ScheduleError(
            f"cluster.n = {cluster.n} with tile.warp.n = {schedule.tile.warp.n} of tile.cta.n = "
            f"{cta.n} and rows in a tile",
            where=where,
            why="rows are folded by consumers beside each other, or by blocks beside each other",
            nearest=f"Use tile.warp.n = {cta.n}, or cluster.n = 1",
        )
    row = match.n if isinstance(match.n, int) else (sizes or {}).get(match.n, 0)
    if not any(one.folds for one in work.before):  # of a section beside others, whose rows are long
        row = 0
    if row > cta.n * cluster.n:
        blocks = f", and clusters of {cluster.n} along n" if cluster.n > 1 else ""
        raise ScheduleError(
            f"rows of {row} elements in tiles of {cta.n} columns{blocks}",
            where=where,
            why=why if cluster.n == 1 else "the blocks of a cluster fold rows that they have whole",
            nearest=_wider(schedule, row),
        )


def _wider(schedule: Schedule, row: int) -> str:
    """What to change so that a row is covered."""
    tile, own = schedule.tile, schedule.cluster
    ways, cluster = [], covering_cluster(schedule, row)
    if cluster is not None:
        fewer = f" with cluster.m = {cluster.m}" if cluster.m != own.m else ""
        ways.append(f"cluster.n = {cluster.n}{fewer}")
    # Of warps and consumers beside each other there are more; one that has all columns gets more.
    alone = tile.warp.n == tile.cta.n
    step = _GROUP if alone else tile.warp.n
    columns = -(-row // step) * step
    if columns <= box_rows_most() and own.n == 1:
        ways.append(f"tile.cta.n = {columns}" + (f" and tile.warp.n = {columns}" if alone else ""))
    return "Use " + ", or ".join([*ways, 'epilogue.rows = "after"'])


def covering_cluster(schedule: Schedule, row: int) -> Cluster | None:
    """The cluster whose blocks cover rows that are longer than a tile; None where there is none.

    It takes consumers of which each has all columns of its block's tile. Each block copies a part
    of the left operand's tile for all of them, whole groups of its rows: so many are a power of
    two, which divides any tile's, and the last ones perhaps have nothing of the row.
    """
    cta, own, most = schedule.tile.cta, schedule.cluster, common_facts()["cluster_blocks_most"]
    beside = 1 << (-(-row // cta.n) - 1).bit_length()
    whole = schedule.specialised and schedule.tile.warp.n == cta.n
    if not whole or own.k > 1 or beside > most:
        return None
    return Cluster(m=own.m if own.m * beside <= most else 1, n=beside)


def covering(schedule: Schedule, row: int = 0) -> Schedule:
    """A schedule with its rows in tiles.

    Args:
        schedule: with a cluster that covers them.
        row: elements of rows that its tiles are to cover by a cluster, if there is one; 0: its own.
    """
    way = replace(schedule.epilogue, rows=IN_TILE)
    if way.through == "smem":
        way = replace(way, through="registers")
    cluster = covering_cluster(schedule, row) if row > schedule.tile.cta.n else None
    return replace(schedule, epilogue=way, cluster=cluster or schedule.cluster)
