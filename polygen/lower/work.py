"""What leaves work on: one record per kind of work. A leaf says who does it (`polygen.lower.plan`).

Texts in the records are index formulas over the names that the kernel defines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from polygen.frontend.program import Dim, Tensor
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import Padding, Step
from polygen.lower.computed import Computed
from polygen.lower.launch import MapAxis
from polygen.lower.shares import Share
from polygen.lower.sync_work import Placed
from polygen.poly.match import RowGroups
from polygen.poly.tile_walk import TileWalk

_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class SectionTiles:
    """The output whose tiles are those of one section.

    Attributes:
        along: its extent along the dim that groups of tiles run along.
        across: along the other.
        batches: batch dims and their extents, outermost first.
    """

    along: Dim
    across: Dim
    batches: tuple[tuple[str, Dim], ...] = ()


@dataclass(frozen=True, slots=True)
class Locate:
    """The next output tile of a persistent block."""

    along: str
    across: str
    group: int
    cluster: tuple[int, int]  # blocks along m, n
    # batch dims and how many matrices, or tiles of pixels, there are along each, outermost first
    batches: tuple[tuple[str, Dim], ...] = ()
    groups: RowGroups | None = None  # of rows, which then count the matrices
    sides: tuple[int, ...] = ()  # indices of a batch dim that a tile has
    sections: tuple[SectionTiles, ...] = ()  # whose tiles are numbered through; () of one alone
    walk: TileWalk | None = None  # which tiles have products, and come first; None: all have
    run: int = 1  # tiles of one row that follow each other; work items are runs
    split: int = 1  # blocks of a cluster that share the sums of the last round's tiles
    # Whether threads that bring operands compute them: their registers are none to keep numbers in.
    computing: bool = False

    @property
    def divides(self) -> bool:
        """Whether items are divided by numbers that stay the same for all of them, and are kept."""
        plain = not self.sections and self.groups is None and self.walk is None
        return plain and not self.computing


@dataclass(frozen=True, slots=True)
class LocateRows:
    """The next tile of rows of a persistent block, and the tiles of keys that it visits.

    Attributes:
        batches: batch dims and how many matrices there are along each, outermost first.
        first: the first tile of keys.
        count: how many tiles of keys from there on.
    """

    batches: tuple[tuple[str, Dim], ...]
    first: str
    count: str


# --- operands ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Copy:
    """Global memory -> ring: one k tile of one operand, by all threads of the block.

    A staged one passes through registers: one leaf fetches chunks, another writes them.
    """

    operand: str  # "a", "b", ...
    tensor: Tensor
    buffer: str
    element_bytes: int
    width: int  # bytes per copy instruction
    asynchronous: bool
    k_contiguous: bool
    role: str  # "m" or "n"
    tile: int  # elements along the role per block
    tile_k: int
    parts: int  # the tile is copied in this many calls
    ragged: bool  # a row may end inside one copy
    extents: tuple[Dim, Dim]  # of the operand: its stored rows, and elements of one
    # elements up to a stored row, by digits of its number, and inside it; () where all are one
    lie: tuple[tuple[Step, ...], tuple[Step, ...]]
    base: tuple[str, ...]  # terms that lead to the block's matrix
    computed: Computed | None = None  # how its elements are made, which nobody stores
    staging: str = ""  # the registers in which threads hold their chunks of a tile; "": none
    padded: tuple[Padding, ...] = ()  # what keeps rows inside of axes with zeros around them
    share: Share | None = None  # which pieces of it are whose; None: of no tile for all threads
    # Where the tile begins along the role and along k; "": at the block's, and at k tile k's.
    starts: tuple[str, str] = ("", "")

    @property
    def stride(self) -> str:
        """Elements between stored rows; "0" where all are one."""
        return _neighbours(self.lie[0])

    @property
    def spread(self) -> str:
        """Elements between neighbours of a stored row: "1" where they are adjacent."""
        return _neighbours(self.lie[1])

    @property
    def in_whole_pieces(self) -> bool:
        """Whether it reads rows in whole pieces, so that none may end inside one."""
        staged = self.staging and self.spread == "1" and self.width == chunk_bytes()
        return not self.ragged and (self.asynchronous or bool(staged))

    @property
    def moved(self) -> int:
        """Elements of a piece: of a chunk, an access or a word, which a thread moves at once."""
        if self.computed is not None or self.staging:
            return chunk_bytes() // self.element_bytes
        moved = self.width if self.asynchronous else _WORD_BYTES
        return max(1, moved // self.element_bytes)

    @property
    def in_runs(self) -> tuple[bool, bool]:
        """Whether rows, and elements of one, lie where digits of their numbers say."""
        rows, columns = (any(one != Step(one.stride) for one in of) for of in self.lie)
        return rows, columns

    @property
    def stored(self) -> tuple[int, int]:
        """Stored rows of a tile, and elements of one."""
        return self.rows, self.columns

    @property
    def rows(self) -> int:
        """Stored rows of a tile: indices of the dim that is not contiguous."""
        return self.tile if self.k_contiguous else self.tile_k

    @property
    def columns(self) -> int:
        """Elements of a stored row."""
        return self.tile_k if self.k_contiguous else self.tile


def _neighbours(steps: tuple[Step, ...]) -> str:
    """Elements from an index to the next of its run."""
    return next((one.stride for one in steps if one.per == 1), "0")


def chunk_passes(c: Copy, threads: int) -> int:
    """Chunks of a tile that each of so many threads moves."""
    return -(-c.rows * c.columns * c.element_bytes // (chunk_bytes() * threads))


@dataclass(frozen=True, slots=True)
class Stream:
    """Global memory -> registers: a chunk of every row of a warp for each of its lanes."""

    copy: Copy  # whose rows
    first: str  # where the warp's rows begin
    slots: int  # steps that registers hold
    once: bool  # whether no other warp reads them

    @property
    def operand(self) -> str:
        """Its name."""
        return self.copy.operand

    @property
    def role(self) -> str:
        """The dim of the output that it carries."""
        return self.copy.role


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of one tensor, side by side along its innermost dim, that the copy engine moves."""

    tensor: Tensor
    map: str  # kernel argument
    buffer: str
    axes: tuple[MapAxis, ...]  # of the tensor map, slowest first
    count: int
    span: int  # bytes of a box's row, and of its swizzle
    box_bytes: int  # from one box to the next in shared memory
    corner: tuple[str, ...]  # positions of the first along the axes
    note: str  # what is moved, in words
    part: str = ""  # blocks of a cluster that share the tile each move one part of every box
    parts: int = 1
    mask: str = ""  # the blocks that receive it
    once: str = ""  # when every element is read once, so that the L2 cache need not keep any
    pieces: int = 1  # of each box, one behind the other along its rows: more than one moves at once
    # Where boxes behind the first lie, if they are not side by side: those of other taps; or where
    # pieces do, if rows are of taps.
    others: tuple[tuple[str, ...], ...] = ()
    by_rows: bool = False
    pages: str = ""  # registers with a number for each piece, its page's; "": pieces are neighbours

    @property
    def box(self) -> tuple[int, int]:
        """Elements of one: rows, and elements of a row."""
        sides = [axis.box for axis in self.axes]
        return (math.prod(sides[:-1]), sides[-1])

    @property
    def bytes(self) -> int:
        """Of all boxes, those that other blocks move included."""
        return self.count * self.parts * self.pieces * self.part_bytes

    @property
    def part_bytes(self) -> int:
        """From one block's part to the next, inside each box: stored rows are cut among them."""
        return self.box[0] * self.span


@dataclass(frozen=True, slots=True)
class FindPages:
    """A table -> registers: the pages in which the keys of a ring's next tile lie.

    Attributes:
        operand: whose, as its ring is called.
        table: the array that names them.
        registers: a number for each page of a tile.
        base: terms that lead to the pages of the block's matrix in the table.
        step: elements from the number of one page to the next one's; "0": there is one page.
        places: per page of the tile, the which of its sequence it is.
        count: pages of a sequence.
        extent: pages that there are.
        note: in words.
    """

    operand: str
    table: Tensor
    registers: str
    base: tuple[str, ...]
    step: str
    places: tuple[str, ...]
    count: Dim
    extent: Dim
    note: str


@dataclass(frozen=True, slots=True)
class Move:
    """Boxes that arrive together: one step of a ring, for one barrier."""

    boxes: tuple[Boxes, ...]
    full: Placed
    counter: str  # of the ring's slots
    note: str


@dataclass(frozen=True, slots=True)
class Source:
    """Global memory -> ring, by threads that shift rows into place, or compute: one operand.

    A piece is some chunks of 16 bytes of shared memory for each thread.
    """

    copy: Copy
    alignment: int  # bytes that divide the address of every row that is read
    first: int  # number of its first piece
    pieces: int
    chunks: int  # of the tile: threads beyond them have none in the last piece
    # Of a thread's chunk, over `part`, which of its chunks, and `own`, the number of the thread:
    row: str  # stored row of the tile
    column: str  # first element in it
    place: str  # byte of the tile in shared memory


@dataclass(frozen=True, slots=True)
class Fill:
    """A step of rings that threads fill, a round of pieces at a time."""

    sources: tuple[Source, ...]
    threads: int
    parts: int  # chunks of a piece
    rounds: int  # of a k tile
    each: int  # pieces of a round
    counter: str  # of the rings' slots
    words: int  # registers of a chunk between reading and writing it


@dataclass(frozen=True, slots=True)
class Load:
    """Ring -> fragment registers: one MMA step of one operand, by each warp."""

    operand: str
    role: str  # "m" or "n"
    buffer: str
    load: FragmentLoad
    tiles: int  # instructions (or groups of them) along m or n
    warp_tile: int  # elements along m or n per warp
    element_bytes: int
    slots: int  # register ring
    round_to_tf32: bool
    # Registers of an instruction's fragment, behind which are those of what rounding leaves; 0: it
    # is not kept.
    rest: int = 0


FIRST_OF_TILE = (("k", 0), ("s", 0))  # the first step of the first k tile


@dataclass(frozen=True, slots=True)
class Product:
    """Products of one step, added to the sums."""

    operands: tuple[str, str]  # "a" and "b"
    total: str  # the sums that it is added to
    counter: str = ""  # of the rings' slots; "" where the loops say them
    parts: tuple[str, str] = ("", "")  # bytes where the agent's part of an operand begins
    # The registers of the step that hold the left operand's fragment, as a formula over the loops;
    # "" where it is in its ring.
    fragment: str = ""
    left_counter: str = ""  # of the left ring's slots, where it is another one
    columns: int = 0  # of the sums; 0: those of a warp's tile
    # Where sums are overwritten, loops are multiples of these numbers, or 0 where the number is 0;
    # everywhere else they are added to. None: they always are.
    overwrites: tuple[tuple[str, int], ...] | None = None
    sets: int = 1  # of the sums' registers, which k tiles take in turns

    @property
    def buffers(self) -> tuple[str, str]:
        """The rings of the operands."""
        left, right = self.operands
        return (f"ring_{left}", f"ring_{right}")


@dataclass(frozen=True, slots=True)
class Clear:
    """Sums become zero."""

    totals: tuple[str, ...]
    columns: int = 0  # of the sums; 0: those of a warp's tile


# --- sums that several blocks share --------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Landing:
    """Where the parts of a sum meet that the blocks of a cluster add up.

    A thread holds, of every part, the elements that it holds of its own sums: those of an
    instruction's group of columns are one access, beside the next thread's.
    """

    total: str  # the sums that a block has of its own k tiles
    completed: str  # of all
    buffer: str
    rows: int  # instructions along m
    groups: int  # of columns that one block finishes
    sent: int  # of these, what is sent at a time
    access_bytes: int  # of a thread: its sums of a group
    threads: int  # of an agent

    @property
    def group_bytes(self) -> int:
        """Of all threads' sums of a group."""
        return self.threads * self.access_bytes

    @property
    def part_bytes(self) -> int:
        """What one block sends to another at a time."""
        return self.rows * self.sent * self.group_bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Sums of a block's own k tiles -> the landing areas of all blocks of the cluster."""

    landings: tuple[Landing, ...]
    full: Placed
    counter: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Combine:
    """What one block has sent, added to the totals."""

    landings: tuple[Landing, ...]
    counter: str
