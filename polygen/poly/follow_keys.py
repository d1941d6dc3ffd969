"""The tile program of a launch that combines parts of the keys of a chain: a block has a row.

    begin_reference[warp]    merge_reference[warp,q]    the row's reference, of those of all parts
    begin_states[warp]       merge_states[warp,q]       its states, under that reference
    begin_sum[warp,e]        merge_sum[warp,e,q]        columns e .. of its sums, likewise
    results[warp,e]          what the program computes of them -> memory

Every warp goes through the references and states of all parts, in the order of their numbers;
columns are shared out, as many at a time as a warp has lanes. No warp gives another anything: there
is no barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.block_tree import check_once
from polygen.poly.follow_map import WHERE, check_lanes, check_results
from polygen.poly.follow_program import ELEMENT, ELEMENTS, OWN, PART, WARP, parts_of
from polygen.poly.legality import Proof
from polygen.poly.tile_program import Buffer, Place, TileProgram, TileStatement
from polygen.poly.tile_tree import Node, loop, steps
from polygen.poly.versions import TileModel

_PARTS = parts_of(0)


@dataclass(frozen=True, slots=True)
class KeysShape:
    """What a block does.

    Attributes:
        warps: of a block.
        lanes: of a warp.
        referenced: whether sums and states are under a reference.
        states: whether there are others than it.
        dependent: whether the launch may begin while the grids before it still run.
    """

    warps: int
    lanes: int
    referenced: bool
    states: bool
    dependent: bool = False

    @property
    def scalars(self) -> tuple[str, ...]:
        """Numbers of a row that every warp combines."""
        return ("reference",) * self.referenced + ("states",) * self.states


def keys_program(shape: KeysShape) -> TileProgram:
    """The statements of a block."""
    place = Place("warps", (WARP,), (shape.warps,), shape.lanes)
    statements: list[TileStatement] = []
    buffers = [Buffer("part_sum", "global"), Buffer("result", "global")]
    tree: list[Node | str] = []

    def add(
        name: str, loops: tuple[str, ...], bounds: str, reads: tuple[str, ...], write: str
    ) -> None:
        statements.append(place.runs(name, loops, bounds, reads, (write,)))

    known: tuple[str, ...] = ()
    every = f"0 <= {PART} < {_PARTS}"
    for what in shape.scalars:
        own = f"{what}[{WARP}]"
        buffers += [Buffer(f"part_{what}", "global"), Buffer(what, "register", 0, 1)]
        add(f"begin_{what}", (), "1 = 1", (), own)
        add(f"merge_{what}", (PART,), every, (f"part_{what}[{PART}]", *known, own), own)
        tree += [f"begin_{what}", loop(PART, f"merge_{what}")]
        known = (*known, own)
    buffers.append(Buffer("sum", "register", 0, 1))
    total = f"sum[{WARP}]"
    turn = f"{ELEMENT} mod {shape.warps * shape.lanes} = {shape.lanes}*{WARP}"
    inside = f"0 <= {ELEMENT} < {ELEMENTS} and {turn}"
    lanes = f"exists (lane : p = {OWN.format(ELEMENT)} and 0 <= lane < {shape.lanes})"
    columns = f"{lanes} and p < {ELEMENTS}"
    reads = (f"part_sum[{PART},p] : {columns}", *known, total)
    add("begin_sum", (ELEMENT,), inside, (), total)
    add("merge_sum", (ELEMENT, PART), f"{inside} and {every}", reads, total)
    add("results", (ELEMENT,), inside, (*known, total), f"result[p] : {columns}")
    body = steps("begin_sum", loop(PART, "merge_sum"), "results")
    order = steps(*tree, loop(ELEMENT, body))
    return TileProgram(
        (_PARTS, ELEMENTS),
        f"{_PARTS} >= 1 and {ELEMENTS} >= 1",
        tuple(buffers),
        tuple(statements),
        order,
        order,
        dependent=shape.dependent,
    )


def check_keys(shape: KeysShape, program: TileProgram) -> tuple[Proof, ...]:
    """Prove of a program that it leaves nothing out, and meets nothing twice.

    Args:
        shape: what it has to do.
        program: its statements.

    Raises:
        VerifyError: with what is left out or met twice.
    """
    model = TileModel(program)
    parts, columns = f"0 <= q < {_PARTS}", f"0 <= p < {ELEMENTS}"
    for what in shape.scalars:
        buffer, name = f"part_{what}", f"merge_{what}"
        wanted = model.set(f"{buffer}[w,q] : 0 <= w < {shape.warps} and {parts}")
        check_once(model.reads[buffer].get(name), wanted, name, WHERE, by_warp=True)
    wanted = model.set(f"part_sum[q,p] : {parts} and {columns}")
    check_once(model.reads["part_sum"].get("merge_sum"), wanted, "merge_sum", WHERE)
    wanted = model.set(f"result[p] : {columns}")
    check_once(model.writes["result"].get("results"), wanted, "results", WHERE)
    check_lanes(shape.lanes)
    check_results(1)
    claim = "every part of a row is combined once by whoever needs it, every column stored once"
    return (Proof(claim, WHERE),)
