"""The processes of a tuning: builders beside one timer. They serve one source after another.

Starting them takes seconds, most of all where CuPy is imported, so that one crew tunes many
problems. A job carries its source; what a process made for the last one is dropped when it changes.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from polygen.runtime.child import Handler, Stage, Watched

_MOST_BUILDERS = 16
_BUILD_SECONDS = 60.0
_START_SECONDS = 120.0  # of a timer, for the operands of a problem


def builder_count() -> int:
    """Processes that build: one core is left to the timer."""
    return max(1, min(_MOST_BUILDERS, len(os.sched_getaffinity(0)) - 1))


def _serving(role: str) -> Handler:
    """Do jobs, each a source and what its builder or timer is to do."""
    held: list[tuple[Any, Handler]] = []

    def handle(job: Any, stage: Stage) -> Any:
        source, what = job
        if not held or held[0][0] != source:
            held.clear()  # first, for there may not be room for the operands of two
            if role == "timer":
                stage("start", _START_SECONDS)
            held.append((source, getattr(source, role)()))
        return held[0][1](what, stage)

    return handle


class Crew:
    """Builders and a timer; a context manager, at whose end they are killed.

    Args:
        builders: how many build; None: `builder_count`.
        log: where they print; None: nowhere.
        build_limit: seconds that a build may take.

    Attributes:
        timer: the process that times.
        idle: the builders that have no job.
        busy: those that have one.
    """

    def __init__(
        self,
        builders: int | None = None,
        log: Path | None = None,
        build_limit: float = _BUILD_SECONDS,
    ) -> None:
        quiet = log or Path(os.devnull)
        self.timer = Watched(functools.partial(_serving, "timer"), log=quiet)
        self._all = [
            Watched(functools.partial(_serving, "builder"), limit=build_limit, log=quiet)
            for _ in range(builders or builder_count())
        ]
        self.idle: SimpleQueue[Watched] = SimpleQueue()
        self.busy: set[Watched] = set()
        for worker in self._all:
            self.idle.put(worker)

    @property
    def builders(self) -> int:
        """How many build."""
        return len(self._all)

    def __enter__(self) -> Crew:
        self.timer.start()
        for worker in self._all:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._all, self.timer):
            with contextlib.suppress(Exception):  # its thread may be stopping it too
                worker.stop()
