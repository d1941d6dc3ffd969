"""Checks of blocks of launches beside a kernel's: they run what was proved, by leaves that do it.

1. A place is the tree's, with the warps of its agents; its loops call the instances of the proved
   tree (`polygen.poly.read_loops`).
2. Every statement of the tile program, and everything that synchronises it, has one leaf: with its
   iterators, in the order of the tree, by threads, doing what its name says.
3. Barriers are the proved records. Who waits for the grids before guards all addresses of a block.
"""

from __future__ import annotations

from polygen.errors import VerifyError
from polygen.lower.plan import BlockPlan, Leaf
from polygen.lower.sync_work import Grids, Placed
from polygen.lower.synchronise import placed
from polygen.poly.dependent import KIND as GRID
from polygen.poly.read_loops import check_loops
from polygen.poly.tile_program import SyncStatement
from polygen.poly.tile_tree import leaves as tree_leaves

# What a statement's name begins with -> what its leaf does.
_DOES = {
    "hold": ("hold_row",), "begin": ("begin_folds", "begin_keys"), "combine": ("combine_parts",),
    "give": ("give_folds",), "take": ("take_folds",), "finish": ("finish_folds",),
    "walk": ("walk_row",), "elements": ("walk_row",), "store": ("store_results",),
    "merge": ("merge_keys",), "results": ("finish_keys",), "edges": ("read_edges",),
    "shifted": ("shift_chunks",), "made": ("make_chunks",),
    "turned": ("turn_chunks", "make_across"),
}  # fmt: skip


def check_block(entry: str, block: BlockPlan, where: str, guarded: Grids | None = None) -> None:
    """Check the blocks of one array, operand or group of results.

    Args:
        entry: of the kernel.
        block: what they do.
        where: the launch, in words.
        guarded: what a wait for grids guards; None: all that the kernel has addresses of.

    Raises:
        VerifyError: with the place, the leaf or the barrier, and what it should be.
    """
    where, proved, own = f"{entry}, {where}", block.tree.synchronised, block.tree.place.place
    ((agent, count),) = zip(own.agents, own.counts, strict=True)
    place = block.place
    made = (
        place.name, place.first_warp, place.warps, place.agents, place.elected, place.agent,
        place.registers, place.counters,
    )  # fmt: skip
    if made != (own.name, 0, count, count, False, agent, 0, ()):
        raise VerifyError(f"{place.name} is {made}, and {count} warps of a block", where=where)
    check_loops(block.tree.place, place.loops)
    if block.syncs != placed(proved, {}):
        raise VerifyError(f"barriers are {', '.join(map(str, block.syncs))}", where=where)
    names = list(tree_leaves(proved.tree))
    if [leaf.statement for leaf in block.leaves] != names:
        found = ", ".join(leaf.statement for leaf in block.leaves)
        raise VerifyError(f"leaves are {found}, of {', '.join(names)}", where=where)
    waiting = {one.name: one for one in proved.leaves}
    loops = {one.name: one.loops for one in proved.program.statements}
    loops |= {one.name: one.loops for one in proved.leaves}
    for leaf in block.leaves:
        said = (leaf.loops, leaf.place, leaf.advances, leaf.section)
        if said != (loops[leaf.statement], own.name, (), 0):
            raise VerifyError(f"{leaf.statement} is called as {said}", where=where)
        if leaf.statement in waiting:
            _check_wait(block, leaf, waiting[leaf.statement], where, guarded or Grids())
        elif leaf.unit != "threads" or leaf.op not in _DOES[leaf.statement.partition("_")[0]]:
            raise VerifyError(f"{leaf.statement} does {leaf.op} by {leaf.unit}", where=where)


def _check_wait(
    block: BlockPlan, leaf: Leaf, statement: SyncStatement, where: str, guarded: Grids
) -> None:
    """What synchronises is the barrier that was proved, or a wait for the grids before."""
    sync = next(s for s in block.tree.synchronised.syncs if s.wait == statement.name)
    wanted: Placed | Grids = guarded
    op, unit = GRID, sync.unit
    if statement.kind != GRID:
        op, unit, wanted = "bar", "block", next(one for one in block.syncs if one.sync == sync)
    if (leaf.op, leaf.unit, leaf.work) != (op, unit, wanted):
        raise VerifyError(f"{leaf.statement} is {leaf.op} by {leaf.unit}: {leaf.work}, and not "
                          f"{wanted}", where=where)  # fmt: skip
