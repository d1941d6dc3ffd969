"""``polygen completion SHELL``: a script that completes commands, options and their values.

The words come from the parser itself, so that no option can be forgotten. A script holds three
tables: the commands, the options of each, and the words that an option or a place can take. What
is not in them (programs, operands, numbers) is completed as file names.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from polygen.hardware.device import devices

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Command:
    """What one subcommand takes.

    Attributes:
        name: the word itself.
        text: what it does.
        options: each option with its help and the values it can take, none if any.
        words: the values of its first place, none if any.
    """

    name: str
    text: str
    options: tuple[tuple[str, str, tuple[str, ...]], ...]
    words: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """Print the script of a shell."""
    known = commands(options.parser)
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](known), end="")
    return 0


def commands(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    """The subcommands of a parser."""
    sub = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = {action.dest: action.help or "" for action in sub._choices_actions}
    return tuple(_command(name, texts[name], made) for name, made in sub.choices.items())


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> Command:
    options: list[tuple[str, str, tuple[str, ...]]] = []
    words: tuple[str, ...] = ()
    for action in parser._actions:
        if action.option_strings:
            longest = action.option_strings[-1]
            options.append((longest, action.help or "", _values(action)))
        elif action.choices:
            words = tuple(map(str, action.choices))
    return Command(name, text, tuple(options), words)


def _values(action: argparse.Action) -> tuple[str, ...]:
    if action.dest == "arch":
        return tuple(device.name for device in devices())
    return tuple(map(str, action.choices or ()))


def bash(known: tuple[Command, ...]) -> str:
    """A function for bash's ``complete``; zsh takes it too."""
    cases = [
        f"    {command.name}:{option}) words='{' '.join(values)}' ;;"
        for command in known
        for option, _, values in command.options
        if values
    ]
    for command in known:
        options = " ".join(option for option, _, _ in command.options)
        words = " ".join((options, *command.words))
        cases.append(f"    {command.name}:*) words='{words}' ;;")
    lines = [
        "_polygen() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=',
        '  case "$([ "$COMP_CWORD" -gt 1 ] && echo "${COMP_WORDS[1]}"):$before" in',
        *cases,
        f"    *) words='{' '.join(command.name for command in known)}' ;;",
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _polygen polygen",
    ]
    return "\n".join(lines) + "\n"


def zsh(known: tuple[Command, ...]) -> str:
    """Zsh's own emulation of bash's ``complete`` runs the same function."""
    return "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n" + bash(known)


def fish(known: tuple[Command, ...]) -> str:
    """One ``complete`` for each command, option and value."""
    lines = []
    for command in known:
        first = f"complete -c polygen -n __fish_use_subcommand -fa {command.name}"
        lines.append(f"{first} -d {_quoted(command.text)}")
        inside = f"complete -c polygen -n '__fish_seen_subcommand_from {command.name}'"
        for option, text, values in command.options:
            form = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            taken = f" -xa '{' '.join(values)}'" if values else ""
            lines.append(f"{inside} {form}{taken} -d {_quoted(text)}")
        if command.words:
            lines.append(f"{inside} -fa '{' '.join(command.words)}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
