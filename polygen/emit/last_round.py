"""Tiles of a block's own and those that clusters share, in C: how many, and which comes next.

What is proved of the numbers stands in `polygen.poly.last_round`, on the same formulas.
"""

from __future__ import annotations

from polygen.poly.last_round import LastRound
from polygen.poly.tile_program import OWN_TILES, PART_TILES

# Items of tiles of a block's own; which share of its tile is a block's.
OWN_ITEMS, SHARE = "own_items", "share"


def _quotient(text: str, by: int) -> str:
    return f"{text} / {by}"


def counted(split: int, tiles: str) -> tuple[list[str], str]:
    """How many items have tiles of a block's own, as declarations, and how many there are in all.

    Args:
        split: blocks of a cluster.
        tiles: how many tiles there are. `stride` is how many clusters.
    """
    of = LastRound(split)
    left = f"all_tiles - {split} * {OWN_ITEMS}"
    whole = of.whole("all_tiles", _quotient)
    further = f"{split - 1} * stride" if split > 2 else "stride"
    lines = [
        f"const int all_tiles = {tiles};",
        "// Whole rounds of tiles are the blocks' own. Of what is left clusters share the sums,",
        "// where that takes less than a round.",
        f"int {OWN_ITEMS} = all_tiles / ({split} * stride) * stride;",
        f"if ({left} > {further} && {whole} + all_tiles % {split} <= {OWN_ITEMS} + stride) "
        f"{OWN_ITEMS} = {whole};",
        f"const int {OWN_TILES} = ({OWN_ITEMS} - first + stride - 1) / stride;",
        f"const int {PART_TILES} = (k_tiles + {split - 1}) / {split};",
    ]
    return lines, of.items("all_tiles", OWN_ITEMS)


def found(split: int, item: str) -> list[str]:
    """The lines that find the tile of a work item, and the block's share of it.

    Args:
        split: blocks of a cluster.
        item: what the number of the tile is called.
    """
    of = LastRound(split)
    return [
        f"const bool own = i < {OWN_TILES};",
        "const int number = first + i * stride;",
        f"const int {item} = own ? {of.own('number', 'rank')} : {of.shared('number', OWN_ITEMS)};",
        f"{SHARE} = own ? 0 : rank;",
    ]
