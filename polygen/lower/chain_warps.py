"""The leaves of a chain whose warps do everything: copies, fragment loads and both products.

Every tile of keys is the only tile along what the first product sums over, and a k tile of the
second one; the tile of rows is brought once. What is between the products, and what comes behind
them, is as with roles (`polygen.lower.chain_leaves`).
"""

from __future__ import annotations

from collections.abc import Mapping

from polygen.lower.buffers import Buffer
from polygen.lower.given import Given
from polygen.lower.operands import copy, load
from polygen.lower.plan import Leaf
from polygen.lower.sync_work import Groups
from polygen.lower.warps import shared
from polygen.lower.work import Clear, Copy, Product
from polygen.poly.by_chain import ChainShape
from polygen.poly.chain_match import VALUES, WEIGHTS, ChainMatch, ring_extents
from polygen.poly.operand import Operand

_STEP, _COPY = ("k", "s"), ("k", "p")


def starts(name: str, shape: ChainShape, key: str) -> tuple[str, str]:
    """Where a ring's tile begins along m or n of its product, and along what that sums over.

    Args:
        name: of the ring.
        shape: the tiles.
        key: where the tile of keys begins.
    """
    rows, columns, _ = shape.tiles.cta
    if name == VALUES:
        return f"b_n * {columns}", key
    return (f"b_m * {rows}" if name == "a" else key), "0"


def warp_leaves(
    given: Given,
    matched: ChainMatch,
    shape: ChainShape,
    buffers: Mapping[str, Buffer],
    key: str,
    between: list[Leaf],
) -> list[Leaf]:
    """The leaves of copies, loads and products, in the order in which they are declared.

    Args:
        given: of the second product.
        matched: both.
        shape: the tiles.
        buffers: by name, with their layouts.
        key: where a tile of keys begins, as a formula.
        between: those from one product to the other.

    Raises:
        ScheduleError: stored rows are no whole chunks.
    """
    found = []
    for name, operand in matched.operands:
        one = _copy(given, shape, name, operand, key)
        one = shared(given, one, buffers[one.buffer])
        unit = "cp.async" if one.asynchronous else "threads"
        found.append(Leaf(f"copy_{name}", "move", unit, _COPY, one))
        own = shape.tiles.warp[0] if name == "a" else one.tile
        loaded = load(given, name, operand, own)
        found.append(Leaf(f"load_{name}", "load", "threads", _STEP, loaded))
    if shape.asynchronous:
        note = "commit[t]: the copies of step t become one group"
        found.append(Leaf("commit", "commit", "cp.async", ("t",), Groups(note=note)))
    score = Product(("a", "b"), "scores", columns=shape.tiles.cta[2])
    multiply = Product((WEIGHTS, VALUES), "sum", fragment="weights[m][s]")
    each = (*_STEP, "m", "n")
    return [
        *found,
        Leaf("zero", "zero", "threads", (), Clear(("sum",))),
        Leaf("clear", "zero", "threads", ("k",), Clear(("scores",), shape.tiles.cta[2])),
        *between,
        Leaf("score", "multiply", "mma.sync", each, score),
        Leaf("mma", "multiply", "mma.sync", each, multiply),
    ]


def _copy(given: Given, shape: ChainShape, name: str, operand: Operand, key: str) -> Copy:
    extents = ring_extents(name, shape.tiles, shape.depth)
    return copy(
        given, name, operand, shape.asynchronous,
        extents=extents, starts=starts(name, shape, key),
    )  # fmt: skip
