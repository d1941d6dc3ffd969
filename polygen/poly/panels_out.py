"""Panels of results: what a place makes of a tile's sums, and who takes it to global memory.

    finish[i,p]   sums -> panel p of every result, in shared memory
    store[i,p]    panels -> global memory: one thread has the copy engine do it, or all threads do

A slot is written again once what stored its panel before has read it. That is a dependence like any
other: the wait for it, the fence between threads and copy engine and the barrier are derived.
"""

from __future__ import annotations

from collections.abc import Iterable

from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tiling import Panels


def panels_out(
    place: Place,
    bounds: str,
    cell: str,
    reads: tuple[str, ...],
    panels: Panels,
    located: str,
    *,
    in_lines: bool = False,
) -> tuple[TileStatement, TileStatement]:
    """The two statements.

    Args:
        place: whose sums these are.
        bounds: of ``i`` and ``p``, as isl text.
        cell: of a panel, as isl text: ``i,p,group``.
        reads: what panels are made of.
        panels: what results are called in them.
        located: the cell that says which tile ``i`` is.
        in_lines: whether threads store them, line by line.
    """
    results = tuple(f"result_{name}[{cell}]" for name in panels.outputs)
    finish = place.runs("finish", ("i", "p"), bounds, (located, *reads), results)
    store = place.runs(
        "store", ("i", "p"), bounds, (located, *results), (), "move",
        "threads" if in_lines else "tma.store", executes="all" if in_lines else "one",
        group="" if in_lines else "store",
    )  # fmt: skip
    return finish, store


def panel_buffer(
    place: Place, name: str, slots: int, counts: Iterable[int], *, numbered: bool = True
) -> Buffer:
    """The slots of panels of one matrix.

    Args:
        place: of which each agent has its own.
        name: of the buffer.
        slots: panels that may be on their way at once.
        counts: how many panels tiles have, of each kind of tile.
        numbered: whether panels of a tile are numbered through.
    """
    # Panels of a tile that fill whole rounds of the slots lie where their number says.
    whole_rounds = numbered and all(count % slots == 0 for count in counts)
    slot = (("i", "p"), f"p mod {slots}") if whole_rounds else None
    return place.keeps(name, 2, "shared", slots, slot)
