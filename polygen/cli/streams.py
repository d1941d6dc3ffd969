"""The standard streams of a command: closed ones, full disks, readers that leave, warnings."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from polygen.errors import OutputError


@contextlib.contextmanager
def of_a_command() -> Iterator[None]:
    """Make the streams of this process fit for a command.

    1. A descriptor that was closed is opened on the null device: else the next file that polygen
       opens would get its number, and what a library prints would go into that file.
    2. What the terminal's encoding lacks is escaped.
    3. Warnings are one line each.
    """
    missing = sys.stdout is None
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            while (opened := os.open(os.devnull, os.O_RDWR)) < number:
                pass
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    usual = sys.stdout
    with warnings.catch_warnings():
        warnings.simplefilter("default", RuntimeWarning)  # polygen's own never end a command
        warnings.showwarning = _warn  # type: ignore[assignment]
        sys.stdout = cast(TextIO, _Stdout(usual, missing))
        try:
            yield
        finally:
            sys.stdout = usual


class _Stdout:
    """Standard output whose failures are an `OutputError`: a command whose result is lost fails."""

    def __init__(self, stream: TextIO, missing: bool) -> None:
        self._stream, self._missing = stream, missing

    def write(self, text: str) -> Any:
        if self._missing:
            raise self._error("it is closed")
        return self._guarded(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._guarded(self._stream.flush)

    def _guarded(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except BrokenPipeError:  # the reader has seen enough, which is no failure
            raise
        except OSError as reason:
            raise self._error(reason.strerror or str(reason)) from reason
        except ValueError as reason:  # somebody's code closed it
            raise self._error("it is closed") from reason

    def _error(self, why: str) -> OutputError:
        return OutputError(
            "the output cannot be written",
            where="stdout",
            why=why,
            nearest="Send it to a file or a program that takes it, or to /dev/null",
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _warn(message: Warning | str, *_: object) -> None:
    with contextlib.suppress(OSError):
        print(f"polygen: warning: {message}", file=sys.stderr)


def discard(stream: TextIO) -> None:
    """Let the null device have what is still in the buffer, else Python fails when it exits."""
    with contextlib.suppress(OSError, ValueError):  # not a stream of the operating system
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
