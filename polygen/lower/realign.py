"""The copy that goes before a kernel, array by array: a tile program, and the leaves of it.

All arrays have one tile program, which is synchronised and proved like a kernel's
(`polygen.poly.realign_program`); each of them has leaves of its own, with its elements and its
parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from polygen.frontend.program import Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.block_plan import block_parts, check_calls
from polygen.lower.follow_keys import Derive
from polygen.lower.plan import CopyPlan, KernelPlan, Leaf
from polygen.lower.realign_work import RowCopy, word_shifts
from polygen.poly.block_tree import BlockTree
from polygen.poly.realign_program import CHUNK, WHERE, RealignShape, map_realign
from polygen.schedule.realign import ROUNDS, TOGETHER, WARPS, Realign


def precede(plan: KernelPlan, copy: Realign | None, derived: Derive) -> KernelPlan:
    """The plan with the tile program of the copy that goes before, if there is one.

    Args:
        plan: a kernel that has been verified.
        copy: which arrays are copied; None: none.
        derived: what synchronises a tile program, derived or kept from before.

    Raises:
        VerifyError: a chunk is left out or written twice, something outside of its row is read, or
            what would be emitted does not do what the program says.
    """
    if copy is None:
        return plan
    shape = RealignShape(
        WARPS, plan.device.warp_size, TOGETHER, ROUNDS, chunk_bytes(), plan.launch.dependent
    )
    tree = _mapped(shape, derived)
    copies = tuple(_copy(one, shape, tree) for one in copy.tensors)
    for one in copies:
        check_calls(plan.entry, one, WHERE)
    return replace(plan, realign=copy, copies=copies, proofs=(*plan.proofs, *tree.proofs))


def _copy(tensor: Tensor, shape: RealignShape, tree: BlockTree) -> CopyPlan:
    """The leaves of one array's blocks."""
    work = RowCopy(tensor.dtype.bytes, shape, word_shifts(shape.size))
    leaves = [
        Leaf("edges", "read_edges", "threads", (), work),
        Leaf("shifted", "shift_chunks", "threads", (CHUNK,), work),
    ]
    return CopyPlan(tree, *block_parts(tree, leaves, work.pointers), tensor)


@lru_cache(maxsize=8)
def _mapped(shape: RealignShape, derived: Derive) -> BlockTree:
    """Copies of one shape have one tree, before whatever kernel: it is proved once in a process."""
    return map_realign(shape, derived)


def forget() -> None:
    """Forget the trees that were proved in this process."""
    _mapped.cache_clear()
