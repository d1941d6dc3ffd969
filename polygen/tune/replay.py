"""Times from a record instead of a GPU, so that the whole tuner runs anywhere.

The processes, time limits and batches are the real ones; a builder only waits, and the timer looks
the time up. Some schedules can be made to hang or crash, as kernels do.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from dataclasses import dataclass

from polygen.runtime.child import Handler, Stage
from polygen.schedule.model import Schedule
from polygen.tune.identity import candidate_key
from polygen.tune.records import REFUSED, TIMED, WRONG
from polygen.tune.trials import Batch, Built, Trial, be_a_child

_FOREVER = 3600.0
_PATIENCE = 600.0  # seconds for what does not hang, however slow the machine is


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Recorded times.

    Attributes:
        times: microseconds by `candidate_key`.
        behaviours: what some schedules do instead, by key: "refused", "wrong", "hang", "exit",
            "kill", "crash-build", "hang-timing".
        build_seconds: that a build takes.
        launch_seconds: that a launch takes, as the tuner sees it.
        noise: spread of single launches, as a share of the time.
        hang_seconds: until something that hangs is taken to hang. Nothing else is, so that what
            a replay finds does not depend on how fast the machine is.
    """

    times: tuple[tuple[str, float], ...]
    behaviours: tuple[tuple[str, str], ...] = ()
    build_seconds: float = 0.0
    launch_seconds: float = 0.0
    noise: float = 0.0
    hang_seconds: float = 1.0

    def builder(self) -> Handler:
        """Give what waits for as long as a build takes."""
        be_a_child(nice=True)
        behaviours = dict(self.behaviours)

        def build(schedule: Schedule, _: Stage) -> Built | Trial:
            time.sleep(self.build_seconds)
            what = behaviours.get(candidate_key(schedule))
            if what == "refused":
                return Trial(REFUSED, "refused in the record")
            if what == "crash-build":
                os.kill(os.getpid(), signal.SIGKILL)
            return Built(None)

        return build

    def timer(self) -> Handler:
        """Give what looks times up."""
        be_a_child(nice=False)
        times, behaviours = dict(self.times), dict(self.behaviours)
        checked: set[str] = set()

        def trials(batch: Batch, stage: Stage) -> dict[str, Trial]:
            found, timed = {}, [batch.anchor.key]
            for one in batch.contenders:
                what = behaviours.get(one.key, "")
                if one.key not in checked:
                    hangs = what == "hang"
                    limit = min(batch.limit, self.hang_seconds) if hangs else _PATIENCE
                    stage(f"check {one.key}", limit)
                    _behave(what)
                    checked.add(one.key)
                if what == "wrong":
                    found[one.key] = Trial(WRONG, "wrong in the record")
                else:
                    timed.append(one.key)
            hangs = any(behaviours.get(key) == "hang-timing" for key in timed)
            stage("time", self.hang_seconds if hangs else _PATIENCE)
            if hangs:
                time.sleep(_FOREVER)
            for key in timed:
                time.sleep(self.launch_seconds * batch.repeats)
                found[key] = self._trial(key, times[key], batch.repeats)
            return found

        return trials

    def _trial(self, key: str, median: float, repeats: int) -> Trial:
        generator = random.Random(f"{key} {repeats}")
        times = [median * (1 + self.noise * generator.gauss(0, 1)) for _ in range(repeats)]
        middle = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4) if repeats > 1 else (middle,) * 3
        return Trial(TIMED, "", middle, (low, high), repeats)


def _behave(what: str) -> None:
    if what == "hang":
        time.sleep(_FOREVER)
    if what == "exit":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
