"""Checks a kernel with no GPU: its proofs, and its PTX run on NumPy against the program's meaning.

The run uses small integers, so that every sum is exact in every dtype involved and the comparison
is equality wherever the epilogue is exact on integers; functions such as `exp` are compared within
a bound. `polygen.small_problem` says on which sizes and data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from polygen.brief import Brief
from polygen.emit.source import Argument, Following, KernelSource
from polygen.errors import ArgumentError, VerifyError
from polygen.frontend.dtypes import TF32
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program, Tensor
from polygen.lower.plan import KernelPlan
from polygen.machine import AccessProfile, Finding, Launch, Report, TensorMap, run
from polygen.pipeline import Passes, check_sizes
from polygen.poly.legality import Proof
from polygen.runtime.arrays import ArrayView, in_order
from polygen.runtime.binding import bind, misaligned
from polygen.small_problem import few_blocks, runnable_sizes, trial_operands, trial_sizes

Array = np.ndarray[Any, Any]

# Primitives that map small integers to values every dtype here holds exactly.
# fmt: off
_EXACT = frozenset(
    [
        "add", "sub", "mul", "neg", "abs", "minimum", "maximum", "where", "lt", "le", "gt", "ge",
        "eq", "ne", "logical_and", "logical_or", "logical_not", "cast", "square", "relu", "clip",
    ]
)
# fmt: on
_EXACT_FOLDS = ("sum", "max", "min", "argmax", "argmin")


_ARRAYS = ("pointer", "map", "workspace")  # arguments that a report has an array of
_SHOWN = 6  # instructions of the access profile that are printed


@dataclass(frozen=True, slots=True, repr=False)
class Emulation(Brief):
    """One run on the PTX machine."""

    results: Any  # one array, or a tuple
    report: Report

    def __str__(self) -> str:
        return str(self.report)


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Brief):
    """What was proved, what was run, and what was found.

    Attributes:
        proofs: of the plan.
        sizes: of the run.
        comparison: of its results with NumPy's, in words.
        findings: of the machine and of the comparison.
        notes: what was run in the place of what was asked for, and why.
        profile: shared wavefronts and global sectors per instruction, against the ideal.
    """

    proofs: tuple[Proof, ...]
    sizes: tuple[tuple[str, int], ...]
    comparison: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    profile: tuple[AccessProfile, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def brief(self) -> str:
        """The verdict, and the first finding if there is one."""
        verdict = f"{len(self.proofs)} proofs, ran on NumPy: {self.comparison}"
        first = f", first: {self.findings[0].code}" if self.findings else ""
        return f"{verdict}; {len(self.findings) or 'no'} findings{first}"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes)
        lines = [*map(str, self.proofs), *(f"note: {note}" for note in self.notes)]
        lines += [f"ran the PTX with {sizes}: {self.comparison}", *profile_lines(self.profile)]
        lines += [f"FOUND {finding}" for finding in self.findings]
        return "\n".join([*lines, "no findings" if self.ok else f"{len(self.findings)} finding(s)"])


def profile_lines(profile: tuple[AccessProfile, ...]) -> list[str]:
    """One line per memory space, and one per instruction that costs more than it must."""
    lines = []
    for space, unit in (("shared", "wavefronts"), ("global", "32-byte sectors")):
        rows = [row for row in profile if row.space == space]
        if not rows:
            continue
        actual, ideal = sum(row.actual for row in rows), sum(row.ideal for row in rows)
        verdict = f"{actual / max(ideal, 1):.3g} times the ideal" if actual > ideal else "the ideal"
        lines.append(f"{space} memory: {actual} {unit}, ideal {ideal}: {verdict}")
        worse = sorted((r for r in rows if r.actual > r.ideal), key=lambda r: r.ideal - r.actual)
        lines += [f"  {row}" for row in worse[:_SHOWN]]
        if len(worse) > _SHOWN:
            lines.append(f"  … and {len(worse) - _SHOWN} more")
    return lines


def launch_of(program: Program, source: KernelSource, operands: tuple[Any, ...]) -> Launch:
    """The launch of a kernel on NumPy arrays, with poisoned outputs.

    Args:
        program: what the kernel computes.
        source: its argument layout and launch shape.
        operands: arrays and numbers in call order; any strides a kernel takes.

    Raises:
        ArgumentError: the operands do not fit the kernel.
        AlignmentMismatch: they fit another variant of it.
    """
    if len(operands) != len(program.inputs):
        names = ", ".join(t.name for t in program.inputs)
        raise ArgumentError(f"{len(operands)} operands, expected {len(program.inputs)}: {names}")
    given = {t.name: value for t, value in zip(program.inputs, operands, strict=True)}
    arrays = {t.name: _stored(t, given[t.name]) for t in program.inputs if t.dims}
    tensors = tuple(t for t in program.inputs if t.dims)
    binding = bind(source, tensors, program.outputs, [_view(arrays[t.name], t) for t in tensors])
    # Machine memory starts every array at a multiple of 16 bytes: only strides can be misaligned.
    everything = (*tensors, *program.outputs)
    if any(bits & mask for bits, mask in zip(binding.stride_bits, binding.masks, strict=True)):
        raise misaligned(binding, everything, [0] * len(everything))
    for tensor, shape in zip(program.outputs, binding.shapes, strict=True):
        arrays[tensor.name] = _poisoned(shape, tensor)
    arguments: list[Any] = []
    for argument, constant in zip(source.arguments, binding.constants, strict=True):
        if argument.kind == "pointer":
            arguments.append(arrays[argument.tensor])
        elif argument.kind == "workspace":
            assert source.following is not None
            room = source.following.workspace(dict(binding.sizes))
            arguments.append(np.full(room // np.float32().itemsize, np.nan, np.float32))
        elif argument.kind == "scalar":
            arguments.append(np.float32(given[argument.tensor]))
        elif argument.kind == "map":
            whole = arrays[argument.tensor]
            part = _part(argument, whole, dict(binding.sizes))
            kind = "tf32" if program.tensors[argument.tensor].dtype == TF32 else ""
            arguments.append(
                TensorMap(part, argument.box, argument.swizzle, kind=kind, whole=whole)
            )
        else:
            arguments.append(np.int32(constant or 0))
    found = source.launch
    return Launch(
        binding.grid, (found.threads, 1, 1), found.shared_bytes, tuple(arguments), source.entry
    )


def _part(argument: Argument, array: Array, sizes: dict[str, int]) -> Array:
    """What a tensor map shows of an array, its axes slowest first."""
    known = [one for one in argument.axes if one.axis is not None]
    places = sorted(known, key=lambda one: one.axis or 0)
    extents = [one.extent if isinstance(one.extent, int) else sizes[one.extent] for one in places]
    slices = tuple(
        slice(one.start, one.start + one.step * (extent - 1) + 1, one.step)
        for one, extent in zip(places, extents, strict=True)
    )
    part = array[slices]
    if list(part.shape) != extents:
        raise VerifyError(
            f"{argument.name} shows {extents} of {argument.tensor}, which has {list(array.shape)}",
            where="emulate",
        )
    part = part.transpose([places.index(one) for one in known])
    return part[tuple(None if one.axis is None else slice(None) for one in argument.axes)]


def emulate(
    program: Program, source: KernelSource, ptx: str, operands: tuple[Any, ...], **options: Any
) -> Emulation:
    """Run compiled PTX on NumPy arrays.

    Args:
        program: what the kernel computes.
        source: its argument layout and launch shape.
        ptx: what to run.
        operands: arrays and numbers in call order; any strides a kernel takes.
        options: for `polygen.machine.run`.

    Raises:
        ArgumentError: the operands do not fit the kernel.
    """
    launch = launch_of(program, source, operands)
    report = run(ptx, launch, **options)
    passed = [a.tensor for a in source.arguments if a.kind in _ARRAYS]
    if source.following is not None:
        report = _followed(source, source.following, ptx, launch, report, options)
    after = dict(zip(passed, report.arrays, strict=True))
    results = tuple(after[t.name] for t in program.outputs)
    return Emulation(results[0] if len(results) == 1 else results, report)


def _followed(
    source: KernelSource,
    following: Following,
    ptx: str,
    launch: Launch,
    before: Report,
    options: dict[str, Any],
) -> Report:
    """Run the launch that follows on what the first one has left; one report of both."""
    left = iter(before.arrays)
    arguments, sizes = [], {}
    for argument, given in zip(source.arguments, launch.arguments, strict=True):
        found = next(left) if argument.kind in _ARRAYS else given
        arguments.append(given if argument.kind == "map" else found)
        if argument.kind == "size":
            sizes[argument.dim] = int(given)
    grid = (following.grid(sizes), 1, 1)
    second = Launch(grid, (following.threads, 1, 1), 0, tuple(arguments), following.entry)
    after = run(ptx, second, **options)
    # Maps are of the first launch's memory, which the second one's is a copy of.
    kinds = [argument.kind for argument in source.arguments if argument.kind in _ARRAYS]
    pairs = zip(kinds, before.arrays, after.arrays, strict=True)
    return replace(
        after,
        arrays=tuple(first if kind == "map" else last for kind, first, last in pairs),
        findings=(*before.findings, *after.findings),
        profile=(*before.profile, *after.profile),
        instructions=before.instructions + after.instructions,
        notes=(*before.notes, *after.notes),
    )


def _stored(tensor: Tensor, value: Any) -> Array:
    array = np.asarray(value)
    wanted = tensor.dtype.numpy
    if array.dtype != wanted:
        raise ArgumentError(
            f"{tensor.name} holds {array.dtype}, the kernel takes {tensor.dtype}",
            nearest=f'{tensor.name}.astype("{wanted.name}")',
        )
    if array.ndim != len(tensor.order) or not array.flags.c_contiguous:
        return array  # as it is, for the binding to take or refuse
    return in_order(array, tensor.order)


def _view(array: Array, tensor: Tensor) -> ArrayView:
    steps = tuple(step // array.itemsize for step in array.strides)
    return ArrayView(0, array.shape, steps, tensor.dtype, 0, "numpy")


def _poisoned(shape: tuple[int, ...], tensor: Tensor) -> Array:
    """An output filled with NaN, or the least integer: an element never written shows."""
    kind = tensor.dtype.numpy
    poison = np.nan if tensor.dtype.kind == "float" else np.iinfo(kind).min
    return in_order(np.full(shape, poison, kind), tensor.order)


def is_exact(program: Program) -> bool:
    """Whether the program maps small integers to exactly representable results."""
    folds = all(fold.function in _EXACT_FOLDS for fold in program.folds)
    return folds and all(s.function in _EXACT for s in program.pointwise)


class Checked(Protocol):
    """What a check needs of a kernel: `polygen.kernel.Kernel`."""

    @property
    def program(self) -> Program:
        """What it computes."""

    @property
    def passes(self) -> Passes:
        """The result of every pass."""

    @property
    def ptx(self) -> str:
        """The compiled PTX; compiling may replace the passes."""

    def fitting(self, *operands: Any) -> Checked:
        """Choose the variant that the alignment of these arrays needs."""


def check_kernel(kernel: Checked, sizes: dict[str, int]) -> CheckReport:
    """Check a kernel, or the variant of it that a call with these sizes would use.

    Args:
        kernel: compiled here, if it has not been.
        sizes: of the run, and pitches; dims not named get those of `trial_sizes`.
    """
    check_sizes(kernel.program, sizes)
    _ = kernel.ptx  # first: it may replace the passes
    whole = trial_sizes(kernel.passes.plan) | sizes
    check_sizes(kernel.program, whole)  # rows of the trial fit the pitches
    chosen, note = runnable_sizes(kernel.passes.plan, whole)
    notes = [note] if note else []
    fitting = kernel.fitting(*trial_operands(kernel.program, chosen, 0))
    ptx, passes = fitting.ptx, fitting.passes
    if fitting is not kernel:
        chosen, note = runnable_sizes(passes.plan, chosen)  # its tiles may differ
        classes = ", ".join(f"{tensor} {size}" for tensor, size in passes.source.alignment)
        notes.append(
            "the sizes are outside the alignment class of this kernel; ran its variant for "
            f"arrays aligned to {classes} bytes"
        )
    return check(passes.plan, passes.source, ptx, chosen, notes=tuple(notes))


def check(
    plan: KernelPlan,
    source: KernelSource,
    ptx: str,
    sizes: dict[str, int] | None,
    seed: int = 0,
    notes: tuple[str, ...] = (),
) -> CheckReport:
    """Run the PTX on integer data and compare it with the program's meaning.

    Args:
        plan: the kernel, with its proofs.
        source: its argument layout.
        ptx: compiled from it.
        sizes: of the run; None: `trial_sizes`.
        seed: of the data.
        notes: for the report.
    """
    program = plan.program
    chosen = {**trial_sizes(plan), **(sizes or {})}
    operands = trial_operands(program, chosen, seed)
    arrays = {t.name: value for t, value in zip(program.inputs, operands, strict=True)}
    wanted = evaluate(program, arrays, chosen)
    in_single = evaluate(program, arrays, chosen, single=True)
    done = emulate(program, few_blocks(source), ptx, operands, profile=True)
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    findings = list(done.report.findings)
    exact = is_exact(program)
    worst = 0.0
    for tensor, found, *expected in zip(program.outputs, results, wanted, in_single, strict=True):
        finding, error = compare(tensor, found, expected[0], exact, expected[1])
        worst = max(worst, error)
        if finding is not None:
            findings.append(finding)
    comparison = "equal to NumPy, bit for bit" if exact else f"within {worst:.2g} of NumPy"
    if findings and any(f.code == "wrong-value" for f in findings):
        comparison = "differs from NumPy"
    return CheckReport(
        plan.proofs,
        tuple(chosen.items()),
        comparison,
        tuple(findings),
        notes,
        done.report.profile,
    )


def compare(
    tensor: Tensor, found: Array, expected: Array, exact: bool, in_single: Array | None = None
) -> tuple[Finding | None, float]:
    """The first element that differs by more than allowed, and the largest relative error.

    Inexact functions may differ by two units in the last place of the output, or by 2^-18 of f32
    arithmetic; and where `in_single`, which is `expected` by f32 arithmetic, is farther off (the
    sine of a large product, a number rounded to a whole one), from that or what lies between.
    """
    a, b = found.astype(np.float64), expected.astype(np.float64)
    allowed = 0.0 if exact else max(2.0**-tensor.dtype.mantissa, 2.0**-18)
    scale = np.maximum(np.abs(b), 1.0)
    c = b if exact or in_single is None else in_single.astype(np.float64)
    with np.errstate(invalid="ignore"):
        numbers = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        b = np.where(numbers, np.clip(a, np.fmin(b, c), np.fmax(b, c)), b)
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / scale)
    error = np.where(np.isnan(error), np.inf, error)
    worst = float(error.max(initial=0.0))
    if worst <= allowed:
        return None, worst
    first = tuple(int(i) for i in np.argwhere(error > allowed)[0])
    place = ", ".join(map(str, first))
    sentence = f"{tensor.name}[{place}] is {a[first]}, NumPy says {b[first]}"
    return Finding("wrong-value", sentence, tensor.name, int((error > allowed).sum())), worst


__all__ = ["CheckReport", "check", "emulate", "runnable_sizes", "trial_sizes"]
