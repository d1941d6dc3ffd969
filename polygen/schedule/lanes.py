"""What goes with dot products by lanes: warps read for themselves, sums leave from registers."""

from __future__ import annotations

from polygen.schedule.model import Loops, Schedule, SharedMemory


def lane_problems(schedule: Schedule) -> list[str]:
    """What of a schedule has no meaning where lanes multiply, with the nearest legal value."""
    if not schedule.by_lanes:
        return []
    problems, loops, usual = [], schedule.loops, Loops()
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
    ignored = {
        "loops.mma": loops.mma != usual.mma,
        "loops.k": loops.k != usual.k,
        "loops.phases": loops.phases != usual.phases,
        "smem.swizzle": schedule.smem != SharedMemory(),
    }
    problems += [
        f'{name} with atom = "{schedule.atom}": only the default is meant for it. Leave it out'
        for name, changed in ignored.items()
        if changed
    ]
    return problems
