"""What a copy moves: the image of a tile under the access relation.

The copy of operand A for (block b, k tile t) brings every element that the tile's MMAs read. isl
computes that image as a box of constant size, and the boxes of neighbouring tiles adjoin: their
corners are multiples of that size. The box is taken without the problem's bounds; what lies outside
the array is filled with zeros by the copy, which leaves sums unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.match import Operand
from polygen.poly.tiling import Tiling


@dataclass(frozen=True, slots=True)
class Footprint:
    """The box of one operand that one copy moves, per tensor axis."""

    tensor: str
    size: tuple[int, ...]


def footprint(operand: Operand, tiles: Tiling) -> Footprint:
    """The box that the copy of `operand` moves.

    Raises:
        VerifyError: the image of a tile is not a box of constant size, a multiple of it from 0.
    """
    extent = tiles.cta[0] if operand.role == "m" else tiles.cta[1]
    axes = ["", ""]
    axes[operand.role_axis], axes[operand.k_axis] = "r", "k"
    name = operand.tensor.name
    tile = f"b = floor(r/{extent}) and t = floor(k/{tiles.cta[2]})"
    image = isl.Map(f"{{ [b,t] -> {name}[{','.join(axes)}] : {tile} and b >= 0 and t >= 0 }}")
    box = isl.box(image)
    for b, t in ((0, 0), (1, 0), (0, 1), (3, 5), (7, 2)):
        at = {operand.role_axis: b, operand.k_axis: t}
        if _corner(box, b, t) != tuple(at[axis] * size for axis, size in enumerate(box.sizes)):
            raise VerifyError("the footprints of neighbouring tiles do not adjoin", where=name)
    return Footprint(name, box.sizes)


def _corner(box: isl.Box, b: int, t: int) -> tuple[int, ...]:
    point = isl.Point.zero(isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, 2))
    for position, value in enumerate((b, t)):
        point = point.set_coordinate_val(isl.dim_type.set, position, isl.Val(value))
    values = []
    for axis in range(len(box.sizes)):
        piece = box.lower.get_at(axis)
        values.append(int(piece.eval(point).to_python()))
    return tuple(values)
