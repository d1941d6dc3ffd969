"""What fills the rings of a kernel with roles: the copy engine, the producer's threads, or both."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.units import unit
from polygen.poly.kernel_parts import Ring
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_program import Buffer, TileStatement
from polygen.poly.tile_tree import Leaf, Node, Steps, loop, steps

_THREADS, _COPY_ENGINE = "threads", "tma.load"


def _filled(shape: RoleShape, ring: Ring) -> str:
    """What the producer of one block writes of a ring.

    Blocks in one row of the cluster share tiles of the left operand, in one column of the right;
    each copies its part for all of them.
    """
    along = shape.schedule.cluster.m
    if shape.schedule.cluster.tiles == 1:
        return f"ring_{ring.name}[{','.join(('i', 'k', *shape.rank))}]"
    row, column = f"rank mod {along}", f"floor(rank/{along})"
    every = f"0 <= d < {shape.blocks}"
    if ring.side == "m":
        return f"ring_{ring.name}[i,k,d,{column}] : {every} and (d - rank) mod {along} = 0"
    return f"ring_{ring.name}[i,k,d,{row}] : {every} and floor(d/{along}) = {column}"


@dataclass(frozen=True, slots=True)
class Filling:
    """What brings a k tile: the copy engine, threads, or both.

    Attributes:
        statements: that move.
        buffers: registers of what is on its way.
        order: their meaning, in the loop over k tiles.
        schedule: what runs there.
        early: when statements run in that loop, where that is not their own k tile.
    """

    statements: tuple[TileStatement, ...]
    buffers: tuple[Buffer, ...]
    order: Node
    schedule: Node
    early: dict[str, str]


def filling_of(shape: RoleShape) -> Filling:
    """The statements of the producer, in the loop over k tiles."""
    place = shape.producer
    bounds = f"{shape.working(place)} and {shape.every_k}"
    statements, buffers, early = [], [], {}
    order: list[Node] = []
    schedule: list[Node] = []
    if shape.by_engine:
        cells = tuple(_filled(shape, ring) for ring in shape.by_engine)
        executes, engine = "one" if place.threads > 1 else "all", unit(_COPY_ENGINE)
        reads = (tile_of(place),)
        statements.append(
            TileStatement("fill", ("i", "k"), bounds, reads, cells, "move", engine, place, executes)
        )
        order.append(Leaf("fill"))
        schedule.append(Leaf("fill"))
    if shape.by_threads:
        made, registers = _pieces(shape, bounds)
        statements += made
        buffers.append(registers)
        count, _ = shape.rounds
        order.append(loop("q", loop("s", steps("get", "put"))))
        # Reading is a round ahead of writing, in registers that have just been written out.
        # Unrolled, so that every piece is in registers that its code names.
        ahead = loop("s", steps("put", "get"), "unroll[x]")
        schedule.append(
            loop("q", ahead, "unroll[x]", get="q" if count == 1 else f"(q - 1) mod {count}")
        )
        early["get"] = "k - 1" if count == 1 else f"k + floor((q - 1)/{count})"
    return Filling(
        tuple(statements), tuple(buffers), Steps(tuple(order)), Steps(tuple(schedule)), early
    )


def _pieces(shape: RoleShape, bounds: str) -> tuple[tuple[TileStatement, ...], Buffer]:
    """Global memory -> registers -> rings, piece by piece: piece s of round q is piece q*S + s."""
    place, (count, each) = shape.producer, shape.rounds
    number, every = f"({each}*q + s)", sum(ring.pieces for ring in shape.by_threads)
    inside = f"{bounds} and 0 <= q < {count} and 0 <= s < {each} and {number} < {every}"
    held = f"pieces[{','.join(('i', 'k', 'q', *shape.rank))},s]"
    cells, first = [], 0
    for ring in shape.by_threads:
        own = ",".join(("i", "k", *shape.rank))
        last = first + ring.pieces
        cells.append(f"ring_{ring.name}[{own},{number} - {first}] : {first} <= {number} < {last}")
        first = last
    threads, loops = unit(_THREADS), ("i", "k", "q", "s")
    get = TileStatement("get", loops, inside, (tile_of(place),), (held,), "move", threads, place)
    put = TileStatement("put", loops, inside, (held,), tuple(cells), "move", threads, place)
    return (get, put), Buffer("pieces", "register", 3, len(shape.rank))
