"""Chooses a shipped schedule for a program, a device and the sizes to optimise for.

1. Take the device's shipped schedules that fit the program (a callback decides: resources are a
   later stage's).
2. Predict each one's time: output tiles run in waves over the multiprocessors; inside a wave either
   the tensor cores are the limit, slowed down when a warp tile reuses its operands too little for
   shared memory to keep up, or the latency of copies, of which only some steps are in flight.
3. Take the fastest; the origin says what was compared.
"""

from __future__ import annotations

import math
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


def choose(
    device: Device,
    atom: Atom,
    problem: Problem,
    blocks: Callable[[Schedule], int],
    skip: frozenset[str] = frozenset(),
) -> tuple[Schedule, str]:
    """The schedule predicted fastest, and why.

    Args:
        device: the target.
        atom: the instruction.
        problem: sizes to optimise for.
        blocks: thread blocks of a schedule that fit one multiprocessor; 0 if it does not fit at
            all.
        skip: names of schedules that turned out not to compile well.

    Raises:
        ScheduleError: no shipped schedule fits.
    """
    ranked = []
    for candidate in shipped(device):
        cta, warp = candidate.tile.cta, candidate.tile.warp
        steps = cta.k // atom.k
        if cta.k % atom.k or warp.m % atom.m or warp.n % atom.n or candidate.name in skip:
            continue
        if steps % candidate.pipeline.fragments:
            continue  # the register ring would need an index that is known only at run time
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
        + (f"; not taken because they spill: {', '.join(sorted(skip))}" if skip else "")
    )


def _tiles(schedule: Schedule, problem: Problem) -> int:
    cta = schedule.tile.cta
    return -(-problem.m // cta.m) * -(-problem.n // cta.n)


def _predict(device: Device, schedule: Schedule, problem: Problem, resident: int) -> float:
    """Relative time; the unit is one multiply-add of one multiprocessor at full rate."""
    per_multiprocessor = -(-_tiles(schedule, problem) // device.multiprocessors)
    rounds, rest = divmod(per_multiprocessor, resident)
    total = rounds * _round(device, schedule, problem, resident)
    return total + (_round(device, schedule, problem, rest) if rest else 0.0)


def _round(device: Device, schedule: Schedule, problem: Problem, concurrent: int) -> float:
    """Time in which a multiprocessor finishes `concurrent` blocks side by side."""
    cta, warp = schedule.tile.cta, schedule.tile.warp
    warps = concurrent * (cta.m // warp.m) * (cta.n // warp.n)
    reuse = warp.m * warp.n / (warp.m + warp.n)
    exponent = device.model_reuse_exponent_percent / 100
    rate: float = min(
        1.0,
        (reuse / device.model_full_rate_reuse) ** exponent,
        math.sqrt(warps / device.model_full_rate_warps),
    )
    work = concurrent * (cta.k * cta.m * cta.n / rate + device.model_barrier_time)
    # A copy is issued `distance` steps before its tile is needed: faster than that no step can be.
    step = max(work, device.model_copy_latency / max(1, schedule.pipeline.distance))
    return -(-problem.k // cta.k) * step + device.model_round_time
