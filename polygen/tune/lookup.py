"""What a tuner found fastest, looked up for an automatic choice: fast, reading only, never failing.

A file that is missing, locked or damaged is as one without results; a damaged one costs a warning.
Results of another version of the generator are stale: usable, because every schedule is proved
again when it is compiled, but their time is said to be an old one.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polygen import knobs
from polygen.errors import PolygenError
from polygen.frontend.program import Program
from polygen.hardware.device import Device
from polygen.runtime import cache
from polygen.schedule.load import loads
from polygen.schedule.model import Schedule
from polygen.tune.identity import canonical, generator_digest

FILE = "tuning.sqlite"
_LOOK_UP_SECONDS = 0.05
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
_BEST = """
SELECT results.schedule, results.microseconds, anchor, anchor_microseconds, gpu, digest, date
FROM results JOIN problems ON problems.id = results.problem
WHERE program = ? AND arch = ? AND source = 'gpu' ORDER BY date DESC
"""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The schedule that a tuner found fastest for a problem.

    Attributes:
        schedule: as fitted.
        microseconds: its median time.
        anchor: the automatic choice until then, by name.
        anchor_microseconds: its median time, measured beside it.
        gpu: the name of the GPU.
        date: day of the measurement, ISO.
        stale: whether another version of the generator was measured.
    """

    schedule: Schedule
    microseconds: float
    anchor: str
    anchor_microseconds: float
    gpu: str
    date: str
    stale: bool

    @property
    def origin(self) -> str:
        """Where the schedule comes from, and with what figure, in a sentence."""
        text = (
            f"tuned {self.schedule.name}: {self.microseconds:.1f} us on {self.gpu}, {self.date}; "
            f"{self.anchor}, the automatic choice until then, "
            f"took {self.anchor_microseconds:.1f} us"
        )
        return text + "; measured with another version of the generator" * self.stale


@functools.cache
def _present() -> frozenset[str]:
    """Names of the GPUs here, without starting CUDA; empty when the driver does not say."""
    names = set()
    for file in _GPU_FOLDER.glob("*/information"):
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "Model":
                    names.add(value.strip())
    return frozenset(names)


def location() -> Path:
    """The file of the records under the knobs in force; it may not exist."""
    return cache.directory() / FILE


def best(program: Program, device: Device, sizes: Mapping[str, int]) -> Tuned | None:
    """The measured best schedule for exactly these sizes, if there is one.

    Never fails: a file that cannot be read costs one warning. Creates nothing. Of several results
    those of a GPU that is present come first, then those of this version, then the newest.

    Args:
        program: with the alignments that the sizes leave.
        device: the target.
        sizes: of the symbolic dims.
    """
    if not knobs.current().cache:
        return None
    text, path = canonical(program, sizes), location()
    if text is None or not path.is_file():
        return None
    try:
        with contextlib.closing(_read_only(path)) as connection:
            rows = connection.execute(_BEST, (text, device.name)).fetchall()
        if not rows:
            return None
        found = []
        for text, median, anchor, anchor_median, gpu, digest, date in rows:
            stale = digest != generator_digest()
            with contextlib.suppress(*((PolygenError,) if stale else ())):  # fields of then
                schedule = loads(text, str(path))
                found.append(Tuned(schedule, median, anchor, anchor_median, gpu, date[:10], stale))
        if not found:
            return None
    except (sqlite3.Error, OSError, PolygenError, TypeError, ValueError) as reason:
        _warn_once(str(path), str(reason))
        return None
    return min(found, key=lambda one: (one.gpu not in _present(), one.stale))  # rows: newest first


def _read_only(path: Path) -> sqlite3.Connection:
    # Without a log beside it nobody writes, and the file alone is all there is: SQLite then need
    # not make files for its locks, which it could not in a folder that is read-only.
    alone = not path.with_name(path.name + "-wal").exists()
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    return sqlite3.connect(uri, uri=True, timeout=_LOOK_UP_SECONDS)


@functools.cache
def _warn_once(path: str, reason: str) -> None:
    warnings.warn(f"Tuned schedules are not used: {path}: {reason}", RuntimeWarning, stacklevel=3)
