"""Every exception polygen raises, and the wording rule they share.

An error says four things: *what* went wrong, *where* (file, field, operand), *why* it cannot work,
and the *nearest legal* value when there is one. Nothing else in the package words an error: call
sites pass facts, the classes here turn them into the message.
"""

from __future__ import annotations

from collections.abc import Sequence


class PolygenError(Exception):
    """Base of all errors.

    Attributes:
        what: the mistake, in one clause.
        where: the file, field, operand or line it was found at; may be empty.
        why: the reason it cannot work; may be empty.
        nearest: the nearest legal value or the next step; may be empty.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", nearest: str = "") -> None:
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
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s){lines}", where=where)


# --- front end ------------------------------------------------------------------------------------
class TraceError(PolygenError):
    """The tracer cannot follow the array function (control flow on values, unknown function)."""


class ExpressionError(TraceError):
    """An expression given as text cannot be read; the message has a caret under the place.

    Attributes:
        text: the expression.
        column: where in it, from 0.
    """

    def __init__(
        self, what: str, text: str, column: int, *, why: str = "", nearest: str = ""
    ) -> None:
        super().__init__(what, where=f"column {column + 1}", why=why, nearest=nearest)
        self.text, self.column = text, column
        self.args = (f"{self.args[0]}\n  {text}\n  {' ' * column}^",)


class ShapeError(PolygenError):
    """Two operands' dims do not fit; the message names both operands and both dims."""


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


class UnknownTarget(PolygenError):
    """The architecture is not in ``hardware/data``."""


class HardwareDataError(PolygenError):
    """A file under ``hardware/data`` fails its proof (bijectivity, coverage, register count)."""


# --- compilation and execution --------------------------------------------------------------------
class CompileError(PolygenError):
    """NVRTC rejected the source, or the log shows spills or a potential performance loss.

    Attributes:
        log: the whole compiler log; may be empty.
    """

    log: str = ""


class SpillError(CompileError):
    """The compiled kernel keeps registers or arrays in local memory."""


class ToolchainMissing(PolygenError):
    """A library that the requested step needs is not installed, or there is no GPU to run on."""


class ToolchainBroken(PolygenError):
    """A library that the requested step needs is installed, but cannot be loaded or used."""


class CacheError(PolygenError):
    """The artifact cache cannot be read or written (full disk, no permission)."""


class ArgumentError(PolygenError):
    """A call's arrays do not fit the kernel: shape, dtype, strides, device, alignment."""


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
