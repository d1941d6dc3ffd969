"""What fills the rings of a kernel with roles: the copy engine, the producer's threads, or both."""

from __future__ import annotations

from polygen.poly.kernel_parts import Part, Ring, alone, in_turn
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_tree import Leaf, loop, steps


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


def filling_of(shape: RoleShape) -> Part:
    """The statements of the producer, in the loop over k tiles."""
    place = shape.producer
    bounds = f"{shape.working(place)} and {shape.every_k}"
    parts = []
    if shape.ahead:
        early = shape.streamer
        cells = tuple(_filled(shape, ring) for ring in shape.ahead)
        fill = early.runs(
            "fill_ahead", ("i", "k"), bounds, (tile_of(early),), cells, "move", "tma.load",
            settled=True,
        )  # fmt: skip
        parts.append(alone([fill], [], Leaf(fill.name)))
    if shape.by_engine:
        cells = tuple(_filled(shape, ring) for ring in shape.by_engine)
        fill = place.runs(
            "fill", ("i", "k"), bounds, (tile_of(place),), cells, "move", "tma.load",
            executes="one" if place.threads > 1 else "all",
        )  # fmt: skip
        parts.append(alone([fill], [], Leaf(fill.name)))
    if shape.by_threads:
        parts.append(_pieces(shape, bounds))
    return in_turn(*parts)


def _pieces(shape: RoleShape, bounds: str) -> Part:
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
    loops = ("i", "k", "q", "s")
    get = place.runs("get", loops, inside, (tile_of(place),), (held,), "move")
    put = place.runs("put", loops, inside, (held,), tuple(cells), "move")
    # Reading is a round ahead of writing, in registers that have just been written out.
    # Unrolled, so that every piece is in registers that its code names.
    ahead = loop("s", steps("put", "get"), "unroll[x]")
    return Part(
        (get, put),
        (place.keeps("pieces", 3),),
        loop("q", loop("s", steps("get", "put"))),
        loop("q", ahead, "unroll[x]", get="q" if count == 1 else f"(q - 1) mod {count}"),
        (("get", "k - 1" if count == 1 else f"k + floor((q - 1)/{count})"),),
    )
