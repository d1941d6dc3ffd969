"""Sums in blocks of k in a tile program: inner sums, promoted in the registers they are in.

    read_scales[i,k]      in front of a block's first k tile: its factors -> registers, if any
    multiply[i,k,s,m]     adds to the inner sum of the block, whose first product overwrites
    promote[i,k,m]        behind its last k tile: sum += factors * inner sum

Warps clear an inner sum where a block begins, `clear[k]`, as their instruction always adds.

An inner sum is a version of its own for every block, and all of them share one register array. So
that the products of a block are complete before it is promoted, and it is promoted before the next
block's first product, are dependences like others: the wait and the fence are derived. With the
wait a slot of the ring is free as well, and its release does not lag where every k tile is a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.kernel_parts import MainLoop, Part, Product, alone
from polygen.poly.legality import Proof
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tile_tree import loop, steps


def whole_blocks(each: int) -> str:
    """What is known of the number of k tiles where a block has several, as isl text."""
    return f" and k_tiles mod {each} = 0" if each > 1 else ""


def prove_whole_blocks(count: isl.Set, prefix: str, each: int) -> Proof:
    """Prove that the k tiles of a sum are those of whole blocks.

    Args:
        count: the parameter space in which `k_tiles` is their number.
        prefix: of isl texts over its parameters.
        each: k tiles of a block.

    Raises:
        VerifyError: with sizes for which a block would end behind the last one.
    """
    rest = count.subtract(isl.Set(f"{prefix}{{ : 1 = 1{whole_blocks(each)} }}"))
    if not rest.is_empty():
        raise VerifyError(f"a block of {each} k tiles ends behind the last: {rest}", where="tiling")
    return Proof("every block of a sum has all of its k tiles", f"{each} in each")


def inner_cell(shape: RoleShape, product: Product) -> str:
    """The inner sum of instruction `m` that k tile `k` adds to."""
    return f"{product.called('inner')}[{shape.owner('i', _block(shape))},m]"


def begun(shape: RoleShape) -> str:
    """When an inner sum is added to, and not overwritten, as isl text."""
    return f"(k mod {shape.block_tiles}) + s > 0"


def _block(shape: RoleShape) -> str:
    """The number of k tile k's block."""
    return "k" if shape.block_tiles == 1 else f"floor(k/{shape.block_tiles})"


@dataclass(frozen=True, slots=True)
class ByWarps:
    """What warps do of sums in blocks.

    Attributes:
        statements: that clear inner sums, read factors, and promote.
        buffers: inner sums and factors.
        before: the names of those in front of a block's products.
        behind: of those behind.
        each: k tiles of a block.
    """

    statements: tuple[TileStatement, ...]
    buffers: tuple[Buffer, ...]
    before: tuple[str, ...]
    behind: tuple[str, ...]
    each: int


def by_warps(warps: Place, main: MainLoop, depth: int, atoms: str) -> ByWarps:
    """The statements of warps that promote; nothing where sums are in no blocks.

    Args:
        warps: who.
        main: what is multiplied.
        depth: indices of k of a k tile.
        atoms: the bounds of ``m`` and ``n``, as isl text.
    """
    each = main.block // depth
    if not main.block:
        return ByWarps((), (), (), (), 0)
    block = "k" if each == 1 else f"floor(k/{each})"
    first, last = (f"0 <= k < k_tiles and {at} mod {each} = 0" for at in ("k", "(k + 1)"))
    found: list[TileStatement] = []
    buffers: list[Buffer] = []
    before: list[str] = []
    behind: list[str] = []
    for product in main.products:
        inner, scales = product.called("inner"), product.called("scales")
        sums, held = f"{inner}[{block},w,m,n] : {atoms}", f"{scales}[{block},w]"
        total = f"{product.called('sum')}[w,m,n] : {atoms}"
        factors = (held,) if product.scaled else ()
        for name, bounds, reads, writes, op in (
            ("clear", first, (), (sums,), "map"),
            *([("read_scales", first, (), (held,), "move")] if product.scaled else []),
            ("promote", last, (sums, *factors, f"{total} and k >= {each}"), (total,), "map"),
        ):
            one = product.called(name)
            found.append(warps.runs(one, ("k",), bounds, reads, writes, op))
            (behind if name == "promote" else before).append(one)
        names = (inner, scales) if product.scaled else (inner,)
        buffers += [warps.keeps(name, 1, slot=(("b",), "0")) for name in names]
    return ByWarps(tuple(found), tuple(buffers), tuple(before), tuple(behind), each)


def inner_of_warp(product: Product, each: int) -> str:
    """The inner sum of one instruction that k tile `k` adds to."""
    return f"{product.called('inner')}[{'k' if each == 1 else f'floor(k/{each})'},w,m,n]"


def promotions(shape: RoleShape) -> tuple[Part, Part]:
    """What reads factors in front of the products, and what promotes behind; in the loop over k."""
    consumer, each = shape.consumer, shape.block_tiles
    own = f"{shape.own(consumer)} and 0 <= k < k_tiles"
    rows = shape.tiles.atoms[0]
    reads, promoting = [], []
    buffers: list[Buffer] = []
    for product in shape.main.products:
        scales, inner = product.called("scales"), product.called("inner")
        held = f"{scales}[{shape.owner('i', _block(shape))}]"
        total = f"{product.called('sum')}[{shape.owner('i')},m]"
        if product.scaled:
            reads.append(
                consumer.runs(
                    product.called("read_scales"), ("i", "k"), f"{own} and k mod {each} = 0",
                    (tile_of(consumer),), (held,), "move",
                )
            )  # fmt: skip
        last = f"{own} and (k + 1) mod {each} = 0 and 0 <= m < {rows}"
        promoting.append(
            consumer.runs(
                product.called("promote"), ("i", "k", "m"), last,
                (inner_cell(shape, product), *([held] if product.scaled else []),
                 f"{total} : k >= {each}"), (total,),
            )
        )  # fmt: skip
        names = (inner, scales) if product.scaled else (inner,)
        buffers += [consumer.keeps(name, 2) for name in names]
    tree = loop("m", steps(*(one.name for one in promoting)))
    before = alone(reads, buffers, steps(*(one.name for one in reads)))
    return before, alone(promoting, (), steps(tree))
