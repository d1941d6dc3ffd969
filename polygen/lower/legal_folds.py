"""What kernels with folds cannot do, refused by name before anything is built."""

from __future__ import annotations

from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.lower.legal import other_ways, refuse
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.schedule.idle import not_shared
from polygen.schedule.model import Schedule

FOLLOWS_NONE = "kernels with folds, or with rows in groups, follow no launch that makes operands"


def check_folds(schedule: Schedule, work: Pointwork) -> None:
    """Refuse folds that the way out of a schedule makes no parts of, or its products no rows of.

    Raises:
        ScheduleError: blocks share sums beside a fold of an operand; operands are exchanged,
            multiplied by lanes or copied first, or results leave through a scratch area or in
            panels of which there are none.
    """
    others = {f: how for f, how in other_ways(schedule).items() if f != "launch.dependent"}
    for operand in work.operands.folds:
        name = operand.fold.write.name
        if schedule.cluster.k > 1:
            raise ScheduleError(
                f"cluster.k = {schedule.cluster.k} with {name}, a fold of an operand",
                where=f"schedule {schedule.name}",
                why="blocks that share sums have a range of k each, and whole rows none of them",
                nearest=f"Use {not_shared(schedule)}",
            )
        if schedule.cluster.tiles > 1:
            raise ScheduleError(
                f"a cluster of {schedule.cluster.m} x {schedule.cluster.n} with {name}, a fold of "
                "an operand",
                where=f"schedule {schedule.name}",
                why="all threads of a consumer read the ring, and only one that speaks for all "
                "can tell other blocks that a slot is free",
                nearest="Use cluster.m = 1 and cluster.n = 1",
            )
        why = "rows of operands are folded from the rings that products read"
        refuse(schedule, others, f"with {name}, a fold of an operand", why)
    within = tuple(fold for one in work.before for fold in one.folds)
    for fold in (*work.folds, *within):
        why = (
            "parts of folds are made of tiles with the result's own rows and columns, and one "
            "launch follows the kernel's alone"
        )
        refuse(schedule, others, f"with {fold.value}, a fold", why)
        through = schedule.epilogue.through
        if through == "smem" or (through != "registers" and not work.writes):
            raise ScheduleError(
                f"epilogue.through = {through!r} with {fold.value}, a fold",
                where=f"schedule {schedule.name}",
                why="parts of folds are made of terms that are in registers where the instruction "
                "left them"
                if through == "smem"
                else "panels are of matrices that are stored, and only folds leave",
                nearest='Use epilogue.through = "registers"',
            )


def follows_none(match: Match, work: Pointwork) -> str:
    """What a kernel has that follows no launch which makes operands; "": nothing."""
    folds = [fold.value for one in (work, *work.before) for fold in one.folds]
    folds += [one.fold.write.name for one in work.operands.folds]
    if folds:
        return f"beside {folds[0]}, a fold of the kernel's"
    return "with rows in groups" if match.groups is not None else ""


def check_parts(schedule: Schedule, match: Match, work: Pointwork) -> None:
    """Refuse roles for products of f32 beside folds, or in groups: nobody makes their parts.

    Raises:
        ScheduleError: with the way that such products are multiplied.
    """
    if not (match.in_parts and schedule.specialised):
        return
    beside = follows_none(match, work)
    if beside:
        raise ScheduleError(
            f"roles with products of f32 {beside}",
            where=f"schedule {schedule.name}",
            why="warpgroups multiply f32 in parts of tf32 that a launch before the kernel makes; "
            + FOLLOWS_NONE,
            nearest="Use a schedule without roles, whose warps split operands in registers",
        )


def check_folded(work: Pointwork) -> None:
    """Refuse folds that tiles have no parts of, whatever the schedule.

    Raises:
        UnsupportedProgram: a fold leaves the rows and columns of a tile as they are.
    """
    for fold in work.folds:
        if not {"m", "n"} & set(fold.folded):
            raise UnsupportedProgram(
                f"{fold.value}, a {fold.monoid}, folds no axis of a tile",
                where="it folds matrices of a product, and keeps their rows and columns",
                why="its parts would be as many as the product has elements",
                nearest="Fold rows or columns as well, sum along the axis in the product "
                "(pg.einsum), or fold outside",
            )
