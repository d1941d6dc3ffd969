"""Layers in front of a chain whose warps do everything: statements, cells, and their place in time.

    copy_l0[k,p]                    the layer's right operand -> ring, by all warps, once
    load_l0[k,s]                    ring -> fragments
    clear_l0[k] score_l0[k,s,m,n]   the sums: the rows of a warp by all of the layer's columns
    weigh_l0[k] convert_l0[k]       what is made of them -> the left operand of the next product

The first layer multiplies rows that come from memory, each other one what the layer before has
left, in registers; so does the first product of the chain. All of that runs in front of the first
tile of keys: k is 0. Each statement is that of a chain's product (`polygen.poly.chain_by_warps`),
with the layer's name. Of several products of the same rows each has a right operand and sums of its
own, `l0_2` beside `l0`; what is made of all sums takes the place of the first one's.

Right operands lie in shared memory all at once; or those of one form share a ring. Then k tells its
tiles apart, and a tile is copied once the one before it in its slot has been multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polygen.poly.tile_program import Buffer, Place, TileStatement

ONCE = "k = 0"


@dataclass(frozen=True, slots=True)
class Tile:
    """A right operand of a layer in shared memory.

    Attributes:
        right: its name.
        ring: that it comes to.
        number: which of the ring's tiles it is; -1: its only one.
    """

    right: str
    ring: str
    number: int

    @property
    def at(self) -> int:
        """What k is for the statements that copy, load and multiply it."""
        return max(self.number, 0)

    @property
    def bounds(self) -> str:
        """The same, as isl text."""
        return f"k = {self.at}"

    def cell(self, *inside: str) -> str:
        """Its cell, or that of a part of it."""
        version = ("k",) if self.number >= 0 else ()
        return f"ring_{self.ring}[{','.join((*version, *inside))}]"

    def time(self, then: int) -> str:
        """When its statements run, where others of the layers do at k = 0."""
        return f"k + {then - self.at}"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer is made of.

    Attributes:
        name: of its right operand, and of its registers.
        steps: instructions along what it sums over.
        columns: of its sums, as registers hold them.
        products: of the same rows, each with a right operand and sums of its own.
        shared: of each product the ring that its right operand shares with other layers', and which
            of that ring's tiles it is; (): each has a ring of its own.
        again: layers before whose values are read behind its sums.
    """

    name: str
    steps: int
    columns: int
    products: int = 1
    shared: tuple[tuple[str, int], ...] = ()
    again: tuple[str, ...] = ()

    def called(self, what: str) -> str:
        """A statement, or a cell, of the layer."""
        return f"{what}_{self.name}"

    @property
    def rights(self) -> tuple[str, ...]:
        """Its right operands."""
        return tuple(nth(self.name, n) for n in range(self.products))

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Where its right operands come to."""
        each = self.shared or tuple((right, -1) for right in self.rights)
        return tuple(
            Tile(right, ring, number)
            for right, (ring, number) in zip(self.rights, each, strict=True)
        )


def next_tiles(every: tuple[Tile, ...], layer: LayerShape, slots: int) -> tuple[str, ...]:
    """The right operands that take the places of a layer's in rings with so many slots."""
    free = {(one.ring, one.number + slots) for one in layer.tiles if one.number >= 0}
    return tuple(one.right for one in every if (one.ring, one.number) in free)


def nth(name: str, number: int) -> str:
    """A statement, or a cell, of one of several products of the same rows."""
    return f"{name}_{number + 1}" if number else name


def layer_cells(layers: tuple[LayerShape, ...], warps: Place) -> Iterator[Buffer]:
    """The registers of layers: sums, and what is made of them."""
    for one in layers:
        for number in range(one.products):
            yield warps.keeps(nth(one.called("scores"), number))
        yield warps.keeps(one.called("weights"))


def between_layers(one: LayerShape, warps: Place, bounds: str) -> tuple[TileStatement, ...]:
    """What runs from a layer's sums to the next product's operand.

    Args:
        one: the layer.
        warps: who runs it.
        bounds: of all instructions of its sums, as isl text.
    """
    names = (nth(one.called("scores"), number) for number in range(one.products))
    scores = tuple(f"{name}[w,m,n] : {bounds}" for name in names)
    weights = f"{one.called('weights')}[w]"
    reads = (*scores, *(f"{left_by(name)}[w,m,n] : {bounds}" for name in one.again))
    return (
        warps.runs(one.called("weigh"), ("k",), ONCE, reads, scores[:1]),
        warps.runs(one.called("convert"), ("k",), ONCE, scores[:1], (weights,)),
    )


def left_by(layer: str) -> str:
    """The registers in which a layer leaves what it has made, called by the layer's name; "": the
    first product of the chain.
    """
    return f"scores_{layer}" if layer else "scores"


def of_layer(one: LayerShape) -> tuple[str, ...]:
    """The statements that compute a layer's elements."""
    scores = (nth(one.called("score"), number) for number in range(one.products))
    return (*scores, one.called("weigh"))


def middle_of(one: LayerShape) -> tuple[str, str]:
    """The statements between a layer's sums and the next product, in order."""
    return one.called("weigh"), one.called("convert")
