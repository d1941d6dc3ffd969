"""Every ``POLYGEN_*`` environment variable, typed, in one place (ten at most).

An empty variable is as good as none. Python wins over the environment: ``with
scope(cache_dir=...)`` overrides inside the block.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from polygen.errors import PolygenError


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings in force."""

    cache_dir: Path | None = (
        None  # where compiled kernels are kept; None: the platform's cache folder
    )
    cache: bool = True  # False: compile every time, keep nothing
    schedule: Path | None = None  # a schedule file that replaces every automatic choice
    arch: str | None = None  # the target when a call names none and no GPU is present
    line_info: bool = False  # compile with line information for profilers
    debug: bool = False  # the command line shows tracebacks
    tf32: bool = False  # NumPy programs: products of float32 may multiply as tf32


_TRUE, _FALSE = {"1", "true", "on", "yes"}, {"0", "false", "off", "no"}
_override: contextvars.ContextVar[Knobs | None] = contextvars.ContextVar(
    "polygen_knobs", default=None
)


def _parse(name: str, kind: str, text: str) -> object:
    if "bool" in kind:
        lowered = text.strip().lower()
        if lowered not in _TRUE | _FALSE:
            raise PolygenError(
                f"{text!r} is not a truth value",
                where=f"environment variable {name}",
                nearest="Use 1 or 0",
            )
        return lowered in _TRUE
    return _path(name, text) if "Path" in kind else text


def _path(name: str, text: str) -> Path:
    """A path as a shell would read it: nobody expands ~ in a Dockerfile or a unit file."""
    try:
        return Path(text).expanduser()
    except RuntimeError as reason:  # ~nobody, or a user without a home folder
        raise PolygenError(
            f"{text!r} names no folder",
            where=f"environment variable {name}",
            why=str(reason),
            nearest="Write the whole path",
        ) from None


def current() -> Knobs:
    """The settings in force: the innermost `scope`, else the environment."""
    scoped = _override.get()
    if scoped is not None:
        return scoped
    found = {}
    for field in fields(Knobs):
        name = f"POLYGEN_{field.name.upper()}"
        if os.environ.get(name, "").strip():  # empty is unset, as scripts mean it
            found[field.name] = _parse(name, str(field.type), os.environ[name])
    return replace(Knobs(), **found)  # type: ignore[arg-type]


@contextlib.contextmanager
def scope(**changes: object) -> Iterator[Knobs]:
    """Override settings for the duration of a ``with`` block.

    Args:
        **changes: fields of `Knobs`.

    Yields:
        The settings in force inside the block.
    """
    token = _override.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        yield current()
    finally:
        _override.reset(token)
