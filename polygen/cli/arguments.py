"""What the command line takes: one subcommand per thing to do, one message per mistake."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from polygen import __version__
from polygen.cli import bench, commands, completion, doctor, pipelines, trial, tune
from polygen.cli.check_formats import FORMATS
from polygen.errors import UsageError
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.show import STAGES

_DIGITS = 18  # of a size: more than the largest has, and few enough to read it as a number

EPILOG = """\
PROGRAM is an expression or FILE.py:FUNCTION; the arguments after it describe the operands in
call order, NAME:DTYPE[DIMS], then :col for column-major and @4 for an alignment of 4 bytes;
NAME:f32 is a run-time scalar.

example:
  polygen {command} "gelu(x @ w.T + b)" "x:bf16[M,K]" "w:bf16[N,K]" "b:bf16[N]" --arch sm_80 \\
      --size M=4096 N=4096 K=1024
"""

FILES = """
or a kernel from outside: polygen check FILE.cu LAUNCH.toml, polygen check FILE.ptx LAUNCH.toml;
docs/machine.md says what a launch file holds, and polygen check FILE.cu --arch sm_90a drafts one;
polygen check FOLDER runs every kernel below a folder, as its launch file says or as a draft does.
"""

SCHEDULES = """
or a schedule of a pipeline over several GPUs: polygen show --stage pipeline 1f1b --size stages=4
ranks=4 microbatches=8; in the place of 1f1b any relation, docs/parallel.md says how.
"""

# What an option of several words goes on with: a name or NAME=VALUE, which no program and no
# operand with dims is.
_GOES_ON = re.compile(r"[A-Za-z_][\w.-]*(=[^=\s]*)?")

_OPTION = re.compile(r"--?[A-Za-z][\w-]*(=|$)")
_CHOICES = re.compile(r"argument [^:]+: invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Reports a mistake as one message, without the usage text; takes options in any place."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the mistake, with where to read on.

        Raises:
            UsageError: always.
        """
        command = self.prog.removeprefix("polygen").strip()
        wrong = _CHOICES.fullmatch(message)
        known = wrong and difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), n=1)
        hint = f"Did you mean {known[0]}? " if known else ""
        raise UsageError(message, where=command, nearest=f"{hint}See `{self.prog} --help`")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse with the options in front, whatever their places, and refuse unknown ones here."""
        words = self._values_joined(self._command_first(list(args or ())))
        if any(action.dest == "program" for action in self._actions):
            words = self._options_first(words)
        found, extras = super().parse_known_args(words, namespace)
        unknown = next((word for word in extras if word.startswith("-")), None)
        if unknown is not None:
            known = difflib.get_close_matches(unknown, self._option_string_actions, n=1)
            hint = f" (did you mean {known[0]}?)" if known else ""
            self.error(f"unrecognized arguments: {' '.join(extras)}{hint}")
        return found, extras

    def _command_first(self, words: list[str]) -> list[str]:
        """Put the command before options of its own that stand in front of it."""
        commands = [one.choices for one in self._actions if one.nargs == argparse.PARSER]
        own = not words or words[0] in self._option_string_actions
        if own or not commands or not self._is_option(words[0]):
            return words
        at = next((n for n, word in enumerate(words) if word in (commands[0] or ())), 0)
        return [words[at], *words[:at], *words[at + 1 :]]

    def _values_joined(self, words: list[str]) -> list[str]:
        """Write ``--budget -3s`` as ``--budget=-3s``: argparse takes the value for an option."""
        found: list[str] = []
        for at, word in enumerate(words):
            if word == "--":
                return [*found, *words[at:]]
            before = self._option_string_actions.get(found[-1]) if found else None
            one = before is not None and before.nargs is None and found[-1].startswith("--")
            if one and word.startswith("-") and not self._is_option(word):
                found[-1] += f"={word}"
            else:
                found.append(word)
        return found

    def _options_first(self, words: list[str]) -> list[str]:
        """Put options with their values before the program and its operands.

        argparse by itself gives every word after ``--size M=64`` to that option, the program too.
        """
        options: list[str] = []
        others: list[str] = []
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if word == "--":
                others += words[position:]
                break
            if not self._is_option(word):
                others.append(word)
                continue
            options.append(word)
            action = self._option_string_actions.get(word)
            if action is None or action.nargs == 0 or position == len(words):
                continue
            if action.nargs is None or not self._is_option(words[position]):
                options.append(words[position])
                position += 1
            while action.nargs == "+" and position < len(words):
                if not _GOES_ON.fullmatch(words[position]):
                    break
                options.append(words[position])
                position += 1
        return [*options, "--", *others] if others else options

    def _is_option(self, word: str) -> bool:
        """Whether a word is an option, known or misspelled; ``-(x @ w)`` and ``-`` are not."""
        return word in self._option_string_actions or _OPTION.match(word) is not None


def size(text: str) -> tuple[str, int]:
    """``M=4096`` as a pair; ``x.pitch=4104`` likewise."""
    found = re.fullmatch(r"([A-Za-z_]\w*(?:\.pitch)?)=(\d+)", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=NUMBER, as in M=4096, or x.pitch=4104 for rows with gaps"
        )
    if len(found[2].lstrip("0")) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes are at most {LARGEST_SIZE}")
    return found[1], int(found[2])


def positive(text: str) -> int:
    """A number of at least one."""
    if not re.fullmatch(r"0*[1-9]\d{0,5}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 999999")
    return int(text)


class _Sizes(argparse.Action):
    """Collects sizes of one or several ``--size``; a name has one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        found = list(getattr(namespace, self.dest))
        assert isinstance(values, list)  # nargs is "+"
        for name, number in values:
            first = dict(found).get(name)
            if first is not None:
                parser.error(
                    f"argument --size: {name} is given twice, as {first} and as {number}; "
                    "one kernel is optimised for one size"
                )
            found.append((name, number))
        setattr(namespace, self.dest, found)


def parser() -> Parser:
    """The whole command line; every subcommand sets ``run`` to what it does."""
    main = Parser(prog="polygen", description="Array code to one fused tensor-core CUDA kernel.")
    main.add_argument("--version", action="version", version=f"polygen {__version__}")
    main.add_argument("--debug", action="store_true", help="show tracebacks")
    common = Parser(add_help=False)
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
    )
    json = Parser(add_help=False)
    json.add_argument("--json", action="store_true", help="print JSON, also of an error")
    sub = main.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: object, text: str, *parents: Parser) -> Parser:
        made = sub.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            parents=(*parents, common),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(run=run)
        if parents and parents[0] is not json:
            made.epilog = EPILOG.format(command=name)
        return made

    kernel = _kernel_options()
    text = "write a kernel's .cu, manifest and tree"
    generate = add("generate", commands.generate, text, kernel, json)
    generate.add_argument(
        "-o", dest="out", metavar="OUT", default="kernels_out", help="folder; - prints the .cu"
    )
    generate.add_argument(
        "--force", action="store_true", help="take the place of another kernel of this name"
    )
    text = "print one stage of the pipeline, or write a page"
    show = add("show", commands.show, text, _kernel_options(operands_optional=True), json)
    show.add_argument("--stage", choices=(*STAGES, pipelines.STAGE), help="default: plan")
    show.epilog = EPILOG.format(command="show") + SCHEDULES
    show.add_argument("--html", metavar="FILE", help="write all stages, with pictures, as one page")
    text = "prove a kernel, and run its PTX on NumPy; no GPU"
    check = add("check", commands.check, text, _kernel_options(operands_optional=True), json)
    check.add_argument(
        "--format", choices=FORMATS, default="text", help="of the report on a kernel file"
    )
    check.add_argument(
        "--explain", action="store_true", help="tell each finding of a kernel file as a story"
    )
    check.add_argument(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="processes for the blocks, or for the files of a folder; the report is the same; "
        "default: 1",
    )
    check.add_argument(
        "--seconds",
        type=positive,
        default=120,
        metavar="S",
        help="that a kernel of a folder may take; default: 120",
    )
    check.epilog = EPILOG.format(command="check") + FILES
    run = add("run", trial.run, "run a kernel on this GPU, compare and time it", kernel, json)
    run.add_argument("--seed", type=int, default=0, help="of the random data; default 0")
    text = "measure suites beside other libraries on this GPU"
    bench.add_options(add("bench", bench.bench, text, json))
    text = "find the fastest schedule for given sizes by measuring on this GPU"
    tune.add_options(add("tune", tune.run, text, _kernel_options(optional=True), json))
    add("targets", commands.targets, "list the target architectures", json)
    add("env", commands.env, "describe this machine: versions, GPUs, compiler", json)
    doctor.add_options(add(doctor.NAME, doctor.run, doctor.TEXT, json))
    cache = add("cache", commands.cache, "describe or empty the cache of compiled kernels", json)
    cache.add_argument("action", choices=("info", "clear"))
    text = "print a script that completes polygen's words in a shell"
    shells = add("completion", completion.run, text)
    shells.add_argument("shell", choices=completion.SHELLS)
    shells.set_defaults(parser=main)
    return main


def _kernel_options(optional: bool = False, operands_optional: bool = False) -> Parser:
    """What every command that makes a kernel takes; `optional`: the program may be left out."""
    kernel = Parser(add_help=False)
    kernel.add_argument(
        "program", metavar="PROGRAM", nargs="?" if optional else None,
        help="an expression, or FILE.py:FUNCTION",
    )  # fmt: skip
    kernel.add_argument(
        "signature", metavar="OPERAND", nargs="*" if optional or operands_optional else "+",
        help="x:bf16[M,K], in call order",
    )  # fmt: skip
    kernel.add_argument("--arch", help="target, as `polygen targets` lists; default: this GPU")
    kernel.add_argument(
        "--size",
        metavar="NAME=NUMBER",
        type=size,
        nargs="+",
        action=_Sizes,
        default=[],
        help="what to optimise for, x.pitch=4104 too: elements from one row of x to the next; all "
        "stay run-time arguments",
    )
    kernel.add_argument(
        "--static",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="dims of --size that become constants",
    )
    kernel.add_argument(
        "--invariant",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="dims that have no part in the bits of an element",
    )
    kernel.add_argument(
        "--single", action="store_true", help="refuse programs that take several kernels"
    )
    kernel.add_argument(
        "--out-dtype", metavar="DTYPE", nargs="+", help="of the output, or one per output"
    )
    kernel.add_argument("--acc-dtype", metavar="DTYPE", default="f32", help="of the sums: f32, f16")
    kernel.add_argument(
        "--schedule", metavar="FILE", default="auto", help="a schedule file; default: auto"
    )
    kernel.add_argument("--name", help="of the kernel; default: from the program")
    return kernel
