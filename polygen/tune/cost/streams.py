"""Counts of kernels that only fold elements: what warps read, and the parts that they leave."""

from __future__ import annotations

import math

from polygen.hardware.device import common_facts
from polygen.schedule.model import FOLD_WARPS, Schedule
from polygen.schedule.problem import Problem

_COMBINED = 8  # parts that a warp of the launch that follows has on their way


def stream_counts(schedule: Schedule, problem: Problem) -> dict[str, int]:
    """Sets of rows, bytes of parts, and waits for these; nothing of other kernels."""
    if not schedule.of_elements:
        return {}
    warp, (rows, columns) = schedule.tile.warp, schedule.read_together
    tall, wide = -(-problem.m // warp.m), -(-problem.n // warp.n)
    of_rows, of_columns, of_all = problem.parted
    # Of each kind of results: numbers of a part, results of a matrix, parts of a result.
    kinds = (
        (of_rows, problem.m, wide), (of_columns, problem.n, tall), (of_all, 1, tall * wide),
    )  # fmt: skip
    there = [one for one in kinds if one[0]]
    numbers = sum(math.prod(one) for one in there) * problem.batches
    parts = max((count for *_, count in there), default=0)
    if of_all:  # all lanes of a block share a result
        parts = -(-parts // common_facts()["warp_size"])
    return {
        "streamed": warp.m // rows * (warp.n // columns),
        "parts": 2 * numbers * problem.sum_bytes,
        "lines": schedule.tile.cta.m * schedule.tile.cta.n * _bytes_each(problem, columns),
        "combined": -(-parts // (_COMBINED * FOLD_WARPS)),
    }


def _bytes_each(problem: Problem, columns: int) -> int:
    """Bytes that come for an element: of rows that are read in short runs whole lines."""
    line = common_facts()["cache_line_bytes"]
    each = max(1, problem.matrix_bytes // max(1, problem.matrices))
    run = min(columns, problem.n) * each
    if columns >= problem.n or run >= line:
        return problem.matrix_bytes
    return problem.matrix_bytes * line // run
