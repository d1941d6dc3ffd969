"""`RoleWork`: what the plan of a specialised kernel holds besides the common parts.

Rings and panels in shared memory, boxes that the copy engine moves, barriers with their places, and
the loops of each role. Leaves use the names of the kernel: `group` is a consumer warpgroup, `rank`
the block's place in its cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Tensor
from polygen.hardware.matrix_layout import MatrixLayout
from polygen.poly.ast import LoopAst
from polygen.poly.role_barriers import GroupBarrier, Mbarrier, Sync, Turn


@dataclass(frozen=True, slots=True)
class Region:
    """A ring in shared memory."""

    name: str
    offset: int
    slots: int
    slot_bytes: int
    groups: int  # consumer warpgroups that have one each; 1: shared by all
    note: str

    @property
    def bytes(self) -> int:
        """Size of all slots of all groups."""
        return self.slots * self.slot_bytes * self.groups

    def __str__(self) -> str:
        each = f" for each of {self.groups} warpgroups" if self.groups > 1 else ""
        return (
            f"{self.name}: {self.slots} x {self.slot_bytes} B{each} at {self.offset}, {self.note}"
        )


@dataclass(frozen=True, slots=True)
class Fill:
    """One operand's tile: global memory -> ring, by the copy engine."""

    operand: str  # "a" or "b"
    tensor: Tensor
    map: str  # kernel argument
    ring: str
    layout: MatrixLayout
    role: str  # "m" or "n"
    tile: int  # elements along the role per block
    tile_k: int
    element_bytes: int
    parts: int  # blocks that share the tile and copy one part each
    box: tuple[int, int]  # elements of one box, outer first

    @property
    def k_contiguous(self) -> bool:
        """Whether k is innermost."""
        return self.layout.major == "k"

    @property
    def part_bytes(self) -> int:
        """From one block's part to the next, inside each box: stored rows are cut among them."""
        return self.box[0] * self.layout.span


@dataclass(frozen=True, slots=True)
class Panel:
    """One matrix of the epilogue: 64 rows by `columns` at a time, by the copy engine."""

    name: str  # the read's variable, or the output
    tensor: Tensor
    map: str
    region: str
    rows: int
    columns: int
    element_bytes: int
    span: int  # bytes of a box's row, and of its swizzle

    @property
    def boxes(self) -> int:
        """Boxes of one panel, side by side."""
        return self.columns * self.element_bytes // self.span

    @property
    def bytes(self) -> int:
        """Bytes of one panel."""
        return self.rows * self.columns * self.element_bytes

    @property
    def box(self) -> tuple[int, int]:
        """Elements of one box, outer first."""
        return (self.rows, self.span // self.element_bytes)


@dataclass(frozen=True, slots=True)
class PlacedBarrier:
    """An mbarrier in shared memory: one per slot, and per warpgroup if each has its own."""

    barrier: Mbarrier
    offset: int
    groups: int
    bytes: int  # that copies complete per phase; 0: threads arrive

    def __str__(self) -> str:
        b = self.barrier
        what = f"{self.bytes} bytes of {b.signal}" if self.bytes else f"{b.arrivals} of {b.signal}"
        per = " for each warpgroup" if self.groups > 1 else ""
        where = ", from all blocks that share the slot" if b.remote else ""
        return f"{b.name}: {b.slots} mbarriers{per}; {b.wait} waits for {what}{where}"


@dataclass(frozen=True, slots=True)
class RoleLoops:
    """The loops of one role."""

    role: str
    loops: LoopAst


@dataclass(frozen=True, slots=True)
class RoleWork:
    """The specialised part of a plan."""

    pingpong: bool
    consumers: int  # warpgroups
    cluster: tuple[int, int]  # blocks along m, n
    registers: tuple[int, int]  # per thread: the producer's warpgroup, the consumers
    regions: tuple[Region, ...]
    fills: tuple[Fill, ...]
    operands: tuple[Panel, ...]
    results: tuple[Panel, ...]
    panel_columns: int  # 0: results go from the registers to memory
    barriers: tuple[PlacedBarrier, ...]
    groups: tuple[GroupBarrier, ...]
    turns: tuple[tuple[Turn, int], ...]  # with the offset of one mbarrier per consumer
    roles: tuple[RoleLoops, ...]

    @property
    def syncs(self) -> tuple[Sync, ...]:
        """All barriers, as they were derived."""
        return (*(b.barrier for b in self.barriers), *self.groups, *(t for t, _ in self.turns))

    def region(self, name: str) -> Region:
        """The region called `name`."""
        return next(r for r in self.regions if r.name == name)
