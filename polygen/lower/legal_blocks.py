"""What is refused of sums in blocks of k, by name: sizes of blocks, and schedules."""

from __future__ import annotations

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.hardware.atom import Atom
from polygen.poly.match import Match
from polygen.poly.promoted_by import MOST_OVERLAP, SETS
from polygen.schedule.idle import computed_by, not_shared
from polygen.schedule.model import Schedule


def check_blocks(match: Match, atom: Atom) -> None:
    """Refuse blocks that no kernel promotes.

    Args:
        match: the products.
        atom: an instruction that takes the operands.

    Raises:
        UnsupportedProgram: with the nearest block.
    """
    sizes = [one.block for one in match.products]
    if not any(sizes):
        return
    names = ", ".join(one.contraction.name for one in match.products)
    if len(set(sizes)) > 1:
        raise UnsupportedProgram(
            f"{names} are summed in blocks of {', '.join(str(size or 'all') for size in sizes)}",
            why="all products of a kernel go through the same k tiles, and are promoted together",
            nearest=f"Scale all of them in groups of {max(sizes)}",
        )
    (size,) = set(sizes)
    if size % atom.k:
        raise UnsupportedProgram(
            f"{names}: factors of {size} neighbours along k",
            where=str(match.products[0].contraction),
            why=f"one {atom} adds up {atom.k} of them, and no factor comes between",
            nearest=f"Use groups of {-(-size // atom.k) * atom.k}, or any multiple of {atom.k}",
        )


def check_promoting(schedule: Schedule, match: Match) -> None:
    """Refuse schedules that promote nothing, or not where blocks end.

    Args:
        schedule: with its own k tile.
        match: the products.

    Raises:
        ScheduleError: with the field to change.
    """
    where, block, depth = f"schedule {schedule.name}", match.block, schedule.tile.cta.k
    _check_overlap(schedule, block, where)
    if not block:
        return
    if schedule.loops.k != "forward":
        raise ScheduleError(
            f'loops.k = "{schedule.loops.k}" with sums in blocks of {block}',
            where=where,
            why="a block is promoted behind its last k tile, the first block before all others",
            nearest='Use loops.k = "forward"',
        )
    if schedule.cluster.k > 1:
        raise ScheduleError(
            f"cluster.k = {schedule.cluster.k} with sums in blocks of {block}",
            where=where,
            why="blocks that share sums have ranges of k tiles, which end anywhere",
            nearest=f"Use {not_shared(schedule)}",
        )
    if match.in_parts and not (schedule.specialised and schedule.makes_first):
        roles, of = schedule.roles, "products of f32, which warpgroups multiply in parts of tf32"
        raise ScheduleError(
            f'roles.computes = "{roles.computes}" with {of}' if schedule.specialised else of,
            where=where,
            why="a part is read by products that are far from each other in k: it is made once, "
            "by a launch before the kernel",
            nearest=f"Use {computed_by(schedule, 'before')}"
            if schedule.specialised
            else "Warps split operands in registers: multiply them as they are",
        )
    if block % depth:
        raise ScheduleError(
            f"tile.cta.k = {depth} with sums in blocks of {block}",
            where=where,
            why="a block is promoted behind its last k tile",
            nearest=f"tile.cta.k = {block_tile(block, depth)}",
        )


def _check_overlap(schedule: Schedule, block: int, where: str) -> None:
    """Refuse runs of blocks whose inner sums would have no registers in turns."""
    overlap, depth = schedule.pipeline.overlap, schedule.tile.cta.k
    if overlap == 1:
        return
    if not block:
        raise ScheduleError(
            f"pipeline.overlap = {overlap} with sums in no blocks",
            where=where,
            why="what is promoted beside products are the sums of blocks of k",
            nearest="Use pipeline.overlap = 1",
        )
    if overlap % SETS or overlap > MOST_OVERLAP:
        fewer = min(overlap - overlap % SETS, MOST_OVERLAP)
        raise ScheduleError(
            f"pipeline.overlap = {overlap}",
            where=where,
            why=f"inner sums have {SETS} sets of registers in turns, and a run of blocks is one "
            "iteration of the code",
            nearest=f"Use 1, or an even number up to {MOST_OVERLAP}: pipeline.overlap = {fewer}",
        )
    if block != depth:
        raise ScheduleError(
            f"pipeline.overlap = {overlap} with tile.cta.k = {depth} and blocks of {block}",
            where=where,
            why="a block is promoted while the next k tile is multiplied, which is the next block",
            nearest=f"Use pipeline.overlap = 1, or tile.cta.k = {block}",
        )


def block_tile(block: int, depth: int) -> int:
    """The longest k tile of so many indices or less that divides a block, in powers of two."""
    while block % depth:
        depth //= 2
    return depth
