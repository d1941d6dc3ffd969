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
from polygen.schedule.model import BEHIND_LOADS, Launches, Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import predict

EARLY = "; begins while the kernels before it end"
AHEAD = ", and brings then what none of them writes"


def begin_early(
    device: Device,
    schedule: Schedule,
    problem: Problem,
    fitted: Fitted | None,
    order: InOrder | None = None,
    settled: Collection[str] = (),
) -> tuple[Launches, str]:
    """How a kernel begins, where that is worth its while early, and words for it.

    Args:
        device: the target.
        schedule: the choice.
        problem: what for.
        fitted: the choice as it fits the program; None: nobody knows how long it takes.
        order: its place among kernels in order, the first of which begins when all else is done.
        settled: operands that can come early, whatever those before it do.
    """
    launch, known = schedule.launch, cost_parameters(device)
    if not device.has("griddepcontrol"):
        return launch, ""
    first = order is not None and order.first
    behind = launch.realign or problem.makes_first(schedule) or bool(problem.turned[0])
    few = min(problem.m, problem.n) <= known.early_rows
    late = replace(launch, trigger=BEHIND_LOADS) if schedule.specialised and not few else launch
    if launch.dependent:  # behind a launch of its own
        return replace(launch, dependent=behind or not first), ""
    ahead = bool(settled) and few and schedule.cluster.tiles == 1 and not behind
    longest = known.ahead_most if ahead else known.early_most
    short = fitted is not None and predict(device, fitted, problem) <= longest
    if short and not problem.uneven and (behind or not first):
        return replace(late, dependent=True, ahead=ahead), EARLY + AHEAD * ahead
    followed = any(problem.folds) or any(problem.tallied)
    return (late if followed or order is not None else launch), ""
