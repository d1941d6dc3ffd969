"""Every exception polygen raises, and the wording rule they share.

An error says four things: *what* went wrong, *where* (file, field, operand), *why* it cannot work,
and the *nearest legal* value when there is one. Nothing else in the package words an error: call
sites pass facts, the classes here turn them into the message.

What a message repeats of somebody's input is cut (`readable`), and written in printable
characters, so that no input makes a message long or moves a terminal's cursor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

_LONGEST_WORD, _LONGEST_PART, _MOST_PROBLEMS = 240, 4000, 20
_WINDOW = 72  # characters of an expression that are shown around a mistake


def shortened(text: str, longest: int = _LONGEST_WORD) -> str:
    """The text in printable characters, with the middle left out where it is longer than that."""
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
        )
    if len(text) <= longest:
        return text
    kept = longest - 1
    return f"{text[: kept - kept // 3]}…{text[len(text) - kept // 3 :]}"


def readable(text: str) -> str:
    """A part of a message as a terminal takes it: neither a word of it nor the whole is endless."""
    words = re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", lambda found: shortened(found[0]), text)
    return shortened(words, _LONGEST_PART)


def echo(value: object) -> str:
    """What somebody passed, on one line and the same in every run: no addresses."""
    text = " ".join(repr(value).split())
    return f"a {type(value).__name__}" if " at 0x" in text else shortened(text)


def without_addresses(text: str) -> str:
    """Somebody else's text without what differs from run to run."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)


def told(error: BaseException) -> str:
    """An exception of somebody else's code on one line: its class, and what it says."""
    try:
        text = " ".join(without_addresses(str(error)).split())
    except Exception:  # its own __str__ fails
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_digits(number: int) -> str:
    """A whole number as text, however large: Python refuses to print thousands of digits."""
    if abs(number) < 10**40:
        return str(number)
    return f"{'-' if number < 0 else ''}2**{number.bit_length() - 1} or more"


class PolygenError(Exception):
    """Base of all errors.

    Attributes:
        what: the mistake, in one clause.
        where: the file, field, operand or line it was found at; may be empty.
        why: the reason it cannot work; may be empty.
        nearest: the nearest legal value or the next step; may be empty.
        unknown: dims without a number that would help with one; empty where none would.
    """

    unknown: tuple[str, ...] = ()

    def __init__(self, what: str, *, where: str = "", why: str = "", nearest: str = "") -> None:
        what, where, why, nearest = map(readable, (what, where, why, nearest))
        self.what, self.where, self.why, self.nearest = what, where, why, nearest
        text = f"{where}: {what}" if where else what
        if why:
            text += f" ({why})"
        if nearest:
            text += f". {nearest}"
        super().__init__(text if text.endswith((".", "!", "?")) else text + ".")


class ManyErrors(PolygenError):
    """Several mistakes of one input, reported at once, each with its path."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.problems = tuple(map(readable, problems))
        super().__init__(f"{len(self.problems)} problem(s)", where=where)
        lines = [f"\n  - {problem}" for problem in self.problems[:_MOST_PROBLEMS]]
        if len(self.problems) > _MOST_PROBLEMS:
            lines.append(f"\n  - and {len(self.problems) - _MOST_PROBLEMS} more")
        text = "".join([self.args[0].rstrip("."), *lines])
        self.args = (text if text.endswith((".", "!", "?")) else f"{text}.",)


# --- front end ------------------------------------------------------------------------------------
class TraceError(PolygenError):
    """The tracer cannot follow the array function (control flow on values, unknown function)."""


class ExpressionError(TraceError):
    """An expression given as text cannot be read; the message has a caret under the place.

    Of a long expression it shows what is around the place.

    Attributes:
        text: the expression.
        column: where in it, from 0.
    """

    def __init__(
        self, what: str, text: str, column: int, *, why: str = "", nearest: str = ""
    ) -> None:
        super().__init__(what, where=f"column {column + 1}", why=why, nearest=nearest)
        self.text, self.column = text, column
        shown, place = _around(text, column)
        self.args = (f"{self.args[0]}\n  {shown}\n  {' ' * place}^",)


def _around(text: str, column: int) -> tuple[str, int]:
    """What an expression looks like near a column, on one line, and where the column is in it."""
    first = max(0, min(column - _WINDOW // 2, len(text) - _WINDOW))
    last = min(len(text), first + _WINDOW)
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[first:last])
    before, after = "…" * (first > 0), "…" * (last < len(text))
    return f"{before}{shown}{after}", column - first + len(before)


class ShapeError(PolygenError):
    """Two operands' dims do not fit; the message names both operands and both dims.

    Attributes:
        differing: two dims that would have to be one; None where no equality helps.
    """

    differing: tuple[str | int, str | int] | None = None

    @classmethod
    def between(cls, first: str | int, second: str | int, what: str, **parts: str) -> ShapeError:
        """The error of two dims that would have to be one; `parts` as for `PolygenError`."""
        error = cls(what, **parts)
        error.differing = (first, second)
        return error


_Error = TypeVar("_Error", bound=PolygenError)


def without_number(kind: type[_Error], what: str, dim: str, why: str, more: str = "") -> _Error:
    """The error of a size that is a name where only a number will do.

    Args:
        kind: its class.
        what: the mistake.
        dim: the name.
        why: what depends on the number.
        more: appended to what to do.
    """
    error = kind(
        what,
        why=f"{why} depends on {dim}, whose number is known only at run time",
        nearest=f"Write the number in the place of {dim} in the signature, or make {dim} static"
        + more,
    )
    error.unknown = (dim,)
    return error


class DTypeError(PolygenError):
    """A dtype is unknown, or two operands' dtypes do not combine."""


class UnsupportedProgram(PolygenError):
    """The program is well formed, but no mapper runs it yet: a second contraction, a reduction."""


class SignatureError(PolygenError):
    """A description such as ``bf16[M,K]`` cannot be parsed or does not fit the function."""


# --- schedules and hardware -----------------------------------------------------------------------
class ScheduleError(PolygenError):
    """A schedule file or record is refused before code generation."""


class ScheduleFileError(ManyErrors, ScheduleError):
    """A schedule file has mistakes; all are listed, each with its path."""


class IllegalSchedule(ScheduleError):
    """A schedule breaks a dependence; the message gives it with one concrete instance pair."""


class ResourceError(ScheduleError):
    """A schedule needs more shared memory, registers or threads than the device has."""


class PipelineError(ScheduleError):
    """A timetable of a pipeline cannot be read, or is for another pipeline."""


class IllegalPipeline(PipelineError, IllegalSchedule):
    """A timetable is wrong for some number of microbatches; the message has a witness."""


class InvarianceError(PolygenError):
    """Bits that must not depend on a dim would: it is summed over, a constant, or unknown to the
    program; or no kernel of the class of sums that all sizes share takes what is asked for.
    """


class UnknownTarget(PolygenError):
    """The architecture is not in ``hardware/data``."""


class HardwareDataError(PolygenError):
    """A file under ``hardware/data`` fails its proof (bijectivity, coverage, register count)."""


# --- compilation and execution --------------------------------------------------------------------
class CompileError(PolygenError):
    """NVRTC rejected the source, or the log shows spills or a potential performance loss.

    Attributes:
        log: the whole compiler log; may be empty.
        host: whether it may be for code of the host in the source, which nvcc takes.
    """

    log: str = ""
    host: bool = False

    def instead(self, nearest: str) -> CompileError:
        """The same error with another way out."""
        made = type(self)(self.what, where=self.where, why=self.why, nearest=nearest)
        made.log, made.host = self.log, self.host
        return made


class PressureError(CompileError):
    """The compiler has too few registers: it serialises products, or finds no place for one's."""


class SpillError(PressureError):
    """The compiled kernel keeps registers or arrays in local memory.

    Attributes:
        beside: whether a launch before or behind the kernel does, and the kernel does not.
    """

    beside: bool = False


class ToolchainMissing(PolygenError):
    """A library that the requested step needs is not installed, or there is no GPU to run on."""


def package_missing(reason: ImportError) -> ToolchainMissing:
    """The error of a package that polygen cannot do without, and that is not installed."""
    return ToolchainMissing(
        "a package that polygen needs is missing",
        why=str(reason),
        nearest="`polygen doctor` says which, and what mends it",
    )


class ToolchainBroken(PolygenError):
    """A library that the requested step needs is installed, but cannot be loaded or used."""


class CacheError(PolygenError):
    """The artifact cache cannot be read or written (full disk, no permission)."""


class SavedKernelError(PolygenError):
    """A saved kernel cannot be loaded, or another one's files are in the place of a new one."""


class ArgumentError(PolygenError):
    """A call's arrays do not fit the kernel: shape, dtype, strides, device, alignment."""


class EngineError(PolygenError):
    """The engine that moves data between processes has failed: a rank has ended, or is stuck."""


class GradientError(PolygenError):
    """A derivative is asked for that a program does not have, or that is not derived."""


class AlignmentMismatch(ArgumentError):
    """The arrays fit, but are less aligned than this variant of the kernel needs.

    Attributes:
        alignment: per tensor, the power of two (at most 16 bytes) that divides its address and its
            strides, so that the caller can choose a variant which the arrays do satisfy.
        ragged: tensors whose contiguous extent is not a multiple of their alignment.
    """

    alignment: tuple[tuple[str, int], ...] = ()
    ragged: tuple[str, ...] = ()


class VerifyError(PolygenError):
    """A plan fails its own verification: a bug in polygen or a plan edited by hand."""


class UndecidedText(VerifyError):
    """What a leaf's text does cannot be followed: it is proved neither right nor wrong.

    Such a text is emitted, and its comment says so.
    """


# --- the PTX machine ------------------------------------------------------------------------------
class PtxError(PolygenError):
    """PTX text is malformed, or uses an instruction the machine does not know.

    Attributes:
        line: line of the PTX text, counted from 1; 0 when the whole text is meant.
    """

    def __init__(self, what: str, *, line: int = 0, why: str = "", nearest: str = "") -> None:
        self.line = line
        super().__init__(
            what, where=f"PTX line {line}" if line else "PTX", why=why, nearest=nearest
        )


class MachineFault(PtxError):
    """The PTX machine stumbles over a text: a mistake of its own, or one of the text's."""


class LaunchError(PolygenError):
    """A launch does not fit its kernel: shared memory, number or kind of arguments, block size."""


class LaunchFileError(ManyErrors, LaunchError):
    """A launch file has mistakes; all are listed, each with its path."""


class StepLimit(PolygenError):
    """A run on the machine took more steps than allowed: most likely a loop that never ends."""


# --- the command line -----------------------------------------------------------------------------
class UsageError(PolygenError):
    """A command line does not follow the form that its command has."""


class OutputError(PolygenError):
    """What a command prints cannot be written."""


# --- benchmarks -----------------------------------------------------------------------------------
class BenchError(PolygenError):
    """A suite, row, peer or record is unknown or wrong, or a run cannot start."""
