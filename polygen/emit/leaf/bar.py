"""Barriers of threads: of a block, a warp, or a warpgroup that hands panels to the copy engine; a
block's wait for the grids before its own.
"""

from __future__ import annotations

from polygen.emit.leaf.dots import row_starts
from polygen.emit.leaf.table import Text, leaf
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.sync_work import Grids, Nothing, Placed


@leaf("bar", "block", Placed)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    return Text("__syncthreads();", f"{one.statement}: {work.reason}", inline=True)


@leaf("bar", "warp", Placed)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    return Text("__syncwarp();", f"{one.statement}: {work.reason}", inline=True)


@leaf("bar", "consumers", Placed)
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    agents = plan.place(one.place).agents  # behind the barriers that each of them has
    meet = f'asm volatile("bar.sync {agents + 1}, {agents * work.threads};" ::: "memory");'
    return Text(meet, f"{one.statement}: {work.reason}", inline=True)


@leaf("bar", "warpgroup", Placed, needs=("panels_out",))
def _(plan: KernelPlan, one: Leaf, work: Placed) -> Text:
    meet = (
        f'asm volatile("bar.sync %0, {plan.device.group_threads};" :: "r"(group + 1) : "memory");'
    )
    return Text(meet, f"{one.statement}[{','.join(one.loops)}]: {work.reason}", inline=True)


@leaf("grid", "griddepcontrol.wait", Grids)
def _(plan: KernelPlan, one: Leaf, work: Grids) -> Text:
    # No read is hoisted above: to the compiler, addresses are made here.
    named = [*work.pointers, *map(c_name, work.arrays)]
    if not named:
        # Results of the launch that follows are only written, and stores stay where they are: an
        # address made here takes a register.
        kinds = ("pointer", "workspace") if work.follows else ("pointer",)
        written = {one.name for one in plan.program.outputs} if work.follows else ()
        pointers = [a for a in plan.arguments if a.kind in kinds and a.tensor not in written]
        named = [c_name(a.name) for a in pointers]
        named += [] if work.follows else row_starts(plan)
    made = ", ".join(f'"+l"({name})' for name in named)
    note = f"{one.statement}: the grids before are complete, and their writes are visible"
    return Text(f'asm volatile("griddepcontrol.wait;" : {made} :: "memory");', note, inline=True)


@leaf("fence", "generic", Nothing)
def _(plan: KernelPlan, one: Leaf, work: Nothing) -> Text:
    note = f"{one.statement}: the copy engine sees what this thread has written"
    return Text('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', note, inline=True)
