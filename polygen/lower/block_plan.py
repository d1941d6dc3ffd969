"""Blocks of launches beside a kernel's: who runs their loops, the leaves that synchronise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from polygen.lower.plan import Leaf, Place
from polygen.lower.sync_work import Grids, Placed
from polygen.lower.synchronise import placed
from polygen.poly.ast import LoopAst
from polygen.poly.block_tree import BlockTree, block_tree
from polygen.poly.dependent import KIND as GRID
from polygen.poly.place_trees import PlaceTree
from polygen.poly.tile_tree import leaves as tree_leaves


def block_parts(
    tree: BlockTree, found: Sequence[Leaf], waits: Grids | None = None
) -> tuple[tuple[Leaf, ...], Place, tuple[Placed, ...]]:
    """The leaves of a block, those that synchronise among them, in the order of the tree.

    Args:
        tree: what a block runs, proved.
        found: the leaves of its statements.
        waits: what a wait for grids guards; None: all that the kernel has addresses of.

    Returns:
        Leaves, who runs them, and the barriers.
    """
    own = tree.place.place
    ((agent, count),) = zip(own.agents, own.counts, strict=True)
    place = Place(own.name, 0, count, count, False, agent, 0, _loops(tree.place))
    syncs = placed(tree.synchronised, {})
    bars = {one.sync.wait: one for one in syncs}
    units = {sync.wait: sync.unit for sync in tree.synchronised.syncs}
    every = list(found)
    for leaf in tree.synchronised.leaves:
        if leaf.kind == GRID:
            every.append(Leaf(leaf.name, GRID, units[leaf.name], leaf.loops, waits or Grids()))
        else:
            every.append(Leaf(leaf.name, "bar", "block", leaf.loops, bars[leaf.name]))
    order = tree_leaves(tree.synchronised.tree)
    every.sort(key=lambda leaf: order.index(leaf.statement))
    return tuple(replace(leaf, place=own.name) for leaf in every), place, syncs


@lru_cache(maxsize=64)
def _loops(place: PlaceTree) -> LoopAst:
    """The loops of a text, generated once in a process."""
    return place.loops()


def forget() -> None:
    """Forget the trees that were proved in this process, and their loops."""
    block_tree.cache_clear()
    _loops.cache_clear()
