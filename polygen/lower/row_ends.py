"""Where rows end: what leaves move of the piece in which that is, and what it asks of arguments.

Leaves move pieces of several adjacent elements. A row that begins where pieces do may still end
inside of one, as that of a view does. A leaf either stops there, element by element, or takes no
notice, and then rows have to be whole pieces.

1. Each kind of work says of how many elements its pieces are, and how many of the last piece of a
   row it moves when so many are inside (`row_ends`). Work of a kind that says nothing is refused.
2. Where that is another number, the kernel asks for rows that do not end there (`whole_rows`).
3. What it asks for in the end is compared with what its leaves move (`check_row_ends`): no row that
   it takes ends where a leaf moves more elements, or fewer, than there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polygen.errors import VerifyError
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.device import common_facts
from polygen.hardware.swizzle import chunk_bytes
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
from polygen.lower.plan import KernelPlan, Leaf
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


@dataclass(frozen=True, slots=True)
class RowEnd:
    """The last piece of the rows that a leaf moves.

    Attributes:
        statement: the leaf's.
        tensor: whose rows.
        extent: elements of a row, as the leaf counts them.
        moved: how many elements it moves of a piece of which 1, 2, … are inside; the last number is
            that of a whole piece.
    """

    statement: str
    tensor: Tensor
    extent: Dim
    moved: tuple[int, ...]

    def wrong(self, multiple: int) -> int:
        """The first number of elements inside that is not what is moved; 0: there is none.

        Args:
            multiple: that the elements of a row are of.
        """
        step = math.gcd(multiple, len(self.moved))
        inside = range(step, len(self.moved) + 1, step)
        return next((count for count in inside if self.moved[count - 1] != count), 0)


def row_ends(plan: KernelPlan) -> Iterator[RowEnd]:
    """The rows that leaves move in pieces of several elements, of all launches.

    Raises:
        VerifyError: nobody says how some work deals with the ends of rows.
    """
    beside = (leaf for one in (*plan.copies, *plan.groups) for leaf in one.leaves)
    for leaf in (*plan.leaves, *beside):
        say = _ENDS.get(type(leaf.work))
        if say is not None:
            yield from say(plan, leaf, leaf.work)
        elif type(leaf.work) not in _STOPPING | _INSIDE:
            raise VerifyError(
                f"{leaf.statement} moves {type(leaf.work).__name__}",
                where=plan.entry,
                why="nobody says what it moves of a row that ends inside of a piece",
            )


def whole_rows(plan: KernelPlan) -> tuple[str, ...]:
    """Arrays whose rows must not end inside of a piece, since some leaf takes no notice."""
    wrong = (end.tensor.name for end in row_ends(plan) if end.wrong(_fixed(end)))
    return tuple(dict.fromkeys(wrong))


def check_row_ends(plan: KernelPlan, multiples: Mapping[str, int]) -> None:
    """Check that rows end where leaves do.

    Args:
        plan: the kernel.
        multiples: by array, what launches ask the elements of its rows to be a multiple of.

    Raises:
        VerifyError: with a leaf, and a row of which it moves another part.
    """
    for end in row_ends(plan):
        asked = multiples.get(end.tensor.name, 1) if _is_row(end) else 1
        left = end.wrong(math.lcm(_fixed(end), asked))
        if left:
            raise VerifyError(
                f"{end.statement} moves {end.moved[left - 1]} elements of the last piece of a row "
                f"of {end.tensor.name}, of which {left} are inside",
                where=plan.entry,
                why=f"rows of {end.extent} elements may end there: launches ask for multiples of "
                f"{asked}",
            )


def _fixed(end: RowEnd) -> int:
    """What the elements of a row are a multiple of whatever the arguments are."""
    return end.extent if isinstance(end.extent, int) else 1


def _is_row(end: RowEnd) -> bool:
    """Whether the rows are those of the array, from one end to the other."""
    return end.extent == end.tensor.dims[end.tensor.order[-1]]


# --- what each kind of work does ------------------------------------------------------------------
def _copy(plan: KernelPlan, leaf: Leaf, c: Copy) -> Iterator[RowEnd]:
    """Copies in the background, or through registers; others go by elements."""
    if c.computed is not None or not (c.asynchronous or c.staging):
        return
    piece = (c.width if c.asynchronous else chunk_bytes()) // c.element_bytes
    # In the background a piece is copied whole; what is staged is left out.
    otherwise = piece if c.asynchronous else 0
    inside = (otherwise if c.in_whole_pieces else count for count in range(1, piece))
    yield RowEnd(leaf.statement, c.tensor, c.extents[1], (*inside, piece))


def _stream(plan: KernelPlan, leaf: Leaf, of: Stream) -> Iterator[RowEnd]:
    """A lane reads a chunk, or none."""
    chunk = plan.atom.k // plan.atom.lanes
    yield RowEnd(leaf.statement, of.copy.tensor, of.copy.extents[1], (chunk,) * chunk)


def _make(plan: KernelPlan, leaf: Leaf, of: Make) -> Iterator[RowEnd]:
    """All of a block counts, or nothing; what is computed behind the end may be of no matter."""
    piece, depth = of.block // of.packed, of.extents[1]
    if of.whole and all(one.run == 1 for one in of.beside):
        return
    if piece > 1 and not (isinstance(depth, int) and depth % of.block == 0):
        row = of.tensor.dims[of.tensor.order[-1]]
        yield RowEnd(leaf.statement, of.tensor, row, (piece,) * piece)


def _store(plan: KernelPlan, leaf: Leaf, of: Store) -> Iterator[RowEnd]:
    """The copy engine writes whole chunks; where nothing lies behind a row is not its to know."""
    kept = {one.tensor for one in plan.following.kept} if plan.following else set()
    for _, boxes in of.panels:
        piece = common_facts()["tensor_map_row_bytes"] // boxes.tensor.dtype.bytes
        end = RowEnd(leaf.statement, boxes.tensor, boxes.axes[-1].extent, (piece,) * piece)
        if end.tensor not in kept or not _is_row(end):  # rows of the workspace are whole chunks
            yield end


_ENDS: dict[type, Callable[[KernelPlan, Leaf, Any], Iterator[RowEnd]]] = {
    Copy: _copy, Make: _make, Store: _store, Stream: _stream,
}  # fmt: skip
# What goes by elements where rows end, what reads tensor maps, which have zeros behind their ends,
_STOPPING = frozenset({
    CombineParts, Epilogue, Fill, FindPages, Finish, Leave, Lines, MergeKeys, Move, PartStore,
    Promote, RowCopy, RowMake, RowStore, Scan, StoreResults, Tally, Walk, Warm,
})  # fmt: skip
# and what touches no rows of arrays: rows of the workspace are whole words.
_INSIDE = frozenset({
    Clear, Combine, Convert, Exchange, Folding, Grids, Groups, HoldRow, Load, Locate, LocateRows,
    Meet, Meeting, Nothing, Placed, Product, Send, Settle, Signal, Skip, Turn,
})  # fmt: skip
