"""Checks a kernel with no GPU: its proofs, and its PTX run on NumPy against the program's meaning.

The run uses small integers, so that every sum is exact in every dtype involved and the comparison
is equality wherever the epilogue is exact on integers; functions such as `exp` are compared within
a bound. `polygen.small_problem` says on which sizes and data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polygen.brief import Brief
from polygen.chained import is_chain
from polygen.emit.source import KernelSource
from polygen.emulated import Emulation, emulate, launch_of
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import BF16, F16, F32, F64, S32, TF32, DType
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Access, Contraction, Pointwise, Program, Statement, Tensor
from polygen.lower.plan import KernelPlan
from polygen.machine import AccessProfile, Finding
from polygen.pipeline import Passes, check_sizes
from polygen.poly.legality import Proof
from polygen.poly.prologue import multiplied, prologues
from polygen.sampled import sample
from polygen.small_problem import (
    TAKES_A_WHILE,
    few_blocks,
    runnable_sizes,
    trial_operands,
    trial_sizes,
)

Array = np.ndarray[Any, Any]

_PART = "nearest_tf32"  # of which f32 operands that are multiplied in parts are made
# Primitives that map small integers to values every dtype here holds exactly.
# fmt: off
_EXACT = frozenset(
    [
        "add", "sub", "mul", "neg", "abs", "minimum", "maximum", "where", "lt", "le", "gt", "ge",
        "eq", "ne", "logical_and", "logical_or", "logical_not", "cast", "square", "relu", "clip",
        _PART,
    ]
)
# fmt: on
_EXACT_FOLDS = ("sum", "max", "min", "argmax", "argmin")


# Of computed operands, in shares of themselves: f32 functions, and how tf32 rounds.
_F64_OFF, _F32_OFF, _TF32_OFF = 2.0**-48, 2.0**-18, 2.0**-10
_TERM_OFF = 2.0**-21  # of f32: two units in the last place, and what adding them up loses
_CHANGED, _LEAST = 1 / 8, 1e-3  # of a rewritten program: more than rounding elsewhere is
_PRODUCTS = 2  # of a chain without layers and gates
_SHOWN = 6  # instructions of the access profile that are printed


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


def is_exact(program: Program) -> bool:
    """Whether the program maps small integers to exactly representable results."""
    folds = all(fold.function in _EXACT_FOLDS for fold in program.folds)
    exact = folds and all(s.function in _EXACT for s in program.pointwise)
    return exact and not _lost_in_layers(program)


def folds_off(program: Program) -> dict[str, float]:
    """How far terms of sums that are folds may be off, in shares of themselves, as `operands_off`:
    none that functions made which are exact.
    """
    if program.rest is not None:
        return {}
    sums = [one for one in program.folds if one.function == "sum"]
    inexact = (one for one in sums if _functions(program, one.reads) - _EXACT)
    return {one.write.name: _F64_OFF if one.dtype == F64 else _TERM_OFF for one in inexact}


def operands_off(program: Program) -> dict[str, float]:
    """How far computed operands may be off, in shares of themselves, by the product's sum: none
    that are exact, or of 16 bits and not of a chain, so that the program says how they are rounded.

    What a sum is off by then goes with the magnitudes of its terms, which may cancel.
    """
    if is_exact(program) or program.rest is not None:
        return {}
    layers, found = _lost_in_layers(program), dict[str, float]()
    computed: dict[str, tuple[Statement, ...]] = dict(
        _made_of_sums(program) if is_chain(program) else prologues(program)
    )
    for value in () if is_chain(program) else program.first:  # with folds over their own rows
        computed[value] = tuple(needed(program.statements, [value]))
    off = {TF32: _TF32_OFF, F32: _F32_OFF, F64: _F64_OFF}
    if is_chain(program):  # rounded under another factor: before what is a row's own divides it
        off |= {kind: 2.0**-kind.mantissa for kind in (F16, BF16)}
    for value, own in computed.items():
        functions = {one.function for one in own if not isinstance(one, Contraction)}
        if not (functions - _EXACT or layers):
            continue
        share = off.get(F32 if _PART in functions else _multiplied(program, value), 0.0)
        for product in program.contractions:
            if share and value in {access.name for access in product.reads}:
                found[product.write.name] = max(share, found.get(product.write.name, 0.0))
    return found


def _moved(off: Mapping[str, float]) -> list[dict[str, float]]:
    """Sums that are moved, each alone and all at once, up and down: operands of different products
    are off independently of each other.
    """
    every = [{name: share} for name, share in off.items()]
    every += [dict(off)] if len(off) > 1 else []
    return [{name: sign * one[name] for name in one} for one in every for sign in (1, -1)]


def _made_of_sums(program: Program) -> dict[str, tuple[Pointwise, ...]]:
    """The statements on the way to operands that are made of products' sums, or such sums."""
    made = {one.write.name for one in program.statements}
    reads = {access.name for product in program.contractions for access in product.reads}
    found = {}
    for name in sorted(reads & made):
        behind = needed(program.statements, [name])
        found[name] = tuple(one for one in behind if isinstance(one, Pointwise))
    return found


def _multiplied(program: Program, value: str) -> DType:
    """The type in which products take a value that is computed."""
    for one in program.pointwise:
        if one.write.name == value:
            return multiplied(program, one)
    readers = [one for one in program.contractions if value in (one.lhs.name, one.rhs.name)]
    return F32 if all(one.exact for one in readers) else TF32  # a product's sums


def _functions(program: Program, reads: Iterable[Access]) -> set[str]:
    """The functions by which values are made."""
    behind = needed(program.statements, [access.name for access in reads])
    return {one.function for one in behind if isinstance(one, Pointwise)}


def _lost_in_layers(program: Program) -> bool:
    """Whether products of small integers' products are multiplied as tf32, which may not hold them:
    what layers in a row make, and gates.
    """
    if len(program.contractions) <= _PRODUCTS or not is_chain(program):
        return False
    return any(_multiplied(program, value) == TF32 for value in _made_of_sums(program))


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


def check_kernel(kernel: Checked, sizes: dict[str, int], workers: int = 1) -> CheckReport:
    """Check a kernel, or the variant of it that a call with these sizes would use.

    Args:
        kernel: compiled here, if it has not been.
        sizes: of the run, and pitches; dims not named get those of `trial_sizes`.
        workers: processes at most.
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
    written = passes.program if is_chain(passes.program) else None
    return check(
        passes.plan, passes.source, ptx, chosen, notes=tuple(notes), workers=workers,
        written=written, asked=passes.program,
    )  # fmt: skip


def check(
    plan: KernelPlan,
    source: KernelSource,
    ptx: str,
    sizes: dict[str, int] | None,
    seed: int = 0,
    notes: tuple[str, ...] = (),
    workers: int = 1,
    written: Program | None = None,
    asked: Program | None = None,
) -> CheckReport:
    """Run the PTX on integer data and compare it with the program's meaning.

    Args:
        plan: the kernel, with its proofs.
        source: its argument layout.
        ptx: compiled from it.
        sizes: of the run; None: `trial_sizes`.
        seed: of the data.
        notes: for the report.
        workers: processes at most that run the blocks.
        written: the program whose meaning that is; None: what the plan is of.
        asked: what that was made of by rewriting, which must mean the same.
    """
    program = written or plan.whole
    chosen = {**trial_sizes(plan), **(sizes or {})}
    operands = trial_operands(program, chosen, seed, plan)
    arrays = {t.name: value for t, value in zip(program.operands, operands, strict=True)}
    wanted, *others = meanings(program, arrays, chosen)
    some = sample(plan, source, chosen)
    few, clusters = (some.source, some.clusters) if some else (few_blocks(source), ())
    done = emulate(
        program, few, ptx, operands, clusters=clusters, profile=True, workers=workers
    )  # fmt: skip
    if some is not None:
        notes = (*(note for note in notes if note != TAKES_A_WHILE), str(some))
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    findings = list(done.report.findings)
    if asked is not None and asked != program:
        findings += changed(asked, program, arrays, chosen)
    exact = is_exact(program)
    worst = 0.0
    for tensor, found, *expected in zip(program.outputs, results, wanted, *others, strict=True):
        if some is not None:
            found, finding = some.judged(tensor.name, found, expected[0])
            if finding is not None:
                findings.append(finding)
                continue
        finding, error = compare(tensor, found, expected[0], exact, *expected[1:])
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


def changed(
    asked: Program, made: Program, arrays: Mapping[str, Any], sizes: dict[str, int]
) -> list[Finding]:
    """Where a rewritten program means another thing.

    It may add in another order and round an operand elsewhere, or not: that is little of all
    elements together. Indices, of which neighbours may be as large, are not compared.

    Args:
        asked: before it was rewritten.
        made: of it.
        arrays: NumPy arrays and numbers, by name.
        sizes: of the symbolic dims.
    """
    found = []
    both = (evaluate(one, arrays, sizes, round_outputs=False) for one in (asked, made))
    for tensor, wanted, given in zip(asked.outputs, *both, strict=True):
        a, b = wanted.astype(np.float64), given.astype(np.float64)
        numbers = np.isfinite(a) & np.isfinite(b)
        size = max(float(np.linalg.norm(a[numbers])), _LEAST)
        off = float(np.linalg.norm((a - b)[numbers])) / size
        if tensor.dtype != S32 and off > _CHANGED:
            sentence = f"{tensor.name} is rewritten to what is {off:.2g} of it off"
            found.append(Finding("wrong-value", sentence, tensor.name, int((a != b).sum())))
    return found


def meanings(
    program: Program, arrays: Mapping[str, Any], sizes: dict[str, int]
) -> list[tuple[Array, ...]]:
    """The outputs of a program; then the same in fewer digits, and with sums that are moved by what
    their terms may be off: what `compare` takes.

    Args:
        program: whose meaning that is.
        arrays: NumPy arrays and numbers, by name.
        sizes: of the symbolic dims.
    """
    found = [evaluate(program, arrays, sizes), evaluate(program, arrays, sizes, single=True)]
    for moved in _moved(operands_off(program) | folds_off(program)):
        found.append(evaluate(program, arrays, sizes, moved=moved))
    return found


def compare(
    tensor: Tensor, found: Array, expected: Array, exact: bool, *others: Array
) -> tuple[Finding | None, float]:
    """The first element that differs by more than allowed, and the largest relative error.

    Inexact functions may differ by two units in the last place of the output, or by 2^-18 of f32
    arithmetic, 2^-46 of f64 results; whole numbers besides by one, conditions not at all; and where
    `others`, which are `expected` in fewer digits and of operands that are off (`operands_off`),
    are farther off (the sine of a large product, a number rounded to a whole one, a sum of terms
    that cancel), from them or what lies between.
    """
    kind = tensor.dtype.kind
    a = (found.view(np.uint8) if kind == "bool" else found).astype(np.float64)
    b = expected.astype(np.float64)
    arithmetic = 2.0**-46 if tensor.dtype == F64 else 2.0**-18
    allowed = max(2.0**-tensor.dtype.mantissa, arithmetic) if kind == "float" else arithmetic
    allowed = 0.0 if exact or kind == "bool" else allowed
    scale = np.maximum(np.abs(b), 1.0)
    every = [b, *(() if exact else (other.astype(np.float64) for other in others))]
    worst = float(_apart(a, every[:2], kind, exact, scale).max(initial=0.0))
    error = _apart(a, every, kind, exact, scale)
    if float(error.max(initial=0.0)) <= allowed:
        return None, worst
    first = tuple(int(i) for i in np.argwhere(error > allowed)[0])
    place = ", ".join(map(str, first))
    sentence = f"{tensor.name}[{place}] is {a[first]}, NumPy says {b[first]}"
    return Finding("wrong-value", sentence, tensor.name, int((error > allowed).sum())), worst


def _apart(a: Array, every: list[Array], kind: str, exact: bool, scale: Array) -> Array:
    """How far elements are from what lies between some others, in shares of their size."""
    with np.errstate(invalid="ignore"):
        b, numbers = every[0], np.isfinite(a) & np.isfinite(every).all(axis=0)
        b = np.where(numbers, np.clip(a, np.fmin.reduce(every), np.fmax.reduce(every)), b)
        apart = np.abs(a - b)
        if kind == "int" and not exact:
            apart = np.maximum(apart - 1, 0)  # a value between two may be rounded to either
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart / scale)
    return np.where(np.isnan(error), np.inf, error)


__all__ = [
    "CheckReport", "Emulation", "check", "emulate", "launch_of", "runnable_sizes", "trial_sizes",
]  # fmt: skip
