"""Folds of operands in a tile program: who multiplies a ring's tiles folds their elements as well.

    begin_a[i]       the registers hold the identity
    tally_a[i,k]     every agent: terms of its rows of the k tile in ring_a, combined into them
    share_a[i]       threads that have terms of one row meet, and write its result to norms_a
    leave_a[i]       results that are outputs: norms_a -> memory, in the tiles that are the first
                     along every dim that they do not depend on
    store[i,m]       reads results of rows and columns there; with panels finish[i,p] does

An agent folds the rows of its own warp tile, so that nothing is handed to another one: where two
have the same rows, both fold them. What the slots of the ring wait for, and what orders threads of
an agent between `share` and its readers, is derived from these accesses like everything.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.poly.kernel_parts import MainLoop, Part, alone, in_turn
from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tile_tree import steps
from polygen.poly.tiling import Tiling

TALLIED = "tallied"  # registers, of a ring's rows
NORMS = "norms"  # results of an agent's rows, in shared memory


def tallied(
    ring: str,
    cells: str,
    place: Place,
    loops: tuple[tuple[str, ...], tuple[str, ...]],
    bounds: tuple[str, str],
) -> tuple[tuple[TileStatement, ...], Buffer]:
    """What folds a ring's elements, and the registers in which it does.

    Args:
        ring: its name.
        cells: a tile of it, as isl text over the loops.
        place: who.
        loops: over output tiles, and with them over k tiles.
        bounds: of both.
    """
    versions = loops[0]
    cell = f"{TALLIED}_{ring}[{','.join((*versions, *place.agents))}]"
    return (
        place.runs(f"begin_{ring}", versions, bounds[0], (), (cell,)),
        place.runs(f"tally_{ring}", loops[1], bounds[1], (cells, cell), (cell,)),
    ), place.keeps(f"{TALLIED}_{ring}", len(versions))


def shared_before(
    part: Part,
    place: Place,
    versions: tuple[str, ...],
    own: str,
    main: MainLoop,
    tiles: Tiling,
    located: tuple[str, ...] = (),
) -> Part:
    """An epilogue, behind what shares the results that its elements read, and stores them.

    Args:
        part: whose statements that compute read them.
        place: who.
        versions: the loops over output tiles.
        own: the tiles of an agent, as isl text.
        main: whose rings are folded.
        tiles: the tile hierarchy.
        located: what says which tile an agent has, as cells.
    """
    rings = main.folded
    if not rings:
        return part
    at = f"[{','.join((*versions, *place.agents))}]"
    held, known = (tuple(f"{what}_{ring}" for ring in rings) for what in (TALLIED, NORMS))
    shares = [
        place.runs(f"share_{ring}", versions, own, (terms + at,), (norms + at,), "move")
        for ring, terms, norms in zip(rings, held, known, strict=True)
    ]
    slot = (versions, "0") if versions else None
    buffers = [place.keeps(norms, len(versions), "shared", slot=slot) for norms in known]
    statements = tuple(
        replace(s, reads=(*s.reads, *(norms + at for norms in known))) if _computes(s) else s
        for s in part.statements
    )
    sides = {ring.name: ring.side for ring in main.rings}
    shares += [
        place.runs(
            f"leave_{ring}", versions, f"{own}{first_agents(place, sides[ring], tiles)}",
            (*located, f"{NORMS}_{ring}{at}"), op="move",
        )
        for ring in main.leaving
    ]  # fmt: skip
    first = alone(shares, buffers, steps(*(one.name for one in shares)))
    return in_turn(first, replace(part, statements=statements))


def first_agents(place: Place, side: str, tiles: Tiling) -> str:
    """Of agents that have the same rows, or columns, the first; of a run of tiles the first.

    As conditions on agents and loops, isl text.
    """
    agent, found = place.agents[-1], ""
    if side == "m" and tiles.warps[1] > 1:
        found = f" and {agent} mod {tiles.warps[1]} = 0"
    if side == "n" and tiles.warps[0] > 1:
        found = f" and {agent} < {tiles.warps[1]}"
    return found + (f" and i mod {tiles.run} = 0" if side == "m" and tiles.run > 1 else "")


def _computes(statement: TileStatement) -> bool:
    """Whether elements are computed: of results, or of terms in a pass over a tile."""
    stem = statement.name.partition("_")[0]
    return statement.op == "map" and stem in ("store", "finish", "terms")
