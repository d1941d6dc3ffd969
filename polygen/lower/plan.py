"""`KernelPlan`: everything the emitter needs, and nothing it would have to decide.

A plan is the loops of every place (`LoopAst`), one leaf for each statement those loops call, the
memory the leaves work on, the synchronisation between them, and the launch. One place or several
makes no difference: without roles all warps of the block are the one place there is. Indices inside
a leaf are index formulas over the names that the kernel defines:

    b_m, b_n   the block's tile          w_m, w_n   the warp's place in the block      lane, thread
    z0, z1     the block's matrix, along the batch dims
    k          a k tile                  s          an MMA step in it
    m, n       an instruction in the warp           p          a part of a tile, or a panel
    group      a warpgroup               rank       the block's place in its cluster
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from polygen.brief import Brief
from polygen.errors import VerifyError
from polygen.frontend.program import Dim, Program, Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.lower.buffers import Buffer
from polygen.lower.follow_work import (
    CombineParts,
    HoldRow,
    Meet,
    MergeKeys,
    Settle,
    StoreResults,
    Walk,
)
from polygen.lower.fragments import Make
from polygen.lower.launch import Argument as Argument
from polygen.lower.launch import Following as Following
from polygen.lower.launch import Launch as Launch
from polygen.lower.launch import MapAxis as MapAxis
from polygen.lower.launch import Results
from polygen.lower.promoting import Promote
from polygen.lower.realign_work import RowCopy, RowMake
from polygen.lower.rest_work import Convert
from polygen.lower.result_work import (
    Epilogue,
    Exchange,
    Finish,
    Folding,
    Lines,
    Meeting,
    Read,
    Store,
    Warm,
)
from polygen.lower.scan_work import PartStore, RowStore, Scan
from polygen.lower.sync_work import Grids, Groups, Nothing, Placed, Signal, Skip, Turn
from polygen.lower.tally import Leave, Tally
from polygen.lower.work import (
    Clear,
    Combine,
    Copy,
    Fill,
    FindPages,
    Load,
    Locate,
    LocateRows,
    Move,
    Product,
    Send,
    Stream,
)
from polygen.poly.ast import Block, LoopAst, Marked
from polygen.poly.block_tree import BlockTree
from polygen.poly.chain_match import ChainMatch
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.key_tiles import KeyTiles
from polygen.poly.legality import Proof
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.place_trees import PlaceTree
from polygen.poly.pointwise import Pointwork
from polygen.poly.row_groups import GroupWalk
from polygen.poly.row_operands import MadeRows
from polygen.poly.tile_domain import TileDomain
from polygen.poly.tile_program import TileProgram
from polygen.poly.tiling import Tiling
from polygen.rewrite.key_range import RowBound
from polygen.schedule.model import Schedule
from polygen.schedule.realign import Realign
from polygen.schedule.sums import Sums

Work: TypeAlias = (
    Clear
    | Combine
    | Convert
    | CombineParts
    | Copy
    | Epilogue
    | Exchange
    | Fill
    | FindPages
    | Leave
    | Finish
    | Folding
    | Grids
    | Groups
    | Lines
    | Load
    | Locate
    | LocateRows
    | Make
    | Meet
    | Meeting
    | MergeKeys
    | Move
    | Nothing
    | PartStore
    | Placed
    | Product
    | Promote
    | RowCopy
    | RowMake
    | RowStore
    | Scan
    | Send
    | Settle
    | Signal
    | Skip
    | Store
    | StoreResults
    | Stream
    | Tally
    | Turn
    | HoldRow
    | Walk
    | Warm
)
_Work = TypeVar("_Work")


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one statement does; the loops call it by its name."""

    statement: str
    op: str  # what is done: "move", "load", "multiply", "store", "wait" ...
    unit: str  # what does it: "cp.async", "tma", "mma.sync", "wgmma", "threads" ...
    loops: tuple[str, ...]  # iterators of the statement, which every call passes
    work: Work
    place: str = ""  # whose; "": of all places
    advances: tuple[str, ...] = ()  # counters of its place that go up behind it
    section: int = 0  # whose tiles it works on, where others' take another leaf


@dataclass(frozen=True, slots=True)
class Place:
    """Threads that execute one list of loops."""

    name: str  # "block", "producer", "loader", "consumer"
    first_warp: int
    warps: int
    agents: int  # that run the loops, each for itself: warps, warpgroups, or single threads
    elected: bool  # the first lane of each warp alone
    agent: str  # the name under which leaves know their agent
    registers: int  # per thread, that it is given; 0: what the compiler takes
    loops: LoopAst
    counters: tuple[tuple[str, int], ...] = ()  # of slots, each with how many there are


@dataclass(frozen=True, slots=True)
class Inside:
    """What is inside a block."""

    buffers: tuple[Buffer, ...]
    leaves: tuple[Leaf, ...]
    places: tuple[Place, ...]
    syncs: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What a block of a launch beside the kernel's does."""

    tree: BlockTree
    leaves: tuple[Leaf, ...]
    place: Place
    syncs: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan(BlockPlan):
    """What a block of the launch that goes before does for one array."""

    tensor: Tensor

    @property
    def title(self) -> str:
        """Which array, in words."""
        return f"the copy that goes before, of {self.tensor.name}"


@dataclass(frozen=True, slots=True)
class MakePlan(BlockPlan):
    """What a block of the launch that goes before does for an operand that it makes."""

    tensor: Tensor
    operand: Operand  # as it is computed

    @property
    def title(self) -> str:
        """Which operand, in words."""
        return f"the launch that goes before, which makes {self.tensor.name}"


@dataclass(frozen=True, slots=True)
class MakeRowsPlan(BlockPlan):
    """What a block of the launch that goes before does for an operand that it makes by rows."""

    tensor: Tensor
    made: MadeRows  # how a row is computed

    @property
    def title(self) -> str:
        """Which operand, in words."""
        return f"the launch that goes before, which makes rows of {self.tensor.name}"


@dataclass(frozen=True, slots=True)
class GroupPlan(BlockPlan):
    """What a block of the launch that follows does for one group of results."""

    group: Results

    @property
    def title(self) -> str:
        """Which results, in words."""
        over = " x ".join(map(str, self.group.extents)) or "one"
        if self.group.merged:
            return f"the launch that follows, {over} row(s) whose keys are in parts"
        return f"the launch that follows, {over} result(s) of {', '.join(self.group.folds)}"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread block takes, before the compiler has its say."""

    threads: int
    shared_bytes: int
    shared_limit: int
    registers: int  # estimated per thread: sums, fragments, addresses
    blocks_per_multiprocessor: int

    def __str__(self) -> str:
        return (
            f"{self.threads} threads, {self.shared_bytes} of {self.shared_limit} B shared memory, "
            f"about {self.registers} registers per thread, "
            f"{self.blocks_per_multiprocessor} block(s) per multiprocessor"
        )


@dataclass(frozen=True, slots=True, repr=False)
class KernelPlan(Brief):
    """One kernel, decided down to the instruction."""

    entry: str
    program: Program
    schedule: Schedule
    device: Device
    atom: Atom
    tiles: Tiling
    mapping: str  # the tile hierarchy and the instruction, in words
    arguments: tuple[Argument, ...]
    launch: Launch
    match: Match
    work: Pointwork
    synchronised: Synchronised  # the tile program with what synchronises it, as it was proved
    trees: tuple[PlaceTree, ...]  # what every place runs, likewise
    buffers: tuple[Buffer, ...]
    leaves: tuple[Leaf, ...]
    places: tuple[Place, ...]
    syncs: tuple[Placed, ...]
    proofs: tuple[Proof, ...]
    resources: Resources
    sums: Sums
    following: Following | None = None  # what makes results of parts of folds
    tile_domain: TileDomain | None = None  # the tiles that have products; None: all
    groups: tuple[GroupPlan, ...] = ()  # what its blocks do
    group_walk: GroupWalk | None = None  # how blocks find groups of rows; None: there are none
    realign: Realign | None = None  # what goes before; `program` is that of what follows
    asked: Program | None = None  # with the statements of operands that are made before
    copies: tuple[CopyPlan | MakePlan | MakeRowsPlan, ...] = ()  # what its blocks do
    chained: ChainMatch | None = None  # of a chain, what was matched
    scores: Match | None = None  # of a chain, its first product; `match` is the second's
    scored: Pointwork | None = None  # of a chain, what is computed at every (row, key)
    key_tiles: KeyTiles | None = None  # of a chain, which tiles of keys a tile of rows visits
    key_bounds: tuple[tuple[RowBound, Read], ...] = ()  # of a chain, those that arrays hold
    # Of a kernel whose products have output domains of their own: the plan of each, as if it were
    # alone. Then `match`, `work` and `epilogue` are those of the first, and `leaves` all of theirs.
    sections: tuple[KernelPlan, ...] = ()

    @property
    def tile_program(self) -> TileProgram:
        """What has to be done, tile by tile."""
        return self.synchronised.program

    @property
    def each(self) -> tuple[KernelPlan, ...]:
        """The plans of all sections; of a kernel without, itself."""
        return self.sections or (self,)

    @property
    def whole(self) -> Program:
        """What the kernel and the launches beside it compute together."""
        return self.program if self.asked is None else self.asked

    @property
    def extents(self) -> tuple[tuple[str, Dim], ...]:
        """The sizes along "m", "n" and "k"; of k, the first product's. Those of all sections."""
        every = ((role, one.match.extent(role)) for one in self.each for role in "mnk")
        return tuple(dict.fromkeys(every))

    @property
    def depths(self) -> tuple[Dim, ...]:
        """The different lengths of the sums."""
        return tuple(dict.fromkeys(depth for one in self.each for depth in one.match.depths))

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        """The fused statements of all sections, those of passes before them included."""
        return tuple(e for one in self.each for e in (*one.epilogue.before, one.epilogue))

    @property
    def folds_rows(self) -> bool:
        """Whether tiles cover rows, which are folded before results are made of them."""
        return self.schedule.covers_rows and any(one.folds for one in self.epilogue.before)

    @property
    def batches(self) -> tuple[tuple[str, Dim], ...]:
        """Batch dims, and how many matrices there are along each."""
        return self.match.batches

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`.

        Raises:
            VerifyError: there is none.
        """
        found = next((b for b in self.buffers if b.name == name), None)
        if found is None:
            raise VerifyError(f"no buffer is called {name}", where=self.entry)
        return found

    def leaf(self, statement: str) -> Leaf:
        """The leaf of a statement."""
        return next(leaf for leaf in self.leaves if leaf.statement == statement)

    def leaf_of(self, kind: type[_Work]) -> Leaf:
        """The first leaf whose work is of one kind."""
        return next(leaf for leaf in self.leaves if isinstance(leaf.work, kind))

    def of(self, kind: type[_Work]) -> tuple[_Work, ...]:
        """The work of one kind, of all leaves."""
        return tuple(leaf.work for leaf in self.leaves if isinstance(leaf.work, kind))

    def place(self, name: str) -> Place:
        """The place called `name`.

        Raises:
            VerifyError: there is none.
        """
        found = next((place for place in self.places if place.name == name), None)
        if found is None:
            raise VerifyError(f"no place is called {name}", where=self.entry)
        return found

    @property
    def epilogue(self) -> Epilogue:
        """The fused pointwise statements."""
        return self.of(Epilogue)[0]

    def __str__(self) -> str:
        sections: tuple[tuple[str, tuple[object, ...]], ...] = (
            ("places", tuple(f"{p.name}: {p.warps} warp(s)" for p in self.places)),
            ("shared memory", self.buffers),
            ("barriers", self.syncs),
            ("resources", (self.resources,)),
        )
        parts = (f"{name}:\n  " + "\n  ".join(map(str, what)) for name, what in sections if what)
        return "\n".join([f"{self.entry}: {self.mapping}", *parts])

    @property
    def loops(self) -> LoopAst:
        """The loops of the copy before it, of all places, and of the launch that follows."""
        before = (Marked(copy.title, copy.place.loops) for copy in self.copies)
        own = (Marked(place.name, place.loops) for place in self.places)
        after = (Marked(group.title, group.place.loops) for group in self.groups)
        return Block((*before, *own, *after))
