"""The child process: answers jobs with a source."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from polygen.bench.protocol import LIMITS, measure
from polygen.bench.source import Job, Source
from polygen.runtime.child import Handler, Stage

ABOUT = "about"


def gpu() -> Handler:
    """A handler that measures on the card."""
    from polygen.bench.gpu import GpuSource  # noqa: PLC0415  (imports PyTorch)

    return functools.partial(answer, GpuSource())


def replay(path: Path) -> Handler:
    """A handler that takes the times from a record."""
    from polygen.bench.replay import ReplaySource  # noqa: PLC0415

    return functools.partial(answer, ReplaySource(path))


def answer(source: Source, job: Job | str, stage: Stage) -> dict[str, Any]:
    """Do one job: describe the card and the libraries, or measure a row."""
    if isinstance(job, Job):
        return measure(source, job, stage)
    stage(ABOUT, LIMITS[ABOUT])
    return source.about(stage)
