"""TOML, faster where it is plain: a hundred shipped schedules and the facts of instructions are
read before the first kernel.

1. Lines of the plain form are matched one after the other: a comment, the name of a table or of an
   entry of a list of tables, a key with a number, a string without escapes, a truth value, a list
   of these or of lists of them, or a table of them in one line.
2. At the first line of another form, and at anything said twice, the whole text goes to `tomllib`,
   whose meaning of a text is the only one: texts of the plain form mean here what they mean there.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

_COMMENT = r"(?:[#][^\x00-\x08\x0a-\x1f\x7f]*)?"
_STRING = r'"[^"\\\x00-\x08\x0a-\x1f\x7f]*"'
_INTEGER = r"-?(?:0|[1-9][0-9]{0,17})"
_SCALAR = rf"{_STRING}|{_INTEGER}(?:\.[0-9]+)?|true|false"
_SPACE = r"[ \t\n]*"  # a list may be on several lines
_LIST = rf"{_SPACE}(?:(?:{_SCALAR})(?:{_SPACE},{_SPACE}(?:{_SCALAR}))*{_SPACE},?{_SPACE})?"
_LISTS = rf"{_SPACE}\[{_LIST}\](?:{_SPACE},{_SPACE}\[{_LIST}\])*{_SPACE},?{_SPACE}"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PAIR = rf"[ \t]*{_NAME}[ \t]*=[ \t]*(?:{_SCALAR})[ \t]*"
_NAMED = rf"{_NAME}|{_STRING}"
_LINE = re.compile(
    rf"""[ \t]*(?:
        (?P<key>{_NAME})[ \t]*=[ \t]*(?:
            (?P<one>{_SCALAR})
            | \[(?P<many>{_LIST})\]
            | \[(?P<lists>{_LISTS})\]
            | \{{(?P<inline>{_PAIR}(?:,{_PAIR})*)\}}
        )
        | \[(?P<table>(?:{_NAMED})(?:\.(?:{_NAMED}))*)\]
        | \[\[(?P<entry>{_NAME})\]\]
    )?[ \t]*{_COMMENT}(?:\n|\Z)""",
    re.VERBOSE,
)
_EACH = re.compile(_SCALAR)
_EACH_LIST = re.compile(rf"\[({_LIST})\]")
_EACH_NAME = re.compile(_NAMED)
_EACH_PAIR = re.compile(rf"({_NAME})[ \t]*=[ \t]*({_SCALAR})")


def loads(text: str) -> dict[str, Any]:
    """What a TOML text says.

    Raises:
        ValueError: it is not TOML, as `tomllib` says.
        RecursionError: likewise.
    """
    found = _plain(text)
    return tomllib.loads(text) if found is None else found


def _plain(text: str) -> dict[str, Any] | None:
    """What a text of the plain form says; None of any other."""
    found: dict[str, Any] = {}
    table, named, at = found, set[tuple[str, ...]](), 0
    whole: set[int] = set()  # tables in one line, which nothing is added to
    while at < len(text):
        line = _LINE.match(text, at)
        if line is None:
            return None
        at = line.end()
        key, one, many, lists, inline, name, entry = line.groups()
        if key is not None:
            if key in table:
                return None
            if one is not None:
                table[key] = _value(one)
            elif many is not None:
                table[key] = _list(many)
            elif lists is not None:
                table[key] = list(map(_list, _EACH_LIST.findall(lists)))
            else:
                pairs = _EACH_PAIR.findall(inline)
                closed = table[key] = {of: _value(value) for of, value in pairs}
                if len(closed) < len(pairs):
                    return None
                whole.add(id(closed))
        elif name is not None:
            parts = tuple([part.strip('"') for part in _EACH_NAME.findall(name)])
            if parts in named:
                return None
            named.add(parts)
            table = found
            for part in parts:
                table = table.setdefault(part, {})
                if not isinstance(table, dict) or id(table) in whole:
                    return None
        elif entry is not None:
            if (entry,) not in named and entry in found:
                return None
            named.add((entry,))
            entries = found.setdefault(entry, [])
            if not isinstance(entries, list):
                return None
            table = {}
            entries.append(table)
    return found


def _list(text: str) -> list[str | int | float | bool]:
    return [_value(one) for one in _EACH.findall(text)]


def _value(text: str) -> str | int | float | bool:
    if text[0] == '"':
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return float(text) if "." in text else int(text)
