"""When launches begin: what a kernel waits for, and when it lets those behind it begin."""

from __future__ import annotations

from polygen.lower.plan import KernelPlan
from polygen.poly.dependent import KIND as GRID
from polygen.schedule.model import AT_START


def before_early(plan: KernelPlan) -> bool:
    """Whether the launch before a kernel begins early: as the kernel, but for the first of several
    in order.
    """
    order = plan.program.in_order
    return plan.launch.dependent and not (order is not None and order.first)


def trigger(plan: KernelPlan) -> str:
    """When a kernel lets the launches behind it begin; "": when its blocks end."""
    followed = plan.following is not None and plan.following.dependent
    chained = plan.program.in_order is not None and plan.device.has("griddepcontrol")
    early = followed or chained or plan.launch.dependent
    return plan.schedule.launch.trigger if early else ""


def in_words(plan: KernelPlan) -> list[str]:
    """Lines for people: none of a kernel that begins and ends as all do."""
    lines = []
    if plan.launch.dependent:
        lines.append("it begins while the kernels before it end, and waits for them:")
        grids = (sync for sync in plan.synchronised.syncs if sync.kind == GRID)
        lines += [f"  {sync.wait}: {'; '.join(sync.enforces)}" for sync in grids]
    if plan.schedule.launch.ahead:
        early = (s.name for s in plan.tile_program.statements if s.settled and s.op == "move")
        order = plan.program.in_order
        settled = ", ".join(() if order is None else order.settled)
        lines.append(f"{', '.join(early)} waits for none: nobody still writes {settled}")
    when = trigger(plan)
    if when:
        where = "at its start" if when == AT_START else "behind its loads"
        lines.append(f"it lets those behind it begin {where}")
    if plan.following is not None and plan.following.dependent:
        lines.append("the launch that follows begins while it ends, and waits for it")
    return lines
