"""A record of measured schedules -> problems, schedules and times for the model's fit.

Programs are traced again, so that what the model knows of a problem comes from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polygen.decide import candidates
from polygen.errors import PolygenError
from polygen.hardware.device import Device, device
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import predict_all
from polygen.tune.quality import Column
from polygen.tune.recorded import Recorded, read


@dataclass(frozen=True, slots=True)
class Measured:
    """One problem with its measured schedules.

    Attributes:
        name: operation and sizes, for people.
        sizes: the sizes alone: problems of equal sizes are left out together.
        device: the target.
        gpu: where it was measured.
        problem: what the model knows of it.
        schedules: as they were measured.
        microseconds: of each, in their order.
        repeats: launches behind each.
        partial: whether it was made before schedules fitted that matter, and says nothing of them:
            none has roles, though shipped schedules with roles fit the program; or none is for few
            rows (`Schedule.for_few_rows`), though one that is shipped fits, and is predicted to
            take less than the fastest took, and than any of them is predicted to.
    """

    name: str
    sizes: str
    device: Device
    gpu: str
    problem: Problem
    schedules: tuple[Fitted, ...]
    microseconds: Column
    repeats: tuple[int, ...] = ()
    partial: bool = False


def read_record(path: Path) -> tuple[Measured, ...]:
    """The problems of a record, but for those with invariant dims.

    Args:
        path: the JSON file.

    Raises:
        PolygenError: it cannot be read, is of another format, or a problem in it is malformed.
    """
    found = []
    for number, recorded in enumerate(read(path)):
        if (
            recorded.invariant
        ):  # the fastest of one class of sums: of the free choice it says nothing
            continue
        try:
            found.append(_measured(recorded))
        except (PolygenError, SyntaxError) as error:
            raise PolygenError(
                "a problem is refused", where=f"{path}, problems[{number}]", why=str(error)
            ) from None
    return tuple(found)


def _is_partial(
    target: Device,
    problem: Problem,
    measured: Sequence[Fitted],
    least: float,
    fit: Callable[[Schedule], Fitted | str],
) -> bool:
    """Whether shipped schedules that matter were not measured, of a kind that was not at all."""

    def fitting(kind: Callable[[Schedule], bool]) -> list[Fitted]:
        if any(kind(one.schedule) for one in measured):
            return []
        found = (fit(one) for one in shipped(target) if kind(one))
        return [one for one in found if isinstance(one, Fitted)]

    if fitting(lambda one: one.specialised):
        return True
    few = predict_all(target, fitting(lambda one: one.for_few_rows), problem)
    return bool(few) and min(few) < min(least, *predict_all(target, measured, problem))


def _measured(recorded: Recorded) -> Measured:
    target, sizes = device(recorded.arch), dict(recorded.sizes)
    problem, fit = candidates(recorded.program(), target, sizes)
    schedules = []
    for schedule, _ in recorded.times:
        fitted = fit(schedule)
        schedules.append(Fitted(schedule, 1 if isinstance(fitted, str) else fitted.resident))
    times = np.array([time for _, time in recorded.times], np.float64)
    partial = _is_partial(target, problem, schedules, float(times.min()), fit)
    text = "x".join(str(size) for size in (problem.m, problem.n, problem.k))
    dtype = recorded.signature[0].partition(":")[2].partition("[")[0]
    name = f"{recorded.op} {dtype} {text}"
    return Measured(
        name, text, target, recorded.gpu, problem, tuple(schedules), times, recorded.repeats,
        partial,
    )  # fmt: skip
