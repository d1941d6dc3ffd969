"""The tile program of the realigning copy: rows that start anywhere -> rows of whole lines.

A block has a segment of as many rows of one array as it has warps, a row each.

    edges[warp]         the first and the last chunk that the row touches, by elements -> registers
    shifted[warp,c]     chunks of the copy, from c of the segment on, some for each lane: each is
                        two adjacent chunks of the array, shifted together -> memory

A chunk has the bytes that a lane writes at once. Chunks of the array are counted from the one in
which the row begins, `shift` bytes behind its start; chunks of the copy from the start of its row.
So byte b of a row lies in chunk (b + shift) / size of the array, and in chunk b / size of the copy.
The formulas are text that C and isl read alike.

1. Every chunk of a row's segment is written once, and what is read lies where the row is: by the
   cells of the statements, for all lengths and shifts. Lanes have chunks of their own.
2. The blocks of all segments and of all rows are every chunk of the array's copy, each once.
3. The tree is synchronised and proved as every other (`polygen.poly.block_tree`). In a dependent
   launch it waits for the grids before.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.block_tree import check_once
from polygen.poly.legality import Proof
from polygen.poly.tile_program import Buffer, Place, TileProgram
from polygen.poly.tile_tree import loop, steps
from polygen.poly.versions import TileModel

WARP, CHUNK = "warp", "chunk"  # agent and loop
ROWS = "realign_rows"  # of the array, from the block's first on
CHUNKS = "realign_chunks"  # of a row of the copy
FIRST = "realign_first"  # of them, that of the segment
LAST = "realign_last"  # of the array's, the last one that the row touches
WHERE = "the copy that goes before"
# What of the array's is read whole: what lies inside the row whatever the shift.
WHOLE = ("0 < {}", f"{{}} < {LAST}")
SOURCES = 2  # adjacent chunks of the array that a chunk of the copy is made of


@dataclass(frozen=True, slots=True)
class RealignShape:
    """What a block of the copy does.

    Attributes:
        warps: of a block: rows that it copies.
        lanes: of a warp.
        together: chunks that a lane copies at a time.
        rounds: how often it does, until the segment ends.
        size: bytes of a chunk.
        dependent: whether the launch may begin while the grids before it still run.
    """

    warps: int
    lanes: int
    together: int
    rounds: int
    size: int
    dependent: bool = False

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.warps

    @property
    def step(self) -> int:
        """Chunks that a warp copies at a time."""
        return self.lanes * self.together

    @property
    def segment(self) -> int:
        """Chunks of a row that one warp copies."""
        return self.step * self.rounds

    @property
    def own(self) -> str:
        """Chunk `u` of a lane's, of those that a warp copies at a time."""
        return f"{FIRST} + {CHUNK} + {self.lanes} * u + lane"

    @property
    def visits(self) -> str:
        """Which instances of a statement over chunks a warp has."""
        inside = f"0 <= {CHUNK} < {self.segment} and {CHUNK} mod {self.step} = 0"
        return f"{WARP} < {ROWS} and {inside} and {CHUNK} < {CHUNKS} - {FIRST}"

    @property
    def each(self) -> str:
        """Chunk `p` is one of a lane's."""
        return f"p = {self.own} and 0 <= u < {self.together} and 0 <= lane < {self.lanes}"

    @property
    def chunks(self) -> str:
        """Chunks `p` of the row that a warp visits at a time."""
        return f"exists (u, lane : {self.each}) and p < {CHUNKS}"

    @property
    def all(self) -> str:
        """Rows `w` and chunks `p` that a block has to visit."""
        rows = f"0 <= w < {self.warps} and w < {ROWS}"
        return f"{rows} and {FIRST} <= p < {FIRST} + {self.segment} and p < {CHUNKS}"

    def first_row(self, rows: str) -> str:
        """The first row of a block, by the number of its rows among all blocks'."""
        return f"{rows} * {self.warps}"

    def row(self, rows: str) -> str:
        """The row of a warp, likewise."""
        return f"{self.first_row(rows)} + {WARP}"

    def first(self, segment: str) -> str:
        """The first chunk of a segment, by its number."""
        return f"{segment} * {self.segment}"


def realign_program(shape: RealignShape) -> TileProgram:
    """The statements of a block."""
    place = Place("warps", (WARP,), (shape.warps,), shape.lanes)
    there, edge = f"{WARP} < {ROWS}", f"edge[{WARP}]"
    chunk = f"exists (p : {shape.chunks} and p <= g < p + {SOURCES})"
    whole = " and ".join(one.format("g") for one in WHOLE)
    statements = (
        place.runs("edges", (), there, (f"array[{WARP},g] : g = 0 or g = {LAST}",), (edge,)),
        place.runs(
            "shifted", (CHUNK,), shape.visits,
            (f"array[{WARP},g] : {chunk} and {whole}", edge), (f"copy[{WARP},p] : {shape.chunks}",),
        ),
    )  # fmt: skip
    order = steps("edges", loop(CHUNK, "shifted"))
    return TileProgram(
        (ROWS, CHUNKS, FIRST, LAST),
        f"{ROWS} >= 1 and 0 <= {FIRST} < {CHUNKS} and {CHUNKS} - 1 <= {LAST} <= {CHUNKS}",
        (Buffer("array", "global"), Buffer("edge", "register", 0, 1), Buffer("copy", "global")),
        statements,
        order,
        order,
        dependent=shape.dependent,
    )


def check_copy(shape: RealignShape, program: TileProgram) -> tuple[Proof, ...]:
    """Prove of a program that it copies every chunk once, and reads nothing outside of rows.

    Args:
        shape: what it has to do.
        program: its statements.

    Raises:
        VerifyError: with what is left out, written twice or read outside.
    """
    model = TileModel(program)
    wanted = model.set(f"copy[w,p] : {shape.all}")
    check_once(model.writes["copy"].get("shifted"), wanted, "shifted", WHERE)
    _check_reads(shape, model)
    check_lanes(shape)
    check_blocks(shape)
    return (
        Proof("every chunk of a copy is written once", f"{shape.warps} rows by {shape.segment}"),
        Proof("chunks that are read whole lie inside their row", "every shift of a row"),
        Proof("what a chunk is made of has been read", "every shift of a row"),
    )


def _check_reads(shape: RealignShape, model: TileModel) -> None:
    """Whole chunks lie in the row; whole ones and edges are all that the copy is made of."""
    size = shape.size
    # `bytes` of a row make `CHUNKS` chunks of the copy, and LAST is where its last byte lies.
    row = (
        f"0 <= shift < {size} and {size} * {CHUNKS} - {size} < bytes <= {size} * {CHUNKS} and "
        f"{LAST} = floor((shift + bytes - 1)/{size})"
    )
    names = f"[{','.join(model.program.parameters)}] -> "
    reads = model.reads["array"]
    outside = isl.Set(
        f"{names}{{ array[w,g] : exists (shift, bytes : {row} and "
        f"({size} * g < shift or {size} * g + {size} > shift + bytes)) }}"
    )
    met = reads["shifted"].range().intersect(outside)
    if not met.is_empty():
        raise VerifyError(f"{isl.sample_point(met)} is read outside of its row", where=WHERE)
    # Instance -> chunks of the array in which bytes of its own chunks lie.
    at = f"floor((b + shift)/{size})"
    needed = isl.Map(
        f"{names}{{ copy[w,p] -> array[w,g] : exists (shift, bytes, b : {row} and 0 <= b < bytes "
        f"and {size} * p <= b < {size} * p + {size} and g = {at}) }}"
    )
    of_lane = isl.Map(f"{names}{{ copy[w,p] -> array[w,g] : p <= g < p + {SOURCES} }}")
    missed = needed.subtract(of_lane)
    if not missed.is_empty():
        raise VerifyError(f"{isl.sample_pair(missed)} is not what lanes read", where=WHERE)
    wanted = model.writes["copy"]["shifted"].apply_range(needed)
    edges = reads["edges"].range()
    unread = wanted.subtract_range(edges).subtract(reads["shifted"])
    if not unread.is_empty():
        raise VerifyError(f"{isl.sample_pair(unread)} is not read", where=WHERE)


def check_lanes(shape: RealignShape, formula: str = "") -> None:
    """The lanes of a warp have chunks of their own.

    Args:
        shape: what a block does.
        formula: of a lane's chunk, if another.

    Raises:
        VerifyError: two have one.
    """
    own = formula or shape.own
    made = isl.Map(
        f"[{FIRST}] -> {{ [{CHUNK},u,lane] -> [{CHUNK},p] : p = {own} and "
        f"0 <= u < {shape.together} and 0 <= lane < {shape.lanes} }}"
    )
    if not made.is_injective():
        raise VerifyError(f"{own}: two lanes visit one", where=WHERE)


def check_blocks(shape: RealignShape, row: str = "", first: str = "") -> None:
    """The segments of all blocks are every chunk of the array's copy, each once.

    Args:
        shape: what a block does.
        row: the formula of a warp's row, of the number `y` of its block's rows, if another.
        first: that of a segment's first chunk, of its number `s`, if another.

    Raises:
        VerifyError: they are not.
    """
    row, first = row or shape.row("y"), first or shape.first("s")
    blocks = f"0 <= y and {shape.warps} * y < rows and 0 <= s and {shape.segment} * s < chunks"
    own = f"0 <= {WARP} < {shape.warps} and r = {row} and r < rows"
    made = isl.Map(
        f"[rows, chunks] -> {{ [y,s,{WARP},p] -> [r,p] : {blocks} and {own} and "
        f"{first} <= p < {first} + {shape.segment} and p < chunks }}"
    )
    every = isl.Set("[rows, chunks] -> { [r,p] : 0 <= r < rows and 0 <= p < chunks }")
    if not (made.is_injective() and made.range().is_equal(every)):
        raise VerifyError("a chunk is not in exactly one segment of a block", where=WHERE)
