"""Schedule files: TOML to `Schedule` and back, with every mistake reported at once.

1. parse the TOML (a syntax error is reported with line and column, alone);
2. walk the raw tables against the tables of legal values (names, ranges, permutations);
3. structure into the record (`tables`): unknown keys and wrong types, with their paths;
4. raise one `ScheduleFileError` that lists everything found, or return the record.

`polygen.schedule.structure` adds what needs the instruction: divisibility of the tile hierarchy.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tomli_w

from polygen import plain
from polygen.errors import ScheduleError, ScheduleFileError, UnknownTarget, echo
from polygen.hardware import device as targets
from polygen.hardware.atom import atom_names
from polygen.hardware.device import Device
from polygen.hardware.swizzle import swizzle_names
from polygen.schedule.model import (
    LANES,
    LAST,
    ORDERS,
    TRIGGERS,
    ZEROS,
    Cluster,
    Epilogue,
    Launches,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    leaves,
)
from polygen.schedule.tables import mistyped, structured, unstructured

FORMAT = 1

# Dotted path -> the values it may take.
_CHOICES: dict[str, Callable[[], tuple[str, ...]]] = {
    "atom": lambda: ("auto", LANES, *ZEROS, *atom_names()),
    "cluster.share": lambda: ("all", LAST),
    "loops.k": lambda: ("forward", "backward"),
    "pipeline.copies": lambda: ("whole", "spread"),
    "raster.along": lambda: ("m", "n"),
    "raster.order": lambda: ORDERS,
    "smem.swizzle": lambda: ("auto", *swizzle_names()),
    "epilogue.through": lambda: ("smem", "registers", "tma", "lines"),
    "epilogue.rows": lambda: ("after", "tile"),
    "launch.trigger": lambda: TRIGGERS,
    "functions": lambda: ("fast", "short"),
    "roles.form": lambda: ("none", "cooperative", "pingpong"),
    "roles.computes": lambda: ("producer", "consumer", "before"),
}
_PERMUTATIONS = {
    "pipeline.order": ("copy", "mma"),
    "loops.mma": ("k", "m", "n"),
    "loops.phases": ("main", "epilogue"),
}
_SUBSETS = {"loops.grid": ("m", "n", "k")}
_MAY_BE_ZERO = (
    "pipeline.distance", "pipeline.lookahead", "pipeline.in_flight", "epilogue.columns",
    "tile.part", "cluster.columns", "epilogue.row_words",
)  # fmt: skip
# Fields that a file has only where they are not the default.
_OMITTED: dict[type, tuple[str, ...]] = {
    Roles: ("computes", "turns"),
    Tile: ("pixels", "part", "joined"),
    Cluster: ("share", "columns"),
    Pipeline: ("overlap", "together"),
    Raster: ("run", "order"),
    Epilogue: ("rows", "row_warps", "row_words"),
    Schedule: ("launch", "exchange", "functions"),
    Launches: ("trigger", "ahead"),
}


AUTO = "auto"  # what stands for a choice, in the place of a path


def load_schedule(path: Path | str) -> Schedule:
    """The schedule in a file.

    Raises:
        ScheduleFileError: the file cannot be read or has mistakes; all are listed.
    """
    if not isinstance(path, str | Path):
        raise ScheduleError(
            f"{echo(path)} is no schedule", where="schedule", nearest="Pass the path of a file"
        )
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not a file, not UTF-8, not even a path
        reason = error.strerror if isinstance(error, OSError) else error
        known = f"Shipped schedules are in {schedules_folder()}"
        if str(path).strip().lower() == AUTO:
            known = f'For an automatic choice write "{AUTO}"'
        problem = f"cannot be read: {reason}. {known}"
        raise ScheduleFileError(
            str(path) if str(path).strip(" .") else echo(path), [problem]
        ) from None
    return loads(text, str(path))


def loads(text: str, where: str) -> Schedule:
    """The schedule in a TOML text.

    Args:
        text: the TOML.
        where: what to call it in messages, usually the file's path.

    Raises:
        ScheduleFileError: it has mistakes; all are listed, each with its path.
    """
    try:
        raw = plain.loads(text)
    except (ValueError, RecursionError) as error:  # some not the parser's own: digits, brackets
        raise ScheduleFileError(where, [f"not TOML: {error}"]) from None
    problems = _format_problems(raw)
    body = {key: value for key, value in raw.items() if key != "format"}
    problems += value_problems(_leaves(body, ""))
    schedule, more = structured(body, Schedule)
    if schedule is None or problems:
        raise ScheduleFileError(where, problems + more)
    return schedule


def check_record(schedule: Schedule) -> None:
    """Hold a record that was made in Python to what `loads` holds a file to.

    Raises:
        ScheduleFileError: fields of another type, or out of range; all are listed.
    """
    problems = mistyped(schedule) or value_problems(leaves(schedule))
    if problems:
        raise ScheduleFileError(f"schedule {schedule.name}", problems)


def dumps(schedule: Schedule) -> str:
    """The TOML text of a schedule, in the record's order; `loads` gives it back.

    It has every field, but `launch`, `exchange`, `functions`, `epilogue.rows`,
    `epilogue.row_warps`, `epilogue.row_words`, `roles.turns`, `roles.computes`,
    `cluster.share`, `cluster.columns`, `raster.run`, `raster.order`, `tile.pixels`, `tile.joined`
    and `tile.part` only where they are not the default.
    """
    table = unstructured(schedule, _OMITTED)
    text = tomli_w.dumps({"format": FORMAT, **table})
    # Short lists of names or numbers read better on one line; the writer breaks every list.
    return re.sub(r'\[\n((?: +(?:"\w+"|\d+),\n)+)\]', lambda found: _one_line(found[1]), text)


def shipped(device: Device | str) -> tuple[Schedule, ...]:
    """The schedules that come with polygen for a device, its own family first, by file name.

    Raises:
        UnknownTarget: there is no such device.
        ScheduleFileError: a shipped file has mistakes.
    """
    return _shipped(targets.device(device).schedule_families)


def shipped_as(device: Device | str, name: str) -> Schedule | None:
    """The schedule of that name among the shipped ones, whose files have their names; else None.

    Raises:
        UnknownTarget: there is no such device.
        ScheduleFileError: its file has mistakes.
    """
    for folder in _folders(targets.device(device).schedule_families):
        path = folder / f"{name}.toml"
        if path.is_file():
            return _kept(path)
    return None


@functools.cache
def _shipped(families: tuple[str, ...]) -> tuple[Schedule, ...]:
    paths = [path for folder in _folders(families) for path in sorted(folder.glob("*.toml"))]
    return tuple(map(_kept, paths))


@functools.cache
def _kept(path: Path) -> Schedule:
    """A shipped schedule, read once in a process."""
    return load_schedule(path)


def _folders(families: tuple[str, ...]) -> list[Path]:
    return [schedules_folder() / family for family in families]


def schedules_folder() -> Path:
    """The folder of shipped schedules: inside the installed package, or the repository's."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_schedules"
    return installed if installed.is_dir() else package.parent / "schedules"


# --- problems ----------------------------------------------------------------------------------
def _format_problems(raw: dict[str, Any]) -> list[str]:
    if "format" not in raw:
        return [f"format: missing. Write format = {FORMAT}"]
    if type(raw["format"]) is not int or raw["format"] != FORMAT:
        return [f"format: {raw['format']!r} cannot be read. Known: {FORMAT}"]
    return []


def value_problems(values: Iterable[tuple[str, Any]]) -> list[str]:
    """What is wrong with single fields, in sentences.

    Args:
        values: dotted paths, and what stands there.
    """
    problems = []
    for path, value in values:
        if path in _CHOICES and isinstance(value, str):
            legal = _legal(path)
            if value not in legal:
                problems.append(_not_a_choice(path, value, legal))
        elif path == "device" and isinstance(value, str):
            problems += _device_problems(value)
        elif path in _PERMUTATIONS and isinstance(value, list | tuple):
            legal = _PERMUTATIONS[path]
            if sorted(map(str, value)) != sorted(legal):
                problems.append(f"{path}: {list(value)} is not a permutation of {', '.join(legal)}")
        elif path in _SUBSETS and isinstance(value, list | tuple):
            legal, names = _SUBSETS[path], [str(entry) for entry in value]
            if not names or len(set(names)) != len(names) or not set(names) <= set(legal):
                problems.append(
                    f"{path}: {list(value)} is not a list of distinct {', '.join(legal)}"
                )
        elif path == "tile.pixels" and isinstance(value, list | tuple):
            if any(type(side) is int and side < 1 for side in value):
                problems.append(f"{path}: {list(value)} has a side below 1. Nearest legal: 1")
        elif type(value) is int:
            least = 0 if path in _MAY_BE_ZERO else 1
            if value < least:
                problems.append(f"{path}: {value} is too small. Nearest legal: {least}")
    return problems


@functools.cache
def _legal(path: str) -> tuple[str, ...]:
    """The values that a field may take."""
    return _CHOICES[path]()


def _device_problems(name: str) -> list[str]:
    try:
        found = targets.device(name)
    except UnknownTarget as error:
        return [f"device: {error}"]
    return [] if found.name == name else [f"device: write {name!r} as {found.name!r}"]


def _leaves(table: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        found += _leaves(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return found


def _not_a_choice(path: str, value: str, legal: tuple[str, ...]) -> str:
    begun = [name for name in legal if value and name.startswith(value)]
    near = begun or difflib.get_close_matches(value, legal, 1, cutoff=0.5)
    hint = f"Nearest legal: {near[0]!r}. " if near else ""
    return f"{path}: {value!r} is unknown. {hint}Legal: {', '.join(legal)}"


def _one_line(entries: str) -> str:
    return f"[{', '.join(entry.strip().rstrip(',') for entry in entries.splitlines())}]"
