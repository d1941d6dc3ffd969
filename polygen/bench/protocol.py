"""How a row is measured, whatever has the times.

1. Each contender is made, launched once and compared with float64; one that cannot, or that is
   farther off than its bound, takes no part, and the record says why. A stage is announced before
   every step that can hang, so that the parent can name what did.
2. A few launches of each tell how long the fastest takes. Below `GRAPH_BELOW` the host would be
   measured, so that all contenders become CUDA graphs.
3. All contenders are launched in rounds, in another random order each round, every launch with a
   cold L2 cache. All launches are kept; nothing is called an outlier. A kernel that does nothing is
   launched beside them, as a graph where they are: what is left of a short time is the kernel's.
   Nothing is subtracted.
4. Polygen's result of the last launch is compared with float64 again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from polygen.bench import statistics
from polygen.bench.rows import Row
from polygen.bench.source import EMPTY, POLYGEN, Call, DeviceLost, Errors, Job, Source, Work
from polygen.errors import PolygenError
from polygen.runtime.child import Stage, one_line

REPEATS = 101  # odd, so that the median is a launch
PILOT = 7
WARM = 3
GRAPH_BELOW = 60.0  # microseconds

# Seconds that a stage may take before the child is killed.
LIMITS = {"about": 120.0, "data": 60.0, "polygen": 30.0, "peer": 40.0}
LIMITS |= {"inductor": 150.0, "inductor_joined": 150.0, "time": 90.0}

# Largest relative Frobenius error, and largest |y - exact| / (|exact| + rms(exact)) of an element;
# of sums of rounded terms, as of attention, the latter is |y - exact| over the sum of |terms|.
BOUNDS = {
    ("bf16", "f32"): (5e-3, 2.0**-7),
    ("f16", "f32"): (1e-3, 2.0**-9),
    ("f16", "f16"): (1e-2, 2.0**-4),
    # Operands rounded to 10 bits: 2^-11 / sqrt(3) each, 3e-4 together, six times that somewhere.
    # If they were cut off, a bias of 6.5e-4 would be added to twice the error.
    ("tf32", "f32"): (5e-4, 2.0**-8),
    # Matrix units are known to keep 13 bits of such sums; 256 cut-off additions of K = 8192.
    ("e4m3", "f32"): (2e-2, 2.0**-4),
    ("s8", "f32"): (1e-6, 2.0**-20),  # exact up to 2^24, then rounded to f32
}
PEER_BOUND = 5e-2  # of the Frobenius error; a library that is farther off computes something else

TEXT = (
    "the contenders of a row in one process on one card, random order, L2 flushed before every "
    f"launch, CUDA events, medians of {REPEATS} launches with 95 % intervals from order statistics"
)
DATA = "standard normal"


def interleaved(
    work: Work, contenders: Mapping[str, Call], repeats: int, seed: int = 0
) -> dict[str, list[float]]:
    """Microseconds of every launch of every contender, side by side.

    Args:
        work: times launches.
        contenders: by name.
        repeats: launches of each.
        seed: of the order.
    """
    names, order = list(contenders), random.Random(seed)
    sequence: list[str] = []
    for _ in range(repeats):
        order.shuffle(names)
        sequence += names
    work.timed([call for call in contenders.values() for _ in range(WARM)])
    found: dict[str, list[float]] = {name: [] for name in contenders}
    times = work.timed([contenders[name] for name in sequence])
    for name, microseconds in zip(sequence, times, strict=True):
        found[name].append(microseconds)
    return found


def wrong(row: Row, found: Errors) -> str | None:
    """Why polygen's errors are too large; None when they are not. NaN is."""
    bounds = BOUNDS[row.dtype, row.acc]
    for name, value, bound in zip(("Frobenius", "largest"), found, bounds, strict=True):
        if not value <= bound:
            return f"{name} error {value:.2e}, bound {bound:.2e}"
    return None


def short(found: Errors) -> list[float | None]:
    """Errors as JSON takes them."""
    return [float(f"{value:.2e}") if np.isfinite(value) else None for value in found]


def measure(source: Source, job: Job, stage: Stage) -> dict[str, Any]:
    """One line of the record; "error" in it says why there are no times."""
    row = job.row
    stage("data", LIMITS["data"])
    try:
        work = source.open(job, stage)
    except PolygenError as error:
        return {"error": one_line(error)}
    line: dict[str, Any] = {"errors": {}, "skipped": dict(job.leave_out), "facts": {}}
    contenders: dict[str, Call] = {}
    for name in (POLYGEN, *job.peers):
        if name not in job.leave_out:
            _enter(work, row, name, stage, line, contenders)
        if "error" in line:
            return line
    stage("time", LIMITS["time"])
    work.conditions()
    pilot = interleaved(work, contenders, PILOT)
    line["graph"] = min(float(np.median(values)) for values in pilot.values()) < GRAPH_BELOW
    nothing = work.empty()
    if nothing is not None:
        contenders[EMPTY] = nothing
    if line["graph"]:
        contenders = _captured(work, contenders, line)
    if POLYGEN not in contenders:
        return {**line, "error": line["skipped"].pop(POLYGEN)}
    stage("time", LIMITS["time"])
    work.poison()
    times = interleaved(work, contenders, job.repeats)
    nothings = times.pop(EMPTY, None)
    line["card"] = work.conditions()
    if fault := wrong(row, work.left()):
        return {**line, "error": f"wrong result after the measurement: {fault}"}
    line["times"] = {n: statistics.to_json(statistics.summary(v)) for n, v in times.items()}
    if nothings:
        line[EMPTY] = statistics.to_json(statistics.summary(nothings))
    return line


def _enter(
    work: Work,
    row: Row,
    name: str,
    stage: Stage,
    line: dict[str, Any],
    contenders: dict[str, Call],
) -> None:
    """Make and check a contender; the line gets its errors, or why it takes no part."""
    ours = name == POLYGEN
    limit = LIMITS.get(name, LIMITS["peer"])
    stage(name, limit)
    try:
        call = work.make(name)
        found = work.check(name, call)
    except PolygenError as error:
        line["error" if ours else "skipped"] = (
            one_line(error) if ours else {**line["skipped"], name: one_line(error)}
        )
        return
    except DeviceLost:
        raise
    except Exception as error:
        if ours:
            raise
        line["skipped"][name] = one_line(error)  # a library that cannot is no contender
        return
    line["errors"][name] = short(found)
    line["facts"][name] = work.facts(name)
    if ours and (fault := wrong(row, found)):
        line["error"] = f"wrong result: {fault}"
    elif not ours and not found[0] <= PEER_BOUND:
        line["skipped"][name] = f"Frobenius error {found[0]:.2e}, bound {PEER_BOUND:.0e}"
    else:
        contenders[name] = call


def _captured(work: Work, contenders: Mapping[str, Call], line: dict[str, Any]) -> dict[str, Call]:
    """The contenders as graphs; one without a graph has no time, and the line says so."""
    graphs = {}
    for name, call in contenders.items():
        try:
            graphs[name] = work.captured(name, call)
        except Exception as error:
            line["skipped"][name] = f"no graph: {one_line(error)}"
    return graphs
