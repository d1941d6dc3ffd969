"""The launch that combines parts of the keys of a chain: its tile program, and the leaves of it."""

from __future__ import annotations

from polygen.lower.follow_work import MergeKeys
from polygen.lower.launch import Following
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.scan_work import PartStore, Scan
from polygen.poly.block_tree import BlockTree, Derive, block_tree
from polygen.poly.follow_keys import KeysShape, check_keys, keys_program
from polygen.poly.follow_map import WHERE
from polygen.poly.follow_program import ELEMENT, PART


def keys_shape(scan: Scan, after: Following) -> KeysShape:
    """What a block does of the parts that a scan leaves."""
    warps, referenced = after.threads // after.lanes, scan.reference is not None
    return KeysShape(warps, after.lanes, referenced, bool(scan.summed), after.dependent)


def keys_launch(
    plan: KernelPlan, after: Following, derived: Derive
) -> tuple[BlockTree, list[Leaf]]:
    """What a block does with the parts of a row.

    Args:
        plan: the kernel.
        after: the launch.
        derived: what synchronises a tile program, derived or kept from before.
    """
    (store,), (scan, *_) = plan.of(PartStore), plan.of(Scan)
    shape = keys_shape(scan, after)
    tree, found = block_tree(shape, keys_program, check_keys, WHERE, derived), []
    for what in (*shape.scalars, "sum"):
        work = MergeKeys(store, scan, what)
        loops = (ELEMENT,) if what == "sum" else ()
        found.append(Leaf(f"begin_{what}", "begin_keys", "threads", loops, work))
        found.append(Leaf(f"merge_{what}", "merge_keys", "threads", (*loops, PART), work))
    found.append(Leaf("results", "finish_keys", "threads", (ELEMENT,), work))
    return tree, found
