"""A block whose threads fold elements: one place, no shared memory, and the leaves of its loops.

The products are of zeros (`polygen.lower.legal_elements`): what clears their sums and what adds to
them is no code, and what reads them reads 0.
"""

from __future__ import annotations

from polygen.lower.folds import around
from polygen.lower.given import Given
from polygen.lower.plan import Inside, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.warps import without_buffers
from polygen.lower.work import Clear, Product


def inside(given: Given, out: Epilogue) -> Inside:
    """Leaves and the place of all warps."""
    return without_buffers(given, _leaves(given, out))


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
