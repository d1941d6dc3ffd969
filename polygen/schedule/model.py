"""`Schedule`: every decision that turns a program into a kernel, as one record and one TOML file.

A schedule holds numbers and names, never code. Whether it is *legal* for a program is decided by
the dependences (`polygen.poly.legality`), whether it *fits* a device by the resources
(`polygen.lower.resources`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from polygen.brief import table

LANES = "dot"  # an atom: the device's first whose lanes multiply by themselves
# Atoms of which each type of sums has one: products of zeros, which nothing executes.
ZEROS = ("zeros_8x256", "zeros_32x64", "zeros_256x8")
LAST = "last"  # of tiles, those whose sums blocks share: those of the last round
IN_TILE = "tile"  # where elements use results of folds of their own row


@dataclass(frozen=True, slots=True)
class CtaTile:
    """What one thread block computes per step: `m` x `n` outputs, `k` deep."""

    m: int = 128
    n: int = 128
    k: int = 64


@dataclass(frozen=True, slots=True)
class WarpTile:
    """What one warp computes of the block's tile; with roles, what one consumer warpgroup does."""

    m: int = 64
    n: int = 64


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile hierarchy above the instruction's own shape."""

    cta: CtaTile = CtaTile()
    warp: WarpTile = WarpTile()
    # of a chain of products: keys of a part, which a block visits; parts are combined in the launch
    # that follows. 0: a block visits all keys of its rows
    part: int = 0
    # of rows along several axes of the result: how many indices of each a block's tile has, of the
    # last axes, outermost first. (): rows follow each other along one axis
    pixels: tuple[int, ...] = ()
    # of sums over several axes, as the taps and channels of windows: whether k tiles go through all
    # of them as through one axis; else each is within one index of the outer axes
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Software pipelining of the k loop, shared-memory ring and register ring."""

    stages: int = 3  # slots of the shared-memory ring
    distance: int = 2  # k tiles by which a copy runs ahead of the MMAs that read it
    order: tuple[str, ...] = ("mma", "copy")  # what one step of the k loop does first
    fragments: int = 2  # slots of the register ring of operand fragments
    lookahead: int = 1  # MMA k steps by which a fragment load runs ahead
    copies: str = "whole"  # "whole": a tile's copies in one go; "spread": a part per MMA step
    across: bool = True  # the lookahead of fragment loads continues into the next k tile
    in_flight: int = 1  # with roles: k tiles whose products may still run when the next are issued
    # with roles, of sums in blocks of k: blocks that one iteration of the code has, each of which
    # is promoted while the next one's products run; 1: it is promoted before these are issued
    overlap: int = 1
    # with fragments that consumers compute: MMA k steps whose fragments are all computed before the
    # first of them is multiplied, as one group of products
    together: int = 1


@dataclass(frozen=True, slots=True)
class Loops:
    """Loop orders and directions."""

    mma: tuple[str, ...] = (
        "k",
        "m",
        "n",
    )  # nest of the atom loops inside a k tile, outermost first
    k: str = "forward"  # direction in which k tiles are accumulated: "forward" or "backward"
    grid: tuple[str, ...] = (
        "m",
        "n",
    )  # dims mapped to thread blocks; a k here splits the reduction over blocks
    phases: tuple[str, ...] = ("main", "epilogue")  # order of main loop and epilogue inside a block


@dataclass(frozen=True, slots=True)
class Roles:
    """Warp specialisation: who copies and who multiplies in persistent thread blocks.

    With a form other than "none" a producer warp feeds consumer warpgroups through tensor maps.
    """

    # "none": every warp does everything; "cooperative": the consumers share a tile; "pingpong":
    # consumers take turns at whole tiles, so that one multiplies while the others finish theirs
    form: str = "none"
    producer_registers: int = 40  # per thread of the producer's warpgroup
    consumer_registers: int = 232  # per thread of the consumers
    # Who computes operands that are computed: "producer": its threads, who write them to the rings;
    # "consumer": it reads what the copy engine has brought, computes fragments of the left operand
    # in its registers, and multiplies from there; "before": a launch that goes before, which leaves
    # the whole operand in a workspace, from where it comes like an argument, also without roles
    computes: str = "producer"
    turns: int = 2  # consumers that take turns


@dataclass(frozen=True, slots=True)
class Cluster:
    """Thread blocks that run together: they share operands by multicast, or one tile's sums."""

    m: int = 1  # blocks along m: they share tiles of the right operand
    n: int = 1  # blocks along n: they share tiles of the left operand
    # blocks along k: each adds up its own part of every sum; then each gets the parts of its share
    # of the tile's columns from all of them, adds those up and finishes them
    k: int = 1
    # of which tiles: "all", or those of the "last" round, which are too few for all blocks
    share: str = "all"
    # columns of a share that blocks send each other at a time; 0: all of them
    columns: int = 0

    @property
    def tiles(self) -> int:
        """Output tiles that a cluster works on at a time."""
        return self.m * self.n

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        return self.m * self.n * self.k

    @property
    def last(self) -> bool:
        """Whether blocks have tiles for themselves, and share those of the last round only."""
        return self.share == LAST


MATRIX, LONGEST, PAIRS = ORDERS = ("matrix", "longest", "pairs")


@dataclass(frozen=True, slots=True)
class Raster:
    """The order in which thread blocks visit output tiles."""

    along: str = "m"  # tiles of a group run along this dim first
    group: int = 8  # tiles per group along it
    # Tiles of one row of them that a persistent block takes one after another.
    run: int = 1
    # of a chain whose rows have ranges of keys: "matrix" after matrix; "longest": the same, but
    # tiles of the last matrices together, those of most keys first; "pairs": persistent blocks,
    # which take pairs of as many keys each, and then tiles of the last matrices
    order: str = MATRIX


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Placement in shared memory."""

    swizzle: str = "auto"  # "auto", "none" or a name of hardware/data/swizzles.toml


ROW_WARPS = (1, 2, 4, 8)  # of a block that finishes a row
FOLD_WARPS = 16  # of a block that combines parts of folds; of doubles, half as many
ROW_WORDS = 16  # of a row that a lane of such a block holds, at most
HELD_ROWS = "epilogue.row_words"  # among what an automatic choice is not to take: it spills
PANEL_COLUMNS = (64, 32, 16)  # of a panel of results, as `epilogue.columns` may say


@dataclass(frozen=True, slots=True)
class Epilogue:
    """How results leave the registers."""

    # "smem": row vectors of 16 bytes via shared memory; "registers": straight from fragments;
    # "tma": panels in shared memory that the copy engine moves; "lines": that threads move, a line
    # of memory after the other (with roles)
    through: str = "smem"
    slots: int = 2  # panels of results per consumer that may be on their way out
    prefetch: int = 2  # panels of each operand matrix per consumer that may be on their way in
    columns: int = 0  # of a panel; 0: the most that divide a consumer's
    # where elements use results of folds of their own row: "after" the kernel, in the launch that
    # follows; "tile": in the kernel, whose tiles are as wide as rows, or those of the `cluster.n`
    # blocks of a cluster together
    rows: str = "after"
    # of a block of that launch, which finishes a row: 1, 2, 4 or 8
    row_warps: int = 8
    # words of 16 bytes of a row, from its beginning on, that every lane of such a block reads once
    # and holds in registers; the walks over the row read the others each
    row_words: int = 0


AT_START, BEHIND_LOADS = TRIGGERS = ("start", "loads")


@dataclass(frozen=True, slots=True)
class Launches:
    """What goes before a kernel on its stream, and how the kernel follows it."""

    # operands whose rows the copy engine does not take are copied first, to rows that it takes
    realign: bool = False
    # it may begin while the kernels before it still run, and waits for them itself
    dependent: bool = False
    # when a kernel that is launched so, that another launch follows, or that is one of several in
    # order lets those behind it begin: at its "start", or behind the last of its "loads"
    trigger: str = AT_START
    # with roles, or lanes that multiply, of a kernel among several that run in order: operands that
    # none of them writes are read while those before it still run
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """One complete set of decisions."""

    name: str = "default"
    device: str = "sm_80"  # oldest architecture it is meant for
    # a name of hardware/data/atoms.toml, or "auto": the device's first that takes the dtypes
    atom: str = "auto"
    tile: Tile = field(default_factory=Tile)
    pipeline: Pipeline = Pipeline()
    loops: Loops = Loops()
    roles: Roles = Roles()
    cluster: Cluster = Cluster()
    raster: Raster = Raster()
    smem: SharedMemory = SharedMemory()
    epilogue: Epilogue = Epilogue()
    min_blocks: int = 1  # thread blocks per multiprocessor the register allocation aims at
    # Whether the operands are exchanged: m of all fields above is then a result's contiguous dim,
    # and its few rows are n.
    exchange: bool = False
    # of a chain's scores: "fast" forms as everywhere, or where there are any "short" ones, of one
    # instruction and less accurate
    functions: str = "fast"
    launch: Launches = Launches()

    @property
    def specialised(self) -> bool:
        """Whether warps have roles."""
        return self.roles.form != "none"

    @property
    def consumers(self) -> int:
        """Warpgroups of a block that multiply, or warps without roles.

        Those that take turns at whole tiles share none of them; those of a chain do, and take turns
        at products.
        """
        cta, warp = self.tile.cta, self.tile.warp
        sharing = cta.m // warp.m * (cta.n // warp.n)
        return max(self.roles.turns, sharing) if self.in_turns else sharing

    @property
    def in_turns(self) -> bool:
        """Whether consumers take turns: at whole tiles, or in a chain at products."""
        return self.roles.form == "pingpong"

    @property
    def covers_rows(self) -> bool:
        """Whether a tile, or the tiles of a cluster beside each other, have rows whole."""
        return self.epilogue.rows == IN_TILE

    @property
    def for_few_rows(self) -> bool:
        """Whether it is one of those that only few rows of a result are worth."""
        return self.exchange or self.by_lanes

    @property
    def from_registers(self) -> bool:
        """Whether left operands are fragments that consumers compute in their registers."""
        return self.specialised and self.roles.computes == "consumer"

    @property
    def makes_first(self) -> bool:
        """Whether operands that are computed are made by a launch that goes before."""
        return self.roles.computes == "before"

    @property
    def by_lanes(self) -> bool:
        """Whether lanes multiply, without tensor cores: rows stream through registers."""
        return self.atom.startswith(LANES)

    @property
    def of_elements(self) -> bool:
        """Whether products are of zeros, and threads fold elements that they read themselves."""
        return self.atom in ZEROS

    @property
    def read_together(self) -> tuple[int, int]:
        """Rows and columns of the elements that a warp reads together to fold them."""
        rows, columns = self.atom.rpartition("_")[2].split("x")
        return int(rows), int(columns)

    @property
    def multiplies(self) -> str:
        """What tile programs without roles call their products."""
        return "dot" if self.by_lanes else "nothing" if self.of_elements else "mma"

    @property
    def without_rings(self) -> bool:
        """Whether what warps read goes to registers, and nothing through shared memory."""
        return self.by_lanes or self.of_elements

    def _repr_html_(self) -> str:
        """Its name and device, and every field that is not as usual."""
        usual = dict(leaves(Schedule()))
        changed = [(path, str(v)) for path, v in leaves(self) if v != usual[path]]
        head = [("name", self.name), ("device", self.device)]
        return table([*head, *(pair for pair in changed if pair[0] not in ("name", "device"))])


def leaves(record: Any, path: str = "") -> list[tuple[str, Any]]:
    """The fields of a record and of the records in it, by their dotted paths."""
    found: list[tuple[str, Any]] = []
    kind: Any = type(record)
    for name in _names(kind):
        value = getattr(record, name)
        if is_dataclass(value):
            found += leaves(value, f"{path}{name}.")
        else:
            found.append((path + name, value))
    return found


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
