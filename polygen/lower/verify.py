"""Checks a plan against itself before code is written: one that fails is a bug, no user's mistake.

1. Shared buffers do not overlap, lie inside the launch's shared memory and are aligned for their
   accesses.
2. Every statement that the loops call has a leaf, with the number of arguments the leaf takes.
3. Fragment slots and ring slots that the loops use exist.
4. The launch covers the threads that the leaves count on.
"""

from __future__ import annotations

from polygen.errors import VerifyError
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.plan import KernelPlan
from polygen.poly.ast import Block, Call, For, If, LoopAst, Marked


def verify(plan: KernelPlan) -> KernelPlan:
    """The plan, if it is sound.

    Raises:
        VerifyError: what is wrong with it.
    """
    if plan.roles is not None:
        return verify_roles(plan)
    _check_buffers(plan)
    arity = leaf_arity(plan)
    for call in calls(plan.loops):
        if arity.get(call.statement) != len(call.arguments):
            raise VerifyError(
                f"{call.statement} with {len(call.arguments)} arguments has no leaf",
                where=plan.entry,
            )
    if plan.launch.threads != plan.tiles.warp_count * plan.device.warp_size:
        raise VerifyError(
            f"{plan.launch.threads} threads do not make the block's warps", where=plan.entry
        )
    return plan


def verify_roles(plan: KernelPlan) -> KernelPlan:
    """The plan of a specialised kernel, if it is sound.

    Raises:
        VerifyError: what is wrong with it.
    """
    work = plan.roles
    assert work is not None
    end = 0
    for region in work.regions:
        if region.offset < end or region.offset % 1024 or region.slot_bytes % 1024:
            raise VerifyError(f"{region.name} overlaps or is not aligned", where=plan.entry)
        end = region.offset + region.bytes
    for placed in work.barriers:
        if placed.offset < end or placed.offset % 8:
            raise VerifyError(f"{placed.barrier.name} overlaps", where=plan.entry)
        end = placed.offset + 8 * placed.barrier.slots * placed.groups
    if end > plan.launch.shared_bytes:
        raise VerifyError(
            f"barriers end at {end}, the launch has {plan.launch.shared_bytes} bytes",
            where=plan.entry,
        )
    expected = {
        "fill": sum(
            f.layout.boxes * f.parts * f.box[0] * f.box[1] * f.element_bytes for f in work.fills
        )
    }
    expected |= {f"fetch_{p.name}": p.boxes * p.rows * p.span for p in work.operands}
    for placed in work.barriers:
        wanted = expected.get(placed.barrier.signal, 0)
        if placed.bytes != wanted:
            raise VerifyError(
                f"{placed.barrier.name} expects {placed.bytes} bytes, copies bring {wanted}",
                where=plan.entry,
            )
    return plan


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
