"""Which tiles of a result have products: those that meet the half planes where sums are read.

A half plane a*m + b*n + c >= 0 meets a tile of rows and columns if its greatest value in the tile
is not negative: a condition of the same form on the numbers of the tile. What is outside of one of
them has no product: sums are not read there, whatever is stored instead (`polygen.poly.needed`).

Blocks that have one tile each ask whether it is inside. Persistent blocks number all tiles through,
those inside first: so the first `inside` tiles of a block have products, whatever the sizes, and
the others come after them. Tiles are found by a walk over groups of rows of tiles, column by
column, as in a raster: those inside of a column of a group follow each other.

Along and across are rows and columns of tiles, or the other way round, as the raster has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.half_planes import HalfPlane, linear, said
from polygen.poly.legality import Proof
from polygen.poly.match import Match
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

# A matrix has less than 2^31 rows and columns, so that with factors of a quarter of a tile's, and
# such a number, a kernel that counts in 32 bits does not count too far.
_SHARE, _LARGEST_NUMBER = 4, 2**28

Quotient = Callable[[str, int], str]


def in_isl(text: str, by: int) -> str:
    """A quotient of whole numbers, rounded down, as isl text."""
    return text if by == 1 else f"floor(({text})/{by})"


@dataclass(frozen=True, slots=True)
class TileDomain:
    """The tiles that have products.

    Attributes:
        elements: half planes of rows and columns of the result.
        tile: rows and columns of a tile, or of a cluster of tiles.
        planes: half planes of numbers of tiles along m and n.
    """

    elements: tuple[HalfPlane, ...]
    tile: tuple[int, int]
    planes: tuple[HalfPlane, ...]

    def __str__(self) -> str:
        rows, columns = self.tile
        return f"tiles of {rows} x {columns} that meet {said(self.elements)}"

    def along(self, dim: str) -> tuple[HalfPlane, ...]:
        """The half planes of numbers along and across, where tiles along `dim` are in groups."""
        return self.planes if dim == "m" else tuple((b, a, c) for a, b, c in self.planes)

    def first(self, dim: str, across: str, quotient: Quotient) -> list[str]:
        """Numbers along, of which the greatest is the first inside.

        Args:
            dim: "m" or "n", along which tiles are in groups.
            across: the number across.
            quotient: how a quotient that is rounded down is written.
        """
        return [
            quotient(linear(0, "", -b, across, -c + a - 1), a)
            for a, b, c in self.along(dim)
            if a > 0
        ]

    def last(self, dim: str, across: str, quotient: Quotient) -> list[str]:
        """Numbers along, of which the least is the last inside; arguments as of `first`."""
        return [quotient(linear(0, "", b, across, c), -a) for a, b, c in self.along(dim) if a < 0]

    def crossed(self, dim: str, across: str) -> list[str]:
        """What is not negative where there are any inside; arguments as of `first`."""
        return [linear(0, "", b, across, c) for a, b, c in self.along(dim) if a == 0]

    def count(self, m: int, n: int) -> int:
        """Tiles inside of a matrix of m x n elements."""
        tall, wide = -(-m // self.tile[0]), -(-n // self.tile[1])
        return _count(self.planes, tall, wide)

    def has(self, row: int, column: int) -> bool:
        """Whether a tile has products, by its number along m and n."""
        return all(a * row + b * column + c >= 0 for a, b, c in self.planes)

    def has_text(self, row: str, column: str) -> str:
        """The same as C."""
        return " && ".join(f"{linear(a, row, b, column, c)} >= 0" for a, b, c in self.planes)


@lru_cache(maxsize=1024)
def _count(planes: tuple[HalfPlane, ...], tall: int, wide: int) -> int:
    found = 0
    for column in range(wide):
        first, behind = 0, tall
        for a, b, c in planes:
            rest = b * column + c
            if a > 0:
                first = max(first, -(rest // a))
            elif a < 0:
                behind = min(behind, rest // -a + 1)
            elif rest < 0:
                behind = 0
        found += max(behind - first, 0)
    return found


def tile_planes(elements: tuple[HalfPlane, ...], tile: tuple[int, int]) -> tuple[HalfPlane, ...]:
    """Half planes of numbers of tiles: those that each half plane of elements meets.

    Args:
        elements: of rows and columns.
        tile: rows and columns of a tile.

    Returns:
        Those that leave any tile out, and in which nobody counts too far.
    """
    found = []
    for a, b, c in elements:
        greatest = c + max(a, 0) * (tile[0] - 1) + max(b, 0) * (tile[1] - 1)
        by = math.gcd(a * tile[0], b * tile[1]) or 1
        plane = (a * tile[0] // by, b * tile[1] // by, greatest // by)
        small = abs(plane[2]) <= _LARGEST_NUMBER and all(
            abs(factor) * _SHARE <= extent for factor, extent in zip(plane, tile, strict=False)
        )
        if small and min(plane) < 0:
            found.append(plane)
    return tuple(dict.fromkeys(found))


def tile_domain(match: Match, schedule: Schedule, tiles: Tiling) -> TileDomain | None:
    """The tiles that have products, of a kernel that can leave others out; None: all have.

    Args:
        match: the products.
        schedule: the decisions.
        tiles: the tile hierarchy.
    """
    cluster = schedule.cluster
    tile = (tiles.cta[0] * cluster.m, tiles.cta[1] * cluster.n)
    planes = tile_planes(match.domain, tile)
    return TileDomain(match.domain, tile, planes) if planes else None


def all_tiles_because(
    match: Match, schedule: Schedule, *, folded: bool, covered: bool, several: bool
) -> str:
    """Why all tiles have products though not all sums are read; "" where they need not.

    Args:
        match: the products.
        schedule: the decisions.
        folded: whether operands are folded beside the products.
        covered: whether tiles cover rows, and go over their sums in several passes.
        several: whether the kernel has several sections.
    """
    for holds, reason in (
        (several, "a kernel of several sections numbers the tiles of all of them through"),
        (covered, "tiles cover whole rows"),
        (folded, "operands are folded beside the products"),
        (match.groups is not None, "rows are in groups"),
        (schedule.cluster.k > 1, "blocks share the sums of a tile"),
        (schedule.by_lanes, "lanes multiply"),
    ):
        if holds:
            return reason
    return ""


def prove_tile_domain(domain: TileDomain, instances: isl.UnionSet, tiles: isl.UnionMap) -> Proof:
    """Prove that tiles outside have no product that is read.

    Args:
        domain: the tiles inside.
        instances: of the products' statements.
        tiles: instance -> the numbers of its tile along m and n.

    Raises:
        VerifyError: a product is outside, with its tile.
    """
    inside = isl.UnionSet(f"{{ [m, n] : {said(domain.planes)} }}")
    outside = tiles.intersect_domain(instances).subtract_range(inside)
    if not outside.is_empty():
        raise VerifyError(
            f"a product of a tile that has none: {isl.sample_pair(outside)}", where="tile domain"
        )
    return Proof("every sum that is read is of a tile with products", str(domain))


@lru_cache(maxsize=64)
def prove_numbered(domain: TileDomain, dim: str, group: int) -> tuple[Proof, ...]:
    """Prove that every tile is one work item, those that have products first.

    The walk goes through groups of tiles along `dim`, and in a group from column to column; first
    for the tiles inside, then for the others. A column of a group has each of its tiles once, in
    one of both walks; columns and groups partition the tiles, so that by induction over them each
    walk numbers its tiles from 0 on, and the second goes on where the first ends.

    Args:
        domain: the tiles inside.
        dim: along which tiles are in groups.
        group: tiles of a group; any number does.

    Raises:
        VerifyError: never for half planes; the check guards the formulas of the walk.
    """
    _prove_columns(domain, dim)
    _prove_numbers()
    claim = "every output tile is exactly one work item, those with products before the others"
    return (Proof(claim, f"groups of {group} along {dim}, of {domain}"),)


def _prove_columns(domain: TileDomain, dim: str) -> None:
    """In a column, the tiles inside are those from the first to the last of the formulas."""
    planes = " and ".join(
        f"{linear(a, 'a', b, 'c', number)} >= 0" for a, b, number in domain.along(dim)
    )
    own = "0 <= a < along and c >= 0"
    wanted = isl.Set(f"[along] -> {{ [a, c] : {own} and {planes} }}")
    conditions = [f"a >= {one}" for one in domain.first(dim, "c", in_isl)]
    conditions += [f"a <= {one}" for one in domain.last(dim, "c", in_isl)]
    conditions += [f"{one} >= 0" for one in domain.crossed(dim, "c")]
    found = isl.Set(f"[along] -> {{ [a, c] : {' and '.join([own, *conditions])} }}")
    if not found.is_equal(wanted):
        raise VerifyError(
            "columns of tiles do not begin and end where their tiles do", where="tile domain"
        )


def _prove_numbers() -> None:
    """In a column of a group, both kinds are numbered through: those inside, and the others.

    A column has the tiles from `low` up to `high`, of which those from `first` up to `behind` are
    inside. Each kind's columns follow each other, so that by induction all tiles have one number.
    """
    names = "[low, high, first, behind] -> "
    known = "low <= first <= behind <= high"
    inner = isl.Map(f"{names}{{ [l] -> [first + l] : 0 <= l < behind - first and {known} }}")
    before = f"[l] -> [low + l] : 0 <= l and low + l < first and {known}"
    after = (
        "[l] -> [low + l + behind - first] : "
        f"first <= low + l and l < high - low - (behind - first) and {known}"
    )
    outer = isl.Map(f"{names}{{ {before}; {after} }}")
    every = isl.Set(f"{names}{{ [a] : low <= a < high and {known} }}")
    apart = inner.range().intersect(outer.range()).is_empty()
    whole = inner.range().union(outer.range()).is_equal(every)
    if not (inner.is_bijective() and outer.is_bijective() and apart and whole):
        raise VerifyError("tiles of a column are not numbered through", where="tile domain")
