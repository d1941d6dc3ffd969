"""Checks of keys in pages: the numbers that are read, and the boxes that take them.

1. The numbers of a tile's pages are read where the program's table has them, at the places that are
   proved to be those of the tile's keys (`polygen.poly.key_pages`).
2. A box takes its own page's number, begins at the row of it that is proved, and in all other axes
   where the block's matrix does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polygen.errors import VerifyError
from polygen.frontend.program import Tensor
from polygen.lower.find_pages import PIECE
from polygen.lower.formulas import position, units, value
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Boxes, FindPages
from polygen.poly.elements import Along
from polygen.poly.key_pages import PLACE, KeyPages, paged_operand
from polygen.poly.key_tiles import FIRST

Check = Callable[[Tensor, tuple[Along, ...], str, Mapping[str, str]], None]


def check_pages(plan: KernelPlan, of: Boxes, index: tuple[Along, ...], check: Check) -> None:
    """Check the boxes of one operand, and what finds its pages.

    Args:
        plan: the kernel.
        of: the boxes.
        index: what they are read at, k counting keys.
        check: refuses a text that is not the address of an index.

    Raises:
        VerifyError: with what differs.
    """
    paged, where = paged_operand(index), f"{plan.entry}: {of.tensor.name}"
    found = [work for work in plan.of(FindPages) if work.registers == of.pages]
    if paged is None or len(found) != 1:
        raise VerifyError(f"pages of {of.tensor.name} are found {len(found)} times", where=where)
    (work,) = found
    table, pages = plan.program.tensors[paged.table], KeyPages(paged.page, plan.tiles.cta[2])
    tile = f"({FIRST} + k)" if plan.key_tiles is not None else "k"
    named = table.dims[paged.along] if paged.along >= 0 else 1
    wanted = (table, pages.places(tile), named, of.tensor.dims[paged.axis])
    if (work.table, work.places, work.count, work.extent) != wanted:
        raise VerifyError(
            f"pages {', '.join(work.places)} of {work.count} are read of {work.table.name}, and "
            f"are {', '.join(wanted[1])} of {named}, of {table.name}",
            where=where,
        )
    check(table, paged.by_place, " + ".join([*work.base, f"place * {work.step}"]), {PLACE: "place"})
    if (of.pieces, of.box[0]) != (pages.boxes, pages.rows):
        raise VerifyError(
            f"{of.pieces} boxes of {of.box[0]} keys, and not {pages.boxes} of {pages.rows}",
            where=where,
        )
    given = {paged.axis: f"{of.pages}[{PIECE}]", paged.inside: pages.row(tile)}
    places = [dim for dim, _ in plan.batches] + ["b_m", "b_n"]
    for axis, corner in zip(of.axes, of.corner, strict=True):
        assert axis.axis is not None  # of pages no axis is made up
        if axis.axis in given:
            wrong = corner != given[axis.axis] or (axis.start, axis.step) != (0, 1)
        else:
            columns = plan.tiles.cta[1]
            wrong = any(
                axis.start + axis.step * value(corner, at)
                != position(index[axis.axis], at | {"n": at["b_n"] * columns})
                for at in units(places)
            )
        if wrong:
            raise VerifyError(
                f"boxes of {of.tensor.name} begin at {corner} of axis {axis.axis}", where=where
            )
