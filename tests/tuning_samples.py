"""Problems for tests of the tuner, and a tuning that other processes can run and tests can kill."""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

from polygen.api import Fused
from polygen.frontend.parse import parse_expression
from polygen.frontend.signature import parse_signature
from polygen.tune.crew import Crew
from polygen.tune.identity import candidate_key, canonical
from polygen.tune.records import Records, Target, Version
from polygen.tune.replay import ReplaySource
from polygen.tune.search import Progress, Tuning, search
from polygen.tune.task import Task, describe

EXPRESSION = "gelu(x @ w.T + b)"
SIGNATURE = ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]")
SIZES = {"M": 4096, "N": 4096, "K": 1024}
VERSION = Version("digest", "compiler", "0")


def fused(expression: str = EXPRESSION, signature: tuple[str, ...] = SIGNATURE) -> Fused:
    names = tuple(parse_signature(text).name for text in signature)
    return Fused(parse_expression(expression, names), "sample", expression, False)


def task(arch: str = "sm_90a", **sizes: int) -> Task:
    return describe(fused(), SIGNATURE, sizes={**SIZES, **sizes}, arch=arch)


def few(made: Task, count: int = 40) -> list:
    """Schedules from all over the space, the anchor first."""
    step = len(made.candidates) // count
    return list(made.candidates[:: max(1, step)])[:count]


def target(made: Task) -> Target:
    return Target(
        canonical(made.program, made.sizes), made.device.name, "Recorded GPU", "replay", "sample",
        EXPRESSION, SIGNATURE, tuple(made.sizes.items()),
    )  # fmt: skip


def keys(candidates) -> list[str]:
    return list(dict.fromkeys(candidate_key(one.schedule) for one in candidates))


def times(candidates, seed: int = 0) -> dict[str, float]:
    """A time for each schedule: distinct ones, in no order that the model knows."""
    generator = random.Random(seed)
    return {key: generator.uniform(50, 150) for key in keys(candidates)}


class Clock:
    """A clock that stands still, but for a step forward at every batch of a search.

    What a budget leaves room for then follows from the numbers alone, on every machine.
    """

    def __init__(self, step: float = 0.0) -> None:
        self.time, self._step = 1000.0, step

    def __call__(self) -> float:
        return self.time

    def report(self, progress: Progress) -> None:
        """Take the step when the search reports a batch."""
        if progress.stage == "search":
            self.time += self._step


PATIENCE = 600.0  # seconds to wait for what only a fault keeps from coming


def replayed(
    made: Task, chosen, path: Path, source: ReplaySource, builders: int = 2, crew=None, **options
) -> Tuning:
    with Records(path) as records, nullcontext(crew) if crew else Crew(builders) as staff:
        return search(
            chosen, made.device, made.problem, target(made), VERSION, source, records,
            crew=staff, **{"budget": None, "check_limit": PATIENCE, **options},
        )  # fmt: skip


def main(path: str, build_seconds: str, launch_seconds: str, kill_at: str) -> None:
    """A tuning in a process of its own: prints the best schedule's name.

    Args:
        path: the records.
        build_seconds: that a build takes.
        launch_seconds: that a launch takes.
        kill_at: schedules after which the process kills itself; 0: it does not.
    """
    made = task()
    chosen = few(made)
    source = ReplaySource(
        tuple(times(chosen).items()),
        build_seconds=float(build_seconds),
        launch_seconds=float(launch_seconds),
    )

    def die(progress: Progress) -> None:
        if 0 < int(kill_at) <= progress.done:
            os.kill(os.getpid(), signal.SIGKILL)

    found = replayed(made, chosen, Path(path), source, builders=1, report=die)
    print(found.best.schedule.name, found.resumed)


if __name__ == "__main__":
    main(*sys.argv[1:])
