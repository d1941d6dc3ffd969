"""A block whose threads fold elements: one place, no shared memory, and the leaves of its loops.

The products are of zeros (`polygen.lower.legal_elements`): what clears their sums and what adds to
them is no code, and what reads them reads 0.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.lower.folds import around
from polygen.lower.given import Given
from polygen.lower.plan import Inside, Leaf, Place
from polygen.lower.result_work import Epilogue
from polygen.lower.synchronise import AGENTS
from polygen.lower.work import Clear, Product

_PLACE = "warps"


def inside(given: Given, out: Epilogue) -> Inside:
    """Leaves and the place of all warps."""
    count = given.tiles.warp_count
    leaves = tuple(replace(leaf, place=_PLACE) for leaf in _leaves(given, out))
    place = Place(_PLACE, 0, count, count, False, AGENTS[_PLACE], 0, given.tree.loops())
    return Inside((), leaves, (place,), ())


def _leaves(given: Given, out: Epilogue) -> list[Leaf]:
    """The leaves of the block's loops, in the order in which they are declared."""
    products = given.tree.main.products
    clear = Clear(tuple(one.called("sum") for one in products))
    found = [Leaf("zero", "zero", "none", (), clear)]
    for one in products:
        work = Product((one.left, one.right), one.called("sum"))
        found.append(Leaf(one.called("nothing"), "multiply", "none", ("k", "s", "m", "n"), work))
    found.append(Leaf("compute", "compute", "threads", (), out))
    found.append(Leaf("finish_element", "edge", "threads", (), out))
    store = Leaf("store", "store_streamed", "threads", ("m",), out)
    return [*found, *around((store,), out, ())]
