"""What a launch must know of a kernel: its parameters and its grid; plain data that need no isl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polygen.frontend.dtypes import F32, DType
from polygen.frontend.indices import size_value
from polygen.frontend.program import Dim, Program, Tensor
from polygen.hardware.device import common_facts

KEPT_ALIGNMENT = 16  # bytes to a multiple of which rows of kept matrices are lengthened


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
        every: positions from one element of a box to the next; 1: they are neighbours.
    """

    axis: int | None
    extent: Dim
    box: int
    start: int = 0
    step: int = 1
    every: int = 1

    def __str__(self) -> str:
        which = "no axis" if self.axis is None else f"axis {self.axis}"
        start = f" from {self.start}" if self.start else ""
        step = f" by {self.step}" if self.step != 1 else ""
        every = f", boxes of every {self.every}" if self.every != 1 else ""
        return f"{which}: {self.extent}{start}{step}{every}"


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel parameter, in order."""

    name: str  # C identifier
    # "pointer" (u64), "size" (s32), "stride" (s32, in elements), "scalar" (f32), "map": a tensor
    # map (128 bytes by value) with which the copy engine moves boxes of the tensor, or "workspace"
    # (u64): where parts of folds lie
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

    @property
    def every(self) -> tuple[int, ...]:
        """Of a map: positions from one element of a box to the next, likewise."""
        return tuple(axis.every for axis in self.axes)


@dataclass(frozen=True, slots=True)
class Extents:
    """Of one section of a kernel: the output of its products.

    Attributes:
        along: the dim that groups of tiles run along.
        across: the other.
        batches: extents of the batch dims, outermost first.
    """

    along: Dim
    across: Dim
    batches: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch shape; the grid depends on the sizes only through tile counts.

    One block per tile: ``grid.x = ceil(size[across] / tile_across) * group``,
    ``grid.y = ceil(ceil(size[along] / tile_along) / group)``, and ``grid.z`` is the number of
    matrices: the product of the batch dims, 1 without any. Where there may be more of them than
    `layers`, they are taken in rounds of so many, one behind the other along x.

    Persistent blocks: ``grid.x`` is as many whole clusters as run at once, at most one per cluster
    of tiles; each block works through its share of the tiles. The tiles of all matrices are one
    sequence, matrix by matrix.

    Where a kernel has several sections, `further` has those behind the first: the tiles of all are
    one sequence, section by section.

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
    further: tuple[Extents, ...] = ()  # of the sections behind the first
    layers: int = 0  # matrices of a round; 0: there is one round, of all of them

    @property
    def sections(self) -> tuple[Extents, ...]:
        """Of all sections."""
        return (Extents(self.along, self.across, self.batches), *self.further)

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.split

    def matrices(self, sizes: Mapping[str, int]) -> int:
        """How many matrices of tiles there are, of the first section."""
        return math.prod(_extent(dim, sizes) for dim in self.batches)

    def work(self, sizes: Mapping[str, int]) -> int:
        """Clusters of tiles of all matrices: the work items of persistent blocks."""
        along = self.tiles("along", sizes, self.cluster[0])
        first = self.matrices(sizes) * along * self.tiles("across", sizes, self.cluster[1])
        return first + sum(self._work_of(one, sizes) for one in self.further)

    def _work_of(self, one: Extents, sizes: Mapping[str, int]) -> int:
        """The work items of one of the sections behind the first."""
        sides = (
            (one.along, self.tile_along * self.cluster[0]),
            (one.across, self.tile_across * self.cluster[1]),
        )
        tiles = math.prod(-(-_extent(extent, sizes) // tile) for extent, tile in sides)
        return tiles * math.prod(_extent(dim, sizes) for dim in one.batches)

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
        matrices = self.matrices(sizes)
        rounds = -(-matrices // self.layers) if self.layers else 1
        deep = min(matrices, self.layers) if self.layers else matrices
        return (across * self.group * rounds, -(-along // self.group), deep)


@dataclass(frozen=True, slots=True)
class Count:
    """``ceil(extent / step) * times``."""

    extent: Dim
    step: int = 1
    times: int = 1

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number for concrete sizes."""
        return -(-_extent(self.extent, sizes) // self.step) * self.times

    def __str__(self) -> str:
        extent = str(self.extent)
        if self.step > 1:
            extent = f"ceil({extent} / {self.step})"
        return f"{extent} * {self.times}" if self.times > 1 else extent


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one fold in the workspace, as computed: component c of part q of result r.

    Attributes:
        value: the fold's result.
        components: numbers of a part, each with an array of its own.
        counts: parts of a result, the product of them.
        results: extents of the result.
    """

    value: str
    components: int
    counts: tuple[Count, ...]
    results: tuple[Dim, ...]

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Numbers of all parts."""
        each = math.prod(count.value(sizes) for count in self.counts)
        return self.components * each * math.prod(_extent(one, sizes) for one in self.results)

    @property
    def count_text(self) -> str:
        """How many parts a result has, in words."""
        return " * ".join(map(str, self.counts))


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A matrix of the workspace that the kernel writes and the launch that follows reads.

    Attributes:
        tensor: with its last axis contiguous.
    """

    tensor: Tensor

    @property
    def name(self) -> str:
        """The tensor's."""
        return self.tensor.name

    @property
    def multiple(self) -> int:
        """The elements to a multiple of which rows are lengthened."""
        return KEPT_ALIGNMENT // self.tensor.dtype.bytes

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Of the room that it takes: its extents, the last one lengthened."""
        *rows, row = (_extent(one, sizes) for one in self.tensor.dims or (1,))
        return (*rows, -(-row // self.multiple) * self.multiple)

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Its room."""
        return math.prod(self.shape(sizes)) * self.tensor.dtype.bytes


@dataclass(frozen=True, slots=True)
class Results:
    """Results over the same axes, made by the same threads of the launch that follows.

    Attributes:
        extents: of their axes, those of extent 1 left out.
        lanes: of a warp that share a result: 1, or all.
        folds: whose parts are combined.
        after: statements on their results.
        outputs: written.
        rows: statements on the elements of a result's row, if there are any.
        merged: whether sums and states of parts of the keys of a row are combined.
    """

    extents: tuple[Dim, ...]
    lanes: int
    folds: tuple[str, ...]
    after: tuple[str, ...]
    outputs: tuple[str, ...]
    rows: tuple[str, ...] = ()
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Following:
    """The launch behind the kernel's, on the same stream with the same arguments.

    Attributes:
        entry: its extern "C" name.
        threads: of a block, whose warps share the parts of its results.
        lanes: of a warp.
        groups: of results: blocks of the first, then those of the next, along x.
        parts: in the workspace, one behind the other.
        kept: before them.
        real: the type of parts.
        dependent: whether it may begin while the kernel still runs; it waits for that itself.
    """

    entry: str
    threads: int
    lanes: int
    groups: tuple[Results, ...]
    parts: tuple[Parts, ...]
    kept: tuple[KeptRows, ...] = ()
    real: DType = F32
    dependent: bool = False

    def start(self, of: KeptRows, sizes: Mapping[str, int]) -> int:
        """The byte of the workspace where a kept matrix begins."""
        return sum(one.bytes(sizes) for one in self.kept[: self.kept.index(of)])

    def grid(self, sizes: Mapping[str, int]) -> int:
        """Blocks along x."""
        return sum(self.blocks(group, sizes) for group in self.groups)

    def blocks(self, group: Results, sizes: Mapping[str, int]) -> int:
        """Blocks of one group of results."""
        results = math.prod(_extent(extent, sizes) for extent in group.extents)
        return -(-results // self.results(group))

    def results(self, group: Results) -> int:
        """How many of them a block makes."""
        return self.lanes // group.lanes

    def workspace(self, sizes: Mapping[str, int]) -> int:
        """Bytes of what lies between both launches; their content before is of no account."""
        parts = self.real.bytes * sum(parts.elements(sizes) for parts in self.parts)
        return parts + sum(one.bytes(sizes) for one in self.kept)

    @property
    def alignment(self) -> int:
        """Bytes at a multiple of which the workspace begins."""
        whole_rows = self.kept or any(group.merged for group in self.groups)
        return KEPT_ALIGNMENT if whole_rows else self.real.bytes


def _extent(dim: Dim, sizes: Mapping[str, int]) -> int:
    found: int = size_value(dim, sizes)
    return found


def layers(batches: Sequence[Dim]) -> int:
    """The matrices that a grid has along z where there may be more; 0 where it has room for all."""
    most, numbers = common_facts()["grid_z"], [dim for dim in batches if isinstance(dim, int)]
    return 0 if len(numbers) == len(batches) and math.prod(numbers) <= most else most


def stride_argument(tensor: Tensor, axis: int) -> str:
    """The kernel argument that holds the step of `axis`."""
    return f"{tensor.name}_stride{axis}"


def workspace_argument(program: Program) -> str:
    """The kernel argument that holds where parts of folds lie; no array or size is called so."""
    name = "parts"
    while name in program.tensors or name in program.sizes:
        name += "_"
    return name
