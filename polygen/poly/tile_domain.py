"""Which tiles of a result have products: those that meet the half planes where sums are read.

A half plane a*m + b*n + c >= 0 meets a tile of rows and columns if its greatest value in the tile
is not negative: a condition of the same form on the numbers of the tile. What is outside of one of
them has no product: sums are not read there, whatever is stored instead (`polygen.poly.needed`).

Blocks that have one tile each ask whether it is inside. Persistent blocks number all tiles through,
those inside first: so the first `inside` tiles of a block have products, whatever the sizes, and
the others come after them. Tiles are found by a walk over groups of rows of tiles, column by
column, as in a raster (`polygen.poly.tile_walk`).

Along and across are rows and columns of tiles, or the other way round, as the raster has it.
"""

from __future__ import annotations

import math
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
