"""Parts of folds in a tile program: terms that an epilogue makes are combined in registers.

    unfold[i]        the registers hold the identity
    store[i,m]       makes results and terms, and combines the terms into the registers; with panels
                     finish[i,p] does
    fold[i]          threads meet, and write the part of the agent's tile

Nothing is handed to another agent: every agent writes parts of its own, once, and the launch that
follows reads them.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.hardware.units import unit
from polygen.poly.kernel_parts import Part, flat
from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tile_tree import steps

FOLDED = "folded"  # the registers


def folded(part: Part, place: Place, versions: tuple[str, ...], own: str) -> Part:
    """An epilogue, with the statements around it that make parts of folds.

    Args:
        part: whose statement that computes makes the terms, tile by tile.
        place: who.
        versions: the loops over output tiles.
        own: the tiles of an agent, as isl text.
    """
    cell = f"{FOLDED}[{','.join((*versions, *place.agents))}]"
    threads = unit("threads")
    statements = tuple(
        replace(s, reads=(*s.reads, cell), writes=(*s.writes, cell)) if s.op == "map" else s
        for s in part.statements
    )
    first = TileStatement("unfold", versions, own, (), (cell,), "map", threads, place)
    last = TileStatement("fold", versions, own, (cell,), (), "map", threads, place)
    return Part(
        (first, *statements, last),
        (*part.buffers, Buffer(FOLDED, "register", len(versions), len(place.agents))),
        flat(steps(first.name, part.order, last.name)),
        flat(steps(first.name, part.schedule, last.name)),
    )
