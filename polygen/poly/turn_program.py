"""The tile program of an operand whose rows run across what it is copied or computed of.

    turned[warp,c]      some chunks, from c on, of some rows of a block, one for each lane: its
                        elements lie a step apart in the array, and those of neighbours' chunks
                        beside them -> memory

A block has as many rows as a warp has lanes, and a segment of them. Rows that follow each other are
neighbours in the array (`polygen.poly.turned`): as many lanes have such rows as elements fill a
sector of memory, and the others chunks beside theirs, so that what a warp reads are whole sectors,
and what it writes.

1. Every chunk of the segment of every row of a block is written once, of what is read for it: by
   the cells of the statement. Lanes have chunks of their own.
2. The blocks of all segments and of all rows are every chunk of the operand, each once.
3. The tree is synchronised and proved as every other (`polygen.poly.block_tree`). In a dependent
   launch it waits for the grids before.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof
from polygen.poly.make_program import check_chunks, program_of_chunks
from polygen.poly.realign_program import CHUNK, CHUNKS, FIRST, ROWS, WARP, WHERE
from polygen.poly.tile_program import TileProgram

TURNED = "turned"  # the statement


@dataclass(frozen=True, slots=True)
class TurnShape:
    """What a block does.

    Attributes:
        warps: of a block: chunks of a row that it copies at a time.
        lanes: of a warp: rows of a block.
        group: rows of a warp, beside each other; a divisor of its lanes, of which the others have
            chunks beside each other.
        rounds: how often it copies so many chunks, until the segment ends.
        size: bytes of a chunk.
        dependent: whether the launch may begin while the grids before it still run.
    """

    warps: int
    lanes: int
    group: int
    rounds: int
    size: int
    dependent: bool = False

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.lanes

    @property
    def segment(self) -> int:
        """Chunks of a row that a block copies."""
        return self.warps * self.rounds

    @property
    def beside(self) -> int:
        """Chunks of a row that a warp copies at a time; as many have the same, of other rows."""
        return self.lanes // self.group

    @property
    def own(self) -> str:
        """The chunk of a lane, of those that its block copies at a time."""
        lane = f" + lane / {self.group}" if self.beside > 1 else ""
        return f"{FIRST} + {CHUNK} + {self._first_of_warp}{lane}"

    @property
    def _first_of_warp(self) -> str:
        """The first chunk of a warp, likewise."""
        if self.beside == 1:
            return WARP
        return f"{self.beside} * ({WARP} / {self.beside})"

    @property
    def lane_row(self) -> str:
        """The row of a lane, of those of its block."""
        if self.beside == 1:
            return "lane"
        return f"{self.group} * ({WARP} % {self.beside}) + lane % {self.group}"

    @property
    def visits(self) -> str:
        """Which instances of the statement a warp has."""
        inside = f"0 <= {CHUNK} < {self.segment} and {CHUNK} mod {self.warps} = 0"
        return f"{inside} and {FIRST} + {CHUNK} + {isl.from_c(self._first_of_warp)} < {CHUNKS}"

    @property
    def chunks(self) -> str:
        """Rows `l` and chunks `p` that a warp visits at a time."""
        row, own = isl.from_c(self.lane_row), isl.from_c(self.own)
        there = f"0 <= lane < {self.lanes} and l = {row} and p = {own} and p < {CHUNKS}"
        return f"{self.there} and exists (lane : {there})"

    @property
    def there(self) -> str:
        """Row `l` is one of a block's."""
        return f"0 <= l < {self.rows} and l < {ROWS}"

    @property
    def all(self) -> str:
        """Rows `l` and chunks `p` that a block has to visit."""
        return f"{self.there} and {FIRST} <= p < {FIRST} + {self.segment} and p < {CHUNKS}"

    def first_row(self, rows: str) -> str:
        """The first row of a block, by the number of its rows among all blocks'."""
        return f"{rows} * {self.rows}"

    def row(self, rows: str) -> str:
        """The row of a lane, likewise."""
        return f"{self.first_row(rows)} + {self.lane_row}"

    def first(self, segment: str) -> str:
        """The first chunk of a segment, by its number."""
        return f"{segment} * {self.segment}"


def turn_program(shape: TurnShape) -> TileProgram:
    """The statement of a block."""
    return program_of_chunks(shape, TURNED, "l")


def check_turning(shape: TurnShape, program: TileProgram) -> tuple[Proof, ...]:
    """Prove of a program that it makes every chunk once, of what is read for it.

    Args:
        shape: what it has to do.
        program: its statement.

    Raises:
        VerifyError: with what is left out, written twice or not read.
    """
    check_chunks(shape, program, TURNED, "l")
    check_rows_of_lanes(shape)
    rows_by_chunks = f"{shape.rows} rows by {shape.segment}"
    return (Proof("every chunk of a turned operand is written once", rows_by_chunks),)


def check_rows_of_lanes(shape: TurnShape, row: str = "", first: str = "", own: str = "") -> None:
    """The lanes and warps of all blocks have every chunk of every row, each once.

    Args:
        shape: what a block does.
        row: the formula of a lane's row, of the number `y` of its block's rows, if another.
        first: that of a segment's first chunk, of its number `s`, if another.
        own: that of a lane's chunk, if another.

    Raises:
        VerifyError: they do not.
    """
    row, own = isl.from_c(row or shape.row("y")), isl.from_c(own or shape.own)
    first = first or shape.first("s")
    blocks = f"0 <= y and {shape.rows} * y < rows and 0 <= s and {shape.segment} * s < chunks"
    who = f"0 <= lane < {shape.lanes} and 0 <= {WARP} < {shape.warps}"
    step = f"0 <= {CHUNK} < {shape.segment} and {CHUNK} mod {shape.warps} = 0"
    made = isl.Map(
        f"[rows, chunks] -> {{ [y,s,{WARP},lane,{CHUNK}] -> [r,p] : {blocks} and {who} and {step} "
        f"and r = {row} and r < rows and exists ({FIRST} : {FIRST} = {first} and p = {own}) "
        f"and p < chunks }}"
    )
    every = isl.Set("[rows, chunks] -> { [r,p] : 0 <= r < rows and 0 <= p < chunks }")
    if not (made.is_injective() and made.range().is_equal(every)):
        raise VerifyError("a chunk is not in exactly one segment of a block", where=WHERE)
