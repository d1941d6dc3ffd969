"""What a launch must know of a kernel: its parameters and its grid; plain data that need no isl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polygen.frontend.program import Dim, Tensor


@dataclass(frozen=True, slots=True)
class MapAxis:
    """One axis of a tensor map: a stored axis of the tensor as the copy engine sees it.

    Position p along it is index ``start + step * p`` of the tensor's axis. An axis of the tensor at
    one index only is an axis of extent 1 that starts there.

    Attributes:
        axis: of the tensor; None: an axis of extent 1 that the tensor does not have, as that of
            the rows of a vector.
        extent: positions along it, a symbolic dim or a number.
        box: positions of a box along it.
        start: the index of position 0, from 0 on.
        step: from one position's index to the next one's, from 1 on; 1 along the innermost axis.
    """

    axis: int | None
    extent: Dim
    box: int
    start: int = 0
    step: int = 1

    def __str__(self) -> str:
        which = "no axis" if self.axis is None else f"axis {self.axis}"
        start = f" from {self.start}" if self.start else ""
        step = f" by {self.step}" if self.step != 1 else ""
        return f"{which}: {self.extent}{start}{step}"


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel parameter, in order."""

    name: str  # C identifier
    # "pointer" (u64), "size" (s32), "stride" (s32, in elements), "scalar" (f32), or "map": a tensor
    # map (128 bytes by value) with which the copy engine moves boxes of the tensor
    kind: str
    tensor: str = ""  # for all but size: the tensor
    axis: int = 0  # for stride: the axis whose step it is
    dim: str = ""  # for size: the symbolic dim
    # for map: its axes, 1 to 5, slowest first; every axis of the tensor is one of them
    axes: tuple[MapAxis, ...] = ()
    swizzle: int = 0  # for map: bytes of the span inside which 16-byte chunks are swapped, or 0

    @property
    def box(self) -> tuple[int, ...]:
        """Of a map: elements of a box along its axes, slowest first."""
        return tuple(axis.box for axis in self.axes)


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch shape; the grid depends on the sizes only through tile counts.

    One block per tile: ``grid.x = ceil(size[across] / tile_across) * group``,
    ``grid.y = ceil(ceil(size[along] / tile_along) / group)``, and ``grid.z`` is the number of
    matrices: the product of the batch dims, 1 without any.

    Persistent blocks: ``grid.x`` is as many whole clusters as run at once, at most one per cluster
    of tiles; each block works through its share of the tiles. The tiles of all matrices are one
    sequence, matrix by matrix.

    With groups of rows the grid has room for the tiles of any groups: how many there are stands in
    memory, and blocks that find no tile of theirs are done.
    """

    along: Dim  # the dim that groups run along: a symbolic dim or a number
    across: Dim
    tile_along: int
    tile_across: int
    group: int
    threads: int  # per block
    shared_bytes: int  # dynamic shared memory
    persistent: int = 0  # blocks that run at once on the target; 0: one block per tile
    cluster: tuple[int, int] = (1, 1)  # blocks along, across
    batches: tuple[Dim, ...] = ()  # extents of the batch dims, outermost first
    per_multiprocessor: int = 1  # persistent blocks of each multiprocessor
    groups: Dim = 0  # of rows, each with tiles of its own; 0: rows are no groups
    grouped: str = ""  # with groups: "along" or "across", which of them counts rows
    split: int = 1  # blocks of a cluster for each of its tiles, which share the tile's sums
    dependent: bool = False  # it may begin while the kernels before it still run

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.split

    def matrices(self, sizes: Mapping[str, int]) -> int:
        """How many matrices of tiles there are."""
        return math.prod(_extent(dim, sizes) for dim in self.batches)

    def work(self, sizes: Mapping[str, int]) -> int:
        """Clusters of tiles of all matrices: the work items of persistent blocks."""
        along = self.tiles("along", sizes, self.cluster[0])
        return self.matrices(sizes) * along * self.tiles("across", sizes, self.cluster[1])

    def tiles(self, side: str, sizes: Mapping[str, int], blocks: int = 1) -> int:
        """Tiles along or across; of rows in groups the most that there can be.

        A group of r rows has ceil(r / tile) tiles, less than 1 more than r / tile.

        Args:
            side: "along" or "across".
            sizes: of the symbolic dims.
            blocks: of a cluster, whose tiles count as one.
        """
        dim, tile = (
            (self.along, self.tile_along) if side == "along" else (self.across, self.tile_across)
        )
        tile *= blocks
        groups = _extent(self.groups, sizes) if self.grouped == side else 1
        return (_extent(dim, sizes) + groups * (tile - 1)) // tile

    def grid(self, sizes: Mapping[str, int], resident: int = 0) -> tuple[int, int, int]:
        """The grid for concrete sizes.

        Args:
            sizes: of the symbolic dims.
            resident: of persistent blocks, how many run at once; 0: as on the target.
        """
        if self.persistent:
            most = (resident or self.persistent) // self.blocks
            return (min(most, self.work(sizes)) * self.blocks, 1, 1)
        along, across = self.tiles("along", sizes), self.tiles("across", sizes)
        return (across * self.group, -(-along // self.group), self.matrices(sizes))


def _extent(dim: Dim, sizes: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else sizes[dim]


def stride_argument(tensor: Tensor, axis: int) -> str:
    """The kernel argument that holds the step of `axis`."""
    return f"{tensor.name}_stride{axis}"
