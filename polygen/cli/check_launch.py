"""Launch files: how `polygen check` runs a kernel that polygen did not make. TOML -> `LaunchFile`.

1. parse the TOML (a syntax error is reported with line and column, alone);
2. structure the head and every ``[[argument]]``, by its ``kind``, with cattrs: unknown keys and
   wrong types, with their paths;
3. check values that types cannot: ranges, choices, references between arguments, array files;
4. raise one `LaunchFileError` that lists everything found, or return the launch.
"""

from __future__ import annotations

import difflib
import functools
import math
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import cattrs
from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError

from polygen.cli.check_arguments import (
    KINDS,
    Argument,
    ArrayArgument,
    MapArgument,
    ScalarArgument,
    StructArgument,
)
from polygen.errors import LaunchFileError, UnknownTarget
from polygen.hardware import device as targets
from polygen.machine import Launch
from polygen.machine.tensormap import SWIZZLES

FORMAT = 1
COMPLETIONS = ("late", "early", "random")


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """One launch of one kernel.

    Attributes:
        grid: CTAs along x, y, z; missing sides are 1.
        block: threads along x, y, z; missing sides are 1; empty: those of the launch bounds.
        arch: what a ``.cu`` is compiled for; "" when the command line says it.
        entry: kernel name; "" when the file has one kernel.
        shared_bytes: dynamic shared memory.
        cluster: CTAs of a cluster along x, y, z, as a launch attribute says; missing sides are 1;
            empty: as the kernel was compiled.
        completion: when asynchronous copies land: "late", "early" or "random".
        seed: for ``completion = "random"``.
        profile: count bank conflicts and sectors.
        arguments: in parameter order.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...] = ()
    arch: str = ""
    entry: str = ""
    shared_bytes: int = 0
    cluster: tuple[int, ...] = ()
    completion: str = "late"
    seed: int = 0
    profile: bool = False
    arguments: tuple[Argument, ...] = ()


def load_launch(path: Path) -> LaunchFile:
    """The launch in a file.

    Raises:
        LaunchFileError: the file cannot be read or has mistakes; all are listed with their paths.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchFileError(str(path), [f"cannot be read: {error}"]) from None
    return read_launch(text, path)


def read_launch(text: str, path: Path) -> LaunchFile:
    """The launch in a text, which `path` names in messages.

    Raises:
        LaunchFileError: it has mistakes; all are listed with their paths.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LaunchFileError(str(path), [f"not TOML: {error}"]) from None
    problems = []
    if raw.get("format") != FORMAT or type(raw.get("format")) is not int:
        found = f"{raw['format']!r} cannot be read" if "format" in raw else "missing"
        problems.append(f"format: {found}. Write format = {FORMAT}")
    body = {key: value for key, value in raw.items() if key not in ("format", "argument")}
    head: LaunchFile = _structured(body, LaunchFile, "", problems)
    tables = raw.get("argument", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append("argument: is not a list of tables. Write [[argument]]")
        tables = []
    arguments = [_argument(number, table, problems) for number, table in enumerate(tables)]
    problems += _head_problems(head)
    for number, one in enumerate(arguments):
        if one is not None:
            problems += _argument_problems(f"argument[{number}]", one, arguments)
    if problems:
        raise LaunchFileError(str(path), problems)
    return replace(head, arguments=tuple(one for one in arguments if one is not None))


def _argument(number: int, table: dict[str, Any], problems: list[str]) -> Argument | None:
    where, kind = f"argument[{number}]", table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        said = f"{kind!r} is unknown" if "kind" in table else "missing"
        problems.append(f"{where}.kind: {said}. {_choice(str(kind), tuple(KINDS))}")
        return None
    rest = {key: value for key, value in table.items() if key != "kind"}
    made: Argument = _structured(rest, KINDS[kind], where, problems)
    return made


def sides(given: tuple[int, ...]) -> tuple[int, int, int]:
    """A grid, block or cluster; missing sides are 1."""
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def launched(head: LaunchFile, values: tuple[Any, ...], entry: str = "") -> Launch:
    """The launch of a file with these arguments; `entry` in the place of the one it names."""
    return Launch(
        sides(head.grid),
        sides(head.block),
        head.shared_bytes,
        values,
        entry or head.entry or None,
        sides(head.cluster) if head.cluster else None,
    )


# --- values --------------------------------------------------------------------------------------
def _head_problems(head: LaunchFile) -> list[str]:
    problems = []
    for name, sides in (("grid", head.grid), ("block", head.block), ("cluster", head.cluster)):
        if name != "grid" and not sides:
            continue
        if not 1 <= len(sides) <= 3 or any(side < 1 for side in sides):
            problems.append(f"{name}: {list(sides)} is not one to three positive numbers")
    if head.shared_bytes < 0:
        problems.append(f"shared_bytes: {head.shared_bytes} is negative. Nearest legal: 0")
    if head.completion not in COMPLETIONS:
        problems.append(
            f"completion: {head.completion!r} is unknown. {_choice(head.completion, COMPLETIONS)}"
        )
    if head.arch:
        try:
            targets.device(head.arch)
        except UnknownTarget as error:
            problems.append(f"arch: {error}")
    return problems


def _argument_problems(
    where: str, one: Argument, arguments: Sequence[Argument | None]
) -> list[str]:
    if isinstance(one, ScalarArgument):
        return _dtype_problems(where, one.dtype)
    if isinstance(one, StructArgument):
        return _struct_problems(where, one)
    if isinstance(one, ArrayArgument):
        return _array_problems(where, one)
    problems = []
    if one.swizzle not in SWIZZLES:
        problems.append(f"{where}.swizzle: {one.swizzle} is not one of {tuple(SWIZZLES)}")
    if not one.box or any(side < 1 for side in one.box):
        problems.append(f"{where}.box: {list(one.box)} is not a list of positive numbers")
    if one.of < 0 and not one.dtype:
        problems.append(f"{where}.of: missing. Name an array argument, or give dtype and shape")
    elif one.of < 0:
        problems += _array_problems(where, one)
    elif one.dtype or one.shape:
        problems.append(f"{where}.of: the array is argument {one.of}; dtype and shape are its own")
    elif one.of >= len(arguments) or type(arguments[one.of]) is not ArrayArgument:
        legal = [str(n) for n, a in enumerate(arguments) if type(a) is ArrayArgument]
        problems.append(
            f"{where}.of: argument {one.of} is no array. Legal: {', '.join(legal) or 'none'}"
        )
    return problems


def _array_problems(where: str, one: ArrayArgument | MapArgument) -> list[str]:
    problems = _dtype_problems(where, one.dtype)
    if not one.shape or any(side < 1 for side in one.shape):
        problems.append(f"{where}.shape: {list(one.shape)} is not a list of positive numbers")
    elif math.prod(one.shape) > MOST_ELEMENTS:
        problems.append(
            f"{where}.shape: {list(one.shape)} has {math.prod(one.shape)} elements, more than the "
            f"machine takes. Nearest legal: {MOST_ELEMENTS}"
        )
    if one.fill not in FILLS and not one.fill.endswith(".npy"):
        problems.append(
            f"{where}.fill: {one.fill!r} is unknown. {_choice(one.fill, FILLS)}, or an .npy file"
        )
    if one.expect and not one.expect.endswith(".npy"):
        problems.append(f"{where}.expect: {one.expect!r} is not an .npy file")
    if one.low > one.high:
        problems.append(f"{where}.low: {one.low} is more than high = {one.high}")
    return problems


def _struct_problems(where: str, one: StructArgument) -> list[str]:
    problems = []
    if not 1 <= one.size <= MOST_STRUCT:
        problems.append(f"{where}.size: {one.size} is not between 1 and {MOST_STRUCT} bytes")
    if one.fill != "zeros" and not one.fill.endswith(".npy"):
        problems.append(f"{where}.fill: {one.fill!r} is unknown. Legal: 'zeros', or an .npy file")
    return problems


MOST_ELEMENTS = 1 << 30  # of an array
MOST_STRUCT = 32764  # bytes: what all parameters of a kernel may have
FILLS = ("random-integers", "zeros", "nan", "iota")
# The machine's arrays by name; f16 and the like as polygen calls them.
DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "tf32": "float32", "f32": "float32", "f64": "float64",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "s8": "int8", "u8": "uint8", "s16": "int16",
    "u16": "uint16", "s32": "int32", "u32": "uint32", "s64": "int64", "u64": "uint64",
}  # fmt: skip


def _dtype_problems(where: str, name: str) -> list[str]:
    if name in DTYPES:
        return []
    return [f"{where}.dtype: {name!r} is unknown. {_choice(name, tuple(DTYPES))}"]


def _choice(value: str, legal: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(value, legal, 1, cutoff=0.65)
    hint = f"Nearest legal: {near[0]!r}. " if near else ""
    return f"{hint}Legal: {', '.join(legal)}"


# --- structure -----------------------------------------------------------------------------------
def _structured(raw: dict[str, Any], kind: type[Any], where: str, problems: list[str]) -> Any:
    """The record, after adding what is wrong to `problems`.

    What is wrong is left out or replaced by something legal, so that the rest is checked as well.
    """
    try:
        return _converter().structure(raw, kind)
    except cattrs.ClassValidationError as error:
        lines = cattrs.transform_error(error, path=where, format_exception=_worded)
        problems += [_placed(line, where) for line in lines]
        notes = [note for inner in error.exceptions for note in getattr(inner, "__notes__", [])]
        wrong = {note.name for note in notes if isinstance(note, AttributeValidationNote)}
    names = {field.name for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING}
    good = {key: value for key, value in raw.items() if key in names - wrong}
    legal = {key: value for key, value in _LEGAL.items() if key in names & (required | wrong)}
    return _converter().structure({**legal, **good}, kind)


_LEGAL: dict[str, Any] = {
    "grid": [1], "block": [1], "cluster": [1], "dtype": "f32", "shape": [1], "box": [1],
    "value": 0, "size": 1,
}  # fmt: skip


def _worded(error: BaseException, _: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        legal = tuple(field.name for field in fields(error.cl) if field.name != "arguments")
        return "\0".join(
            f"{key}: unknown key. {_choice(key, legal)}" for key in sorted(error.extra_fields)
        )
    if isinstance(error, KeyError):
        return f"{error.args[0]}: missing"
    return str(error)


def _placed(line: str, where: str) -> str:
    """``text @ path`` as ``path: text``; unknown and missing keys name themselves."""
    text, _, path = line.rpartition(" @ ")
    path = path.lstrip(".")
    prefix = f"{where}." if where else ""
    if ": unknown key. " in text:
        return "\n  - ".join(prefix + one for one in text.split("\0"))
    if text.endswith(": missing"):
        return prefix + text
    return f"{path}: {text}"


@functools.cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    # cattrs would turn "3" into 3 and 3 into "3"; a launch file says what it means.
    converter.register_structure_hook(int, lambda value, _: _exactly((int,), "an integer", value))
    converter.register_structure_hook(
        bool, lambda value, _: _exactly((bool,), "true or false", value)
    )
    converter.register_structure_hook(str, lambda value, _: _exactly((str,), "a string", value))
    converter.register_structure_hook_func(
        lambda kind: kind == float | int,
        lambda value, _: _exactly((int, float), "a number", value),
    )
    converter.register_structure_hook_func(
        lambda kind: kind == tuple[int, ...], lambda value, _: _integers(value)
    )
    converter.register_structure_hook_func(
        lambda kind: kind == tuple[Argument, ...],
        lambda value, _: _exactly((tuple,), "written as [[argument]] tables", value),
    )
    return converter


def _exactly(kinds: tuple[type, ...], called: str, value: object) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{value!r} is not {called}")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(entry) is not int for entry in value):
        raise TypeError(f"{value!r} is not a list of integers")
    return tuple(value)
