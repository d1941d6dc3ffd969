"""What kernels do not do whose blocks share the sums of the last round's tiles, by name."""

from __future__ import annotations

from polygen.errors import ScheduleError
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.schedule.model import Schedule


def check_last_round(schedule: Schedule, match: Match, work: Pointwork, sections: int = 1) -> None:
    """Refuse what is about a whole tile of a block's own, or numbers tiles in another way.

    Args:
        schedule: the decisions.
        match: the products.
        work: their epilogue.
        sections: of the kernel.

    Raises:
        ScheduleError: with the field to change.
    """
    if not schedule.cluster.last:
        return
    folds = [fold.value for one in (*work.before, work) for fold in one.folds]
    others = {
        "rows in groups": (match.groups is not None, "how many tiles there are stands in memory"),
        f"{sections} sections": (sections > 1, "the tiles of all of them are numbered through"),
        f"sums over {len(match.sums) + 1} axes": (
            bool(match.sums),
            "k tiles of all axes are numbered through, from the first on in all tiles",
        ),
        "tiles of pixels": (bool(match.box), "the rows of a tile are boxes of several axes"),
        f"{', '.join(folds)}, a fold": (
            bool(folds),
            "parts of folds have a place for each tile, and shares of tiles have none",
        ),
    }
    for what, (there, why) in others.items():
        if there:
            raise ScheduleError(
                f'cluster.share = "{schedule.cluster.share}" with {what}',
                where=f"schedule {schedule.name}",
                why=why,
                nearest='Use cluster.share = "all", or cluster.k = 1',
            )
