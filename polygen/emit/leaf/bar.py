"""Barriers of threads: of a block, a warp, or a warpgroup that hands panels to the copy engine."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Placed
from polygen.poly.role_barriers import GroupBarrier


@leaf("bar", "block", Placed)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    return Text("__syncthreads();", f"{one.statement}: {work.reason}", inline=True)


@leaf("bar", "warp", Placed)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    return Text("__syncwarp();", f"{one.statement}: {work.reason}", inline=True)


@leaf("bar", "warpgroup", Placed, needs=("panels_out",))
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    assert isinstance(work.sync, GroupBarrier)
    threads = plan.device.group_threads
    wait = f"cp.async.bulk.wait_group.read {work.sync.pending};"
    return Text(
        block(
            'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
            f'if (thread % {threads} == 0) asm volatile("{wait}" ::: "memory");',
            f'asm volatile("bar.sync %0, {threads};" :: "r"(group + 1) : "memory");',
        ),
        f"{one.statement}[{','.join(one.loops)}]: {work.reason}",
    )
