"""`KernelSource`: the CUDA text of one kernel and all a launcher must know to call it."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.brief import Brief
from polygen.emit.conditions import Condition
from polygen.lower.launch import Argument, Following, Launch, MapAxis
from polygen.schedule.realign import Realign

__all__ = ["Argument", "Following", "KernelSource", "Launch", "MapAxis"]


@dataclass(frozen=True, slots=True, repr=False)
class KernelSource(Brief):
    """CUDA text, entry point, argument layout and launch shape of one kernel."""

    entry: str  # extern "C" name
    text: str  # stands alone: no headers, host launcher included outside NVRTC
    header: str  # C: declares the launcher, tests its arguments, says how to launch the cubin
    arch: str  # "sm_80", "sm_90a"
    arguments: tuple[Argument, ...]
    launch: Launch
    conditions: tuple[Condition, ...]  # what arguments must satisfy, in the order of their tests
    options: tuple[str, ...] = ()  # what the compiler is told, beside the target
    following: Following | None = None  # the launch that makes results of parts of folds
    realign: Realign | None = None  # the copy of operands that goes before; the text has it too

    @property
    def alignment(self) -> tuple[tuple[str, int], ...]:
        """Per array, the bytes that its address and its steps must be multiples of."""
        return tuple((c.tensor, c.multiple) for c in self.conditions if c.kind == "address")

    def brief(self) -> str:
        """The entry, its target, and how much text there is."""
        return f"{self.entry} for {self.arch}, {len(self.text.splitlines())} lines"

    def __str__(self) -> str:
        return self.text
