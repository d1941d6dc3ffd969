"""What goes with dot products by lanes: warps read for themselves, sums leave from registers."""

from __future__ import annotations

from polygen.schedule.idle import idle
from polygen.schedule.model import Schedule


def lane_problems(schedule: Schedule) -> list[str]:
    """What of a schedule has no meaning where nothing goes through shared memory."""
    if not schedule.without_rings:
        return []
    problems = []
    if schedule.specialised:
        problems.append(
            f'atom = "{schedule.atom}" with roles: every warp reads for itself. '
            'Nearest legal: roles.form = "none"'
        )
    if schedule.epilogue.through != "registers":
        problems.append(
            f'epilogue.through = "{schedule.epilogue.through}" with atom = "{schedule.atom}": sums '
            'lie in lanes. Nearest legal: "registers"'
        )
    problems += [
        f'{name} with atom = "{schedule.atom}": it decides nothing there. Leave it out'
        for name in idle(schedule)
    ]
    return problems
