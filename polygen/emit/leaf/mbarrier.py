"""Barriers in shared memory: waits and arrivals, at the slot that a counter of the place names."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import indexed_address
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.sync_work import Signal, Skip, Turn

_NEEDS = ("mbarrier", "mbarrier_wait", "cursor")


def _address(plan: KernelPlan, work: Signal) -> str:
    return indexed_address(plan.buffer(work.placed.buffer), f"{work.counter}.slot", work.agent)


@leaf("wait", "mbarrier", Signal, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Signal) -> Text:
    flip = " ^ 1" if work.placed.sync.phase % 2 else ""
    function = "barrier_wait_across" if work.across else "barrier_wait"
    wait = f"{function}({_address(plan, work)}, {work.counter}.parity{flip});"
    return Text(block(wait), f"{one.statement}: {work.placed.reason}")


@leaf("arrive", "mbarrier", Signal, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Signal) -> Text:
    where, own = _address(plan, work), f"thread % {plan.device.group_threads}"
    if work.everywhere:
        lines = [f"if ({work.everywhere}) barrier_arrive_remote({where}, {own});"]
    elif work.threads == "warps":
        lines = ["__syncwarp();", f"if (lane == 0) barrier_arrive({where});"]
    else:
        lines = [f"if ({own} == 0) barrier_arrive({where});"]
    return Text(block(*lines), f"{one.statement}: {work.placed.reason}")


@leaf("wait", "turn", Turn, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Turn) -> Text:
    name, barrier = work.placed.name, plan.buffer(work.placed.buffer)
    parity, own = f"{name}_parity", indexed_address(barrier, "group")
    return Text(
        block(f"barrier_wait({own}, {parity});", f"{parity} ^= 1;"),
        f"{name}: {work.placed.reason}",
        (f"unsigned {parity} = {'1 - group' if barrier.owners == 2 else 'group == 0'};",),
    )


@leaf("arrive", "turn", Turn, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Turn) -> Text:
    barrier = plan.buffer(work.placed.buffer)
    following = "(1 - group)" if barrier.owners == 2 else f"((group + 1) % {barrier.owners})"
    other = indexed_address(barrier, following)
    first = f"thread % {plan.device.group_threads} == 0"
    return Text(block(f"if ({first}) barrier_arrive({other});"))


@leaf("skip", "mbarrier", Skip, needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Skip) -> Text:
    passing = " ".join(f"{name}.advance_by({count});" for name, count in work.counters)
    return Text(passing, f"{one.statement}: tiles of other consumers", inline=True)
