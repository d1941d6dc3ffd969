"""Sums that several blocks share: every block of a cluster adds up a range of k tiles.

    send[i]         the block's partial sums of a tile -> a landing area of every block, each gets
                    those of the columns that it finishes
    combine[i,q]    what block q has sent is added to the total, block after block
    combined[i]     the total is complete, and the landing area no longer read

They may do so for all of their tiles, or for those of the last round, which are too few for all
blocks: then totals come to stand where sums stood that have been sent. Where they send a chunk of
columns at a time, `send[i,chunk]` and so on, they take less memory from the ring.

The sum is the same but for the order of its terms, so it has to be one that may be reassociated
(`require_reassociable`): the dependences of a term on those of other blocks are dropped, and those
of whoever reads the sum hold for the parts of all blocks (`within_blocks`, `refine`). In one block
terms stay in their order, and the totals add up the parts in the order of the blocks: nothing
depends on who comes first.

Versions alternate between two landing areas. So a block sends a tile's sums only when all others
have added up those of the tile before the last: they have sent the last one's after that. No
barrier says that areas are free.
"""

from __future__ import annotations

from collections.abc import Iterable

from polygen import isl
from polygen.errors import IllegalSchedule
from polygen.frontend.program import Contraction
from polygen.poly.kernel_parts import Part, Product, alone
from polygen.poly.legality import Proof
from polygen.poly.tile_program import Place
from polygen.poly.tile_tree import Node, loop, steps
from polygen.poly.tiling import Tiling
from polygen.poly.versions import maps_of

LANDING_SLOTS = 2
_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
# Sums whose registers hold whole terms: adding up parts of them rounds no more than one sum does.
_WIDE = ("f32", "s32")


def require_reassociable(contractions: Iterable[Contraction], split: int) -> tuple[Proof, ...]:
    """Refuse to add up parts of a sum apart where that is another sum.

    A product promises no order of its terms, and the instructions that add them up have none
    either. Integers are the same in every order. Floats are as precise as long as parts are not
    rounded to fewer digits than terms have.

    Args:
        contractions: the sums.
        split: blocks that add up a part each.

    Returns:
        The claim, as far as there is one.

    Raises:
        IllegalSchedule: sums are rounded after every term.
    """
    if split == 1:
        return ()
    found = []
    for one in contractions:
        if one.dtype.name not in _WIDE:
            raise IllegalSchedule(
                f"cluster.k = {split} adds up {one.write.name} in parts",
                where=one.name,
                why=f"its sums are {one.dtype}, rounded after every step: parts of them make "
                "another sum",
                nearest='Use cluster.k = 1, or sums in f32 (acc_dtype = "f32")',
            )
        subject = f"{one.write.name}, {split} ranges of k, added in their order"
        found.append(Proof(f"a sum in {one.dtype} may be added up in parts", subject))
    return tuple(found)


def within_blocks(carried: isl.UnionMap, products: Iterable[str]) -> isl.UnionMap:
    """Dependences between tiles without those of a sum on its own terms in other blocks.

    Args:
        carried: tile -> tile; the first coordinate is the block.
        products: the statements that add to sums.
    """
    found, names = isl.UnionMap("{ }"), set(products)
    for one in maps_of(carried):
        source, target = one.get_tuple_name(_IN), one.get_tuple_name(_OUT)
        if source == target and source in names:
            one = one.equate(_IN, 0, _OUT, 0)
        found = found.union(isl.UnionMap.from_map(one))
    return found


def partial_sums(consumer: Place, own: str, products: tuple[Product, ...], tiles: Tiling) -> Part:
    """The statements between the main loop and the epilogue.

    Args:
        consumer: who has the sums; its agents are a block and a consumer of it.
        own: its tiles whose sums are shared, as isl text over ``i``.
        products: whose sums.
        tiles: how many blocks share them, and how many columns they send at a time.
    """
    block, group = consumer.agents
    rows, split, in_place = tiles.atoms[0], tiles.split, tiles.last
    loops: tuple[str, ...] = ("i",)
    each = own
    if tiles.chunks > 1:
        loops, each = ("i", "chunk"), f"{own} and 0 <= chunk < {tiles.chunks}"
    at = ",".join(loops)
    every = f"0 <= m < {rows}"
    sums = tuple(f"{p.called('sum')}[i,{block},{group},m] : {every}" for p in products)
    sent = (f"{p.called('part')}[{at},d,{group},{block}] : 0 <= d < {split}" for p in products)
    landed = (f"{p.called('part')}[{at},{block},{group},q]" for p in products)
    totals = tuple(f"{p.called('total')}[i,{block},{group}]" for p in products)
    begun = tuple(f"{total} : {'q + chunk' if tiles.chunks > 1 else 'q'} > 0" for total in totals)
    if in_place:  # sums that have been sent make room for totals
        totals = begun = sums
    send = consumer.runs("send", loops, each, sums, tuple(sent), "move", "st.async")
    combine = consumer.runs(
        "combine", (*loops, "q"), f"{each} and 0 <= q < {split}", (*landed, *begun), totals,
        "combine", group="combined",
    )  # fmt: skip
    combined = consumer.runs("combined", loops, each, op="close")
    areas = (p.called("part") for p in products)
    buffers = [consumer.keeps(area, len(loops), "shared", LANDING_SLOTS) for area in areas]
    if not in_place:
        buffers += (consumer.keeps(p.called("total"), 1) for p in products)
    tree: Node = steps("send", loop("q", "combine"), "combined")
    if tiles.chunks > 1:
        tree = loop("chunk", tree, "unroll[x]")
    return alone((send, combine, combined), buffers, tree)
