"""Tunes a program for given sizes: what `polygen tune` does, from Python.

1. Trace the program, and choose a schedule as if nothing had been measured: the anchor.
2. Candidates are the anchor, winners under other versions, shipped schedules and the space around
   all of them, as they fit.
3. `polygen.tune.search` times them on the GPU that is present, or from a record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from polygen import __version__
from polygen.api import Fused, target
from polygen.decide import candidates
from polygen.errors import (
    PolygenError,
    ScheduleError,
    ToolchainMissing,
)
from polygen.hardware.device import Device
from polygen.runtime.driver import cupy_driver
from polygen.runtime.environment import current_arch
from polygen.runtime.files import write_text_atomic
from polygen.runtime.measure import device_name
from polygen.runtime.nvrtc import compiler_identity
from polygen.schedule.load import dumps
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted
from polygen.tune.cost import predict_all
from polygen.tune.crew import Crew
from polygen.tune.gpu import GpuSource
from polygen.tune.identity import candidate_key, canonical, generator_digest
from polygen.tune.recorded import Recorded, read
from polygen.tune.records import BESIDE, Records, Target, Version
from polygen.tune.replay import ReplaySource
from polygen.tune.search import (
    CHECK_SECONDS,
    DEFAULT_BUDGET,
    AnchorFailed,
    Progress,
    Tuning,
    search,
)
from polygen.tune.task import Task, automatic, describe
from polygen.tune.trials import Source

_MOST_ANCHORS = 8  # automatic choices that may fail to compile before the tuner gives up


def tune(
    fused: Fused,
    *signature: str,
    sizes: Mapping[str, int],
    arch: str | None = None,
    static: Sequence[str] = (),
    out_dtype: Any = None,
    acc_dtype: str = "f32",
    invariant: Sequence[str] = (),
    budget: float | None = DEFAULT_BUDGET,
    replay: Path | None = None,
    records: Path | None = None,
    crew: Crew | None = None,
    report: Callable[[Progress], None] = lambda _: None,
    now: Callable[[], float] = time.monotonic,
    check_limit: float = CHECK_SECONDS,
) -> Tuning:
    """Find the fastest schedule, and keep what is measured for automatic choices.

    Args:
        fused: the program.
        signature: one description per parameter, as for `Fused.compile`.
        sizes: of every symbolic dim.
        arch: target; None: the GPU present.
        static: dims of `sizes` that become constants.
        out_dtype: as for `Fused.compile`.
        acc_dtype: as for `Fused.compile`.
        invariant: as for `Fused.compile`: schedules of the one class of sums are measured.
        budget: seconds in all; None: until every candidate is measured.
        replay: a record to take times from; None: the GPU.
        records: the file that measurements go to; None: the one that automatic choices read.
        crew: the processes that compile and time, for more tunings than this one; None: own ones.
        report: called after every step.
        now: the clock that the budget is of, in seconds.
        check_limit: seconds until a schedule counts as hung.

    Returns:
        The fastest schedule, its time, and what happened on the way.

    Raises:
        ToolchainMissing: there is no GPU, and nothing to replay.
        PolygenError: the program, a size, the budget or the record is refused.
    """
    if budget is not None and not 0 < budget < math.inf:
        raise PolygenError(
            f"a budget of {budget} seconds", where="budget", nearest="Use 30, or another positive"
        )
    if replay is None:
        arch = _present(arch)
    made = describe(
        fused, signature, sizes=sizes, arch=arch, static=static, out_dtype=out_dtype,
        acc_dtype=acc_dtype, invariant=invariant,
    )  # fmt: skip
    text = canonical(made.program, made.sizes)
    assert text is not None  # `describe` refuses dims without a size
    named = Target(
        text, made.device.name, "", "gpu", fused.name, fused.source, tuple(map(str, signature)),
        tuple(sizes.items()), out_dtype if isinstance(out_dtype, str) else None, acc_dtype,
    )  # fmt: skip
    source: Source
    if replay is not None:
        recorded = _matching(replay, text, made.device)
        made = replace(made, candidates=_recorded_candidates(made, recorded))
        named = replace(named, gpu=recorded.gpu, source="replay")
        compiler, source = "replay", _replayed(recorded)
    else:
        named = replace(named, gpu=device_name())
        compiler = compiler_identity()
        small = None if made.small is None else tuple(made.small.items())
        source = GpuSource(made.program, made.device, tuple(made.sizes.items()), small)
    version = Version(generator_digest(), compiler, __version__)
    started = now()
    with Records(records) as kept, nullcontext(crew) if crew else Crew() as staff:
        left = None if budget is None else max(0.1, budget - (now() - started))
        return _search(made, named, version, source, kept, staff, left, report, now, check_limit)


def _search(
    made: Task,
    named: Target,
    version: Version,
    source: Source,
    records: Records,
    crew: Crew,
    budget: float | None,
    report: Callable[[Progress], None],
    now: Callable[[], float],
    check_limit: float = CHECK_SECONDS,
) -> Tuning:
    earlier: list[Fitted] = []
    if named.source == "gpu":
        _, fit = candidates(made.program, made.device, made.sizes)
        stale = records.stale_best(records.problem(named), version)
        earlier = [one for one in map(fit, stale) if isinstance(one, Fitted)]
    anchor, *others = made.candidates
    skip: frozenset[str] = frozenset()
    end = None if budget is None else now() + budget
    for _ in range(_MOST_ANCHORS):
        left = None if end is None else max(0.1, end - now())
        # Ratios to another schedule are other figures: they are kept apart.
        own = replace(
            version, compiler=f"{version.compiler}{BESIDE}{candidate_key(anchor.schedule)}"
        )
        try:
            return search(
                [anchor, *earlier, *others], made.device, made.problem, named, own, source,
                records, crew=crew, budget=left, report=report, now=now, check_limit=check_limit,
            )  # fmt: skip
        except AnchorFailed as failed:
            skip |= {failed.schedule.name}
            refusal = failed
            anchor, _ = automatic(made.program, made.device, made.sizes, skip)
    raise ScheduleError("no automatic choice can be compiled", where="tune", why=str(refusal))


def _present(arch: str | None) -> str:
    """The target of the GPU present.

    Raises:
        ToolchainMissing: there is none.
        PolygenError: another target was named.
    """
    cupy_driver()
    here = current_arch()
    if here is None:
        raise ToolchainMissing(
            "there is no GPU to tune on",
            where="tune",
            nearest="Tuning needs an NVIDIA GPU, or a record to replay: --replay RECORD.json",
        )
    if arch is None:
        return here
    if target(arch).name.rstrip("a") != here.rstrip("a"):
        raise PolygenError(
            f"this GPU is {here}, not {arch}",
            where="--arch",
            nearest=f"Use {here}, or leave it out",
        )
    return arch


# --- replays -----------------------------------------------------------------------------------
def _matching(path: Path, text: str, device: Device) -> Recorded:
    """The problem of a record that is the program with its sizes.

    Raises:
        PolygenError: it has none; the ones it has are listed.
    """
    problems = read(path)
    for recorded in problems:
        if recorded.arch == device.name and _text(recorded) == text:
            return recorded
    there = "; ".join(
        f"{one.expression} with {', '.join(f'{n}={v}' for n, v in one.sizes)} on {one.arch}"
        for one in problems
    )
    raise PolygenError(
        "the record does not have this program with these sizes and layouts",
        where=str(path),
        nearest=f"It has: {there}",
    )


def _text(recorded: Recorded) -> str | None:
    return canonical(recorded.program(), dict(recorded.sizes))


def _recorded_candidates(made: Task, recorded: Recorded) -> tuple[Fitted, ...]:
    """The recorded schedules; the anchor is the automatic choice, or the model's among them."""
    _, fit = candidates(made.program, made.device, made.sizes)
    found = []
    for schedule, _ in recorded.times:
        fitted = fit(schedule)
        found.append(Fitted(schedule, fitted.resident if isinstance(fitted, Fitted) else 1))
    wanted = candidate_key(made.candidates[0].schedule)
    predicted = predict_all(made.device, found, made.problem)
    order = sorted(
        range(len(found)),
        key=lambda at: (candidate_key(found[at].schedule) != wanted, predicted[at], at),
    )
    return tuple(found[at] for at in order)


def _replayed(recorded: Recorded) -> ReplaySource:
    return ReplaySource(tuple((candidate_key(one), time) for one, time in recorded.times))


# --- results -----------------------------------------------------------------------------------
def write_schedule(schedule: Schedule, folder: Path, comment: str) -> Path:
    """Write a schedule as a TOML file that `load_schedule` reads, named after it.

    Raises:
        CacheError: it cannot be written.
    """
    path = folder / f"{schedule.name}.toml"
    write_text_atomic(path, f"# {comment}\n{dumps(schedule)}")
    return path
