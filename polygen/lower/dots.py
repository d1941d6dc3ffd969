"""A block whose lanes multiply: one place, no shared memory, and the leaves of its loops.

Rows lie in whole chunks (`polygen.lower.legal`). A lane reads a chunk of every row of its warp
at a step. Rows outside an array are read from its last one and not stored; chunks outside are
zeros.
"""

from __future__ import annotations

from polygen.lower.given import Given
from polygen.lower.operands import copy
from polygen.lower.plan import Inside, Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.warps import without_buffers
from polygen.lower.work import Clear, Product, Stream
from polygen.poly.by_lanes import STREAMED, held
from polygen.poly.operand import Operand


def inside(given: Given, out: Epilogue) -> Inside:
    """Leaves and the place of all warps."""
    return without_buffers(given, _leaves(given, out))


def _stream(given: Given, name: str, operand: Operand) -> Stream:
    """One operand's loads."""
    tiles, side = given.tiles, 0 if operand.role == "m" else 1
    return Stream(
        copy=copy(given, name, operand, asynchronous=False),
        first=f"b_{operand.role} * {tiles.cta[side]} + w_{operand.role} * {tiles.warp[side]}",
        slots=held(given.schedule, tiles, operand.role),
        once=operand.role == STREAMED,
    )


def _leaves(given: Given, out: Epilogue) -> list[Leaf]:
    """The leaves of the block's loops, in the order in which they are declared."""
    products = given.tree.main.products
    clear = Clear(tuple(one.called("sum") for one in products))
    found = [Leaf("zero", "zero", "threads", (), clear)]
    for name, operand in given.match.operands:
        work = _stream(given, name, operand)
        found.append(Leaf(f"load_{name}", "load", "lanes", ("k", "s"), work))
    for one in products:
        product = Product((one.left, one.right), one.called("sum"))
        found.append(Leaf(one.called("dot"), "multiply", "dot", ("k", "s", "m", "n"), product))
    found.append(Leaf("compute", "compute", "threads", (), out))
    found.append(Leaf("finish_element", "edge", "threads", (), out))
    found.append(Leaf("store", "store", "lanes", ("m",), out))
    return found
