"""Printing: tables for people, plain aligned text for pipes, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from polygen.errors import PolygenError


def fancy() -> bool:
    """Whether to colour: stdout is a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def error_json(error: Exception) -> dict[str, object]:
    """An error as plain values: its class, its message, and the parts of the message.

    A mistake of polygen itself has the class and the message alone.
    """
    said: dict[str, object] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, PolygenError):
        said |= {part: getattr(error, part) for part in ("what", "where", "why", "nearest")}
    for more in ("problems", "column", "log"):
        if value := getattr(error, more, None):
            said[more] = value
    return {"ok": False, "error": said}


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a head; aligned columns of text when nobody looks."""
    if fancy():
        from rich.console import Console  # noqa: PLC0415 (50 ms that only a terminal needs)
        from rich.table import Table  # noqa: PLC0415

        table = Table(*head, header_style="bold", show_edge=False)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def print_code(text: str, language: str) -> None:
    """Print program text, coloured on a terminal; the bytes themselves otherwise."""
    if not fancy():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.syntax import Syntax  # noqa: PLC0415

    Console(soft_wrap=True).print(Syntax(text, language, background_color="default"))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print ``name  value`` lines with the values aligned."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}".rstrip())
