"""Rows that the blocks of a cluster cover together: each tells the others what it has folded.

    give_r0[i]    threads of an agent meet, and send what it has of its rows to every block that has
                  columns of these rows, itself included
    take_r0[i]    the agent combines what all of them have sent, in the order of the blocks

A block folds the terms of its own columns, out of registers, as a tile that covers a row alone does
(`fold_parts`). Then it sends a number for each row and component, and waits for those of all. All
combine the same numbers in the same order: they have the same result, and nothing depends on who
comes first.

What is sent lands behind a barrier that has all bytes, so that a block may leave when it has got
everything. Versions alternate between two landing areas, as where blocks share sums
(`partial_sums`): a block sends a tile's numbers only when all others have taken those of the tile
before the last, for they have sent the last one's after that. No barrier says that areas are free.
"""

from __future__ import annotations

from polygen.poly.partial_sums import LANDING_SLOTS
from polygen.poly.tile_program import Buffer, Place, TileStatement


def between_blocks(
    names: tuple[str, str, str],
    place: Place,
    versions: tuple[str, ...],
    own: str,
    cells: tuple[str, str],
    cluster: tuple[int, int],
) -> tuple[tuple[TileStatement, ...], Buffer]:
    """The statements that end a pass, with the landing areas.

    Args:
        names: of the statement that sends, of the one that combines, and of the landing area.
        place: who; its first coordinate is the block.
        versions: the loops over output tiles.
        own: the tiles of an agent, as isl text.
        cells: what is sent, and what is known then: registers of an agent.
        cluster: blocks along m, and along n, where they follow each other along a row. Their
            numbers go up along m first.
    """
    below, beside = cluster
    give, take, landed = names
    block, *rest = place.agents
    first, after = (",".join((*part, "")) for part in (versions, rest))
    same_row = f"0 <= d < {below * beside} and (d - {block}) mod {below} = 0"
    sent = f"{landed}[{first}d,{after}floor({block}/{below})] : {same_row}"
    every = f"{landed}[{first}{block},{after}q] : 0 <= q < {beside}"
    statements = (
        place.runs(give, versions, own, cells[:1], (sent,), "move", "st.async"),
        place.runs(take, versions, own, (every,), cells[1:]),
    )
    return statements, place.keeps(landed, len(versions), "shared", LANDING_SLOTS)
