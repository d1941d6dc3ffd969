"""Barriers in shared memory: waits and arrivals, at the slot that a cursor of the place is at."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import indexed_address
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Again, Placed, Signal, Skip

_NEEDS = ("mbarrier", "mbarrier_wait", "cursor")


def _address(plan: KernelPlan, work: Signal) -> str:
    buffer = plan.buffer(work.placed.buffer)
    agent = work.agent if buffer.owners > 1 else ""
    return indexed_address(buffer, f"{work.cursor}.slot", agent)


@leaf("wait", "mbarrier", Signal, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Signal) -> Text:
    flip = " ^ 1" if work.mbarrier.phase % 2 else ""
    wait = f"barrier_wait({_address(plan, work)}, {work.cursor}.parity{flip});"
    return Text(block(wait), f"{one.statement}: {work.placed.reason}")


@leaf("arrive", "mbarrier", Signal, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Signal) -> Text:
    where, own = _address(plan, work), f"thread % {plan.device.group_threads}"
    if work.everywhere:
        lines = [f"if ({work.everywhere}) barrier_arrive_remote({where}, {own});"]
    elif work.together == "warp":
        lines = ["__syncwarp();", f"if (lane == 0) barrier_arrive({where});"]
    else:
        lines = [f"if ({own} == 0) barrier_arrive({where});"]
    lines += [f"{work.cursor}.advance();"] if work.advance else []
    return Text(block(*lines), f"{one.statement}: {work.placed.reason}")


@leaf("again", "threads", Again, ("i", "k"))
def _(plan: KernelPlan, one: Leaf, work: Again) -> Text:
    return Text(f"{work.statement}({', '.join(one.loops)});", inline=True)


@leaf("wait", "turn", Placed, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    parity, barrier = f"{work.name}_parity", plan.buffer(work.buffer)
    own = indexed_address(barrier, "group")
    return Text(
        block(f"barrier_wait({own}, {parity});", f"{parity} ^= 1;"),
        f"{work.name}: {work.reason}",
        (f"unsigned {parity} = 1 - group;",),
    )


@leaf("arrive", "turn", Placed, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    other = indexed_address(plan.buffer(work.buffer), "(1 - group)")
    first = f"thread % {plan.device.group_threads} == 0"
    return Text(block(f"if ({first}) barrier_arrive({other});"))


@leaf("skip", "mbarrier", Skip, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Skip) -> Text:
    return Text(
        ", ".join(f"{name}.advance_by(k_tiles)" for name in work.cursors) + ";",
        f"{one.statement}: a tile of the other consumer",
        inline=True,
    )
