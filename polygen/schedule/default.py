"""Chooses a shipped schedule for a program, a device and the sizes to optimise for.

1. Take the device's shipped schedules that fit the program (a callback decides: resources are a
   later stage's).
2. Predict each one's time: output tiles run in waves over the multiprocessors; inside a wave the
   tensor cores are the limit, slowed down when a warp tile reuses its operands too little for
   shared memory to keep up.
3. Take the fastest; the origin says what was compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polygen.errors import ScheduleError
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Problem:
    """What a schedule is chosen for: the sizes along m, n and k."""

    m: int
    n: int
    k: int


# A warp tile of 64x64 reads 1/32 of an element per multiply-add from shared memory, which tensor
# cores outrun only just.
_FULL_REUSE = 32.0
_WARPS_TO_FILL = 8  # resident warps that keep the tensor cores of a multiprocessor busy
_FILL_STEPS = 3  # k tiles' worth of time that filling a block's pipeline and its epilogue take


def choose(
    device: Device,
    atom: Atom,
    problem: Problem,
    blocks: Callable[[Schedule], int],
) -> tuple[Schedule, str]:
    """The schedule predicted fastest, and why.

    Args:
        device: the target.
        atom: the instruction.
        problem: sizes to optimise for.
        blocks: thread blocks of a schedule that fit one multiprocessor; 0 if it does not fit at
            all.

    Raises:
        ScheduleError: no shipped schedule fits.
    """
    ranked = []
    for candidate in shipped(device):
        cta, warp = candidate.tile.cta, candidate.tile.warp
        if cta.k % atom.k or warp.m % atom.m or warp.n % atom.n:
            continue
        resident = blocks(candidate)
        if resident:
            fitted = replace(candidate, min_blocks=min(candidate.min_blocks, resident))
            ranked.append((_predict(device, fitted, problem, resident), fitted, resident))
    if not ranked:
        raise ScheduleError(
            f"no shipped schedule fits {atom} on {device}",
            where="schedule = auto",
            nearest="Pass a schedule of your own",
        )
    _, best, resident = min(ranked, key=lambda item: (item[0], item[1].name))
    tiles = _tiles(best, problem)
    waves = -(-tiles // (device.multiprocessors * resident))
    return best, (
        f"shipped {best.name}, fastest of {len(ranked)} by the wave model for "
        f"{problem.m}x{problem.n}x{problem.k}: {tiles} tiles in {waves} wave(s) of "
        f"{resident} block(s) on {device.multiprocessors} multiprocessors"
    )


def _tiles(schedule: Schedule, problem: Problem) -> int:
    cta = schedule.tile.cta
    return -(-problem.m // cta.m) * -(-problem.n // cta.n)


def _predict(device: Device, schedule: Schedule, problem: Problem, resident: int) -> float:
    """Relative time; the unit is one multiply-add of one multiprocessor at full rate."""
    cta, warp = schedule.tile.cta, schedule.tile.warp
    tiles = _tiles(schedule, problem)
    steps = -(-problem.k // cta.k) + _FILL_STEPS
    per_block = steps * cta.k * cta.m * cta.n
    reuse = warp.m * warp.n / (warp.m + warp.n)
    warps = (cta.m // warp.m) * (cta.n // warp.n)
    total = 0.0
    while tiles > 0:  # whole waves at once, then the rest, which leaves multiprocessors less loaded
        full = tiles // (device.multiprocessors * resident)
        load = resident if full else -(-tiles // device.multiprocessors)
        rate = min(1.0, reuse / _FULL_REUSE) * min(1.0, load * warps / _WARPS_TO_FILL)
        total += max(full, 1) * load * per_block / rate
        tiles -= max(full, 1) * device.multiprocessors * load
    return total
