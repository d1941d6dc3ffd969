"""Which axes of a result rows of a tile run along, where they are pixels of a box.

1. Row axes are those of the result that the operands with m have and those with n have not: of
   ``npqcrs,krsc->npqk`` n, p and q. As matched, the last is m and the others count matrices.
2. `in_boxes` makes the first of them m whose size is a name, or else the first of more than one
   index: tiles along it are those of the raster. The others count tiles instead of matrices. It
   changes names of dims and no access.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polygen.errors import ScheduleError
from polygen.frontend.program import Dim
from polygen.poly.elements import Along
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.pixel_boxes import M, PixelBox
from polygen.poly.pointwise import Element, Pointwork
from polygen.schedule.model import Schedule


def row_axes(match: Match) -> tuple[tuple[str, Dim], ...]:
    """The row axes: dims and extents, in the order of the result's."""
    extents: dict[str, Dim] = {"m": match.m, **dict(match.batches)}
    if match.groups is not None:
        return ((M, match.m),)
    own = [_dims(operand) for operand in match.side("m")]
    other = set().union(*(_dims(operand) for operand in match.side("n")))
    return tuple(
        (dim, extents[dim])
        for dim in match.axes
        if dim == M or (dim != "n" and dim not in other and all(dim in one for one in own))
    )


def _dims(operand: Operand) -> set[str]:
    return {term.dim for one in operand.index for term in one.terms}


def named(match: Match, schedule: Schedule) -> dict[str, str]:
    """What dims are called where rows are pixels of a schedule's boxes; {}: as they are."""
    if not schedule.tile.pixels:
        return {}
    first = first_axis(row_axes(match))
    others = (dim for dim in match.axes if dim not in (first, "n"))
    return {first: M} | {dim: f"z{number}" for number, dim in enumerate(others)}


def first_axis(axes: Sequence[tuple[str, Dim]]) -> str:
    """Which of the row axes is m in boxes."""
    found = next((dim for dim, extent in axes if isinstance(extent, str)), None)
    return found or next((dim for dim, extent in axes if extent != 1), M)


def in_boxes(match: Match, schedule: Schedule) -> Match:
    """The products with rows that are pixels of the schedule's boxes.

    Raises:
        ScheduleError: the result has fewer row axes than boxes have sides.
    """
    names = named(match, schedule)
    if not names:
        return match
    axes, sides = row_axes(match), schedule.tile.pixels
    if len(sides) > len(axes):
        listed = ", ".join(str(extent) for _, extent in axes)
        raise ScheduleError(
            f"tile.pixels = {list(sides)} of rows along [{listed}]",
            where=f"schedule {schedule.name}",
            why="boxes of pixels have a side along each of the last axes that rows run along",
            nearest=f"Use {len(axes)} side(s), or leave it out",
        )
    whole = (1,) * (len(axes) - len(sides)) + sides
    box = PixelBox(tuple((names[dim], side) for (dim, _), side in zip(axes, whole, strict=True)))
    extents: dict[str, Dim] = {"m": match.m, **dict(match.batches)}
    new = {names[dim]: extent for dim, extent in extents.items()}
    dims = tuple(names.get(dim, dim) for dim in match.axes)
    return replace(
        match,
        operands=tuple((name, _operand(one, names)) for name, one in match.operands),
        axes=dims,
        batches=tuple((dim, new[dim]) for dim in dims if dim not in (M, "n")),
        m=new[M],
        box=box,
    )


def work_in_boxes(work: Pointwork, match: Match, schedule: Schedule) -> Pointwork:
    """The epilogue of such products.

    Args:
        work: of the products as they are matched.
        match: these products.
        schedule: with boxes, or without.
    """
    names = named(match, schedule)
    if not names:
        return work
    return replace(
        work,
        reads=tuple(_element(one, names) for one in work.reads),
        writes=tuple(_element(one, names) for one in work.writes),
        coordinates=tuple((name, one.renamed(names)) for name, one in work.coordinates),
    )


def _operand(operand: Operand, names: Mapping[str, str]) -> Operand:
    return replace(
        operand,
        index=_index(operand.index, names),
        extents=tuple((names.get(dim, dim), extent) for dim, extent in operand.extents),
    )


def _element(element: Element, names: Mapping[str, str]) -> Element:
    return replace(element, index=_index(element.index, names))


def _index(index: tuple[Along, ...], names: Mapping[str, str]) -> tuple[Along, ...]:
    return tuple(one.renamed(names) for one in index)
