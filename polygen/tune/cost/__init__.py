"""The cost model: microseconds of (program, schedule, device), from counts; needs no GPU.

`counts` says what a kernel does, `model` how long each resource needs for it, and
`polygen.hardware.cost_parameters` what a device does in which time. docs/cost-model.md explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polygen.hardware.cost_parameters import CostParameters, cost_parameters
from polygen.hardware.device import Device
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost.counted import Counts
from polygen.tune.cost.counts import all_counts, counts
from polygen.tune.cost.model import BEFORE, PARTS, Columns, times

__all__ = [
    "Cost",
    "CostParameters",
    "Counts",
    "cost",
    "counts",
    "following",
    "predict",
    "predict_all",
]


@dataclass(frozen=True, slots=True)
class Cost:
    """A predicted time.

    Attributes:
        microseconds: of the kernel.
        parts: microseconds of each resource if nothing else took any; they overlap.
        counts: what the kernel does.
    """

    microseconds: float
    parts: tuple[tuple[str, float], ...]
    counts: Counts

    @property
    def bound(self) -> str:
        """The resource that takes longest."""
        return max(self.parts, key=lambda part: part[1])[0]

    @property
    def share(self) -> float:
        """Of the time, what that resource takes."""
        return dict(self.parts)[self.bound] / self.microseconds


def cost(
    device: Device, fitted: Fitted, problem: Problem, parameters: CostParameters | None = None
) -> Cost:
    """The predicted time of one schedule, and what it is made of.

    Args:
        device: the target.
        fitted: the schedule as it fits the program.
        problem: the sizes, and the weight of the epilogue.
        parameters: None: the device's.
    """
    counted = counts(device, fitted, problem)
    found = times(parameters or cost_parameters(device), Columns([counted]))
    named = (*PARTS, BEFORE) if counted.copied or counted.made_first else PARTS
    parts = tuple((part, float(found[part][0])) for part in named)
    return Cost(float(found["total"][0]), parts, counted)


def predict(device: Device, fitted: Fitted, problem: Problem) -> float:
    """Predicted microseconds of one schedule."""
    return predict_all(device, [fitted], problem)[0]


def following(device: Device, read: int, written: int, functions: int = 0) -> float:
    """Predicted microseconds of the launch that finishes a kernel's rows.

    Args:
        device: the target.
        read: bytes that it reads.
        written: bytes that it writes.
        functions: beyond arithmetic, of all elements.
    """
    p = cost_parameters(device)
    moved = (read + p.written_share * written) / (p.rows_share * p.memory)
    computed = functions / (p.warp_function_rate * device.multiprocessors * p.clock)
    return p.launch_start + (moved + computed) * 1e-3


def predict_all(device: Device, fitted: Sequence[Fitted], problem: Problem) -> list[float]:
    """Predicted microseconds of many schedules, in their order; some 10 us each.

    Args:
        device: the target.
        fitted: schedules as they fit the program.
        problem: the sizes, and the weight of the epilogue.
    """
    if not fitted:
        return []
    rows = Columns(list(all_counts(device, fitted, problem)))
    return [float(value) for value in times(cost_parameters(device), rows)["total"]]
