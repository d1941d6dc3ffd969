"""What leaves of the way out work on: sums, operands of the epilogue, panels, results.

Texts in the records are index formulas over the names that the kernel defines.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Dim, Tensor
from polygen.lower.accesses import Step
from polygen.lower.computed import Rows
from polygen.lower.launch import Parts
from polygen.lower.shares import Share
from polygen.lower.shifted import Shifted
from polygen.lower.sync_work import Placed
from polygen.lower.work import Boxes
from polygen.poly.match import Along
from polygen.poly.pointwise import Compute

TERM_TURNS = 4  # sums that terms at once enter by turns, so that they need not wait for each other


@dataclass(frozen=True, slots=True)
class Read:
    """One operand of the epilogue, for a row vector of results."""

    name: str  # C variable
    tensor: Tensor
    # "vector": adjacent along n; "strided": a step along n; "row": one value per row; "scalar"
    kind: str
    m: tuple[Step, ...]  # elements along m: a step, one for each digit, or none
    n: tuple[Step, ...]
    width: int  # bytes per access of a vector read
    base: tuple[str, ...] = ()  # terms that lead to the block's matrix
    # Which of the array's rows go with those of m, and of n; None: the one of the same number.
    rows: tuple[Rows | None, Rows | None] = (None, None)
    # Of folds of operands: the area of the agent in shared memory, where in it the results begin,
    # and the agent's first row, or column; "": it lies in global memory.
    shared: str = ""
    start: int = 0
    first: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """One output of the epilogue."""

    tensor: Tensor
    kind: str  # "vector" or "strided"
    m: tuple[Step, ...]
    n: tuple[Step, ...]
    width: int
    base: tuple[str, ...]
    name: str  # of the value that is stored
    # At which of the array's rows those of m are stored, and of n, as of reads. What is no row of
    # the array is not stored.
    rows: tuple[Rows | None, Rows | None] = (None, None)

    @property
    def by_index(self) -> Rows | None:
        """Which rows, if not those of the same number."""
        return self.rows[0] or self.rows[1]


@dataclass(frozen=True, slots=True)
class FoldPart:
    """The part of a fold that one warp makes of its tile.

    Attributes:
        value: the fold's result.
        monoid: how terms are combined.
        terms: per component the value that an element contributes, or a number.
        along: the dim that the part keeps, "m" or "n"; "": it is one number.
        kept: the dims of the result, in the order of its axes.
        atoms: instructions of a warp along that dim.
        offsets: places of a lane's elements along it in an instruction, from its first.
        slots: per element of an instruction, which of them it is at.
        turns: per element of an instruction, which of the registers of its place takes it.
        registers: of a place, so that adjacent terms need not wait for each other.
        masks: bits in which the numbers of lanes differ that have elements at the same places.
        part: the number of the warp's part along each folded dim.
        parts: in the workspace.
    """

    value: str
    monoid: str
    terms: tuple[str | float, ...]
    along: str
    kept: tuple[str, ...]
    atoms: int
    offsets: tuple[int, ...]
    slots: tuple[int, ...]
    turns: tuple[int, ...]
    registers: int
    masks: tuple[int, ...]
    part: tuple[str, ...]
    parts: Parts

    @property
    def names(self) -> tuple[str, ...]:
        """The registers of its components."""
        return tuple(f"{self.value}_part{at}" for at in range(len(self.terms)))

    @property
    def known(self) -> str:
        """The registers of its results, of folds whose rows a tile covers."""
        return f"{self.value}_known"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Accumulators -> pointwise functions -> global memory."""

    staged: bool  # through shared memory
    vector: int  # adjacent results one lane handles
    batch: int  # vectors of one lane whose reads are in flight together
    fixed_column: bool  # a lane's column is the same in every pass
    reads: tuple[Read, ...]
    statements: tuple[Compute, ...]
    # Value of a product, or of a pass -> what its registers are called.
    sums: tuple[tuple[str, str], ...]
    writes: tuple[Write, ...]
    row_base: str  # of the rows that a warp's fragments hold
    column_base: str
    row_of_lane: str  # position of accumulator element 0 in the instruction's tile
    column_of_lane: str
    element_offsets: tuple[tuple[int, int], ...]  # of each accumulator element from element 0
    coordinates: tuple[tuple[str, Along], ...] = ()  # variable, and which number it holds
    folds: tuple[FoldPart, ...] = ()
    # Of a tile that covers rows: which pass over its sums this is ("" the last, that stores),
    # results of rows that it reads, as the passes before have them, and those passes.
    suffix: str = ""
    known: tuple[FoldPart, ...] = ()
    before: tuple[Epilogue, ...] = ()
    # Of a pass: the value that it leaves in registers, and what these are called. Those behind it
    # have them among their sums, which are the only ones then.
    holds: tuple[str, str] | None = None
    sizes: tuple[tuple[str, tuple[Dim, ...]], ...] = ()  # name -> dims whose elements it counts
    sharing: int = 1  # agents that follow each other along a row
    share: Share | None = None  # of what is staged: which vectors of a warp's tile are whose
    folding: bool = False  # whether parts of folds are made, of a section beside it
    streamed: bool = False  # whether elements stream from memory, beside sums of zeros

    @property
    def at_once(self) -> tuple[FoldPart, ...]:
        """Folds of rows whose terms a lane combines at once, in tiles that lie inside.

        Nothing else becomes of the elements, so that terms take the place of the sums.
        """
        alone = bool(self.folds) and not (self.writes or self.suffix or self.streamed)
        return tuple(
            one for one in self.folds if alone and one.along == "m" and MONOIDS[one.monoid].extreme
        )

    @property
    def together(self) -> tuple[FoldPart, ...]:
        """Folds of streamed elements of which a lane combines several terms at once, of one place,
        where all of them lie inside.
        """
        known = (MONOIDS[one.monoid] for one in self.folds)
        return tuple(
            one
            for one, of in zip(self.folds, known, strict=True)
            if self.streamed and (of.of_many or of.relative)
        )


@dataclass(frozen=True, slots=True)
class Folding:
    """The registers in which parts of folds are made."""

    epilogue: Epilogue


@dataclass(frozen=True, slots=True)
class Meeting:
    """What lanes have folded of rows becomes the rows' results, in registers of all of them.

    Attributes:
        epilogue: the pass.
        given: the shared memory in which agents meet that share rows; "": each has rows whole.
    """

    epilogue: Epilogue
    given: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the blocks of a cluster have folded of rows becomes the rows' results, in all of them.

    Attributes:
        epilogue: the pass.
        given: the landing area, with a part from each block.
        full: the barrier that its bytes complete.
        counter: of the landing area's slots.
        cluster: blocks along m, and along the row.
        part_bytes: that one block sends to an agent.
    """

    epilogue: Epilogue
    given: str
    full: Placed
    counter: str
    cluster: tuple[int, int]
    part_bytes: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One matrix of the epilogue in shared memory, a panel at a time, as a warp's lanes see it."""

    name: str  # the read's variable, or the output
    tensor: Tensor
    buffer: str
    slot: str  # which slot panel p of a tile uses
    rows: int
    columns: int
    element_bytes: int
    span: int  # bytes of a box's row, and of its swizzle
    address: str  # of a lane's first access, from the start of the panel
    step: tuple[int, int]  # groups of columns in one box; bytes XORed from one to the next
    half_bytes: int  # from a lane's first row to its second

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
class Line:
    """A panel between shared and global memory, by the threads of a warpgroup, line by line.

    Consecutive threads move consecutive portions of a line of the array.
    """

    panel: Panel
    access: Read | Write
    along: str  # the dim of a line: "n", or "m" where m is innermost
    width: int  # bytes of one access
    row: str  # where panel p of the agent's tile begins
    column: str
    share: Share  # which portions of the panel are whose
    place: str  # byte of the panel where a portion begins, over `row` and `column` in it
    together: int  # portions that are on their way to a thread at once
    shifted: Shifted | None = None  # where rows begin anywhere in chunks: portions are chunks


@dataclass(frozen=True, slots=True)
class Lines:
    """Panels that threads move."""

    moved: tuple[Line, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Sums -> pointwise functions -> panels of results."""

    epilogue: Epilogue
    operands: tuple[Panel, ...]
    results: tuple[Panel, ...]
    column: str  # where the agent's tile begins
    first_row: str  # of a lane's rows
    lane_column: str  # of a lane's first pair, in a group of columns
    # Of a chain: the variables that are states of rows, and their registers; what buffers of the
    # tile program these are; results of a row, which lanes store that have its first column.
    states: tuple[tuple[str, str], ...] = ()
    held: tuple[str, ...] = ()
    beside: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Visits:
    """Elements of one operand in an agent's part of a tile, one in every line that has some.

    Formulas have `{}` for the number of a visit.

    Attributes:
        read: the operand.
        count: how many visits there are.
        row: of an element, in the tile.
        column: likewise.
    """

    read: Read
    count: int
    row: str
    column: str


@dataclass(frozen=True, slots=True)
class Warm:
    """Operands of an agent's tile are brought near before they are read.

    Attributes:
        vectors: with one value per column.
        matrices: that passes over the sums read, straight from memory.
        row: where the agent's tile begins.
        column: likewise.
        threads: of the agent, which share the visits.
    """

    vectors: tuple[Visits, ...]
    matrices: tuple[Visits, ...]
    row: str
    column: str
    threads: int


@dataclass(frozen=True, slots=True)
class Store:
    """Panels of results -> global memory, by the copy engine."""

    panels: tuple[tuple[Panel, Boxes], ...]
