"""Which shipped schedule was measured fastest for which problem, on which GPU.

``schedules/FAMILY/tuned/*.toml`` hold what `polygen.tune.ship` chose from a record of measured
schedules: one entry per problem, with its fields as in `Problem` (defaults are left out) and the
name of a shipped schedule. An automatic choice looks here before it asks the cost model.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w

from polygen import plain
from polygen.errors import ScheduleFileError
from polygen.hardware.device import Device
from polygen.schedule.load import schedules_folder
from polygen.schedule.problem import Problem

FORMAT = 1
_ENTRY = {"schedule": str, "microseconds": float}


@dataclass(frozen=True, slots=True)
class Tuned:
    """The schedule measured fastest for a problem.

    Attributes:
        schedule: name of a shipped schedule.
        microseconds: its time.
        gpu: where it was measured.
    """

    schedule: str
    microseconds: float
    gpu: str


def tuned(device: Device) -> Mapping[Problem, Tuned]:
    """What was measured for a device's own family of schedules.

    Raises:
        ScheduleFileError: a shipped file has mistakes.
    """
    return _tuned(device.schedule_families[0])


@functools.cache
def _tuned(family: str) -> Mapping[Problem, Tuned]:
    found: dict[Problem, Tuned] = {}
    for path in sorted((schedules_folder() / family / "tuned").glob("*.toml")):
        found |= read_tuned(path)
    return found


def read_tuned(path: Path) -> dict[Problem, Tuned]:
    """The entries of one file.

    Raises:
        ScheduleFileError: it cannot be read or has mistakes; all are listed.
    """
    try:
        raw = plain.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as reason:
        raise ScheduleFileError(str(path), [f"cannot be read: {reason}"]) from None
    problems = []
    if raw.get("format") != FORMAT:
        problems.append(f"format: {raw.get('format')!r} cannot be read. Known: {FORMAT}")
    if not isinstance(raw.get("gpu"), str):
        problems.append("gpu: missing. Write the name of the GPU that was measured")
    entries = raw.get("problem", [])
    kinds = {field.name: type(getattr(Problem(1, 1, 1), field.name)) for field in fields(Problem)}
    found: dict[Problem, Tuned] = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        wrong = _mistakes(entry, kinds)
        problems += [f"problem[{number}]: {text}" for text in wrong]
        if not wrong:
            given: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in entry.items()
                if name in kinds
            }
            found[Problem(**given)] = Tuned(
                entry["schedule"], entry["microseconds"], str(raw.get("gpu"))
            )
    if problems:
        raise ScheduleFileError(str(path), problems)
    return found


def _mistakes(entry: Any, kinds: Mapping[str, type]) -> list[str]:
    if not isinstance(entry, dict):
        return ["not a table"]
    known = {**kinds, **_ENTRY}
    found = [f"no field is called {name}" for name in entry if name not in known]
    found += [f"{name}: missing" for name in ("m", "n", "k", *_ENTRY) if name not in entry]
    found += [
        f"{name} = {value!r} is no {known[name].__name__}"
        for name, value in entry.items()
        if name in known and type(value) is not (list if known[name] is tuple else known[name])
    ]
    return found


def dump_tuned(gpu: str, entries: Mapping[Problem, Tuned]) -> str:
    """The text of a file, one entry per problem in their order; `read_tuned` gives it back."""
    rows = []
    for problem, best in entries.items():
        values = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        default = Problem(problem.m, problem.n, problem.k)
        kept = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name in ("m", "n", "k") or value != getattr(default, name)
        }
        rows.append({**kept, "schedule": best.schedule, "microseconds": best.microseconds})
    return tomli_w.dumps({"format": FORMAT, "gpu": gpu, "problem": rows})
