"""What goes with dot products by lanes: warps read for themselves, sums leave from registers."""

from __future__ import annotations

from polygen.schedule.model import Loops, Schedule, SharedMemory


def lane_problems(schedule: Schedule) -> list[str]:
    """What of a schedule has no meaning where lanes multiply, with the nearest legal value."""
    if not schedule.by_lanes:
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
        f'{name} with atom = "{schedule.atom}": only the default is meant for it. Leave it out'
        for name in meant_for_warps(schedule)
    ]
    return problems


def meant_for_warps(schedule: Schedule) -> list[str]:
    """The fields that are no default, of those that only kernels whose warps do everything read."""
    loops, usual = schedule.loops, Loops()
    changed = {
        "loops.mma": loops.mma != usual.mma,
        "loops.k": loops.k != usual.k,
        "loops.phases": loops.phases != usual.phases,
        "smem.swizzle": schedule.smem != SharedMemory(),
    }
    return [name for name, is_changed in changed.items() if is_changed]
