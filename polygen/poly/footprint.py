"""What a copy moves: the image of a tile under the access relation.

The copy of operand A for (block b, k tile t) brings every element that the tile's MMAs read. isl
computes that image as a box: its corner, an affine function of (b, t), and its size, constant for
all sizes of the problem. The box is taken without the problem's bounds; what lies outside the array
is filled with zeros by the copy, which leaves sums unchanged.
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
    corner: tuple[str, ...]  # as isl prints it, over (b, t): "128b"
    step: tuple[tuple[int, int], ...]  # the corner's factors of b and t
    size: tuple[int, ...]

    def __str__(self) -> str:
        ranges = ", ".join(f"{c} .. +{s}" for c, s in zip(self.corner, self.size, strict=True))
        return f"{self.tensor}[{ranges}]"


def footprint(operand: Operand, tiles: Tiling) -> Footprint:
    """The box that the copy of `operand` moves.

    Raises:
        VerifyError: the image of a tile is not a box of constant size at a linear position.
    """
    extent = tiles.cta[0] if operand.role == "m" else tiles.cta[1]
    axes = ["", ""]
    axes[operand.role_axis], axes[operand.k_axis] = "r", "k"
    name = operand.tensor.name
    tile = f"b = floor(r/{extent}) and t = floor(k/{tiles.cta[2]})"
    image = isl.Map(f"{{ [b,t] -> {name}[{','.join(axes)}] : {tile} and b >= 0 and t >= 0 }}")
    box = isl.box(image)
    origin = _corner(box, 0, 0)
    along_b = tuple(x - o for x, o in zip(_corner(box, 1, 0), origin, strict=True))
    along_t = tuple(x - o for x, o in zip(_corner(box, 0, 1), origin, strict=True))
    step = tuple(zip(along_b, along_t, strict=True))
    for b, t in ((3, 5), (7, 2)):
        linear = tuple(o + b * p + t * q for o, (p, q) in zip(origin, step, strict=True))
        if any(origin) or _corner(box, b, t) != linear:
            raise VerifyError("the footprint of a copy is not at a linear position", where=name)
    corner = tuple(f"{p}*b" if p else f"{q}*t" for p, q in step)
    return Footprint(name, corner, step, box.sizes)


def _corner(box: isl.Box, b: int, t: int) -> tuple[int, ...]:
    point = isl.Point.zero(isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, 2))
    for position, value in enumerate((b, t)):
        point = point.set_coordinate_val(isl.dim_type.set, position, isl.Val(value))
    values = []
    for axis in range(len(box.sizes)):
        piece = box.lower.get_at(axis)
        values.append(int(piece.eval(point).to_python()))
    return tuple(values)
