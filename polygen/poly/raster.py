"""Raster: which output tile a thread block computes, a relation proved for any number of tiles.

Groups of `group` tiles along one dim are visited tile by tile before the next tile along the other
dim, so that neighbouring blocks share operands in the L2 cache. The grid is two-dimensional: x
counts (across, place in the group), y counts groups.

    along  = group*y + x mod group          across = floor(x/group)
"""

from __future__ import annotations

from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof


@lru_cache(maxsize=64)
def prove_raster(group: int) -> Proof:
    """Prove that every tile is computed by exactly one thread block, whatever the number of tiles.

    Raises:
        VerifyError: never for positive groups; the check guards the formula.
    """
    grid = f"0 <= x < {group}*across and 0 <= y and {group}*y <= along - 1"
    place = f"a = {group}*y + x mod {group} and c = floor(x/{group}) and a < along"
    relation = isl.Map(f"[along, across] -> {{ [x,y] -> [a,c] : {grid} and {place} }}")
    tiles = isl.Set("[along, across] -> { [a,c] : 0 <= a < along and 0 <= c < across }")
    if not (relation.is_injective() and relation.range().is_equal(tiles)):
        raise VerifyError("the raster does not visit every tile exactly once", where="raster")
    return Proof("every output tile is computed by exactly one thread block", f"groups of {group}")
