"""Whether a kernel begins while those before it on its stream end, and lets the next do so.

A launch behind another costs about a microsecond less so. For that a kernel whose own time is short
begins early and waits for the others itself (`polygen.poly.dependent`). Of several that run in
order it may bring meanwhile what none of them writes (`polygen.poly.ahead`).

It lets those behind it begin: at its start, if rows are few; it streams a matrix once, and blocks
of the next that find room have their barriers ready. Else behind its loads: blocks that came
earlier took places that are better spread later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from polygen.frontend.program import InOrder
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import Device
from polygen.schedule.model import BEHIND_LOADS, Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import predict

EARLY = "; begins while the kernels before it end"
AHEAD = ", and brings then what none of them writes"


def begin_early(
    device: Device,
    fitted: Fitted,
    problem: Problem,
    *,
    order: InOrder | None = None,
    settled: Collection[str] = (),
) -> tuple[Schedule, str]:
    """The schedule, with an early beginning where that is worth its while, and words for it.

    Args:
        device: the target.
        fitted: the choice, as it fits the program.
        problem: what for.
        order: its place among kernels in order, the first of which begins when all else is done.
        settled: operands that can come early, whatever those before it do.
    """
    schedule, known = fitted.schedule, cost_parameters(device)
    if problem.uneven or not device.has("griddepcontrol"):
        return schedule, ""
    few, launch = min(problem.m, problem.n) <= known.early_rows, schedule.launch
    behind_loads = replace(launch, trigger=BEHIND_LOADS)
    launch = behind_loads if schedule.specialised and not few else launch
    if order is not None and order.first:
        return replace(schedule, launch=replace(launch, dependent=False)), ""
    if launch.dependent:  # behind what goes before it
        return schedule, ""
    ahead = bool(settled) and few and schedule.cluster.tiles == 1
    longest = known.ahead_most if ahead else known.early_most
    if predict(device, fitted, problem) <= longest:
        launch = replace(launch, dependent=True, ahead=ahead)
        return replace(schedule, launch=launch), EARLY + AHEAD * ahead
    # Whatever comes behind it begins, though it does not.
    lets = order is not None or any(problem.folds) or any(problem.tallied)
    return (replace(schedule, launch=launch) if lets else schedule), ""
