"""The command ``polygen``: reads the command line, calls one function of `commands`, words errors.

Exit codes: 0 done, 1 a check or comparison failed, 2 wrong usage or any refusal. An error is one
message on stderr; the traceback comes with ``--debug`` alone.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence

from polygen import knobs
from polygen.cli.arguments import parser
from polygen.errors import PolygenError, readable, told

FAILED, REFUSED, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after ``polygen``; None: those of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options = parser().parse_args(words)
    except SystemExit as stop:  # argparse has printed its message, or the help
        return stop.code if isinstance(stop.code, int) else REFUSED
    options.command = command_line(words)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except PolygenError as error:
        if _debug(options):
            traceback.print_exc()
            return REFUSED
        print(f"polygen: {error}", file=sys.stderr)
        return REFUSED
    except SystemExit as stop:
        print(f"polygen: the program ends polygen by sys.exit({stop.code!r})", file=sys.stderr)
        return REFUSED
    except Exception as error:
        if _debug(options):
            traceback.print_exc()
            return REFUSED
        print(
            f"polygen: internal error: {readable(told(error))}. "
            "--debug shows where; please report it",
            file=sys.stderr,
        )
        return REFUSED


def command_line(words: Sequence[str]) -> str:
    """The command as one line that a shell takes back, for the header of generated code."""
    quoted = shlex.join(["polygen", *words])
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in quoted)


def _debug(options: object) -> bool:
    if getattr(options, "debug", False):
        return True
    try:
        return knobs.current().debug
    except PolygenError:  # another variable is malformed; that is the error being reported
        return False
