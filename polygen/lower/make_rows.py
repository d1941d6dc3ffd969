"""What blocks of the launch before a kernel do for an operand that they make row by row.

A block has a row, and as many warps as the schedule says (`epilogue.row_warps`) unless the same
launch has other arrays to copy or to make. Words that several walks read lanes may hold in
registers (`epilogue.row_words`). Its tile program is that of rows behind a kernel, without parts
(`polygen.poly.follow_program`): warps walk through the row for the folds of a level, give each
other what they have, and take it; then they go through it once more and write its elements. It is
synchronised and proved like those, and its leaves are the same (`polygen.lower.row_leaves`).
"""

from __future__ import annotations

from polygen.frontend.closure import needed
from polygen.frontend.program import Access, Program
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.block_plan import block_parts
from polygen.lower.follow_work import HoldRow, lies_beside
from polygen.lower.plan import Leaf, MakeRowsPlan
from polygen.lower.row_leaves import RowLeaves
from polygen.lower.sync_work import Grids
from polygen.poly.block_tree import Derive, block_tree
from polygen.poly.folds import scalars
from polygen.poly.follow_map import check_visits
from polygen.poly.follow_program import follow_program
from polygen.poly.realign_program import WHERE
from polygen.poly.row_operands import MadeRows
from polygen.poly.whole_rows import levels
from polygen.schedule.realign import WARPS


def row_leaves(made: MadeRows, program: Program, warps: int, words: int) -> RowLeaves:
    """What a block does for its row.

    Args:
        made: the operand.
        program: the kernel's, which has all that the row reads and writes among its arguments.
        warps: of the block.
        words: of the row that a lane holds, if there is something to hold.
    """
    return RowLeaves(
        rows=made.rows,
        parts=(),
        later=levels(made.rows, made.after),
        after=made.after,
        outputs=(),
        extents=tuple(made.rows.axes[at] for at in made.rows.own),
        given=scalars(program),
        shared=True,
        wide=width(made, program),
        hold=held_row(made, program, warps, words),
    )


def held_row(made: MadeRows, program: Program, warps: int, words: int) -> HoldRow | None:
    """What lanes hold of a row: words of arrays that are folded, and so read more than once."""
    wide, reads = width(made, program), held_reads(made, program)
    if not words or not reads:
        return None
    return HoldRow(made.rows, (), words, warps, wide, reads)


def held_reads(made: MadeRows, program: Program) -> tuple[Access, ...]:
    """What terms of folds read of arrays in words, each access once."""
    wide, folds = width(made, program), made.rows.folds
    own = needed(made.rows.statements, [access.name for one in folds for access in one.reads])
    every = (access for one in (*own, *folds) for access in one.reads)
    return tuple(
        one
        for one in dict.fromkeys(every)
        if wide > 1
        and one.name in program.tensors
        and lies_beside(made.rows, program.tensors[one.name], one.index, wide)
    )


def width(made: MadeRows, program: Program) -> int:
    """How many elements of a row a lane has beside each other.

    As many as are a word of what is written, and of all that lies along the row in such words.
    """
    tensors = program.tensors
    found = chunk_bytes() // made.tensor.dtype.bytes
    for access in read_by(made, program):
        each = chunk_bytes() // tensors[access.name].dtype.bytes
        if lies_beside(made.rows, tensors[access.name], access.index, each):
            found = min(found, each)
    return found


def read_by(made: MadeRows, program: Program) -> tuple[Access, ...]:
    """What a row's statements read of arrays, each access once."""
    every = (access for one in made.rows.statements for access in one.reads)
    return tuple(dict.fromkeys(one for one in every if one.name in program.tensors))


def make_rows(
    made: MadeRows,
    program: Program,
    lanes: int,
    derived: Derive,
    *,
    dependent: bool,
    warps: int = WARPS,
    words: int = 0,
) -> MakeRowsPlan:
    """The tree of a block, its leaves, and who runs them.

    Args:
        made: the operand.
        program: the kernel's.
        lanes: of a warp.
        derived: what synchronises a tile program, derived or kept from before.
        dependent: whether the launch may begin while the grids before it still run.
        warps: of a block.
        words: of the row that a lane holds, if there is something to hold.
    """
    own = row_leaves(made, program, warps, words)
    shape = own.shape(warps, lanes, dependent=dependent)
    tree = block_tree(shape, follow_program, check_visits, WHERE, derived)
    found: list[Leaf] = own.leaves(warps)
    parts = block_parts(tree, found, Grids(arrays=arrays(made, program)))
    return MakeRowsPlan(tree, *parts, made.tensor, made)


def arrays(made: MadeRows, program: Program) -> tuple[str, ...]:
    """What a row is read from, and written to."""
    tensors = program.tensors
    every = [access.name for access in read_by(made, program) if tensors[access.name].dims]
    return tuple(dict.fromkeys((*every, made.tensor.name)))
