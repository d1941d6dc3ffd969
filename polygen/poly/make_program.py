"""The tile program that makes a computed operand before the kernel: what it reads -> rows of lines.

A block has a segment of as many rows of the operand as it has warps, a row each, as a block of the
copy has (`polygen.poly.realign_program`).

    made[warp,c]        chunks of the row, from c of the segment on, some for each lane: each is
                        computed of what the operand's statements read for its elements -> memory

What is read for an element the statements say (`polygen.poly.prologue`); here that is one cell of
`given` for every chunk, whatever it holds.

1. Every chunk of a row's segment is computed and written once, of what is read for it: by the cells
   of the statement. Lanes have chunks of their own.
2. The blocks of all segments and of all rows are every chunk of the operand, each once.
3. The tree is synchronised and proved as every other (`polygen.poly.block_tree`). In a dependent
   launch it waits for the grids before.
"""

from __future__ import annotations

from typing import Protocol

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.block_tree import check_once
from polygen.poly.legality import Proof
from polygen.poly.realign_program import (
    CHUNK,
    CHUNKS,
    FIRST,
    ROWS,
    WARP,
    WHERE,
    RealignShape,
    check_blocks,
    check_lanes,
)
from polygen.poly.tile_program import Buffer, Place, TileProgram
from polygen.poly.tile_tree import loop
from polygen.poly.versions import TileModel

MADE = "made"  # the statement


class ChunkShape(Protocol):
    """What a block does that makes chunks of rows: which warps visit which of them."""

    @property
    def warps(self) -> int:
        """Of a block."""

    @property
    def lanes(self) -> int:
        """Of a warp."""

    @property
    def dependent(self) -> bool:
        """Whether the launch may begin while the grids before it still run."""

    @property
    def visits(self) -> str:
        """Which instances of the statement a warp has."""

    @property
    def chunks(self) -> str:
        """The chunks `p` that a warp visits at a time."""

    @property
    def all(self) -> str:
        """The rows and the chunks `p` that a block has to visit."""


def make_program(shape: RealignShape) -> TileProgram:
    """The statement of a block."""
    return program_of_chunks(shape, MADE, WARP)


def program_of_chunks(shape: ChunkShape, statement: str, row: str) -> TileProgram:
    """The program of one statement that makes every chunk of what is read for it.

    Args:
        shape: what a block does.
        statement: its name.
        row: what `shape.chunks` calls a row.
    """
    place = Place("warps", (WARP,), (shape.warps,), shape.lanes)
    read, written = (f"{name}[{row},p] : {shape.chunks}" for name in ("given", "operand"))
    made = place.runs(statement, (CHUNK,), shape.visits, (read,), (written,))
    order = loop(CHUNK, statement)
    return TileProgram(
        (ROWS, CHUNKS, FIRST),
        f"{ROWS} >= 1 and 0 <= {FIRST} < {CHUNKS}",
        (Buffer("given", "global"), Buffer("operand", "global")),
        (made,),
        order,
        order,
        dependent=shape.dependent,
    )


def check_making(shape: RealignShape, program: TileProgram) -> tuple[Proof, ...]:
    """Prove of a program that it computes every chunk once, of what is read for it.

    Args:
        shape: what it has to do.
        program: its statement.

    Raises:
        VerifyError: with what is left out, written twice or not read.
    """
    check_chunks(shape, program, MADE, "w")
    check_lanes(shape)
    check_blocks(shape)
    rows_by_chunks = f"{shape.warps} rows by {shape.segment}"
    return (Proof("every chunk of an operand is computed and written once", rows_by_chunks),)


def check_chunks(shape: ChunkShape, program: TileProgram, statement: str, row: str) -> None:
    """Every chunk is written once, of what is read for it.

    Args:
        shape: what a block does.
        program: its statement.
        statement: the name.
        row: what `shape.all` calls a row.

    Raises:
        VerifyError: with what is left out, written twice or not read.
    """
    model = TileModel(program)
    wanted = model.set(f"operand[{row},p] : {shape.all}")
    written = model.writes["operand"].get(statement)
    check_once(written, wanted, statement, WHERE)
    assert written is not None  # else it would have been refused
    names = f"[{','.join(program.parameters)}] -> "
    alike = isl.Map(f"{names}{{ operand[r,p] -> given[r,p] }}")
    unread = written.apply_range(alike).subtract(model.reads["given"][statement])
    if not unread.is_empty():
        raise VerifyError(f"{isl.sample_pair(unread)} is not read", where=WHERE)
