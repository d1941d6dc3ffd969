"""Checks a plan against itself before code is written: one that fails is a bug, no user's mistake.

1. Shared buffers do not overlap, lie inside the launch's shared memory and are aligned for their
   accesses.
2. Every statement that the loops call has a leaf, with the number of arguments the leaf takes.
3. Fragment slots and ring slots that the loops use exist.
4. The launch covers the threads that the leaves count on.
"""

from __future__ import annotations

from polygen.errors import VerifyError
from polygen.hardware.matrix_layout import pattern_bytes
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan
from polygen.lower.role_plan import RoleWork
from polygen.poly.ast import Block, Call, For, If, LoopAst, Marked


def verify(plan: KernelPlan) -> KernelPlan:
    """The plan, if it is sound.

    Raises:
        VerifyError: what is wrong with it.
    """
    if plan.roles is not None:
        return _verify_roles(plan, plan.roles)
    _check_buffers(plan)
    _check_leaves(plan, leaf_arity(plan))
    if plan.launch.threads != plan.tiles.warp_count * plan.device.warp_size:
        raise VerifyError(
            f"{plan.launch.threads} threads do not make the block's warps", where=plan.entry
        )
    return plan


def _verify_roles(plan: KernelPlan, work: RoleWork) -> KernelPlan:
    """The same of a specialised kernel: its memory, its leaves, and the bytes its barriers expect.

    Raises:
        VerifyError: what is wrong with it.
    """
    pattern, size = pattern_bytes(), plan.device.mbarrier_bytes
    taken = [(r.name, r.offset, r.bytes, pattern) for r in work.regions]
    taken += [
        (b.barrier.name, b.offset, size * b.barrier.slots * b.groups, size) for b in work.barriers
    ]
    taken += [(turn.name, offset, size * work.consumers, size) for turn, offset in work.turns]
    end = 0
    for name, offset, length, alignment in taken:
        if offset < end or offset % alignment:
            raise VerifyError(f"{name} overlaps or is not aligned", where=plan.entry)
        end = offset + length
    if end > plan.launch.shared_bytes:
        raise VerifyError(
            f"barriers end at {end}, the launch has {plan.launch.shared_bytes} bytes",
            where=plan.entry,
        )
    for region in work.regions:
        if region.slot_bytes % pattern:
            raise VerifyError(f"slots of {region.name} are not aligned", where=plan.entry)
    boxes = {
        "fill": sum(
            f.layout.boxes * f.parts * f.box[0] * f.box[1] * f.element_bytes for f in work.fills
        )
    }
    boxes |= {f"fetch_{p.name}": p.boxes * p.rows * p.span for p in work.operands}
    for placed in work.barriers:
        wanted = boxes.get(placed.barrier.signal, 0)
        if placed.bytes != wanted:
            raise VerifyError(
                f"{placed.barrier.name} expects {placed.bytes} bytes, copies bring {wanted}",
                where=plan.entry,
            )
    _check_leaves(plan, role_arity(work))
    return plan


def role_arity(work: RoleWork) -> dict[str, int]:
    """Statement -> arguments of its leaf, of all roles."""
    found = {"locate": 1, "prepare": 1, "skip_ring": 1, "skip_ring_first": 0, "multiply": 4}
    found |= {"retire_empty_ring_rest": 1, "wait_last_store": 0, "store": 2}
    found |= dict.fromkeys(("fill", "fence_multiply", "commit", "retire_empty_ring", "finish"), 2)
    found |= dict.fromkeys(("fence_store", "wait_store"), 2)
    found |= {f"fetch_{panel.name}": 2 for panel in work.operands}
    found |= {group.name: 2 for group in work.groups}
    for placed in work.barriers:
        name = placed.barrier.name
        found |= {f"wait_{name}": 2, f"arrive_{name}": 2, f"arrive_{name}_rest": 2}
    for turn, _ in work.turns:
        found |= {f"wait_{turn.name}": 1, f"arrive_{turn.name}": 1}
    return found


def _check_leaves(plan: KernelPlan, arity: dict[str, int]) -> None:
    for call in calls(plan.loops):
        if arity.get(call.statement) != len(call.arguments):
            raise VerifyError(
                f"{call.statement} with {len(call.arguments)} arguments has no leaf",
                where=plan.entry,
            )


def _check_buffers(plan: KernelPlan) -> None:
    end = 0
    for buffer in sorted(plan.buffers, key=lambda b: (b.overlay, b.offset)):
        if buffer.offset < end and not buffer.overlay:
            raise VerifyError(f"{buffer.name} overlaps the buffer before it", where=plan.entry)
        if buffer.offset % chunk_bytes() or buffer.row_bytes % chunk_bytes():
            raise VerifyError(f"{buffer.name} is not made of whole chunks", where=plan.entry)
        if not buffer.swizzle.fits(buffer.row_bytes):
            raise VerifyError(f"the swizzle of {buffer.name} leaves its rows", where=plan.entry)
        end = max(end, buffer.offset + buffer.bytes)
    if end > plan.launch.shared_bytes:
        raise VerifyError(
            f"buffers end at {end}, the launch has {plan.launch.shared_bytes} bytes",
            where=plan.entry,
        )


def leaf_arity(plan: KernelPlan) -> dict[str, int]:
    """Statement -> arguments of its leaf."""
    found = {"zero": 0, "mma": 4, "store": 1}
    for name in "ab":
        found |= {f"copy_{name}": 2, f"load_{name}": 2}
    if plan.copies[0].asynchronous:
        found["commit"] = 1
    if plan.epilogue.staged:
        found |= {"prepare": 0, "stage": 1}
    for entry in plan.enforced:
        found[entry.barrier.name] = 1 if entry.barrier.phase == "main" else 0
        if entry.barrier.pending is not None:
            found[entry.barrier.wait] = 1
    return found


def calls(node: LoopAst) -> list[Call]:
    """All statement calls of a loop nest."""
    if isinstance(node, Call):
        return [node]
    if isinstance(node, Block):
        return [call for child in node.children for call in calls(child)]
    if isinstance(node, If):
        return calls(node.then) + (calls(node.otherwise) if node.otherwise else [])
    assert isinstance(node, For | Marked)
    return calls(node.body)
