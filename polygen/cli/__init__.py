"""The command ``polygen``: reads the command line, calls one function of `commands`, words errors.

Exit codes: 0 done, 1 a check or comparison failed, 2 wrong usage or any refusal. An error is one
message on stderr, and with ``--json`` an object on stdout too; the traceback comes with ``--debug``
alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shlex
import sys
import traceback
from collections.abc import Sequence

from polygen.cli import streams
from polygen.cli.output import error_json, print_json
from polygen.errors import (
    OutputError,
    PolygenError,
    TraceError,
    package_missing,
    readable,
    told,
)
from polygen.knobs import current as knobs  # (not as a name of polygen: that loads NumPy)

REFUSED, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after ``polygen``; None: those of this process, whose standard streams are
            then made fit for it.

    Returns:
        The exit code.
    """
    if argv is not None:
        return _guarded(list(argv))
    with streams.of_a_command():
        return _guarded(sys.argv[1:])


def _guarded(words: list[str]) -> int:
    """Run, and turn whatever goes wrong into a message and an exit code."""
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        streams.discard(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _report(error, words)


def _run(words: list[str]) -> int:
    try:
        options = _options(words)
    except SystemExit as stop:  # argparse has printed the help or the version
        return stop.code if isinstance(stop.code, int) else REFUSED
    options.command = command_line(words)
    try:
        return int(options.run(options))
    except SystemExit as stop:  # of the user's code: it would be a success without a result
        raise TraceError(f"the program ends polygen by sys.exit({stop.code!r})") from stop


def _options(words: list[str]) -> argparse.Namespace:
    """The command line, read.

    Raises:
        ToolchainMissing: a package that polygen cannot do without is not installed.
    """
    try:
        from polygen.cli.arguments import parser  # noqa: PLC0415 (loads everything there is)
    except ImportError as reason:
        from polygen.cli import doctor  # noqa: PLC0415 (the one command that runs all the same)

        found = doctor.alone(words)
        if found is None:
            raise package_missing(reason) from reason
        return found
    return parser().parse_args(words)


def _report(error: Exception, words: list[str]) -> int:
    """Word an error on stderr, and for programs on stdout."""
    if _debug(words):
        text = "".join(traceback.format_exception(error))
    elif isinstance(error, PolygenError):
        text = f"polygen: {error}\n"
    else:
        text = (
            f"polygen: internal error: {readable(told(error))}. "
            "--debug shows where; please report it\n"
        )
    with contextlib.suppress(OSError):  # there is nobody to tell
        sys.stderr.write(text)
        sys.stderr.flush()
    if _json(words) and not isinstance(error, OutputError):
        with contextlib.suppress(OSError, OutputError):
            print_json(error_json(error))
            sys.stdout.flush()
    if isinstance(error, OutputError):
        streams.discard(sys.stdout)
    return REFUSED


def _json(words: Sequence[str]) -> bool:
    """Whether the report was to be JSON."""
    pairs = itertools.pairwise(words)
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairs


def command_line(words: Sequence[str]) -> str:
    """The command as one line that a shell takes back, for the header of generated code."""
    quoted = shlex.join(["polygen", *words])
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in quoted)


def _debug(words: Sequence[str]) -> bool:
    if "--debug" in words:
        return True
    try:
        return knobs().debug
    except PolygenError:  # another variable is malformed; that is the error being reported
        return False
