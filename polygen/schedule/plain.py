"""TOML, faster where it is plain: a hundred shipped schedules are read before the first kernel.

1. Lines of the plain form are matched one after the other: a comment, the name of a table or of an
   entry of a list of tables, a key with a number, a string without escapes, a truth value, or a
   list of these.
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
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_LINE = re.compile(
    rf"""[ \t]*(?:
        (?P<key>{_NAME})[ \t]*=[ \t]*(?:(?P<one>{_SCALAR})|\[(?P<many>{_LIST})\])
        | \[(?P<table>{_NAME}(?:\.{_NAME})*)\]
        | \[\[(?P<entry>{_NAME})\]\]
    )?[ \t]*{_COMMENT}(?:\n|\Z)""",
    re.VERBOSE,
)
_EACH = re.compile(_SCALAR)


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
    table, named, at = found, set[str](), 0
    while at < len(text):
        line = _LINE.match(text, at)
        if line is None:
            return None
        at = line.end()
        key, one, many, name, entry = line.groups()
        if key is not None:
            if key in table:
                return None
            table[key] = _value(one) if one is not None else list(map(_value, _EACH.findall(many)))
        elif name is not None:
            if name in named:
                return None
            named.add(name)
            table = found
            for part in name.split("."):
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    return None
        elif entry is not None:
            if entry not in named and entry in found:
                return None
            named.add(entry)
            entries = found.setdefault(entry, [])
            if not isinstance(entries, list):
                return None
            table = {}
            entries.append(table)
    return found


def _value(text: str) -> str | int | float | bool:
    if text[0] == '"':
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return float(text) if "." in text else int(text)
