"""Checks a kernel with no GPU: its proofs, and its PTX run on NumPy against the program's meaning.

The run uses small integers, so that every sum is exact in every dtype involved and the comparison
is equality wherever the epilogue is exact on integers; functions such as `exp` are compared within
a bound. `polygen.small_problem` says on which sizes and data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polygen.brief import Brief
from polygen.chained import is_chain
from polygen.comparison import changed, compare, is_exact, meanings
from polygen.emit.source import KernelSource
from polygen.emulated import Emulation, emulate, launch_of
from polygen.frontend.program import Program
from polygen.lower.plan import KernelPlan
from polygen.machine import AccessProfile, Finding
from polygen.pipeline import Passes, check_sizes
from polygen.poly.legality import Proof
from polygen.sampled import sample
from polygen.small_problem import (
    TAKES_A_WHILE,
    few_blocks,
    runnable_sizes,
    trial_operands,
    trial_sizes,
)

Array = np.ndarray[Any, Any]

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


__all__ = [
    "CheckReport", "Emulation", "check", "emulate", "launch_of", "runnable_sizes", "trial_sizes",
]  # fmt: skip
