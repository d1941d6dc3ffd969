"""Tiles no wider than a result, of results with few columns.

What of a tile lies behind the last column is multiplied, goes through the epilogue's functions, and
is not stored: of ten columns in a tile of 64 most of it. Shipped tiles have 64 columns or more with
roles, and 32 without.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.schedule.model import Schedule
from polygen.schedule.problem import Problem

_GROUPS = (8, 16)  # columns that every instruction has; that tiles have several times as many of
_FEWER = (64, 32)  # columns than tiles have, with roles and without
_MOST_STAGES = 12


def with_few_columns(schedule: Schedule, problem: Problem) -> Schedule:
    """A schedule whose tiles are no wider than the result, as whole groups of columns are; any
    other as it is.

    With roles a consumer has fewer columns, and as many bytes are on their way. Without, warps that
    would have none have rows below the others'. Its name says the tile.
    """
    cta, warp, cluster = schedule.tile.cta, schedule.tile.warp, schedule.cluster
    alone = not (problem.sections or problem.beside or problem.block or problem.zeros)
    if schedule.exchange or schedule.without_rings or cluster.n > 1 or not alone:
        return schedule
    if not schedule.specialised:
        return _with_warps_below(schedule, problem.n)
    few, group = _GROUPS
    columns = few if problem.n <= few else -(-problem.n // group) * group
    if columns >= min(cta.n, _FEWER[0]) or warp.n != cta.n or columns % (few * cluster.m):
        return schedule
    stage = cta.m + cta.n, cta.m + columns
    pipeline = schedule.pipeline
    stages = max(pipeline.stages, pipeline.stages * stage[0] // stage[1])
    return replace(
        schedule,
        name=f"{schedule.name}_{cta.m}x{columns}",
        tile=replace(schedule.tile, cta=replace(cta, n=columns), warp=replace(warp, n=columns)),
        pipeline=replace(pipeline, stages=min(_MOST_STAGES, stages)),
    )


def _with_warps_below(schedule: Schedule, columns: int) -> Schedule:
    """Warps one below another, as far as columns of warps beside them are outside."""
    cta, warp = schedule.tile.cta, schedule.tile.warp
    while columns < _FEWER[1] and cta.n // 2 >= columns and cta.n // 2 % warp.n == 0:
        cta = replace(cta, m=2 * cta.m, n=cta.n // 2)
    if cta == schedule.tile.cta:
        return schedule
    name = f"{schedule.name}_{cta.m}x{cta.n}"
    return replace(schedule, name=name, tile=replace(schedule.tile, cta=cta))
