"""Schedule files: TOML to `Schedule` and back, with every mistake reported at once.

1. parse the TOML (a syntax error is reported with line and column, alone);
2. walk the raw tables against the tables of legal values (names, ranges, permutations);
3. structure into the record with cattrs: unknown keys and wrong types, with their paths;
4. raise one `ScheduleFileError` that lists everything found, or return the record.

`polygen.schedule.structure` adds what needs the instruction: divisibility of the tile hierarchy.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import cattrs
import tomli_w
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
)
from cattrs.gen import make_dict_unstructure_fn, override

from polygen.errors import ScheduleFileError, UnknownTarget
from polygen.hardware import device as targets
from polygen.hardware.atom import atom_names
from polygen.hardware.device import Device
from polygen.hardware.swizzle import swizzle_names
from polygen.schedule import plain
from polygen.schedule.model import LANES, Epilogue, Raster, Roles, Schedule, Tile

FORMAT = 1

# Dotted path -> the values it may take.
_CHOICES: dict[str, Callable[[], tuple[str, ...]]] = {
    "atom": lambda: ("auto", LANES, *atom_names()),
    "loops.k": lambda: ("forward", "backward"),
    "pipeline.copies": lambda: ("whole", "spread"),
    "raster.along": lambda: ("m", "n"),
    "smem.swizzle": lambda: ("auto", *swizzle_names()),
    "epilogue.through": lambda: ("smem", "registers", "tma", "lines"),
    "epilogue.rows": lambda: ("after", "tile"),
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
    "tile.part",
)  # fmt: skip
# Fields that a file has only where they are not the default; inner tables before their owner.
_OMITTED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (Roles, ("computes",)),
    (Tile, ("pixels", "part")),
    (Raster, ("run",)),
    (Epilogue, ("rows",)),
    (Schedule, ("launch", "exchange", "functions")),
)


def load_schedule(path: Path | str) -> Schedule:
    """The schedule in a file.

    Raises:
        ScheduleFileError: the file cannot be read or has mistakes; all are listed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not a file, not UTF-8, not even a path
        reason = error.strerror if isinstance(error, OSError) else error
        problem = f"cannot be read: {reason}. Shipped schedules are in {schedules_folder()}"
        raise ScheduleFileError(str(path), [problem]) from None
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
    problems += value_problems(body)
    try:
        schedule = converter().structure(body, Schedule)
    except ClassValidationError as error:
        problems += _structure_problems(error, "")
        raise ScheduleFileError(where, problems) from None
    if problems:
        raise ScheduleFileError(where, problems)
    return schedule


def dumps(schedule: Schedule) -> str:
    """The TOML text of a schedule, in the record's order; `loads` gives it back.

    It has every field, but `launch`, `exchange`, `functions`, `epilogue.rows`, `roles.computes`,
    `raster.run`, `tile.pixels` and `tile.part` only where they are not the default.
    """
    table = converter().unstructure(schedule)
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


@functools.cache
def _shipped(families: tuple[str, ...]) -> tuple[Schedule, ...]:
    root = schedules_folder()
    paths = [path for family in families for path in sorted((root / family).glob("*.toml"))]
    return tuple(load_schedule(path) for path in paths)


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


def value_problems(raw: dict[str, Any]) -> list[str]:
    """What is wrong with single fields, in sentences."""
    problems = []
    for path, value in _leaves(raw, ""):
        if path in _CHOICES and isinstance(value, str):
            legal = _CHOICES[path]()
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


def _structure_problems(error: BaseException, path: str) -> list[str]:
    """The messages inside a cattrs error tree, each with its dotted path."""
    if isinstance(error, ClassValidationError):
        problems = []
        for inner in error.exceptions:
            notes = getattr(inner, "__notes__", [])
            names = [note.name for note in notes if isinstance(note, AttributeValidationNote)]
            deeper = f"{path}.{names[0]}" if path and names else (names[0] if names else path)
            wants_table = any(is_dataclass(getattr(note, "type", None)) for note in notes)
            if wants_table and not isinstance(inner, ClassValidationError):
                problems.append(f"{deeper}: is not a table. Write [{deeper}]")
            else:
                problems += _structure_problems(inner, deeper)
        return problems
    if isinstance(error, ForbiddenExtraKeysError):
        legal = [field.name for field in fields(error.cl)]
        prefix = f"{path}." if path else ""
        problems = []
        for key in sorted(error.extra_fields):
            near = difflib.get_close_matches(key, legal, 1)
            hint = f"Nearest legal: {prefix}{near[0]}. " if near else ""
            problems.append(f"{prefix}{key}: unknown key. {hint}Legal: {', '.join(legal)}")
        return problems
    return [f"{path}: {error}"]


def _one_line(entries: str) -> str:
    return f"[{', '.join(entry.strip().rstrip(',') for entry in entries.splitlines())}]"


@functools.cache
def converter() -> cattrs.Converter:
    """Between tables and records, as strict as a schedule file is."""
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    # cattrs would turn "3" into 3 and 3 into "3"; a schedule file says what it means.
    converter.register_structure_hook(int, lambda value, _: _exactly(int, "an integer", value))
    converter.register_structure_hook(bool, lambda value, _: _exactly(bool, "true or false", value))
    converter.register_structure_hook(str, lambda value, _: _exactly(str, "a string", value))
    converter.register_structure_hook_func(
        lambda kind: kind == tuple[str, ...], lambda value, _: _strings(value)
    )
    converter.register_structure_hook_func(
        lambda kind: kind == tuple[int, ...], lambda value, _: _numbers(value)
    )
    for kind, names in _OMITTED:
        only: dict[str, Any] = {name: override(omit_if_default=True) for name in names}
        converter.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, converter, **only))
    return converter


def _exactly(kind: type, called: str, value: object) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {called}")
    return value


def _numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(entry) is int for entry in value):
        raise TypeError(f"{value!r} is not a list of integers")
    return tuple(value)


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise TypeError(f"{value!r} is not a list of strings")
    return tuple(value)
