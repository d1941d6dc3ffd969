"""``polygen tune``: finds the fastest schedule of a program for given sizes, within a budget."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polygen.bench.rows import selected
from polygen.bench.sweep import sweep
from polygen.cli import load
from polygen.cli.output import fancy, print_json, print_pairs, print_table
from polygen.errors import PolygenError
from polygen.schedule.load import dumps
from polygen.tune.cost import predict_all
from polygen.tune.exported import export
from polygen.tune.records import Records
from polygen.tune.search import DEFAULT_BUDGET, Progress, Tuning
from polygen.tune.task import describe
from polygen.tune.tuner import tune, write_schedule

INTERRUPTED = 130
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_LISTED = 40


def seconds(text: str) -> float:
    """A budget: ``30s``, ``2m``, ``90``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip(), re.ASCII)
    if found is None or not 0 < float(found[1]) < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time above 0, in seconds, minutes or hours: 90, 30s, 2m or 1.5h"
        )
    return float(found[1]) * _UNITS[found[2]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `polygen tune` takes besides the program."""
    add = parser.add_argument
    add("--budget", metavar="TIME", type=seconds, default=None, help="30s, 2m, 90; default: 30s")
    add("--exhaustive", action="store_true", help="measure all schedules; no limit but --budget")
    add("--write-schedule", metavar="FOLDER", help="write the best as a schedule file")
    add("--export", metavar="FILE", help="write all that was measured on this GPU as JSON")
    add("--replay", metavar="FILE", help="take times from such a file instead of a GPU")
    add("--list", action="store_true", help="list the schedules by predicted time; no GPU")
    add(
        "--suite", metavar="NAME", nargs="+", action="extend", default=[],
        help="tune the rows of `polygen bench` suites instead of a program, --budget for each",
    )  # fmt: skip
    add("--rows", metavar="REGEX", default="", help="of those, the rows whose key matches")


def run(options: argparse.Namespace) -> int:
    """Tune, print the result, and write what was asked for; 130 if it was interrupted."""
    if options.schedule != "auto":
        raise PolygenError("tuning finds the schedule", where="--schedule", nearest="Leave it out")
    if options.suite:
        return _suites(options)
    if not options.program or not options.signature:
        raise PolygenError(
            "nothing to tune",
            where="tune",
            nearest="Give a program and its operands, or --suite NAME",
        )
    fused = load.fused(options.program, options.signature, options.name)
    out = options.out_dtype
    kernel: dict[str, Any] = {
        "sizes": dict(options.size),
        "arch": options.arch,
        "static": tuple(options.static),
        "out_dtype": out[0] if out and len(out) == 1 else out,
        "acc_dtype": options.acc_dtype,
        "invariant": tuple(options.invariant),
    }
    if options.list:
        return _list(options, fused, kernel)
    budget = _budget(options)
    with _progress(options) as report:
        found = tune(
            fused,
            *options.signature,
            **kernel,
            budget=budget,
            replay=Path(options.replay) if options.replay else None,
            report=report,
        )
    written = []
    if options.write_schedule:
        comment = f"Tuned with {options.command}: {_verdict(found)}."
        path = write_schedule(found.best.schedule, Path(options.write_schedule), comment)
        written.append(("schedule file", str(path)))
    if options.export:
        written.append(("record", _export(options, found.gpu)))
    if options.json:
        print_json(as_json(found))
    else:
        _print(found, written)
    return INTERRUPTED if found.interrupted else 0


def _budget(options: argparse.Namespace) -> float | None:
    given: float | None = options.budget
    return given or (None if options.exhaustive else DEFAULT_BUDGET)


def _export(options: argparse.Namespace, gpu: str) -> str:
    """Write the record of a GPU; what was written, in words."""
    source = "replay" if options.replay else "gpu"
    with Records() as records:
        count = export(records, Path(options.export), gpu, source=source)
    return f"{options.export}, {count} problem(s)"


def _suites(options: argparse.Namespace) -> int:
    """Tune rows of suites; 1 if one of them could not be tuned."""
    if options.program:
        raise PolygenError(
            "a program and suites", where="--suite", nearest="Tune one, or the others"
        )
    one = {
        "--list": options.list,
        "--write-schedule": options.write_schedule,
        "--invariant": options.invariant,
    }
    option = next((name for name, given in one.items() if given), None)
    if option is not None:
        raise PolygenError(
            f"{option} is for one program",
            where="--suite",
            nearest="`polygen bench --list` prints rows, `polygen.tune.ship` writes files",
        )
    rows = selected(tuple(dict.fromkeys(options.suite)), options.rows, to_tune=True)
    replay = Path(options.replay) if options.replay else None
    results: list[dict[str, Any]] = []
    failed, interrupted, gpu = 0, False, ""
    with _progress(options) as report:
        found = sweep(rows, _budget(options), report, arch=options.arch, replay=replay)
        for place, (row, result) in enumerate(found, 1):
            head = f"[{place}/{len(rows)}] {row.key}: "
            if isinstance(result, PolygenError):
                failed += 1
                results.append({"key": row.key, "error": str(result)})
                text = f"{head}{result}"
            else:
                interrupted, gpu = result.interrupted, result.gpu
                results.append({"key": row.key, **as_json(result)})
                text = f"{head}{result.best.schedule.name}, {_verdict(result)}"
            print(text, file=sys.stderr if options.json else sys.stdout, flush=True)
            if gpu and options.export:
                _export(options, gpu)  # after every row: what is measured is kept
    if options.json:
        print_json(results)
    return INTERRUPTED if interrupted else int(failed > 0)


def as_json(found: Tuning) -> dict[str, Any]:
    """A result as plain values."""
    values = dataclasses.asdict(found)
    values["best"]["schedule"] = tomllib.loads(dumps(found.best.schedule))
    values["states"] = dict(found.states)
    return {**values, "speedup": found.speedup}


def _verdict(found: Tuning) -> str:
    return (
        f"{found.best.microseconds:.2f} us, {found.speedup:.3f} times as fast as "
        f"{found.anchor}, the automatic choice until then ({found.anchor_microseconds:.2f} us), "
        f"on {found.gpu}"
    )


def _print(found: Tuning, written: list[tuple[str, str]]) -> None:
    states = ", ".join(f"{count} {state}" for state, count in found.states)
    resumed = f"; {found.resumed} of them by earlier runs" if found.resumed else ""
    ended = "" if found.finished else ", stopped before the last round"
    print_pairs(
        [
            ("best", found.best.schedule.name),
            ("time", _verdict(found)),
            ("schedules", f"{found.candidates} fit: {states}{resumed}"),
            ("took", f"{found.seconds:.1f} s{ended}"),
            *written,
        ]
    )


def _list(options: argparse.Namespace, fused: Any, kernel: dict[str, Any]) -> int:
    made = describe(fused, options.signature, **kernel)
    unique = {one.schedule: one for one in made.candidates}
    times = predict_all(made.device, list(unique.values()), made.problem)
    ranked = sorted(zip(times, (one.name for one in unique), strict=True))
    if options.json:
        print_json([{"name": name, "predicted_microseconds": time} for time, name in ranked])
        return 0
    rows = [(name, f"{time:.2f}") for time, name in ranked[:_LISTED]]
    print_table(("schedule", "predicted us"), rows)
    if len(ranked) > _LISTED:
        print(f"… and {len(ranked) - _LISTED} more; --json lists all")
    return 0


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, a line per second otherwise, nothing where JSON is printed."""
    if options.json:
        yield lambda _: None
        return
    if not (fancy() and sys.stderr.isatty()):
        yield _Lines()
        return
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 (only a terminal needs it)
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Bar(*columns, transient=True) as bar:
        task = bar.add_task("start", total=None, text="")

        def show(now: Progress) -> None:
            bar.update(
                task, description=now.stage, completed=now.done, total=now.total, text=_line(now)
            )

        yield show


class _Lines:
    """Prints how far a tuning is, once a second, and whenever its stage changes."""

    def __init__(self) -> None:
        self._last, self._stage = -1.0, ""

    def __call__(self, now: Progress) -> None:
        if now.stage != self._stage or now.seconds - self._last >= 1:
            self._last, self._stage = now.seconds, now.stage
            print(f"{now.stage}: {_line(now)}", file=sys.stderr, flush=True)


def _line(now: Progress) -> str:
    text = f"{now.done}/{now.total} schedules, {now.seconds:.1f} s"
    if not now.best:
        return text
    ratio = now.anchor_microseconds / now.microseconds
    return f"{text}, {now.best} {now.microseconds:.1f} us ({ratio:.3f} of the first choice's speed)"
