"""Tables of a file to records and back; a table says exactly what a record has, or what is wrong.

1. A record's fields are read once from its class: numbers, truth values, strings, lists of these,
   and records, which are tables in the table. Every field has a default.
2. `structured` takes a table apart by them. Nothing is converted: 3 is no string and "3" no number.
   All mistakes are gathered, each with its path, beside unknown names.
3. `unstructured` is the way back; some fields are left out where they are as usual.
4. `mistyped` holds a record that was made in Python to the same: a list has to be a tuple there.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from polygen.errors import echo

Record = TypeVar("Record")

# By a field's annotation: what a table has there, of what it is a list, and how that is called.
_PLAIN: dict[str, tuple[type, type | None, str]] = {
    "int": (int, None, "an integer"),
    "bool": (bool, None, "true or false"),
    "str": (str, None, "a string"),
    "tuple[int, ...]": (list, int, "a list of integers"),
    "tuple[str, ...]": (list, str, "a list of strings"),
}


def structured(table: dict[str, Any], kind: type[Record]) -> tuple[Record | None, list[str]]:
    """The record that a table says; None where something is wrong with it, and what.

    Args:
        table: names to plain values, lists of them, and tables.
        kind: a dataclass, each of its fields with a default.

    Returns:
        The record, and sentences that begin with the path of what is wrong.
    """
    problems: list[str] = []
    found = _structured(table, kind, "", problems)
    return (None if problems else found), problems


def _structured(table: dict[str, Any], kind: Any, prefix: str, problems: list[str]) -> Any:
    known = _fields(kind)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            continue
        inner, plain = known[name]
        if plain is not None:
            values[name] = _plain(value, plain, f"{prefix}{name}", problems)
        elif type(value) is dict:
            values[name] = _structured(value, inner, f"{prefix}{name}.", problems)
        else:
            problems.append(f"{prefix}{name}: is not a table. Write [{prefix}{name}]")
    if len(known.keys() & table.keys()) < len(table):
        for name in sorted(table.keys() - known.keys()):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Nearest legal: {prefix}{near[0]}. " if near else ""
            problems.append(f"{prefix}{name}: unknown key. {hint}Legal: {', '.join(known)}")
    return None if problems else kind(**values)


def _plain(value: Any, wanted: tuple[type, type | None, str], path: str, bad: list[str]) -> Any:
    kind, item, called = wanted
    fits = type(value) is kind
    if fits and (item is None or all(type(one) is item for one in value)):
        return value if item is None else tuple(value)
    bad.append(f"{path}: {value!r} is not {called}")
    return None


def mistyped(record: Any, prefix: str = "") -> list[str]:
    """Sentences about those fields of a record that hold something of another type.

    Args:
        record: a dataclass, each of its fields with a default.
        prefix: of the fields' paths.
    """
    problems: list[str] = []
    own: Any = type(record)
    for name, (inner, plain) in _fields(own).items():
        value, path = getattr(record, name), f"{prefix}{name}"
        if plain is None and isinstance(value, inner):
            problems += mistyped(value, f"{path}.")
        elif plain is None:
            problems.append(f"{path}: {echo(value)} is no {inner.__name__}")
        else:
            kind, item, called = plain
            fits = type(value) is (kind if item is None else tuple)
            if not fits or (item is not None and any(type(one) is not item for one in value)):
                problems.append(f"{path}: {echo(value)} is not {called.replace('list', 'tuple')}")
    return problems


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, tuple[type, type | None, str] | None]]:
    """Of every field the class of its record, or what is plain of it."""
    return {one.name: (type(_usual(one)), _PLAIN.get(str(one.type))) for one in fields(kind)}


def _usual(field: Field[Any]) -> Any:
    """The default of a field."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def unstructured(record: Any, omitted: Mapping[type, tuple[str, ...]]) -> dict[str, Any]:
    """A record as a table, in its order.

    Args:
        record: a dataclass of plain values, tuples of them, and records.
        omitted: by class, names of fields that are left out where they are the default.
    """
    found: dict[str, Any] = {}
    left_out = omitted.get(type(record), ())
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name in left_out and value == _usual(field):
            continue
        found[field.name] = unstructured(value, omitted) if is_dataclass(value) else value
    return found
