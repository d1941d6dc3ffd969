"""Rows in groups: that every row is in one tile, whatever the groups; proved a group at a time.

A kernel walks groups in their order. It comes to group e with `t` row tiles and `b` rows behind it;
the group has the rows from b up to the greatest of b and its end, and its tiles are numbered from t
on, each with `tile` rows but the last. Then `t` and `b` go up by its tiles and its rows.

1. A group, of any number of rows r >= 0 and from any t and b: its tiles are the ceil(r / tile) from
   t on, none of them without a row, and each of its rows b to b + r - 1 is in one of them. isl
   decides that with t, b and r as parameters.
2. All groups: the first begins at t = 0, b = 0, each where the one before it ends, both for tiles
   and for rows. So by induction over the groups the numbers of tiles are those from 0 to their sum,
   each of one group, and the rows those from 0 to the greatest end, each in one tile. isl decides
   the step: what was partitioned up to (t, b), and a group from there on, are a partition up to
   (t + ceil(r / tile), b + r).
3. That the group of row b + l is the first e with b + l < ends[e] is a property of running maxima:
   the walk's b is the greatest of 0 and the ends before e. Tests compare both on all small tables.

Inside a group rows count from 0, as in a matrix of its own: dependences, tiles and accesses are
proved for every number of rows there (`polygen.poly.refine`, `polygen.poly.raster`).
"""

from __future__ import annotations

from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof

_PREFIX = "[t, b, r, c] -> "


@lru_cache(maxsize=64)
def prove_row_groups(tile: int) -> tuple[Proof, ...]:
    """Prove that tiles of groups partition rows in groups.

    Args:
        tile: rows of a tile; of a cluster, of all its tiles below one another.

    Raises:
        VerifyError: never for positive tiles; the check guards the formulas of the walk.
    """
    # c is ceil(r / tile), as the walk computes it.
    known = f"t >= 0 and b >= 0 and r >= 0 and c = floor((r + {tile - 1})/{tile})"
    _prove_group(tile, known)
    _prove_step(known)
    each = f"tiles of {tile} rows, any number of rows"
    return (
        Proof("every row of a group is in exactly one of its tiles, none of them empty", each),
        Proof("tiles and rows of all groups are numbered through, one group after another", each),
    )


def _prove_group(tile: int, known: str) -> None:
    """Row l of tile q of a group is row b + (q - t)*tile + l: all of the group's, each once."""
    inside = f"t <= q < t + c and 0 <= l < {tile} and (q - t)*{tile} + l < r"
    place = isl.Map(f"{_PREFIX}{{ [q, l] -> [b + (q - t)*{tile} + l] : {inside} and {known} }}")
    rows = isl.Set(f"{_PREFIX}{{ [m] : b <= m < b + r and {known} }}")
    tiles = isl.Set(f"{_PREFIX}{{ [q] : t <= q < t + c and {known} }}")
    used = place.domain().project_out(isl.dim_type.set, 1, 1)
    if not (place.is_bijective() and place.range().is_equal(rows) and used.is_equal(tiles)):
        raise VerifyError(f"tiles of {tile} rows do not partition a group", where="groups")


def _prove_step(known: str) -> None:
    """What is behind a group, and the group, are all up to its end, and have nothing in common."""
    for first, count in (("t", "c"), ("b", "r")):
        before, own, together = (
            isl.Set(f"{_PREFIX}{{ [x] : {bounds} and {known} }}")
            for bounds in (
                f"0 <= x < {first}",
                f"{first} <= x < {first} + {count}",
                f"0 <= x < {first} + {count}",
            )
        )
        if not (before.intersect(own).is_empty() and before.union(own).is_equal(together)):
            raise VerifyError("groups do not follow each other", where="groups")
