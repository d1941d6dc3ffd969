"""``python -m polygen.bench.host``: how fast polygen itself is on this machine's CPU.

1. Every piece of work (`polygen.bench.host_work`) is prepared, then done several times, the pieces
   by turns, so that what the machine does meanwhile meets all of them.
2. Before and after each piece a calibration runs. What counts is the ratio of CPU seconds: it
   hardly depends on the machine or on its other users. The figure is the median.
3. The record, JSON, is compared with another one, as a rule the committed one. A slower machine is
   no failure, and neither is a slower polygen unless ``--fail-above`` says from where on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polygen
from polygen.bench.host_work import Clock, Once, Work, calibration, timed, works
from polygen.bench.provenance import sources_digest
from polygen.errors import BenchError, PolygenError
from polygen.runtime.files import write_text_atomic

FORMAT = 1
KIND = "host"
REPEATS = 7
COMMITTED = Path("docs/results/host.json")

Record = dict[str, Any]


def measure(
    chosen: Sequence[Work],
    repeats: int = REPEATS,
    clock: Clock = time.process_time,
    calibrate: Callable[[], object] = calibration,
    say: Callable[[str], None] = lambda _: None,
) -> Record:
    """Measure pieces of work.

    Args:
        chosen: the pieces.
        repeats: of each.
        clock: CPU seconds of this process.
        calibrate: the work that the others are compared with.
        say: hears what happens.

    Returns:
        A record: for every piece its name, the median and quartiles of its ratio to the
        calibration, and the median of its CPU seconds.
    """
    loop = timed(calibrate)
    ready: list[tuple[Work, Once]] = []
    for work in chosen:
        say(f"prepare {work.name}")
        ready.append((work, work.prepare()))
    taken: dict[str, list[tuple[float, float]]] = {work.name: [] for work in chosen}
    loop(clock)  # the first is slower
    for repeat in range(repeats):
        say(f"round {repeat + 1} of {repeats}")
        before = loop(clock)
        for work, once in ready:
            seconds = once(clock)
            after = loop(clock)
            taken[work.name].append((seconds, (before + after) / 2))
            before = after
    loops = [unit for pairs in taken.values() for _, unit in pairs]
    return {
        "format": FORMAT,
        "kind": KIND,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "polygen": polygen.__version__,
        "sources": sources_digest(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "islpy")},
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count()},
        "repeats": repeats,
        "calibration_seconds": round(statistics.median(loops), 6) if loops else None,
        "rows": [_row(name, pairs) for name, pairs in taken.items()],
    }


def _row(name: str, pairs: Sequence[tuple[float, float]]) -> Record:
    ratios = [seconds / unit for seconds, unit in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "name": name,
        "ratio": round(middle, 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "seconds": round(statistics.median(seconds for seconds, _ in pairs), 6),
    }


def load(path: Path) -> Record:
    """Read a record.

    Raises:
        BenchError: there is none, or it is another kind of file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError("the record cannot be read", where=str(path), why=str(error)) from None
    named = isinstance(found, dict) and (found.get("kind"), found.get("format")) == (KIND, FORMAT)
    if not named or not all("ratio" in row for row in found.get("rows", [{}])):
        raise BenchError(
            "this is no record of `python -m polygen.bench.host`",
            where=str(path),
            nearest=f"Name another one, as {COMMITTED} in the sources",
        )
    return found  # type: ignore[no-any-return]


def changes(found: Record, old: Record | None) -> dict[str, float]:
    """How many times as long as in an old record the pieces take that both have."""
    then = {row["name"]: row["ratio"] for row in old["rows"]} if old else {}
    return {
        row["name"]: row["ratio"] / then[row["name"]]
        for row in found["rows"]
        if row["name"] in then
    }


def table(found: Record, old: Record | None) -> str:
    """A record for people, beside an old one."""
    changed = changes(found, old)
    then = {row["name"]: row["ratio"] for row in old["rows"]} if old else {}
    lines = [("work", "CPU ms", "ratio", "quartiles", "recorded", "change")]
    for row in found["rows"]:
        name = row["name"]
        low, high = row["quartiles"]
        lines.append(
            (
                name,
                f"{row['seconds'] * 1e3:.1f}",
                f"{row['ratio']:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{then[name]:.3f}" if name in then else "-",
                f"{changed[name]:.2f}x" if name in changed else "new",
            )
        )
    missing = sorted(set(then) - {row["name"] for row in found["rows"]})
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    if missing:
        text.append(f"only in the old record: {', '.join(missing)}")
    seconds = found["calibration_seconds"]
    if seconds is not None:
        text.append(f"ratios to a calibration that took {seconds * 1e3:.1f} CPU ms here")
    return "\n".join(text)


def _words() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(
        prog="python -m polygen.bench.host",
        description="Measure how fast polygen itself is, as ratios to a calibration.",
    )
    add = words.add_argument
    add("--out", metavar="FILE", type=Path, help="write the record")
    add("--baseline", metavar="FILE", type=Path, help="a record to compare with")
    add("--repeats", type=int, default=REPEATS, help=f"of each piece; default: {REPEATS}")
    add("--rows", metavar="REGEX", default="", help="pieces whose name matches")
    add(
        "--fail-above", metavar="RATIO", type=float, default=float("inf"),
        help="exit 1 if a piece takes so many times as long as in the baseline; default: never",
    )  # fmt: skip
    add("--json", action="store_true", help="print the record")
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, compare, keep.

    Args:
        argv: the words; None: those of this process.

    Returns:
        0; 1 if ``--fail-above`` is passed; 2 for wrong usage.
    """
    options = _words().parse_args(argv)
    try:
        if options.repeats < 1:
            raise BenchError(f"{options.repeats} repeats", where="--repeats", nearest="At least 1")
        old = load(options.baseline) if options.baseline else None
        chosen = [work for work in works() if re.search(options.rows, work.name)]
        if not chosen:
            known = ", ".join(work.name for work in works())
            raise BenchError(
                f"no work is called {options.rows!r}", where="--rows", nearest=f"There is: {known}"
            )
        found = measure(chosen, options.repeats, say=lambda text: print(text, file=sys.stderr))
        if options.out:
            write_text_atomic(options.out, json.dumps(found, indent=1) + "\n")
    except (PolygenError, re.error) as error:
        print(f"polygen: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1) if options.json else table(found, old))
    slow = {name: by for name, by in changes(found, old).items() if by > options.fail_above}
    for name, by in slow.items():
        print(f"slower: {name} takes {by:.2f} times as long as recorded", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
