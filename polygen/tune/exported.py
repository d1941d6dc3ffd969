"""The records of tuning as one JSON file: what a cost model is fitted to, and what replays read.

A file holds the problems of one kind of GPU, each with the times of its schedules as fitted, and
why the others have none. Where several versions were measured, the last one is taken.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from polygen.errors import PolygenError
from polygen.frontend.signature import parse_signature
from polygen.runtime.environment import environment
from polygen.runtime.files import write_text_atomic
from polygen.schedule.load import dumps
from polygen.tune.identity import invariant_of
from polygen.tune.recorded import dump
from polygen.tune.records import BESIDE, TIMED, Measurement, Records, Target, now

_PROTOCOL = (
    "contenders of a batch in one process, interleaved in random order beside the automatic "
    "choice; normal random data; L2 cache flushed before every launch; CUDA events; CUDA graphs "
    "below 60 us; medians; those marked with one repeat took more than 2.5 times as long as the "
    "automatic choice in three launches of their own, and were not timed further"
)


def export(records: Records, path: Path, gpu: str, *, source: str = "gpu") -> int:
    """Write the problems measured on a kind of GPU.

    Args:
        records: what was measured.
        path: the file to write, whole or not at all.
        gpu: the GPU's name.
        source: "gpu", or "replay" for times that themselves come from a record.

    Returns:
        The number of problems.

    Raises:
        PolygenError: there is nothing to export.
        CacheError: the file cannot be written.
    """
    problems, versions = [], []
    for number, target in records.problems():
        if target.gpu != gpu or target.source != source:
            continue
        version = records.latest_version(number)
        if version is None:
            continue
        found = records.measured(number, version)
        if any(one.state == TIMED for one in found.values()):
            problems.append(_problem(target, sorted(found.values(), key=_order)))
            versions.append(version)
    if not problems:
        raise PolygenError(
            f"nothing was measured on {gpu}", where=str(records.path), nearest="`polygen tune` does"
        )
    here = environment()
    provenance = {
        "date": now()[:10],
        "gpu": {"name": gpu},
        "driver": here["driver"],
        "cuda": here["cuda_driver_api"],
        "compiler": sorted({version.compiler.partition(BESIDE)[0] for version in versions}),
        "polygen": sorted({version.polygen for version in versions}),
        "sources": sorted({version.digest for version in versions}),
        "protocol": _PROTOCOL,
        "source": source,
    }
    write_text_atomic(path, dump(provenance, problems))
    return len(problems)


def _order(found: Measurement) -> tuple[float, str]:
    return (found.ratio or float("inf"), found.schedule.name)


def _problem(target: Target, found: list[Measurement]) -> dict[str, Any]:
    return {
        "op": target.op,
        "expression": target.expression,
        "signature": list(target.signature),
        "out_dtype": target.out_dtype,
        "acc_dtype": target.acc_dtype,
        **_promised(target),
        "sizes": dict(target.sizes),
        "arch": target.arch,
        "measurements": [
            {
                "schedule": _table(one),
                "microseconds": one.microseconds,
                "quartiles": list(one.quartiles or ()),
                "repeats": one.repeats,
                "ratio": one.ratio,
                "graph": one.graph,
            }
            for one in found
            if one.state == TIMED
        ],
        "refused": {
            one.schedule.name: f"{one.state}: {one.reason}" for one in found if one.state != TIMED
        },
    }


def _promised(target: Target) -> dict[str, Any]:
    """The invariant dims, if there are any."""
    dims = [parse_signature(one).dims for one in target.signature]
    found = invariant_of(target.program, dims)
    return {"invariant": list(found)} if found else {}


def _table(found: Measurement) -> dict[str, Any]:
    table = tomllib.loads(dumps(found.schedule))
    table.pop("format")
    return table
