"""Raster: which output tile a thread block computes, a relation proved for any number of tiles.

Groups of `group` tiles along one dim are visited tile by tile before the next tile along the other
dim, so that neighbouring blocks share operands in the L2 cache. The grid is two-dimensional: x
counts (across, place in the group), y counts groups.

    along  = group*y + x mod group          across = floor(x/group)

Persistent blocks take work items from one sequence instead: groups one after the other, the last
one as narrow as what is left, so that no item is empty.
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


@lru_cache(maxsize=64)
def prove_linear_raster(group: int) -> tuple[Proof, ...]:
    """Prove that every tile is one work item, whatever the number of tiles.

    Item `t` lies in group y = floor(t / (group*across)), whose width is w = min(group, along -
    group*y), at x = t - y*group*across of it. Groups partition the items and the tiles alike; what
    is left to prove is each group, for every width that the last one can have.

    Raises:
        VerifyError: never for positive groups; the check guards the formula.
    """
    for width in range(1, group + 1):
        place = f"a = x mod {width} and c = floor(x/{width})"
        relation = isl.Map(f"[across] -> {{ [x] -> [a,c] : 0 <= x < {width}*across and {place} }}")
        tiles = isl.Set(f"[across] -> {{ [a,c] : 0 <= a < {width} and 0 <= c < across }}")
        if not (relation.is_bijective() and relation.range().is_equal(tiles)):
            raise VerifyError("the raster does not visit every tile exactly once", where="raster")
    subject = f"groups of {group}, the last one of any width"
    return (Proof("every output tile is exactly one work item", subject),)


@lru_cache(maxsize=64)
def prove_runs(run: int) -> tuple[Proof, ...]:
    """Prove that items which are runs of tiles have every tile once, one row of them at a time.

    A block's tile i is place i mod run of its item floor(i/run); an item is a row and a column c of
    the raster, and place p of it is the tile in that row and column c*run + p.

    Raises:
        VerifyError: never for positive numbers; the check guards the formula.
    """
    place = f"j = floor(i/{run}) and p = i mod {run}"
    tiles = isl.Map(f"{{ [i] -> [j,p] : 0 <= i and {place} }}")
    places = isl.Set(f"{{ [j,p] : 0 <= j and 0 <= p < {run} }}")
    columns = isl.Map(f"{{ [c,p] -> [n] : 0 <= c and 0 <= p < {run} and n = c*{run} + p }}")
    every = isl.Set("{ [n] : 0 <= n }")
    if not (
        tiles.is_bijective()
        and tiles.range().is_equal(places)
        and columns.is_bijective()
        and columns.range().is_equal(every)
    ):
        raise VerifyError("runs do not have every tile exactly once", where="raster")
    claim = "every tile is in one run, whose tiles are of one row and follow each other"
    return (Proof(claim, f"runs of {run}"),)
