"""Raster: which output tile a thread block computes, a relation proved for any number of tiles.

Groups of `group` tiles along one dim are visited tile by tile before the next tile along the other
dim, so that neighbouring blocks share operands in the L2 cache. The grid is two-dimensional: x
counts (across, place in the group), y counts groups.

    along  = group*y + x mod group          across = floor(x/group)

Persistent blocks take work items from one sequence instead: groups one after the other, the last
one as narrow as what is left, so that no item is empty. Blocks that go through a range of keys each
begin with the last rows, which have the most of them where masks are triangles.

The formulas are written here, as C has them, for the code and for the proofs.
"""

from __future__ import annotations

from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof

_WHERE = "raster"


def block_tile(group: int, x: str, y: str) -> tuple[str, str]:
    """Where the tile of a block of a grid is, along and across."""
    return f"{y} * {group} + {x} % {group}", f"{x} / {group}"


def round_matrix(layers: int, number: str, z: str) -> str:
    """The matrix of a block of a round."""
    return f"{number} * {layers} + {z}"


def rows_of_range(y: str, count: str) -> str:
    """Which tile of rows a block has that goes through a range of keys, of so many."""
    return f"{count} - 1 - {y}"


def width_of(group: int, band: str, along: str) -> str:
    """Tiles along of a group, by its number."""
    return f"min({group}, {along} - {band} * {group})"


def last_width(group: int, along: str) -> str:
    """Tiles along of the last group, where there are fewer than of the others; else any number."""
    return f"max({along} % {group}, 1)"


def item_tile(group: int, band: str, item: str, width: str) -> tuple[str, str]:
    """Where the tile of an item of a group is, along and across."""
    return f"{band} * {group} + {item} % {width}", f"{item} / {width}"


def run_place(run: int, tile: str) -> tuple[str, str]:
    """Which of its runs a block's tile is of, and at which place of it."""
    return f"{tile} / {run}", f"{tile} % {run}"


def run_column(run: int, column: str, place: str) -> str:
    """The column of a tile, of its run's and its place in it."""
    return f"{column} * {run} + {place}"


def _once(relation: isl.Map, every: isl.Set, otherwise: str) -> None:
    """Refuse a relation from who takes something to what, but where each of them is taken once."""
    if not (relation.is_injective() and relation.range().is_equal(every)):
        raise VerifyError(otherwise, where=_WHERE)


@lru_cache(maxsize=64)
def prove_raster(group: int) -> Proof:
    """Prove that every tile is computed by exactly one thread block, whatever the number of tiles.

    Raises:
        VerifyError: never for positive groups; the check guards the formula.
    """
    grid = f"0 <= x < {group}*across and 0 <= y and {group}*y <= along - 1"
    own_along, own_across = map(isl.from_c, block_tile(group, "x", "y"))
    place = f"a = {own_along} and c = {own_across} and a < along"
    relation = isl.Map(f"[along, across] -> {{ [x,y] -> [a,c] : {grid} and {place} }}")
    tiles = isl.Set("[along, across] -> { [a,c] : 0 <= a < along and 0 <= c < across }")
    _once(relation, tiles, "the raster does not visit every tile exactly once")
    return Proof("every output tile is computed by exactly one thread block", f"groups of {group}")


@lru_cache(maxsize=64)
def prove_rounds(layers: int) -> Proof:
    """Prove that every matrix is in one round, however many there are.

    A round is as wide along x as the tiles of a matrix are, so that quotient and remainder of x are
    the round and the place in it; blocks behind the last matrix are done.

    Raises:
        VerifyError: never for positive numbers; the check guards the formula.
    """
    own = round_matrix(layers, "r", "z")
    grid = f"0 <= z < min({layers}, count) and 0 <= r and {layers}*r < count"
    rounds = isl.Map(f"[count] -> {{ [r,z] -> [m] : {grid} and m = {own} and m < count }}")
    every = isl.Set("[count] -> { [m] : 0 <= m < count }")
    _once(rounds, every, "the rounds do not have every matrix exactly once")
    return Proof("every matrix is in one round", f"rounds of {layers}")


@lru_cache(maxsize=64)
def prove_linear_raster(group: int) -> tuple[Proof, ...]:
    """Prove that every tile is one work item, whatever the number of tiles.

    Item `t` lies in group y = floor(t / (group*across)), whose width is w = min(group, along -
    group*y), at x = t - y*group*across of it. Groups partition the items and the tiles alike; what
    is left to prove is each group, for every width that the last one can have.

    Raises:
        VerifyError: never for positive groups; the check guards the formula.
    """
    width = width_of(group, "y", "along")
    inside = f"0 <= y and {group}*y < along and {group}*y <= a < {group}*y + {width}"
    groups = isl.Map(f"[along] -> {{ [y] -> [a] : {inside} }}")
    rows = isl.Set("[along] -> { [a] : 0 <= a < along }")
    _once(groups, rows, "groups do not have every row of tiles exactly once")
    for wide in range(1, group + 1):
        own_along, own_across = map(isl.from_c, item_tile(group, "y", "x", str(wide)))
        place = f"a = {own_along} and c = {own_across}"
        relation = isl.Map(f"[across,y] -> {{ [x] -> [a,c] : 0 <= x < {wide}*across and {place} }}")
        tiles = isl.Set(
            f"[across,y] -> {{ [a,c] : {group}*y <= a < {group}*y + {wide} and 0 <= c < across }}"
        )
        if not (relation.is_bijective() and relation.range().is_equal(tiles)):
            raise VerifyError("the raster does not visit every tile exactly once", where=_WHERE)
    subject = f"groups of {group}, the last one of any width"
    same = isl.Set(
        f"[along] -> {{ [y,w] : 0 <= y and {group}*y < along and w = {width} and w < {group} and "
        f"w != {isl.from_c(last_width(group, 'along'))} }}"
    )
    if not same.is_empty():
        raise VerifyError(
            "the last group is as wide as others: it does not have every tile exactly once",
            where=_WHERE,
        )
    return (Proof("every output tile is exactly one work item", subject),)


@lru_cache(maxsize=1)
def prove_ranges() -> Proof:
    """Prove that every tile of rows is one block's, where blocks go through ranges of keys.

    Raises:
        VerifyError: never; the check guards the formula.
    """
    made = isl.Map(f"[rows] -> {{ [y] -> [{rows_of_range('y', 'rows')}] : 0 <= y < rows }}")
    if not (made.is_bijective() and made.range().is_equal(made.domain())):
        raise VerifyError("the raster does not visit every tile exactly once", where=_WHERE)
    return Proof("every output tile is computed by exactly one thread block", "the last rows first")


@lru_cache(maxsize=64)
def prove_runs(run: int) -> tuple[Proof, ...]:
    """Prove that items which are runs of tiles have every tile once, one row of them at a time.

    A block's tile i is place i mod run of its item floor(i/run); an item is a row and a column c of
    the raster, and place p of it is the tile in that row and column c*run + p.

    Raises:
        VerifyError: never for positive numbers; the check guards the formula.
    """
    own, at = map(isl.from_c, run_place(run, "i"))
    tiles = isl.Map(f"{{ [i] -> [j,p] : 0 <= i and j = {own} and p = {at} }}")
    places = isl.Set(f"{{ [j,p] : 0 <= j and 0 <= p < {run} }}")
    column = run_column(run, "c", "p")
    columns = isl.Map(f"{{ [c,p] -> [n] : 0 <= c and 0 <= p < {run} and n = {column} }}")
    every = isl.Set("{ [n] : 0 <= n }")
    if not (
        tiles.is_bijective()
        and tiles.range().is_equal(places)
        and columns.is_bijective()
        and columns.range().is_equal(every)
    ):
        raise VerifyError("runs do not have every tile exactly once", where=_WHERE)
    claim = "every tile is in one run, whose tiles are of one row and follow each other"
    return (Proof(claim, f"runs of {run}"),)
