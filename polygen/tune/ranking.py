"""The order in which a tuner tries schedules: by the model, with variants of one tile spread out.

The model tells tiles apart better than, for example, orders of visiting them: each variant of a
tile ranks a little behind the one before it, so that other tiles get their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.hardware.device import Device
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import predict_all
from polygen.tune.identity import candidate_key

_VARIANT_STEP = 0.004  # by which a variant of a tile ranks behind the one before it


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to try, where it ranks, and what it decides."""

    key: str
    fitted: Fitted
    rank: float
    decisions: tuple[object, ...]


def ranked(candidates: Sequence[Fitted], device: Device, problem: Problem) -> list[Candidate]:
    """Without doubles: the anchor first, the others by the model, variants of a tile spread out."""
    unique: dict[str, Fitted] = {}
    for one in candidates:
        unique.setdefault(candidate_key(one.schedule), one)
    kept = list(unique.items())
    times = predict_all(device, [one for _, one in kept], problem)
    variants: dict[object, int] = {}
    found = []
    for (key, one), predicted in sorted(
        zip(kept, times, strict=True), key=lambda item: (item[1], item[0][1].schedule.name)
    ):
        decisions = _decisions(one.schedule)
        tile = decisions[:3]
        variants[tile] = variants.get(tile, -1) + 1
        rank = predicted * (1 + _VARIANT_STEP * variants[tile])
        found.append(Candidate(key, one, rank, decisions))
    first = candidate_key(candidates[0].schedule)
    return sorted(found, key=lambda one: (one.key != first, one.rank))


def _decisions(schedule: Schedule) -> tuple[object, ...]:
    """A schedule as independent decisions; the first three are the form and the tile."""
    cta, warp = schedule.tile.cta, schedule.tile.warp
    return (
        (schedule.roles.form, schedule.by_lanes),
        (cta.m, warp.m),
        (cta.n, warp.n),
        cta.k,
        schedule.cluster,
        schedule.raster,
        schedule.pipeline.stages,
        replace(schedule.pipeline, stages=0, distance=0),
        schedule.epilogue,
        schedule.min_blocks,
        schedule.exchange,
    )


def differences(one: tuple[object, ...], other: tuple[object, ...]) -> int:
    """How many decisions differ."""
    return sum(a != b for a, b in zip(one, other, strict=True))
