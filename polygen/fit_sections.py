"""How a schedule fits a program whose products have output domains of their own.

1. A schedule fits if it fits every section, and comes out the same for all of them: what one needs,
   fewer stages or a narrower panel, all get.
2. Sections share shared memory and its barriers. Where the matrices of their epilogues differ, so
   would their panels: results then go straight from the registers.
3. For the choice among schedules the sections are one product with the columns of all, but for the
   number of tiles: each section has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.fit import fitting, instruction_for
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.lower.legal_last_round import check_last_round
from polygen.lower.memory import memory
from polygen.poly.fills import ring_pieces
from polygen.poly.kernel_parts import main_loop
from polygen.poly.match import Match
from polygen.poly.orientation import oriented, oriented_work
from polygen.poly.pointwise import Pointwork
from polygen.poly.tiling import tiling
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem

_ROUNDS = 4  # in which a schedule settles


def fitting_all(
    sections: Sequence[tuple[Match, Pointwork]], device: Device, *, careful: bool, row: int = 0
) -> Callable[[Schedule], Fitted | str]:
    """Fits schedules to all sections of a program, or says why one does not.

    Args:
        sections: products and epilogue of each.
        device: the target.
        careful: as for `polygen.fit.fitting`.
        row: elements of the longest rows that tiles are to cover; 0: they need not.
    """
    fits = [fitting(matched, device, work, careful=careful, row=row) for matched, work in sections]

    def settled(candidate: Schedule) -> Fitted | str:
        for _ in range(_ROUNDS):
            given = candidate
            every: list[Fitted] = []
            for fit in fits:
                found = fit(candidate)
                if isinstance(found, str):
                    return found
                every.append(found)
                candidate = found.schedule
            if candidate == given:
                spare = min(one.spare or 0 for one in every)
                return Fitted(candidate, every[-1].resident, spare)
        return f"sections change {candidate.name} in turns"

    def fit(candidate: Schedule) -> Fitted | str:
        by_pairs = replace(candidate.epilogue, through="registers", columns=0)
        reason = ""
        for way in dict.fromkeys((candidate.epilogue, by_pairs)):
            found = settled(replace(candidate, epilogue=way))
            if isinstance(found, str):
                reason = reason or found  # panels may want more than there is
                continue
            try:
                as_run = [
                    (
                        oriented(matched, found.schedule),
                        oriented_work(work, matched, found.schedule),
                    )
                    for matched, work in sections
                ]
                instruction = instruction_for(as_run[0][0], device, found.schedule)
                check_sections(as_run, found.schedule, instruction)
            except ScheduleError as error:
                reason = reason or str(error).rstrip(".")
            else:
                return found
        return reason

    return fit


def check_operands(matches: Sequence[Match], device: Device) -> None:
    """Refuse products that no schedule runs as sections of one kernel.

    Args:
        matches: the products of each section.
        device: the target.

    Raises:
        UnsupportedProgram: the device has no persistent kernels, or operands are not alike; with
            the products, and what to change.
    """
    first, *others = matches
    for other in others:
        names = f"{first.contraction.name} and {other.contraction.name}"
        if not (device.has("wgmma") and device.has("tma")):
            raise UnsupportedProgram(
                f"{names}: products over different output domains on {device.name}",
                where=f"{first.contraction}; {other.contraction}",
                why="only persistent blocks go from the tiles of one product to those of another, "
                "and those are kernels with roles",
                nearest="Split the function: one output domain per fused function",
            )
        types = [_types(one) for one in (first, other)]
        if types[0] != types[1]:
            raise UnsupportedProgram(
                f"{names} multiply {' x '.join(types[0][:2])} and {' x '.join(types[1][:2])}",
                where=f"{first.contraction}; {other.contraction}",
                why="the tiles of one kernel are computed by one instruction",
                nearest="Pass operands of the same types, or split the function",
            )
        if _lies(first) != _lies(other):
            inner = " and ".join(
                ", ".join(f"{o.tensor.name} along {o.inner.dim}" for _, o in one.operands)
                for one in (first, other)
            )
            raise UnsupportedProgram(
                f"{names}: operands are stored in other orders",
                where=f"contiguous: {inner}",
                why="tiles of all products go through the same rings, and one instruction is told "
                "how they lie",
                nearest="Store weights all as [N,K], or all as [K,N]",
            )


def _types(matched: Match) -> tuple[str, ...]:
    """Of the operands and the sums."""
    first = matched.products[0]
    both = (matched.operand(name).multiplied.name for name in (first.left, first.right))
    return (*both, first.contraction.dtype.name)


def _lies(matched: Match) -> list[tuple[str, bool]]:
    """How the operands lie in memory."""
    return [(name, operand.k_contiguous) for name, operand in matched.operands]


def check_sections(
    sections: Sequence[tuple[Match, Pointwork]],
    schedule: Schedule,
    instruction: Atom,
) -> None:
    """Refuse a schedule with which sections would not share one kernel.

    Args:
        sections: products and epilogue of each, as the schedule has them run.
        schedule: that fits each of them.
        instruction: that multiplies, for all of them.

    Raises:
        ScheduleError: with what they do not share.
    """
    if len(sections) == 1:
        return
    where = f"schedule {schedule.name}"
    if not schedule.specialised:
        raise ScheduleError(
            "products over different output domains without roles",
            where=where,
            why="only persistent blocks go from the tiles of one to those of another",
            nearest='Use roles.form = "cooperative" or "pingpong"',
        )
    for matched, work in sections:
        check_last_round(schedule, matched, work, len(sections))
    tiles = tiling(schedule, instruction)
    first, work = sections[0]
    for matched, other in sections[1:]:
        names = f"{first.contraction.name} and {matched.contraction.name}"
        if _lies(first) != _lies(matched):
            raise ScheduleError(
                f"{names}: operands are stored in other orders, as these tiles multiply them",
                where=where,
                why="one instruction is told how they lie, and rows in tiles may exchange them",
                nearest='Use epilogue.rows = "after"',
            )
        loops = [
            main_loop(one, ring_pieces(schedule, one, tiles), tiles.cta[2])
            for one in (first, matched)
        ]
        if loops[0] != loops[1]:
            raise ScheduleError(
                f"{names}: operands do not come alike",
                where=where,
                why="tiles of all products go through the same rings, by the copy engine or by "
                "threads",
                nearest="Compute operands of all products, or of none; or split the function",
            )
        rooms = [
            [(b.name, b.slots, b.slot_bytes, b.owners) for b in memory(schedule, *pair, tiles)]
            for pair in ((first, work), (matched, other))
        ]
        if rooms[0] != rooms[1]:
            raise ScheduleError(
                f"{names}: panels of their epilogues are not the same",
                where=f"{where}, epilogue.through",
                why="tiles of all products go through the same shared memory",
                nearest='Use epilogue.through = "registers"',
            )


def together(problems: Sequence[Problem]) -> Problem:
    """Problems as one: the largest, with as many columns as make the results of all.

    Args:
        problems: of the sections, for the same sizes.
    """
    results = [one.m * one.n * one.batches for one in problems]
    largest = problems[results.index(max(results))]
    rows = largest.m * largest.batches
    share = sum(results)

    def mean(values: Sequence[int]) -> int:
        """Of what every result takes, in the mean over all of them; rounded up."""
        return -(-sum(v * r for v, r in zip(values, results, strict=True)) // share)

    return replace(
        largest,
        n=-(-share // rows),
        domain=(),
        k=max(one.k for one in problems),
        matrices=max(one.matrices for one in problems),
        functions=mean([one.functions for one in problems]),
        pointwise=any(one.pointwise for one in problems),
        astride=(max(one.astride[0] for one in problems), max(one.astride[1] for one in problems)),
        matrix_bytes=mean([one.matrix_bytes for one in problems]),
        result_bytes=mean([one.result_bytes for one in problems]),
        access_bytes=(
            min(one.access_bytes[0] for one in problems),
            min(one.access_bytes[1] for one in problems),
        ),
        sections=tuple((one.m, one.n, one.batches) for one in problems),
    )
