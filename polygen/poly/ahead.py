"""Which operands a thread of its own has copied while the grids before a kernel still run.

A kernel that is launched dependently waits for the grids before it: what it reads may not be
written yet. Of kernels that run in order on a stream, the operands that none of them writes are
there already (`polygen.frontend.program.InOrder`), and their tiles are brought without waiting, by
a place of its own. What the tile program says so is no more than that: the verifier compares it
with the program (`polygen.lower.verify`), and the PTX machine reports every early read of anything
else.
"""

from __future__ import annotations

from polygen.errors import ScheduleError
from polygen.frontend.program import Program
from polygen.poly.by_lanes import STREAMED
from polygen.poly.fills import by_threads
from polygen.poly.match import Match
from polygen.schedule.model import Schedule


def check_order(program: Program, schedule: Schedule) -> None:
    """Refuse that the first of several kernels in order begins early: the others count on it.

    Raises:
        ScheduleError: with what to use instead.
    """
    if program.in_order is not None and program.in_order.first and schedule.launch.dependent:
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
    every = tuple(
        name
        for name, operand in matched.operands
        if operand.tensor.name in settled
        and operand.computed is None
        and operand.fragment is None
        and (operand.role == STREAMED if schedule.by_lanes else not by_threads(operand))
    )
    return every if len(every) < len(matched.operands) else ()


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
