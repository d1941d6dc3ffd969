"""The leaves of a chain whose warps do everything: copies, fragment loads and both products.

Every tile of keys is the only tile along what the first product sums over, and a k tile of the
second one; the tile of rows is brought once. What is between the products, and what comes behind
them, is as with roles (`polygen.lower.chain_leaves`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polygen.lower.buffers import Buffer
from polygen.lower.carried import order_of
from polygen.lower.chain_scan import KeyScan
from polygen.lower.given import Given
from polygen.lower.operands import copy, load
from polygen.lower.plan import Leaf
from polygen.lower.ring_tiles import ring_extents
from polygen.lower.sync_work import Groups
from polygen.lower.warps import shared
from polygen.lower.work import Clear, Copy, Product
from polygen.poly.chain_layers import next_tiles, nth
from polygen.poly.chain_match import VALUES, WEIGHTS, ChainMatch
from polygen.poly.chain_shape import ChainShape
from polygen.poly.layer_match import ROWS
from polygen.poly.operand import Operand

_STEP, _COPY = ("k", "s"), ("k", "p")


def starts(matched: ChainMatch, name: str, shape: ChainShape, key: str) -> tuple[str, str]:
    """Where a ring's tile begins along m or n of its product, and along what that sums over.

    Args:
        matched: the chain; a layer has one tile.
        name: of the ring.
        shape: the tiles.
        key: where the tile of keys begins.
    """
    rows, columns, _ = shape.tiles.cta
    if any(name in dict(one.rights) for one in matched.layers):
        return "0", "0"
    if name == VALUES:
        return f"b_n * {columns}", key
    return (f"b_m * {rows}" if name == "a" else key), "0"


def warp_leaves(
    given: Given,
    matched: ChainMatch,
    shape: ChainShape,
    buffers: Mapping[str, Buffer],
    scan: KeyScan,
    between: list[Leaf],
) -> list[Leaf]:
    """The leaves of copies, loads and products, in the order in which they are declared.

    Args:
        given: of the second product.
        matched: both.
        shape: the tiles.
        buffers: by name, with their layouts.
        scan: what is between the products.
        between: those leaves.

    Raises:
        ScheduleError: stored rows are no whole chunks.
    """
    found = []
    rings = {one.right: one.ring for one in shape.layer_tiles}
    for name, operand in matched.operands:
        ring = f"ring_{rings.get(name, name)}"
        one = replace(_copy(given, matched, shape, name, operand, scan.key), buffer=ring)
        one = shared(given, one, buffers[one.buffer])
        unit = "cp.async" if one.asynchronous else "threads"
        found.append(Leaf(f"copy_{name}", "move", unit, _COPY, one))
        own = shape.tiles.warp[0] if name == "a" else one.tile
        order = order_of(matched, name, given.atom)
        loaded = replace(load(given, name, operand, own, order), buffer=ring)
        found.append(Leaf(f"load_{name}", "load", "threads", _STEP, loaded))
    if shape.asynchronous:
        note = "commit[t]: the copies of step t become one group"
        found.append(Leaf("commit", "commit", "cp.async", ("t",), Groups(note=note)))
    layers, left = _layers(matched, shape, scan)
    return [
        *found,
        *layers,
        Leaf("zero", "zero", "threads", (), Clear(("sum",))),
        Leaf("clear", "zero", "threads", ("k",), Clear(shape.all_scores, shape.tiles.cta[2])),
        *between,
        *(
            _product(nth("score", n), left, right, total, shape.tiles.cta[2])
            for n, (right, total) in enumerate(zip(shape.key_rings, shape.all_scores, strict=True))
        ),
        _product("mma", WEIGHTS, VALUES, "sum"),
    ]


def _layers(matched: ChainMatch, shape: ChainShape, scan: KeyScan) -> tuple[list[Leaf], str]:
    """The leaves of layers, and the registers in which the last one leaves its rows."""
    found, left = [], ROWS
    for of, one in zip(shape.layers, matched.layers, strict=True):
        work = scan.of_layer(one, of.columns)
        found += [
            Leaf(of.called("clear"), "zero", "threads", ("k",), Clear(work.sums, of.columns)),
            *(Leaf(of.called(op), op, "threads", ("k",), work) for op in ("weigh", "convert")),
            *(
                _product(nth(of.called("score"), n), left, right, total, of.columns)
                for n, (right, total) in enumerate(zip(of.rights, work.sums, strict=True))
            ),
        ]
        if shape.asynchronous and next_tiles(shape.layer_tiles, of, shape.layer_slots):
            name = of.called("commit")
            group = Groups(note=f"{name}[k]: tiles that take the places of this layer's")
            found.append(Leaf(name, "commit", "cp.async", ("k",), group))
        left = work.weights
    return found, left


def _product(name: str, left: str, right: str, total: str, columns: int = 0) -> Leaf:
    """A product of rows in fragments, or of what a product before has left in registers.

    Args:
        name: of its statement.
        left: the rows' ring, or these registers.
        right: the other ring.
        total: its sums.
        columns: of these; 0: of a warp's tile.
    """
    fragment = "" if left == ROWS else f"{left}[m][s]"
    work = Product((left, right), total, columns=columns, fragment=fragment)
    return Leaf(name, "multiply", "mma.sync", (*_STEP, "m", "n"), work)


def _copy(
    given: Given, matched: ChainMatch, shape: ChainShape, name: str, operand: Operand, key: str
) -> Copy:
    extents = ring_extents(matched, name, shape.tiles)
    return copy(
        given, name, operand, shape.asynchronous,
        extents=extents, starts=starts(matched, name, shape, key),
    )  # fmt: skip
