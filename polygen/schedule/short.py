"""K tiles of sums that are shorter than a k tile: as long as they are, of a narrower swizzle.

A k tile is as long as the copy engine's widest swizzle. What of it lies behind the end of a sum is
filled with zeros, which takes the engine's time and shared memory's: of 16 terms three quarters.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.hardware.matrix_layout import spans
from polygen.schedule.problem import Fitted, Problem

_MOST_STAGES = 12


def in_short_tiles(fitted: Fitted, problem: Problem) -> Fitted:
    """A schedule with roles whose k tiles are no longer than a sum needs; any other as it is.

    Its rings hold no more than before, whatever the number of slots.
    """
    schedule, size = fitted.schedule, problem.element_bytes
    fitting = [span for span in spans() if span >= problem.k * size]
    whole = spans()[0] // size
    plain = problem.computed == (0, 0) and not (problem.block or problem.joinable)
    plain = plain and not problem.sections  # which may have sums of other lengths
    if not (schedule.specialised and plain and fitting and schedule.tile.cta.k == whole):
        return fitted
    k = fitting[-1] // size
    times = whole // k
    if times == 1 or schedule.cluster.k > 1:
        return fitted
    # One slot less than would fill the room: slots have barriers.
    stages = min(_MOST_STAGES, schedule.pipeline.stages * times - 1)
    short = replace(
        schedule,
        tile=replace(schedule.tile, cta=replace(schedule.tile.cta, k=k)),
        pipeline=replace(schedule.pipeline, stages=stages),
    )
    return replace(fitted, schedule=short)
