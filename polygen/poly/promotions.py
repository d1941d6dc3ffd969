"""Sums in blocks of k in a tile program: inner sums, promoted in the registers they are in.

    read_scales[i,k]      in front of a block's first k tile: its factors -> registers, if any
    multiply[i,k,s,m]     adds to the inner sum of the block, whose first product overwrites
    promote[i,k,m]        behind its last k tile: sum += factors * inner sum

Warps clear an inner sum where a block begins, `clear[k]`, as their instruction always adds.

An inner sum is a version of its own for every block, and all of them share one register array. So
that the products of a block are complete before it is promoted, and it is promoted before the next
block's first product, are dependences like others: the wait and the fence are derived. With the
wait a slot of the ring is free as well, and its release does not lag where every k tile is a block.

Inner sums of a warpgroup may have registers twice, as a ring of two slots. Then a block is promoted
while the products of the next one run (`pipeline.overlap`):

    multiply[i,k,s,m] commit[i,k]
    promote[i,k-1,m]       waits for all products but those
    read_scales[i,k]
    promote_last[i,k,m]    behind the last block of a run, whose products nothing else runs beside

Registers have no addresses, so a run of blocks is one iteration of the code (`Loop.together`); and
the compiler follows products across none, so that a run ends with nothing on its way. Blocks that
are too few for a run are promoted one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.kernel_parts import MainLoop, Product
from polygen.poly.legality import Proof
from polygen.poly.promoted_by import SETS, promoted_by
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tile_tree import Steps, loop, steps


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


@dataclass(frozen=True, slots=True)
class Promotions:
    """What consumers do of sums in blocks, in the loop over k.

    Attributes:
        statements: that read factors, and promote.
        buffers: inner sums and factors.
        order: their meaning: in front of the products, and behind them.
        schedule: what runs, likewise.
        late: when statements run in the loop, where that is not their own iteration of it.
        together: as of `Loop`.
    """

    statements: tuple[TileStatement, ...]
    buffers: tuple[Buffer, ...]
    order: tuple[Steps, Steps]
    schedule: tuple[Steps, Steps]
    late: tuple[tuple[str, str], ...] = ()
    together: tuple[str, int] = ("", 1)


def promotions(shape: RoleShape) -> Promotions:
    """What reads factors in front of the products, and what promotes behind."""
    consumer, each, run = shape.consumer, shape.block_tiles, shape.overlap
    own = f"{shape.own(consumer)} and 0 <= k < k_tiles"
    rows = shape.tiles.atoms[0]
    last = f"{own} and (k + 1) mod {each} = 0 and 0 <= m < {rows}"
    when = [(name, f"{last} and {of}") for name, of in promoted_by(run, "k")]
    reads: list[TileStatement] = []
    promoting: dict[str, list[TileStatement]] = {name: [] for name, _ in when}
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
        cells = (inner_cell(shape, product), *([held] if product.scaled else []))
        for name, bounds in when:
            promoting[name].append(
                consumer.runs(
                    product.called(name), ("i", "k", "m"), bounds,
                    (*cells, f"{total} : k >= {each}"), (total,),
                )
            )  # fmt: skip
        slot = (("i", "b"), f"b mod {SETS}") if run > 1 else None
        buffers.append(consumer.keeps(inner, 2, slots=SETS if run > 1 else 1, slot=slot))
        buffers += [consumer.keeps(scales, 2)] if product.scaled else []
    read = steps(*(one.name for one in reads))
    behind = [loop("m", steps(*(s.name for s in of))) for of in promoting.values()]
    statements = (*reads, *(one for of in promoting.values() for one in of))
    order = read, steps(*behind)
    if run == 1:
        return Promotions(statements, tuple(buffers), order, order)
    # The next block's products are issued, then this one is promoted, and its factors are free.
    schedule = steps(), steps(behind[0], *read.children, behind[1])
    late = tuple((one.name, "k + 1") for one in promoting["promote"])
    first = promoting["promote"][0].name
    return Promotions(statements, tuple(buffers), order, schedule, late, (first, run))
