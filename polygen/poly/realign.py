"""Which operands a realigning copy helps, and the program behind it.

The copy is the identity on an array's elements: a change of layout, of which the product alone
depends. The rest of the kernel is that of the program whose arrays are aligned as the copies are.
What the copy's own blocks do is a tile program (`polygen.poly.realign_program`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polygen.errors import ScheduleError
from polygen.frontend.program import Program, Tensor, realigned
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.fills import by_threads
from polygen.poly.match import Match, Operand
from polygen.schedule.model import Schedule
from polygen.schedule.realign import Realign


def helped(operand: Operand) -> bool:
    """Whether the rows of an operand's copy are some that tensor maps describe."""
    return by_threads(operand) and not by_threads(_aligned(operand))


def _aligned(operand: Operand) -> Operand:
    return replace(operand, tensor=_whole(operand.tensor))


def _whole(tensor: Tensor) -> Tensor:
    return replace(tensor, alignment=chunk_bytes())


def copied(matched: Match) -> tuple[Tensor, ...]:
    """The arrays that a realigning copy helps, each once; none of rows in groups."""
    if matched.groups:  # the kernel's frame reads where they end before it waits for a copy
        return ()
    found = {o.tensor.name: o.tensor for _, o in matched.operands if helped(o)}
    return tuple(found.values())


def behind_copy(matched: Match, schedule: Schedule) -> Match:
    """The products on what a schedule's copies leave; as they are where it has none.

    Raises:
        ScheduleError: a copy for a kernel that has no use for it.
    """
    if not schedule.launch.realign:
        return matched
    if not schedule.specialised:
        raise ScheduleError(
            "launch.realign without roles",
            where=f"schedule {schedule.name}",
            why="operands are copied for the copy engine, which feeds roles alone",
            nearest='Use launch.realign = false, or roles.form = "cooperative"',
        )
    names = {tensor.name for tensor in copied(matched)}
    return replace(
        matched,
        operands=tuple(
            (name, _aligned(one) if one.tensor.name in names else one)
            for name, one in matched.operands
        ),
    )


def realign(program: Program, matched: Match, schedule: Schedule) -> Realign | None:
    """The copy that goes before a kernel; None: it needs none."""
    return realign_all(program, [matched], schedule)


def realign_all(program: Program, sections: Sequence[Match], schedule: Schedule) -> Realign | None:
    """The copy before a kernel of several sections; what several of them multiply, once."""
    named = {tensor.name: tensor for one in sections for tensor in copied(one)}
    tensors = tuple(named.values()) if schedule.launch.realign else ()
    return Realign(f"pg_{program.name}_realign", tensors) if tensors else None


def program_behind(program: Program, copy: Realign | None) -> Program:
    """The program of the kernel that runs on the copies."""
    if copy is None:
        return program
    return realigned(program, dict.fromkeys(copy.names, chunk_bytes()))
