"""What blocks of the launch before a kernel do for an operand that they make row by row.

A block has a row. Its tile program is that of rows behind a kernel, without parts
(`polygen.poly.follow_program`): warps walk through the row for the folds of a level, give each
other what they have, and take it; then they go through it once more and write its elements. It is
synchronised and proved like those, and its leaves are the same (`polygen.lower.row_leaves`).
"""

from __future__ import annotations

from polygen.frontend.program import Access, Program
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.block_plan import block_parts
from polygen.lower.follow_work import lies_beside
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


def row_leaves(made: MadeRows, program: Program) -> RowLeaves:
    """What a block does for its row.

    Args:
        made: the operand.
        program: the kernel's, which has all that the row reads and writes among its arguments.
    """
    return RowLeaves(
        rows=made.rows,
        parts=(),
        later=levels(made.rows, made.after),
        after=made.after,
        outputs=(),
        extents=tuple(made.rows.axes[at] for at in made.rows.own),
        scalars=scalars(program),
        shared=True,
        wide=width(made, program),
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
    made: MadeRows, program: Program, lanes: int, derived: Derive, *, dependent: bool
) -> MakeRowsPlan:
    """The tree of a block, its leaves, and who runs them.

    Args:
        made: the operand.
        program: the kernel's.
        lanes: of a warp.
        derived: what synchronises a tile program, derived or kept from before.
        dependent: whether the launch may begin while the grids before it still run.
    """
    own = row_leaves(made, program)
    shape = own.shape(WARPS, lanes, dependent=dependent)
    tree = block_tree(shape, follow_program, check_visits, WHERE, derived)
    found: list[Leaf] = own.leaves(WARPS)
    parts = block_parts(tree, found, Grids(arrays=arrays(made, program)))
    return MakeRowsPlan(tree, *parts, made.tensor, made)


def arrays(made: MadeRows, program: Program) -> tuple[str, ...]:
    """What a row is read from, and written to."""
    tensors = program.tensors
    every = [access.name for access in read_by(made, program) if tensors[access.name].dims]
    return tuple(dict.fromkeys((*every, made.tensor.name)))
