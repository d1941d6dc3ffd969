"""Pages of keys: the numbers that a table says, and how boxes take them as coordinates.

The thread that has the copy engine fill a ring reads the numbers of a tile's pages before it waits
for a slot, so that they are there when there is one. Each box of the tile takes its page's.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.program import Tensor
from polygen.lower.accesses import base, steps_along
from polygen.lower.plan import Leaf
from polygen.lower.work import FindPages
from polygen.poly.by_chain import page_registers
from polygen.poly.elements import Along
from polygen.poly.key_pages import PLACE, KeyPages, PagedOperand
from polygen.poly.operand import Operand

PIECE = "piece"  # of a tile's boxes: stands for its number in their corners


def in_one_page(index: tuple[Along, ...]) -> tuple[Along, ...]:
    """An operand's index by key of a page: boxes begin inside of one."""
    return tuple(replace(one, modulo=0) for one in index)


def find_pages(
    name: str, operand: Operand, paged: PagedOperand, table: Tensor, pages: KeyPages, tile: str
) -> Leaf:
    """The leaf that finds the pages of a ring's next tile.

    Args:
        name: of the ring.
        operand: that comes there.
        paged: how its keys lie in pages.
        table: the array that names them.
        pages: of a tile.
        tile: which tile of keys is next.
    """
    steps = [one.stride for one in steps_along(table, paged.by_place, PLACE)]
    matrix = tuple(Along("", 0) if one.dim == PLACE else one for one in paged.by_place)
    work = FindPages(
        operand=name,
        table=table,
        registers=page_registers(name),
        base=base(table, matrix),
        step=steps[0] if steps else "0",
        places=pages.places(tile),
        count=table.dims[paged.along] if paged.along >= 0 else 1,
        extent=operand.tensor.dims[paged.axis],
        note=f"{table.name}[{', '.join(map(str, paged.places))}] -> {page_registers(name)}, the "
        f"pages of {operand.tensor.name} in which the tile's keys lie, {pages}; kept inside of it",
    )
    return Leaf(f"find_{name}", "find_pages", "threads", ("i", "k"), work, "producer")
