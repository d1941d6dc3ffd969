"""Chooses a shipped schedule for a program, a device and the sizes to optimise for.

1. Fit each of the device's shipped schedules to the program (a callback decides: instruction,
   layouts and resources are other stages').
2. Predict each one's time. Without roles, output tiles run in waves over the multiprocessors;
   inside a wave either the tensor cores are the limit, slowed down when a warp tile reuses its
   operands too little for shared memory to keep up, or the latency of copies, of which only some
   steps are in flight. With roles, a persistent block runs through its share of the tiles; a k tile
   takes as long as its products or its copies, and the epilogue comes on top, unless another
   consumer multiplies meanwhile.
3. Take the fastest; the origin says what was compared, and why schedules with roles were not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from polygen.errors import ScheduleError
from polygen.hardware.device import Device
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule

_PANEL = 64 * 64  # results of a warpgroup in one panel


@dataclass(frozen=True, slots=True)
class Problem:
    """What a schedule is chosen for: the sizes along m, n and k, and the epilogue's weight."""

    m: int
    n: int
    k: int
    element_bytes: int = 2  # of the operands
    matrices: int = 0  # whole matrices that the pointwise statements read
    functions: bool = False  # whether they have functions beyond arithmetic
    pointwise: bool = False  # whether there are any, besides rounding the sums
    astride: bool = False  # whether rows of an operand lie astride the lines of the cache


@dataclass(frozen=True, slots=True)
class Fitted:
    """A shipped schedule as it fits a program."""

    schedule: Schedule
    resident: int  # thread blocks that fit one multiprocessor


def choose(
    device: Device,
    problem: Problem,
    fit: Callable[[Schedule], Fitted | str],
    skip: frozenset[str] = frozenset(),
) -> tuple[Schedule, str]:
    """The schedule predicted fastest, and why.

    Args:
        device: the target.
        problem: sizes to optimise for.
        fit: fits a schedule to the program, or says why it cannot.
        skip: names of schedules that turned out not to compile well.

    Raises:
        ScheduleError: no shipped schedule fits.
    """
    ranked, refused = [], {}
    for candidate in shipped(device):
        if candidate.name in skip or not all(map(device.has, _needs(candidate))):
            continue
        fitted = fit(candidate)
        if isinstance(fitted, str):
            refused[candidate.specialised] = fitted
            continue
        schedule = fitted.schedule
        # Of equals, with an epilogue the one that hides it, else the one that copies least.
        preferred = "pingpong" if problem.pointwise else "cooperative"
        rank = (predict(device, fitted, problem), schedule.roles.form != preferred, schedule.name)
        ranked.append((rank, fitted))
    if not ranked:
        raise ScheduleError(
            f"no shipped schedule fits the program on {device}",
            where="schedule = auto",
            why="; ".join(refused.values()),
            nearest="Pass a schedule of your own",
        )
    _, best = min(ranked, key=lambda item: item[0])
    chosen = best.schedule
    tiles = _tiles(chosen, problem)
    if chosen.specialised:
        run = f"{tiles} tiles by {min(tiles, device.multiprocessors)} persistent blocks"
    else:
        waves = -(-tiles // (device.multiprocessors * best.resident))
        run = (
            f"{tiles} tiles in {waves} wave(s) of {best.resident} block(s) "
            f"on {device.multiprocessors} multiprocessors"
        )
    origin = (
        f"shipped {chosen.name}, fastest of {len(ranked)} by the wave model for "
        f"{problem.m}x{problem.n}x{problem.k}: {run}"
    )
    if chosen.specialised and chosen.epilogue.through == "registers":
        origin += "; results are stored from the registers: tensor maps cannot describe them"
    if not chosen.specialised and True in refused:
        origin += f"; none with roles: {refused[True]}"
    if skip:
        origin += f"; not taken because they spill: {', '.join(sorted(skip))}"
    return chosen, origin


def _needs(schedule: Schedule) -> tuple[str, ...]:
    """Device features without which a schedule makes no sense."""
    return ("wgmma", "tma") if schedule.specialised else ()


def _tiles(schedule: Schedule, problem: Problem) -> int:
    cta = schedule.tile.cta
    return -(-problem.m // cta.m) * -(-problem.n // cta.n)


def predict(device: Device, fitted: Fitted, problem: Problem) -> float:
    """Time in cycles of one multiprocessor."""
    if fitted.schedule.specialised:
        return _predict_roles(device, fitted.schedule, problem)
    products = _predict_waves(device, fitted.schedule, problem, fitted.resident)
    rate = device.model_warp_rate * min(1.0, 2 / problem.element_bytes)
    return products / rate + device.model_start


def _predict_roles(device: Device, schedule: Schedule, problem: Problem) -> float:
    cta, warp = schedule.tile.cta, schedule.tile.warp
    cluster = schedule.cluster
    blocks = cluster.m * cluster.n
    clusters = -(-problem.m // (cta.m * cluster.m)) * -(-problem.n // (cta.n * cluster.n))
    share = -(-clusters // (device.multiprocessors // blocks))
    loaded = cta.k * problem.element_bytes * (cta.m / cluster.n + cta.n / cluster.m)
    rate = device.model_role_bytes_astride if problem.astride else device.model_role_bytes
    # Per element the rate doubles as its size halves.
    products = cta.m * cta.n * cta.k * problem.element_bytes / 2 / device.model_warpgroup_rate
    main = -(-problem.k // cta.k) * max(products, loaded / rate)
    if blocks > 1:
        main *= 1 + device.model_role_cluster_percent / 100
    panel = (
        device.model_role_panel
        + device.model_role_matrix * problem.matrices
        + device.model_role_function * problem.functions
    )
    finish = warp.m * warp.n / _PANEL * panel
    if schedule.roles.form == "cooperative":
        return share * (main + finish) + device.model_role_start
    turns = -(-share // 2)
    return max(share * main + finish, turns * (main + finish)) + device.model_role_start


def _predict_waves(device: Device, schedule: Schedule, problem: Problem, resident: int) -> float:
    """In multiply-adds of one multiprocessor at the full rate of warp instructions."""
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
