"""Which operands a kernel reads while the grids before it still run.

A kernel that is launched dependently waits for the grids before it: what it reads may not be
written yet. Of kernels that run in order on a stream, the operands that none of them writes are
there already (`polygen.frontend.program.InOrder`). Their tiles are brought without waiting, by a
place of its own, or lanes load their first chunks before they wait. What the tile program says so
is no more than that: the verifier compares it with the program (`polygen.lower.verify`), and the
PTX machine reports every early read of anything else.
"""

from __future__ import annotations

from polygen.errors import ScheduleError
from polygen.frontend.program import Program
from polygen.poly.by_lanes import STREAMED
from polygen.poly.fills import by_threads
from polygen.poly.match import Match
from polygen.schedule.model import Schedule


def check_order(program: Program, schedule: Schedule, *, behind: bool) -> None:
    """Refuse that the first of several launches in order begins early: the others count on it.

    Args:
        program: with its place among others.
        schedule: its schedule.
        behind: whether a launch of its own goes before the kernel, which then is the first.

    Raises:
        ScheduleError: with what to use instead.
    """
    if behind and schedule.launch.ahead:
        raise ScheduleError(
            "launch.ahead = true behind a launch that copies or makes operands",
            where=f"schedule {schedule.name}",
            why="what is copied or made is there when that launch is done",
            nearest="Use launch.ahead = false",
        )
    order = program.in_order
    if order is not None and order.first and schedule.launch.dependent and not behind:
        raise ScheduleError(
            f"launch.dependent with {program.name}, the first of several kernels in order",
            where=f"schedule {schedule.name}",
            why="those behind it may read what was complete when it began",
            nearest="Use launch.dependent = false",
        )


def settled_operands(program: Program, matched: Match, schedule: Schedule) -> tuple[str, ...]:
    """The operands that may come early: settled, and moved by the copy engine as they are, or those
    that stream through lanes.

    None where all of them are settled, as what is left to wait for is no operand.

    Args:
        program: with its place among others.
        matched: its operands, as the kernel reads them.
        schedule: who multiplies.
    """
    if not (schedule.specialised or schedule.by_lanes):
        return ()
    settled = program.in_order.settled if program.in_order is not None else ()
    if matched.rest is not None or matched.groups is not None:
        return ()  # which the producer brings, or finds, with the operands
    if schedule.specialised and any(by_threads(operand) for _, operand in matched.operands):
        return ()  # the producer has all warps of its warpgroup
    if all(operand.tensor.name in settled for _, operand in matched.operands):
        return ()
    return tuple(
        name
        for name, operand in matched.operands
        if operand.tensor.name in settled
        and operand.computed is None
        and operand.fragment is None
        and (operand.role == STREAMED or schedule.specialised)
    )


def operands_ahead(program: Program, matched: Match, schedule: Schedule) -> tuple[str, ...]:
    """The operands that a schedule has brought early.

    Args:
        program: with its place among others.
        matched: its operands, as the kernel reads them.
        schedule: whether it asks for that.

    Raises:
        ScheduleError: it does, and no operand can come early, or not beside something else.
    """
    if not schedule.launch.ahead:
        return ()
    found, why = settled_operands(program, matched, schedule), ""
    if schedule.cluster.tiles > 1:
        why = "blocks of a cluster bring operands for each other"
    elif not found:
        why = (
            "no operand can come early: such are of one of several kernels in order, none of which "
            "writes them, beside one that has to wait; the copy engine moves them, or they stream"
        )
    if why:
        raise ScheduleError(
            "launch.ahead = true", where=f"schedule {schedule.name}", why=why,
            nearest="Use launch.ahead = false",
        )  # fmt: skip
    return found
