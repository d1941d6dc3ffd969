"""`KernelSource`: the CUDA text of one kernel and all a launcher must know to call it."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.brief import Brief
from polygen.lower.plan import Argument, Launch

__all__ = ["Argument", "KernelSource", "Launch"]


@dataclass(frozen=True, slots=True, repr=False)
class KernelSource(Brief):
    """CUDA text, entry point, argument layout and launch shape of one kernel."""

    entry: str  # extern "C" name
    text: str  # stands alone: no headers, host launcher included outside NVRTC
    arch: str  # "sm_80", "sm_90a"
    arguments: tuple[Argument, ...]
    launch: Launch
    whole: tuple[str, ...]  # tensors whose contiguous extent is a multiple of their alignment
    alignment: tuple[
        tuple[str, int], ...
    ]  # tensor name -> bytes its address and strides must be multiples of

    def brief(self) -> str:
        """The entry, its target, and how much text there is."""
        return f"{self.entry} for {self.arch}, {len(self.text.splitlines())} lines"

    def __str__(self) -> str:
        return self.text
