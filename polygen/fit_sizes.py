"""Schedules as they fit known sizes: pixels, few columns, short k tiles, narrow groups, one sum.

Each takes what fits schedules to the program, whatever its sizes, and fits them to these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polygen.hardware.device import Device
from polygen.schedule.columns import with_few_columns
from polygen.schedule.model import Schedule
from polygen.schedule.narrow import in_narrow_groups
from polygen.schedule.pixels import with_pixels
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.short import in_short_tiles
from polygen.tune.cost import predict_all

Fit = Callable[[Schedule], Fitted | str]


def in_pixels(fit: Fit, problem: Problem) -> Fit:
    """Fits schedules with tiles of pixels where these are fewer, and fit; else as they are."""

    def fitted(candidate: Schedule) -> Fitted | str:
        boxed = with_pixels(candidate, problem)
        found = fit(boxed)
        return fit(candidate) if isinstance(found, str) and boxed != candidate else found

    return fitted if problem.pixels else fit


def in_few_columns(fit: Fit, problem: Problem) -> Fit:
    """Fits schedules with tiles no wider than the result, where these fit; else as they are."""

    def fitted(candidate: Schedule) -> Fitted | str:
        narrow = with_few_columns(candidate, problem)
        found = fit(narrow)
        return fit(candidate) if isinstance(found, str) and narrow != candidate else found

    return fitted


def in_short(fit: Fit, problem: Problem) -> Fit:
    """Fits schedules with k tiles no longer than sums need, and groups no wider than matrices."""

    def fitted(candidate: Schedule) -> Fitted | str:
        found = fit(candidate)
        if isinstance(found, str):
            return found
        return in_narrow_groups(in_short_tiles(found, problem), problem)

    return fitted


def to_sizes(fit: Fit, problem: Problem, device: Device) -> Fit:
    """Fits schedules with all that follows from sizes, but for pixels."""
    short = in_short(in_few_columns(fit, problem), problem)
    return in_one_sum(short, problem, device)


def in_one_sum(fit: Fit, problem: Problem, device: Device) -> Fit:
    """Fits schedules with sums over several axes as one where that is predicted to be faster.

    Kernels with invariant dims have sums of one class, whose k tiles are those of every axis.
    """

    def fitted(candidate: Schedule) -> Fitted | str:
        found = fit(candidate)
        joined = fit(replace(candidate, tile=replace(candidate.tile, joined=True)))
        if isinstance(joined, str) or isinstance(found, str):
            return found if isinstance(joined, str) else joined
        own, other = predict_all(device, [found, joined], problem)
        return joined if other < own else found

    return fitted if problem.joinable else fit
