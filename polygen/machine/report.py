"""What a run found: findings, the access profile, and the `Report` that holds both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.brief import Brief
from polygen.machine.module import Kernel
from polygen.machine.story import told

CODES = {
    "race-write-read": "a read is not ordered after a write of the same bytes",
    "race-read-write": "a write is not ordered after a read of the same bytes",
    "race-write-write": "two writes of the same bytes are not ordered",
    "in-flight-access": "bytes are touched while an asynchronous copy or wgmma still uses them",
    "uninitialised-shared-read": "shared memory is read before anything was written there",
    "out-of-bounds-global": "a global access leaves its buffer",
    "out-of-bounds-shared": "a shared access leaves the shared memory of the launch",
    "out-of-bounds-local": "a local access leaves the thread's local memory",
    "misaligned": "an address is not a multiple of the access size",
    "deadlock": "threads wait for something that never happens",
    "barrier-count": "a barrier's arrival or byte count is wrong",
    "before-grid-wait": "global memory that a grid before may use is touched before "
    "griddepcontrol.wait",
    "not-constant": "what a grid before may write meanwhile is loaded as constant (.nc)",
    "missing-proxy-fence": "generic writes reach the async proxy without fence.proxy.async",
    "missing-map-fence": "a tensor map that was written is used without the fences of its proxy",
    "divergent-warp-operation": "threads of one warp do not execute a warp operation together",
    "unwritten-register": "a value that depends on a register nothing has written is used",
    "wgmma-order": "wgmma registers are touched without the fence or wait they need",
    "trap": "the kernel stops itself: a failed assertion, or code that cannot be reached",
    "bad-descriptor": "a wgmma descriptor or tensor map cannot be right",
}


SHOWN = 20  # findings printed in full
STORIES = 50  # findings that are told as stories


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of mistake at one place.

    Attributes:
        code: one of `CODES`.
        sentence: what happened the first time, with threads, buffer and byte offset.
        where: the instruction(s), with PTX lines and, where known, CUDA lines.
        count: how many thread accesses showed it.
        story: who did what, what stands between, and what would help: see `story`.
    """

    code: str
    sentence: str
    where: str
    count: int
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence} at {self.where} ({self.count} times)"


@dataclass(frozen=True, slots=True)
class AccessProfile:
    """How well one memory instruction uses the memory system, summed over all warps.

    `actual` and `ideal` count shared-memory wavefronts, or 32-byte sectors for global memory.
    """

    where: str
    space: str  # "shared" or "global"
    executions: int  # warp executions
    actual: int
    ideal: int

    def __str__(self) -> str:
        unit = "wavefronts" if self.space == "shared" else "sectors"
        return f"{self.actual} {unit}, ideal {self.ideal}, in {self.executions} warps: {self.where}"


@dataclass(frozen=True, slots=True, repr=False)
class Report(Brief):
    """The outcome of one run.

    Attributes:
        arrays: one array per pointer (or tensor-map) argument after the run, in argument order.
        findings: what the checks found; empty for a correct kernel.
        profile: one row per memory instruction, when profiling was asked for.
        instructions: warp instructions executed.
        notes: what is no mistake of this run, and may be one elsewhere, in sentences.
    """

    arrays: tuple[np.ndarray[Any, Any], ...]
    findings: tuple[Finding, ...]
    profile: tuple[AccessProfile, ...] = ()
    instructions: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        lines = [f"{self.instructions} warp instructions, {len(self.findings)} finding(s)"]
        lines += [f"  {finding}" for finding in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            lines.append(f"  … and {len(self.findings) - SHOWN} more")
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  {row}" for row in self.profile]
        return "\n".join(lines)


class Stop(Exception):
    """The run cannot go on in a meaningful way; what was found so far is reported."""


@dataclass(slots=True)
class Findings:
    """Collects findings, one per code and instruction pair."""

    kernel: Kernel
    found: dict[tuple[str, int, int], list[Any]] = field(default_factory=dict)

    def add(self, code: str, sentence: str, position: int, other: int = -1, count: int = 1) -> None:
        """Record a finding at an instruction, with the instruction it collides with.

        Args:
            code: one of `CODES`.
            sentence: the first occurrence in words.
            position: index of the instruction, -1 when there is none.
            other: index of the other instruction of a pair, -1 when there is none.
            count: occurrences.
        """
        entry = self.found.setdefault((code, position, other), [sentence, 0])
        entry[1] += count

    def place(self, position: int) -> str:
        """An instruction in words: PTX line, CUDA line, text."""
        if position < 0:
            return "kernel"
        one = self.kernel.instructions[position]
        source = f", {one.source}" if one.source else ""
        return f"PTX line {one.line}{source} `{one}`"

    def finish(self) -> tuple[Finding, ...]:
        """All findings, in the order they appeared."""
        result: list[Finding] = []
        for (code, position, other), (sentence, count) in self.found.items():
            where = self.place(position)
            if other >= 0:
                where += f"; the other access: {self.place(other)}"
            story: tuple[str, ...] = ()
            if len(result) < STORIES:
                story = told(self.kernel, code, sentence, position, other)
            result.append(Finding(code, sentence, where, count, story))
        return tuple(result)
