"""Which pixels a tile has: the box of its rows that covers a result with the fewest tiles.

1. A tile of r rows is a box with a side along each axis that rows run along; the product of the
   sides is r. The innermost ones are powers of two, so that the rows of a panel, and of a part for
   a block of a cluster, are boxes too.
2. A side s covers an axis of e in ceil(e / s) tiles, those along the first counted axis in whole
   clusters. The fewest tiles win.
3. Of equals, where windows are read, the one with the shortest runs of adjacent pixels: the cache
   gives the same lines again for every element of a window, and faster where those of a box are far
   apart (`docs/results/h200_pixels.json`). Else the one with the longest runs.
4. Where tiles of one line of pixels are as few, they stay, but for windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from polygen.schedule.model import Schedule
from polygen.schedule.problem import Problem


def with_pixels(schedule: Schedule, problem: Problem) -> Schedule:
    """The schedule with tiles of pixels, where these are fewer; as it is where they are not.

    Args:
        schedule: any.
        problem: whose `pixels` say along which axes rows run.
    """
    asked = schedule.tile.pixels or not schedule.specialised or schedule.exchange
    if asked or not problem.pixels:
        return schedule
    rows, blocks = schedule.tile.cta.m, schedule.cluster.m

    def tiles(sides: tuple[int, ...]) -> int:
        counts = [-(-e // side) for e, side in zip(problem.pixels, sides, strict=True)]
        counts[problem.first] = -(-counts[problem.first] // blocks) * blocks
        return math.prod(counts)

    windows = any(problem.stored)
    sign = 1 if windows else -1
    best = min(
        _boxes(len(problem.pixels), rows),
        key=lambda sides: (tiles(sides), [sign * side for side in reversed(sides)]),
    )
    others = problem.batches * problem.m // math.prod(problem.pixels)
    now = -(-problem.m // (rows * blocks)) * blocks * problem.batches
    fewer, line = now - tiles(best) * others, math.prod(best[:-1]) == 1
    if fewer < 0 or (fewer == 0 and (line or not windows)):
        return schedule
    return replace(schedule, tile=replace(schedule.tile, pixels=best))


def _boxes(axes: int, rows: int) -> Iterator[tuple[int, ...]]:
    """Sides along so many axes: powers of two but for the outermost."""
    if axes == 1:
        yield (rows,)
        return
    side = 1
    while rows % side == 0:
        for others in _boxes(axes - 1, rows // side):
            yield (*others, side)
        side *= 2
