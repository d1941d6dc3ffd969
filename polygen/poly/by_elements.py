"""The program of a kernel that only folds elements: its products are of zeros.

    zero                the sums begin at 0
    nothing[k,s,m,n]    products of zeros, added to them: nothing is executed
    store[m]            elements stream from memory into registers, and terms of them into folds

Warps read for themselves, and share nothing: nobody waits for anything. A sum is 0 from beginning
to end, so that no register holds it.
"""

from __future__ import annotations

from polygen.hardware.device import common_facts
from polygen.poly.fold_parts import folded
from polygen.poly.kernel_parts import ALWAYS, MainLoop, alone, flat
from polygen.poly.tile_program import Place, TileProgram
from polygen.poly.tile_tree import Node, loop, steps
from polygen.poly.tiling import Tiling


def by_elements(tiles: Tiling, main: MainLoop) -> TileProgram:
    """The program.

    Args:
        tiles: the tile hierarchy; an instruction is the elements that a warp reads together.
        main: the products of zeros.
    """
    warps = Place("warps", ("w",), (tiles.warp_count,), common_facts()["warp_size"])
    rows, columns = tiles.atoms
    cells = f"0 <= m < {rows} and 0 <= n < {columns}"
    sums = tuple(f"{one.called('sum')}[w,m,n]" for one in main.products)
    cleared = tuple(f"{total} : {cells}" for total in sums)
    zero = warps.runs("zero", (), ALWAYS, (), cleared, "map", "none")
    step = f"0 <= k < k_tiles and 0 <= s < {tiles.k_steps}"
    products = tuple(
        warps.runs(
            one.called("nothing"), ("k", "s", "m", "n"), f"{step} and {cells}",
            (total,), (total,), "product", "none",
        )
        for one, total in zip(main.products, sums, strict=True)
    )  # fmt: skip
    row = tuple(f"{total} : 0 <= n < {columns}" for total in sums)
    store = warps.runs("store", ("m",), f"0 <= m < {rows}", row)
    end = folded(alone([store], [], loop("m", "store")), warps, (), ALWAYS)
    each: list[Node] = [loop("m", loop("n", one.name)) for one in products]
    order = flat(steps("zero", loop("k", loop("s", steps(*each))), end.order))
    return TileProgram(
        ("k_tiles",),
        "k_tiles >= 1",
        (*(warps.keeps(one.called("sum")) for one in main.products), *end.buffers),
        (zero, *products, *end.statements),
        order,
        order,
    )
