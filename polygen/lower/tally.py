"""Folds of a ring's elements by those who multiply them: which thread has which.

1. An agent folds the rows of its warp tile. A row of a k tile is cut among adjacent lanes where
   there are more threads than rows; where there are fewer, a thread has several rows, by turns.
2. Where k is innermost in the ring, lanes of a row read it in accesses of adjacent elements. Else
   an access has one element of each of several adjacent rows, which are all of one thread.
3. A thread combines terms into several registers by turns, so that one need not wait for the one
   before. When all of k is done, registers are combined in their order, then lanes of a row meet by
   exchanges, and the first of them writes the result.

That every element of the agent's rows is folded once is proved of the text that is written of it
(`polygen/emit/proofs/tally.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.fragments import Beside, numbers_made
from polygen.poly.operand import Operand
from polygen.poly.ring_folds import RingFold, RingFolds

WAYS = 4  # registers into which a thread combines elements of an access by turns, of all rows


@dataclass(frozen=True, slots=True)
class Tally:
    """How a ring is folded beside the products.

    Attributes:
        ring: "a", ...
        role: "m" or "n".
        counter: of the ring's slots; "": the loops say which.
        of: the folds of its elements, and what elements behind products read of them.
        element: the array that the ring has tiles of.
        beside: per fold, what else its terms are computed from.
        rows: of an agent.
        depth: indices of k of a tile.
        threads: of an agent.
        thread: formula for a thread's number in its agent.
        lanes: that share a row.
        access: adjacent elements of a row that are read together.
        across: adjacent rows of a thread, of which elements are read together.
        k_inner: whether k is innermost in the ring.
        place: where a stored row's byte lies in the tile, over `row` and `byte`.
        part: where the agent's rows begin in the block's tile, as a term.
        parts: of a tile, one for each agent that has others of its rows.
        tile: where the block's tile begins in the array.
        extents: of the problem along m or n, and along k.
        k_tile: which of all k tiles the block's k-th is.
        only: coordinates of a block that are 0 where its tile is folded: nobody but who stores
            results has a use for them, and these are stored of such tiles.
    """

    ring: str
    role: str
    counter: str
    of: RingFolds
    element: Tensor
    beside: tuple[tuple[Beside, ...], ...]
    rows: int
    depth: int
    threads: int
    thread: str
    lanes: int
    access: int
    across: int
    k_inner: bool
    place: str
    part: str
    parts: int
    tile: str
    extents: tuple[Dim, Dim]
    k_tile: str
    only: tuple[str, ...]

    @property
    def folds(self) -> tuple[RingFold, ...]:
        """Of its elements."""
        return self.of.folds

    @property
    def buffer(self) -> str:
        """The ring's."""
        return f"ring_{self.ring}"

    @property
    def registers(self) -> str:
        """Where terms are combined, in the tile program."""
        return f"tallied_{self.ring}"

    @property
    def norms(self) -> str:
        """The shared memory that has the results."""
        return f"norms_{self.ring}"

    @property
    def turns(self) -> int:
        """How often a thread takes rows."""
        return -(-self.rows * self.lanes // (self.threads * self.across))

    @property
    def own(self) -> int:
        """Rows of a thread."""
        return self.turns * self.across

    @property
    def ways(self) -> int:
        """Registers of a row."""
        return max(1, min(WAYS // self.own, self.access))

    @property
    def accesses(self) -> int:
        """Of a thread to one row of a tile."""
        return self.depth // (self.access * self.lanes)

    @property
    def masks(self) -> tuple[int, ...]:
        """Bits in which the numbers of lanes differ that share a row."""
        return tuple(1 << bit for bit in range(self.lanes.bit_length() - 1))

    def names(self, fold: RingFold) -> tuple[str, ...]:
        """The registers of a fold's components."""
        return tuple(f"tallied_{self.ring}_{fold.value}_{at}" for at in range(len(fold.terms)))

    @property
    def order(self) -> str:
        """In which order terms are combined, in words."""
        across = f"; lanes whose numbers differ by {', '.join(map(str, self.masks))}"
        return (
            f"of every {self.depth} terms each of {self.lanes} lane(s) every {self.lanes}th "
            f"{self.access} in their order, {self.ways} by turns{across if self.masks else ''}"
        )

    def whole(self, fold: RingFold) -> bool:
        """Whether terms behind the end of k add nothing: they are made of the ring's zeros.

        What is read beside the ring may be any number, or none.
        """
        values = numbers_made(fold.statements, (fold.element,))
        terms = [values.get(t) if isinstance(t, str) else t for t in fold.terms]
        return fold.monoid == "sum" and terms == [0.0] and MONOIDS["sum"].identity[0] == 0


@dataclass(frozen=True, slots=True)
class Stored:
    """An output that has a number of every row.

    Attributes:
        tensor: the array.
        number: which of the results that are shared it is.
        base: terms that lead to the block's matrix.
        step: elements from one row to the next; "0": there is one row.
        first: dims along which all tiles have these numbers: coordinates of a block.
    """

    tensor: Tensor
    number: int
    base: tuple[str, ...]
    step: str
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """How results of rows are stored, by the tiles that are first along what they have no part in.

    Attributes:
        work: that folds and shares them.
        outputs: where they go.
    """

    work: Tally
    outputs: tuple[Stored, ...]

    @property
    def turns(self) -> int:
        """Rows of a thread."""
        return -(-self.work.rows // self.work.threads)


def rows_together(operand: Operand) -> int:
    """Rows of which a thread reads elements in one access, where a tile has so many: of what stays
    together in a ring, however it is swizzled.
    """
    return 1 if operand.k_contiguous else chunk_bytes() // operand.tensor.dtype.bytes


def lanes_of(rows: int, threads: int, accesses: int, warp: int) -> int:
    """Lanes that share a row: a power of two that divides its accesses, of one warp."""
    lanes = 1
    while 2 * lanes * rows <= threads and 2 * lanes <= warp and accesses % (2 * lanes) == 0:
        lanes *= 2
    return lanes
