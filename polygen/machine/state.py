"""`Machine`: everything one wave of CTAs shares while it runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.machine.alignment import Alignment
from polygen.machine.asynchronous import Copies
from polygen.machine.barriers import Barriers
from polygen.machine.blocks import Program
from polygen.machine.bulk import Bulk
from polygen.machine.cluster import Clusters
from polygen.machine.footprint import Footprint
from polygen.machine.grids import Grids
from polygen.machine.images import PlacedImage
from polygen.machine.lanes import Geometry, Lanes, Vector
from polygen.machine.map_changes import MapFences
from polygen.machine.mbarrier import Mbarriers
from polygen.machine.memory import (
    WINDOW_PARAM,
    Buffer,
    GlobalMemory,
    locate_global,
    locate_local,
    locate_shared,
)
from polygen.machine.module import Kernel, Variable, type_bytes
from polygen.machine.order import Order, warps_of
from polygen.machine.profile import Profiler
from polygen.machine.races import Shadow
from polygen.machine.registers import Registers, at_launch
from polygen.machine.report import Findings
from polygen.machine.special import RESERVED, Specials, uses_reserved
from polygen.machine.stores import GlobalStores
from polygen.machine.tensormap import PlacedMap
from polygen.machine.wgmma import Groups


def place_shared(
    program: Program, variables: tuple[Variable, ...], dynamic: int
) -> tuple[dict[str, int], int, int]:
    """Addresses of the shared variables: (symbols, first byte, end).

    As drivers place them: behind the reserved bytes, what has a size by falling alignment, then the
    dynamic array. It may have more alignment than it asks for: see `alignment`.
    """
    symbols: dict[str, int] = {}
    kernel, named = program.kernel, program.facts.mentioned
    mine = [one for one in (*variables, *kernel.variables) if one.space == "shared"]
    fixed = [one for one in mine if one.size and one.name in named]  # the others are of others
    extern = [one for one in mine if not one.size]
    first = top = RESERVED
    for one in sorted(fixed, key=lambda one: -one.align):
        top = -(-top // one.align) * one.align
        symbols[one.name] = top
        top += one.size
    align = max((one.align for one in extern), default=1)
    top = -(-top // align) * align
    for one in extern:
        symbols[one.name] = top
    return symbols, 0 if uses_reserved(named) else first, top + dynamic


def shadow_bytes(program: Program, shared_end: int, threads: int) -> int:
    """Roughly what race detection needs per CTA."""
    actors = int(np.prod(program.kernel.cluster)) * (-(-threads // 32) + -(-threads // 128) + 1)
    return shared_end // program.facts.granule * (actors + 2) * 8 + 1


def local_bytes(kernel: Kernel) -> int:
    """Of local memory that a thread may have, roughly."""
    return sum(one.size + 16 for one in kernel.variables if one.space == "local")


@dataclass(slots=True)
class Placed:
    """Arguments and module variables in memory."""

    memory: GlobalMemory
    buffers: tuple[Buffer, ...]  # one per pointer or tensor-map argument
    symbols: dict[str, int]  # addresses of variables
    offsets: dict[str, int]  # of the parameters among their bytes
    data: bytes  # the parameters
    maps: tuple[PlacedMap, ...]  # by the numbers in their images (`map_image`)
    images: tuple[PlacedImage, ...] = ()  # by the numbers in their handles
    alignment: Alignment = field(default_factory=lambda: Alignment(-1, 1))
    stores: GlobalStores | None = None
    grids: Grids | None = None
    footprint: Footprint | None = None  # of waves that run apart: see `waves`


@dataclass(frozen=True, slots=True)
class Options:
    """How to run."""

    completion: str
    seed: int
    checks: bool
    profiler: Profiler | None


class Machine:
    """State of one wave; the functions of the instruction families work on it."""

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        placed: Placed,
        findings: Findings,
        shared: tuple[int, int, int],
        options: Options,
        stored: frozenset[str] | None = None,
    ) -> None:
        """`stored`: the registers that get storage; None: all that need it."""
        self.program, self.geometry, self.findings = program, geometry, findings
        self.memory, self.tensor_maps = placed.memory, placed.maps
        self.images, self.map_fences = placed.images, MapFences()
        self.alignment = placed.alignment
        self.stores = placed.stores if options.checks else None
        self.grids, self.footprint = placed.grids, placed.footprint
        self.completion, self.profiler = options.completion, options.profiler
        self.random = random.Random(options.seed)
        self.shared_first, self.shared_end, self.dynamic = shared
        self.shared_bytes = -(-self.shared_end // 1024) * 1024
        self.shared = np.full(len(geometry.ctas) * self.shared_bytes, 0xFF, np.uint8)
        self.shared_base = geometry.cta * self.shared_bytes
        self.parameter_text = placed.data + bytes(64)
        self.parameter_bytes = np.frombuffer(self.parameter_text, np.uint8)
        self.offsets = placed.offsets
        parameters = {name: WINDOW_PARAM + at for name, at in placed.offsets.items()}
        self.symbols = placed.symbols | parameters | self._place_locals()
        self.spaces = {
            "global": (locate_global, self.memory.bytes),
            "shared": (locate_shared, self.shared),
            "local": (locate_local, self.local),
        }
        self.shadow = self._make_shadow() if options.checks else None
        strong = self.shadow is not None and program.facts.strong
        self.order = (
            Order(self.shadow, program.facts.narrow) if self.shadow is not None and strong else None
        )
        self.copies = Copies(geometry.total)
        self.barriers = Barriers()
        self.mbarriers = Mbarriers(geometry.total, options.seed)
        self.bulk = Bulk(geometry.total)
        self.groups = Groups()
        self.register_pools = Registers(at_launch(program.kernel))
        self.clusters = Clusters(geometry)
        self.mapped = program.facts.mapped or geometry.cluster > 1
        self.exited = ~geometry.exists
        self.everyone = Lanes(geometry, np.arange(geometry.total), bool(geometry.exists.all()))
        self.registers = self._storage(stored)
        self.unwritten: dict[str, Any] = {}  # by register, flags per thread: see `unwritten`
        self.unwritten_loads: list[tuple[str, int]] = []  # what is found when they matter, where
        self.instructions = 0
        self.special = Specials(self).value

    def _make_shadow(self) -> Shadow:
        facts = self.program.facts
        more = 2 * warps_of(self.geometry) if facts.strong else 0
        return Shadow(
            self.geometry,
            self.shared_bytes,
            facts.granule,
            self.findings,
            facts.atomic,
            more,
            facts.proxy_fences,
        )

    def _place_locals(self) -> dict[str, int]:
        """Addresses of the local variables; makes local memory."""
        top, symbols = 0, {}
        for one in self.program.kernel.variables:
            if one.space == "local":
                align = max(one.align, 16)
                top = -(-top // align) * align
                symbols[one.name] = top
                top += one.size
        self.local_bytes = -(-top // 16) * 16
        self.local = np.full(self.geometry.total * self.local_bytes, 0xFF, np.uint8)
        return symbols

    def _storage(self, wanted: frozenset[str] | None) -> list[Any]:
        registers: list[Any] = [None] * len(self.program.stored)
        for name, slot in self.program.stored.items():
            if wanted is not None and name not in wanted:
                continue
            kind = self.program.kernel.registers[name]
            dtype = {"pred": "?", "f32": "f4", "f64": "f8"}.get(kind) or f"u{type_bytes(kind)}"
            if name in self.program.uniform:
                registers[slot] = np.zeros((), dtype)[()]
            else:
                registers[slot] = np.zeros(self.geometry.total, dtype)
        return registers

    def parameter(self, name: str, offset: int, dtype: Any) -> Any:
        """A scalar out of the kernel parameters."""
        return np.frombuffer(self.parameter_text, dtype, 1, self.offsets[name] + offset)[0]

    def cluster_of(self, at: int) -> int:
        """The cluster in the wave that has an absolute shared byte."""
        return at // (self.shared_bytes * self.geometry.cluster)

    def live_warps(self, cta: int) -> int:
        """Warps of a CTA with a thread that has not exited."""
        mine = slice(cta * self.geometry.padded, (cta + 1) * self.geometry.padded)
        return int((~self.exited[mine]).reshape(-1, 32).any(1).sum())

    def late_warp_barrier(self, lanes: Lanes, missing: Vector, position: int) -> None:
        """Report lanes that a warp barrier names and that are elsewhere."""
        if missing.any():
            lane = int(np.flatnonzero(missing)[0])
            self.findings.add(
                "divergent-warp-operation",
                f"{lanes.name(lane)} waits at a warp barrier for lanes that are elsewhere",
                position,
                count=int(missing.sum()),
            )
