"""Which operands a realigning copy helps, the program behind it, and proofs of the copy.

The copy is the identity on an array's elements: a change of layout, of which the product alone
depends. The rest of the kernel is that of the program whose arrays are aligned as the copies are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from polygen import isl
from polygen.errors import ScheduleError, VerifyError
from polygen.frontend.program import Program, Tensor, realigned
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.fills import by_threads
from polygen.poly.legality import Proof
from polygen.poly.match import Match, Operand
from polygen.schedule.model import Schedule
from polygen.schedule.realign import ROUNDS, TOGETHER, WARPS, Realign, lanes, segment_chunks


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


@functools.cache
def prove_copy() -> tuple[Proof, ...]:
    """Prove of the copy, for all arrays: every chunk once, and nothing read outside its row.

    Block (y, s) copies rows 8y to 8y + 7, a warp each, from chunk 512s on; in a round of its
    segment the u-th chunk of a lane lies u times the lanes behind its first. Chunks of the array,
    counted from the one in which the row begins, are read whole if they are neither the first nor
    the last that the row touches; those two are read element by element.

    Raises:
        VerifyError: never for positive numbers; the check guards the formulas.
    """
    width, size = lanes(), chunk_bytes()
    each, segment = width * TOGETHER, segment_chunks()
    ranges = f"0 <= w < {WARPS} and 0 <= t < {ROUNDS} and 0 <= u < {TOGETHER} and 0 <= l < {width}"
    place = f"r = {WARPS}*y + w and c = {segment}*s + {each}*t + {width}*u + l"
    inside = "0 <= r < rows and 0 <= c < chunks"
    grid = f"0 <= y and {WARPS}*y < rows and 0 <= s and {segment}*s < chunks"
    threads = isl.Map(
        f"[rows, chunks] -> {{ [y,s,w,t,u,l] -> [r,c] : {grid} and {ranges} and {place} and "
        f"{inside} }}"
    )
    if not (
        threads.is_injective()
        and threads.range().is_equal(isl.Set(f"[rows, chunks] -> {{ [r,c] : {inside} }}"))
    ):
        raise VerifyError("a chunk is not copied exactly once", where="realigning copy")
    # Chunk g of the array begins at byte size*g - shift of the row.
    row = f"0 <= shift < {size} and bytes > 0 and {size}*last <= shift + bytes - 1 < {size}*last"
    outside = isl.Set(
        f"{{ [g,shift,bytes,last] : {row} + {size} and 0 < g < last and "
        f"({size}*g - shift < 0 or {size}*g - shift + {size} > bytes) }}"
    )
    # Chunk c of the copy holds bytes from size*c on: they lie in chunks c and c + 1 of the array.
    missed = isl.Set(
        f"{{ [b,c,shift] : 0 <= shift < {size} and {size}*c <= b < {size}*c + {size} and "
        f"(b < {size}*c - shift or b >= {size}*(c + 2) - shift) }}"
    )
    if not (outside.is_empty() and missed.is_empty()):
        raise VerifyError("what is read is not what is copied", where="realigning copy")
    return (
        Proof("every chunk of a copy is written once", f"{WARPS} rows by {segment} chunks a block"),
        Proof("chunks that are read whole lie inside their row", "every shift of a row"),
    )
