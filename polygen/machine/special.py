"""Special registers: which threads they tell apart, and their values.

1. A name is one of the table below, or the instruction that reads it is refused.
2. What is the same in every thread of a launch is a scalar, the rest a vector over the wave.
3. Clocks and timers count what the machine has executed: they grow, and mean no time. They are
   read anew every time; the others once.
4. ``%envreg1`` and ``%envreg2`` hold the address of the workspace that a cooperative launch has,
   and the reserved bytes of shared memory lie in front of everything else.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from polygen.machine.state import Machine

RESERVED = 1024  # bytes of shared memory in front of a block's own, since sm_80
SCRATCH = 512  # where in them ``%reserved_smem_offset_1`` points
WORKSPACE = "%envreg1"  # the symbol of the workspace of a cooperative launch
WORKSPACE_BYTES = 64
_CLOCKS = frozenset(
    ["%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"]
)
_NANOSECONDS = 32  # per executed warp instruction, of ``%globaltimer``: its usual resolution
_PATTERN = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$|"
    r"%(laneid|warpid|nwarpid|smid|nsmid|gridid|lanemask_(eq|le|lt|ge|gt)|"
    r"dynamic_smem_size|total_smem_size|aggr_smem_size|cluster_ctarank|cluster_nctarank|"
    r"is_explicit_cluster|envreg([12]?[0-9]|3[01])|reserved_smem_offset_(begin|end|cap|[01])|"
    r"current_graph_exec|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi)$"
)
_UNIFORM = (
    "%ntid", "%nctaid", "%dynamic", "%total", "%aggr", "%cluster_nct", "%nclusterid", "%is_",
    "%envreg", "%reserved", "%current",
)  # fmt: skip


def is_special(operand: str) -> bool:
    """Whether an operand is a special register that the machine has."""
    return operand.startswith("%") and _PATTERN.match(operand) is not None


def is_uniform(operand: str) -> bool:
    """Whether a special register has one value in all threads of a launch."""
    return operand.startswith(_UNIFORM)


def cooperates(mentioned: frozenset[str]) -> bool:
    """Whether a kernel reads the workspace of a cooperative launch: all its blocks run at once."""
    return not mentioned.isdisjoint(("%envreg1", "%envreg2"))


@functools.lru_cache(64)
def uses_reserved(mentioned: frozenset[str]) -> bool:
    """Whether a kernel asks where the reserved bytes of shared memory are."""
    return any(name.startswith("%reserved_smem") for name in mentioned)


class Specials:
    """The special registers of a wave."""

    def __init__(self, machine: Machine) -> None:
        # Weak, as the machine holds this: a cycle would keep its large arrays for long.
        self.machine: Machine = weakref.proxy(machine)
        self._known: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """A vector over the wave, or a scalar when all threads agree."""
        if name in _CLOCKS:
            return self._clock(name)
        if name not in self._known:
            self._known[name] = self._make(name)
        return self._known[name]

    def _clock(self, name: str) -> Any:
        machine = self.machine
        ticks = machine.instructions * (_NANOSECONDS if "timer" in name else 1)
        machine.instructions += 1  # reading it takes time, too
        ticks = ticks >> 32 if name.endswith("_hi") else ticks
        return np.full(machine.geometry.total, ticks, "u8")

    def _make(self, name: str) -> Any:
        machine, geometry = self.machine, self.machine.geometry
        base, _, axis = name[1:].partition(".")
        which = "xyz".find(axis) if axis else 0
        cluster = geometry.cluster_shape
        in_grid = geometry.ctas[geometry.cta]
        gx, gy, _ = geometry.grid
        cta = (in_grid % gx, in_grid // gx % gy, in_grid // (gx * gy))
        bx, by, _ = geometry.block
        thread = geometry.thread
        lane = np.uint64(1) << (thread % 32).astype("u8")
        table: dict[str, Callable[[], Any]] = {
            "tid": lambda: (thread % bx, thread // bx % by, thread // (bx * by))[which],
            "ntid": lambda: geometry.block[which],
            "ctaid": lambda: cta[which],
            "nctaid": lambda: geometry.grid[which],
            "clusterid": lambda: cta[which] // cluster[which],
            "nclusterid": lambda: geometry.grid[which] // cluster[which],
            "cluster_ctaid": lambda: cta[which] % cluster[which],
            "cluster_nctaid": lambda: cluster[which],
            "cluster_ctarank": lambda: (
                cta[0] % cluster[0]
                + cluster[0] * (cta[1] % cluster[1] + cluster[1] * (cta[2] % cluster[2]))
            ),
            "cluster_nctarank": lambda: geometry.cluster,
            "is_explicit_cluster": lambda: int(geometry.cluster > 1),
            "laneid": lambda: thread % 32,
            "warpid": lambda: geometry.warp,
            "nwarpid": lambda: np.full(geometry.total, geometry.warps),
            "smid": lambda: geometry.cta,
            "nsmid": lambda: np.full(geometry.total, len(geometry.ctas)),
            "gridid": lambda: np.zeros(geometry.total, "u4"),
            "lanemask_eq": lambda: lane,
            "lanemask_lt": lambda: lane - np.uint64(1),
            "lanemask_le": lambda: lane * np.uint64(2) - np.uint64(1),
            "lanemask_gt": lambda: ~(lane * np.uint64(2) - np.uint64(1)),
            "lanemask_ge": lambda: ~(lane - np.uint64(1)),
            "dynamic_smem_size": lambda: machine.dynamic,
            "total_smem_size": lambda: machine.shared_end - RESERVED,
            "aggr_smem_size": lambda: machine.shared_end,
            "envreg1": lambda: machine.symbols.get(WORKSPACE, 0) >> 32,
            "envreg2": lambda: machine.symbols.get(WORKSPACE, 0) & 0xFFFFFFFF,
            "reserved_smem_offset_begin": lambda: 0,
            "reserved_smem_offset_end": lambda: RESERVED,
            "reserved_smem_offset_cap": lambda: RESERVED,
            "reserved_smem_offset_0": lambda: 0,
            "reserved_smem_offset_1": lambda: SCRATCH,
        }
        value = table.get(base, lambda: 0)()  # other environment registers, graphs: nothing there
        return value if isinstance(value, int) else np.asarray(value).astype("u4")
