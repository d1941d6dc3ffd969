"""Boxes of pixels: a tile whose rows run along several axes of the result, a range of each.

    sides n 2, h 8, w 8       row 64*(n mod 2) + 8*(h mod 8) + w mod 8 of the tile at
                              floor(n/2), floor(h/8), floor(w/8)

1. One of the axes is m, whose tiles the raster counts; tiles along the others are counted as
   matrices of results are. `PixelBox.numbered` says which row of which tile a pixel is, as isl text
   over its coordinates: what the program's elements are tiled by.
2. The other way round the digits of a row's number say its pixel (`PixelBox.digit`): what boxes
   that the copy engine moves begin at.
3. Both are proved to be one relation, one to one and onto whole tiles, for all sizes (`prove_box`);
   and of the program's own elements no two have one place of one tile (`prove_apart`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof

M = "m"


@dataclass(frozen=True, slots=True)
class PixelBox:
    """The pixels of a tile.

    Attributes:
        sides: per row axis its dim, and how many of its indices a tile has; outermost first. ()
            where rows follow each other along m alone.
    """

    sides: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sides)

    @property
    def rows(self) -> int:
        """Pixels, which are rows of the tile."""
        return math.prod(side for _, side in self.sides)

    def side(self, dim: str) -> int:
        """Indices of a dim in a tile; 1 of those that count matrices."""
        return dict(self.sides).get(dim, 1)

    def along_m(self, rows: int) -> int:
        """Indices of m in a tile of so many rows."""
        return self.side(M) if self else rows

    def weight(self, dim: str) -> int:
        """Rows from one index of a dim to the next."""
        names = [name for name, _ in self.sides]
        return math.prod(side for _, side in self.sides[names.index(dim) + 1 :])

    def part(self, rows: int) -> PixelBox | None:
        """The box of so many rows that follow each other, from any multiple of them on.

        None: these are no box.
        """
        left, found = rows, []
        for dim, side in reversed(self.sides):
            own = side if left % side == 0 else left
            if side % own:
                return None
            left //= own
            found.append((dim, own))
        return replace(self, sides=tuple(reversed(found))) if left == 1 else None

    def digit(self, dim: str, row: str) -> str:
        """The place of a row's pixel along a dim, as C."""
        weight, side = self.weight(dim), self.side(dim)
        over = f" / {weight}" if weight > 1 else ""
        inside = f" % {side}" if weight * side < self.rows else ""
        return f"({row}){over}{inside}" if over or inside else row

    def numbered(self, places: Mapping[str, str]) -> dict[str, str]:
        """Which row of which tile a pixel is, as isl text: rows numbered through along m, and tiles
        along the other dims.

        Args:
            places: along all dims: iterators.
        """
        tile, rows = places[M], []
        for dim, side in self.sides:
            if side > 1:
                weight = self.weight(dim)
                inside = f"({places[dim]} mod {side})"
                rows.append(f"{weight}*{inside}" if weight > 1 else inside)
        m = " + ".join([f"{self.rows}*floor({tile}/{self.side(M)})", *rows])
        others = {
            dim: f"floor({place}/{self.side(dim)})" if self.side(dim) > 1 else place
            for dim, place in places.items()
        }
        return others | {M: f"({m})"}

    def __str__(self) -> str:
        return " x ".join(f"{side} of {dim}" for dim, side in self.sides)


ONE_LINE = PixelBox()


def prove_box(box: PixelBox) -> Proof:
    """Prove that every pixel is one row of one tile, of which its digits are the place.

    Raises:
        VerifyError: never for positive sides; the check guards the formulas.
    """
    dims = [dim for dim, _ in box.sides]
    own = ",".join(dims)
    said = box.numbered({dim: dim for dim in dims})
    from_zero = " and ".join(f"{dim} >= 0" for dim in dims)
    to = ",".join(said[dim] for dim in dims)
    numbered = isl.Map(f"{{ [{own}] -> [{to}] : {from_zero} }}")
    back = ",".join(_pixel(box, dim) for dim in dims)
    digits = isl.Map(f"{{ [{own}] -> [{back}] : {from_zero} }}")
    every = isl.Set(f"{{ [{own}] : {from_zero} }}")
    if not (
        numbered.is_bijective()
        and numbered.range().is_equal(every)
        and numbered.reverse().is_equal(digits)
    ):
        raise VerifyError(f"rows of tiles of {box} are not their pixels", where="tiling")
    return Proof("every pixel is one row of one tile, and every row of a tile is a pixel", str(box))


def prove_apart(places: Mapping[str, Sequence[str]], domain: isl.UnionSet) -> None:
    """Prove of every statement that each of its instances has a place of its own.

    Args:
        places: by instance, "S0[i,j,k]": its tile's matrix, row, column and k, as isl text.
        domain: of the statements.

    Raises:
        VerifyError: two instances share a place; with one of them.
    """
    prefix = f"[{', '.join(_parameters(domain))}] -> "
    for instance, place in places.items():
        union = isl.UnionMap(f"{prefix}{{ {instance} -> [{','.join(place)}] }}")
        pieces = union.intersect_domain(domain).get_map_list()
        for at in range(pieces.n_map()):
            relation = pieces.get_at(at)
            others = relation.apply_range(relation.reverse())
            shared = others.subtract(relation.domain().identity())
            if not shared.is_empty():
                point = isl.sample_point(shared.domain())
                raise VerifyError(f"{point} shares its row of a tile with another", where="tiling")


def _parameters(domain: isl.UnionSet) -> list[str]:
    space = domain.get_space()
    count = space.dim(isl.dim_type.param)
    return [str(space.get_dim_name(isl.dim_type.param, at)) for at in range(count)]


def _pixel(box: PixelBox, dim: str) -> str:
    """The pixel of a row by its number and its tiles, as isl text."""
    tile = f"floor({M}/{box.rows})" if dim == M else dim
    row = f"({M} mod {box.rows})"
    return f"{box.side(dim)}*{tile} + (floor({row}/{box.weight(dim)}) mod {box.side(dim)})"
