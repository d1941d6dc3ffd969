"""Sums that several blocks share: every block of a cluster adds up a range of k tiles.

    send[i]         the block's partial sums of a tile -> a landing area of every block, each gets
                    those of the columns that it finishes
    combine[i,q]    what block q has sent is added to the total, block after block
    combined[i]     the total is complete, and the landing area no longer read

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
from polygen.hardware.units import unit
from polygen.poly.kernel_parts import Part, Product
from polygen.poly.legality import Proof
from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tile_tree import loop, steps
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


def partial_sums(
    consumer: Place, own: str, products: tuple[Product, ...], rows: int, split: int
) -> Part:
    """The statements between the main loop and the epilogue.

    Args:
        consumer: who has the sums; its agents are a block and a consumer of it.
        own: its tiles, as isl text over ``i``.
        products: whose sums.
        rows: instructions along m of a consumer's tile.
        split: blocks of a cluster.
    """
    block, group = consumer.agents
    sums = (f"{p.called('sum')}[i,{block},{group},m] : 0 <= m < {rows}" for p in products)
    sent = (f"{p.called('part')}[i,d,{group},{block}] : 0 <= d < {split}" for p in products)
    landed = (f"{p.called('part')}[i,{block},{group},q]" for p in products)
    totals = tuple(f"{p.called('total')}[i,{block},{group}]" for p in products)
    send = TileStatement(
        "send", ("i",), own, tuple(sums), tuple(sent), "move", unit("st.async"), consumer
    )
    combine = TileStatement(
        "combine",
        ("i", "q"),
        f"{own} and 0 <= q < {split}",
        (*landed, *(f"{total} : q > 0" for total in totals)),
        totals,
        "combine",
        unit("threads"),
        consumer,
        group="combined",
    )
    combined = TileStatement("combined", ("i",), own, (), (), "close", unit("threads"), consumer)
    owners = len(consumer.agents)
    slots = LANDING_SLOTS
    buffers = (
        *(Buffer(p.called("part"), "shared", 1, owners, slots) for p in products),
        *(Buffer(p.called("total"), "register", 1, owners) for p in products),
    )
    tree = steps("send", loop("q", "combine"), "combined")
    return Part((send, combine, combined), buffers, tree, tree)
