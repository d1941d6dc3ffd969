"""Checks of tiles of pixels: every row of a box that is moved is the pixel of its number.

What a row of a tile is, the tiling says and proves of the program's elements
(`polygen.poly.pixel_boxes`). A box has its elements along the axes of its map, the last one
fastest. So each of its rows, one by one, is the element of the array that the row's pixel is read
at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from polygen.errors import VerifyError
from polygen.lower.formulas import position, units, value
from polygen.lower.operands import K_INSIDE
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Store
from polygen.lower.work import Boxes, Locate, Move
from polygen.poly.elements import Along

_AT_ZERO = ("group", "owner", "p", "rank", "k", "k_tiles", K_INSIDE)


def check_boxes_of_pixels(plan: KernelPlan) -> None:
    """Check the boxes of the operands with m, of panels in and out, and where tiles begin.

    Raises:
        VerifyError: with the array, the row of the tile, and where its box has it.
    """
    box = plan.match.box
    if not box:
        return
    sides = tuple(box.side(dim) for dim, _ in plan.match.counted)
    for locate in plan.of(Locate):
        if locate.sides != sides:
            raise VerifyError(f"tiles are {locate.sides} apart and not {sides}", where=plan.entry)
    launch, along = plan.launch, plan.schedule.raster.along == "m"
    counted = launch.tile_along if along else launch.tile_across
    if counted != box.side("m"):
        raise VerifyError(f"tiles along m have {counted} indices, not {box}", where=plan.entry)
    found = 0
    for leaf, boxes, index in _moved(plan):
        found += 1
        for own in _parts(plan, leaf, boxes):
            _check_rows(plan, boxes, index, own)
    if found < 2:  # an operand comes, and a result leaves
        raise VerifyError(f"{found} arrays are moved in boxes of pixels", where=plan.entry)


def _moved(plan: KernelPlan) -> Iterator[tuple[Leaf, Boxes, tuple[Along, ...]]]:
    """Boxes of rows of tiles, and the accesses that they are of."""
    elements = (*plan.work.reads, *plan.work.writes)
    for leaf in plan.leaves:
        if isinstance(leaf.work, Move):
            for boxes in leaf.work.boxes:
                name = boxes.buffer.removeprefix("ring_")
                if boxes.buffer.startswith("ring_"):
                    operand = plan.match.operand(name)
                    if operand.role == "m":
                        yield leaf, boxes, operand.index
                else:
                    of = boxes.map.removeprefix("map_in_")
                    yield leaf, boxes, next(e.index for e in elements if e.name == of)
        elif isinstance(leaf.work, Store):
            for panel, boxes in leaf.work.panels:
                yield leaf, boxes, next(e.index for e in elements if e.name == panel.name)


def _parts(plan: KernelPlan, leaf: Leaf, boxes: Boxes) -> Iterator[tuple[dict[str, int], int, int]]:
    """Who moves which box of a tile: names in its corner, and its first row and column."""
    rows = boxes.box[0]
    if boxes.buffer.startswith("ring_"):
        along = plan.schedule.cluster.m
        for rank in range(plan.schedule.cluster.blocks):
            yield {"rank": rank}, rank // along % boxes.parts * rows, 0
        return
    tiles, width = plan.tiles, boxes.axes[-1].box * boxes.count
    per_block = tiles.columns // width
    for group in range(tiles.warps[0]):
        for panel in range(tiles.warp[0] // rows * per_block):
            first = group * tiles.warp[0] + panel // per_block * rows
            yield {"group": group, "owner": group, "p": panel}, first, panel % per_block * width


def _check_rows(
    plan: KernelPlan,
    boxes: Boxes,
    index: tuple[Along, ...],
    part: tuple[dict[str, int], int, int],
) -> None:
    box, (own, first, column) = plan.match.box, part
    outer = [dim for dim, _ in (*plan.batches, *plan.match.sums)]
    for at in units([*outer, "b_m", "b_n"]):
        others = dict.fromkeys(_AT_ZERO, 0)
        names = others | at | own
        corner = [value(text, names) for text in boxes.corner]
        steps = [range(axis.box) for axis in boxes.axes[:-1]]
        for row, places in enumerate(itertools.product(*steps)):
            pixel = (
                dict(at)
                | {"n": at["b_n"] * plan.tiles.cta[1] + column}
                | {
                    dim: (at["b_m"] * side if dim == "m" else at[dim])
                    + (first + row) // box.weight(dim) % side
                    for dim, side in box.sides
                }
            )
            found: dict[int, int] = {}
            for axis, begin, place in zip(boxes.axes, corner, (*places, 0), strict=True):
                if axis.axis is not None:
                    here = axis.start + axis.step * (begin + axis.every * place)
                    found[axis.axis] = found.get(axis.axis, 0) + here
            for number, one in enumerate(index):
                inner = number == boxes.axes[-1].axis
                if not inner and found[number] != position(one, pixel):
                    raise VerifyError(
                        f"row {first + row} of a tile of {boxes.tensor.name} is at "
                        f"{found[number]} of axis {number} and not at {position(one, pixel)}",
                        where=f"{plan.entry}: {', '.join(boxes.corner)}",
                    )
