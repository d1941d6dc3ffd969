"""``polygen doctor``: what is there, what is missing, and the command that mends it.

It is the one command that has to run when polygen's own packages are missing, so that nothing is
imported here that needs one.
"""

from __future__ import annotations

import argparse
import dataclasses

from polygen.cli.output import print_json, print_table
from polygen.runtime.doctor import GOALS, THERE, Part, examine, healthy, this_machine

NAME = "doctor"
TEXT = "say what polygen needs of this machine, what is missing, and what mends it"
UNHEALTHY = 1
_MARKS = {True: "yes", False: "NO"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes beside ``--json``."""
    parser.add_argument(
        "--to",
        choices=GOALS,
        help="what has to be possible for exit code 0; default: run where there is a driver, "
        "else compile",
    )


def run(options: argparse.Namespace) -> int:
    """Print the report; 1 if something is missing that the goal needs."""
    machine = this_machine()
    goal = options.to or ("run" if machine.driver() is not None else "compile")
    parts = examine(machine)
    able = {name: healthy(parts, name) for name in GOALS}
    if options.json:
        parts_json = [dataclasses.asdict(part) for part in parts]
        print_json({"ok": able[goal], "goal": goal, "able_to": able, "parts": parts_json})
        return 0 if able[goal] else UNHEALTHY
    print_table(("part", "to", "is", "found"), [_row(part) for part in parts])
    wrong = [part for part in parts if part.state != THERE]
    if wrong:
        print("\nwhat mends it:")
        for part in wrong:
            print(f"  {part.name}: {part.mend}")
    answers = ", ".join(f"{name}: {_MARKS[able[name]]}" for name in GOALS)
    print(f"\nable to {answers}")
    return 0 if able[goal] else UNHEALTHY


def _row(part: Part) -> tuple[str, str, str, str]:
    return part.name, part.needed_to, part.state, part.found


def alone(words: list[str]) -> argparse.Namespace | None:
    """The options of a command line that asks for this command, read without the full parser.

    Args:
        words: the command line.

    Returns:
        None: another command is asked for.
    """
    if NAME not in words[:1]:
        return None
    parser = argparse.ArgumentParser(prog=f"polygen {NAME}", description=TEXT)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--debug", action="store_true")
    add_options(parser)
    found = parser.parse_args(words[1:])
    found.run = run
    return found
