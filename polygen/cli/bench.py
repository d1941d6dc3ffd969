"""``polygen bench``: suites beside other libraries on this GPU; lists, reports and comparisons."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from polygen.bench import compare, figures, record, report, rows, run
from polygen.bench.protocol import REPEATS
from polygen.bench.record import Line, Record
from polygen.bench.rows import Row
from polygen.cli.output import fancy, print_json, print_table
from polygen.errors import PolygenError

DEFAULT_OUT = "bench.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    names = ", ".join(rows.suite_names())
    add = parser.add_argument
    add(
        "--suite", metavar="NAME", nargs="+", action="extend", default=[],
        help=f"what to measure: {names}; default: all",
    )  # fmt: skip
    add("--rows", metavar="REGEX", default="", help="rows whose key, as --list has it, matches")
    add(
        "--peers", metavar="NAME,...", default="all",
        help=f"libraries: {', '.join(run.default_peers())}, all, none; default: all",
    )  # fmt: skip
    add("--budget", metavar="SECONDS", type=float, help="time in all; the most telling rows first")
    add("--out", metavar="FILE", default=DEFAULT_OUT, help=f"the record; default: {DEFAULT_OUT}")
    add("--fresh", action="store_true", help="start a new record; default: go on with the old one")
    add("--refill", action="store_true", help="measure rows again that had no time for a library")
    add("--repeats", type=int, default=REPEATS, help=f"launches each; default: {REPEATS}")
    add("--replay", metavar="RECORD", help="take the times from a record: no GPU, no compiling")
    add("--baseline", metavar="OLD", help="show what changed since a record; exit 1 if slower")
    add("--compare-peers", metavar="FILE", help="show how a table of other measurements agrees")
    add("--list", action="store_true", help="print the rows, and end")
    add(
        "--report", metavar="FOLDER", nargs="?", const="-",
        help="print the record's tables, or write tables and plots to a folder; measures nothing",
    )  # fmt: skip


def bench(options: argparse.Namespace) -> int:
    """Measure, list, report or compare; 1 if a row is wrong or slower than the baseline."""
    named = (name.replace("_", "-") for name in options.suite)
    suites = tuple(dict.fromkeys(named)) or rows.suite_names()
    chosen = rows.selected(suites, options.rows)
    if options.list:
        return _list(chosen, suites, options.json)
    out = Path(options.out)
    if options.report is not None or (options.compare_peers and not options.replay):
        return _told(record.load(out), options)
    _check(options)
    baseline = record.load(Path(options.baseline)) if options.baseline else None
    replayed = Path(options.replay) if options.replay else None
    if replayed is not None:
        record.load(replayed)
        if replayed.resolve() == out.resolve():
            raise PolygenError(
                "a record cannot be replayed into itself",
                where="--out",
                nearest="Name another file",
            )
    request = run.Request(
        rows=tuple(chosen), suites=suites, peers=_peers(options.peers), out=out,
        budget=options.budget, fresh=options.fresh, refill=options.refill, replayed=replayed,
        repeats=options.repeats, command=options.command,
    )  # fmt: skip
    with _progress(options.json) as progress:
        found = run.run(request, progress)
    keys = {row.key for row in chosen}
    lines = [line for line in found["rows"] if line["key"] in keys]
    wrong = [line["key"] for line in lines if line.get("error")]
    slower = _show(found, lines, baseline, options)
    return 1 if wrong or slower else 0


def _check(options: argparse.Namespace) -> None:
    """Refuse numbers that make no run.

    Raises:
        PolygenError: with the nearest that do.
    """
    if options.budget is not None and not 0 < options.budget < float("inf"):
        raise PolygenError(
            f"a budget of {options.budget:g} s", where="--budget", nearest="Give seconds, as in 300"
        )
    if options.repeats < 1:
        raise PolygenError(f"{options.repeats} launches", where="--repeats", nearest="At least 1")


def _peers(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return run.default_peers() if text == "all" else ()
    return run.check_peers([name.strip() for name in text.split(",")])


def _list(chosen: list[Row], suites: tuple[str, ...], as_json: bool) -> int:
    if as_json:
        print_json([record.heading(row, suites) for row in chosen])
        return 0
    table = [
        (row.key, row.operation.expression, " ".join(rows.suites_of(row, suites))) for row in chosen
    ]
    print_table(("row", "expression", "suites"), table)
    return 0


def _told(found: Record, options: argparse.Namespace) -> int:
    """What a record says, without measuring."""
    if options.compare_peers:
        print(compare.text(compare.agreement(found, Path(options.compare_peers))))
        return 0
    if options.report == "-":
        print_json(figures.derived(found)) if options.json else print(report.page(found))
        return 0
    for path in report.write(found, Path(options.report)):
        print(path)
    return 0


def _show(
    found: Record, lines: list[Line], baseline: Record | None, options: argparse.Namespace
) -> bool:
    """Print the result; whether a row is slower than the baseline."""
    changes = figures.changes(baseline, {**found, "rows": lines}) if baseline else []
    slower = [change for change in changes if change.verdict == "slower"]
    if options.json:
        extra: dict[str, Any] = {"changes": [report.change_json(c) for c in changes]}
        print_json({**found, "rows": figures.derived(found), **(extra if baseline else {})})
        return bool(slower)
    print(report.terminal(found, lines))
    if baseline is not None:
        print(report.changes_text(changes))
    if options.compare_peers:
        print(compare.text(compare.agreement(found, Path(options.compare_peers))))
    return bool(slower)


# --- progress -------------------------------------------------------------------------------------
class Plain:
    """A line for every row, on stderr where stdout is for a program."""

    def __init__(self, quiet: bool) -> None:
        self._file = sys.stderr if quiet else sys.stdout
        self._rows = self._done = 0

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, rows: int, already: int) -> None:
        """Say what there is to do."""
        self._rows = rows
        self.say(f"{rows} rows to measure" + (f", {already} there already" if already else ""))

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._file, flush=True)

    def row(self, line: Line) -> None:
        """Print a row."""
        self._done += 1
        self.say(f"[{self._done}/{self._rows}] {report.told(line)}")


class Bar(Plain):
    """A progress bar under the lines, on a terminal."""

    def __init__(self) -> None:
        super().__init__(quiet=False)
        from rich.progress import (  # noqa: PLC0415  (50 ms that only a terminal needs)
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self._task = self._bar.add_task("rows", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, rows: int, already: int) -> None:
        """Say what there is to do."""
        super().begin(rows, already)
        self._bar.update(self._task, total=rows)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.print(text, markup=False, highlight=False)

    def row(self, line: Line) -> None:
        """Print a row, and move the bar."""
        super().row(line)
        self._bar.advance(self._task)


def _progress(as_json: bool) -> Plain:
    return Bar() if fancy() and not as_json else Plain(as_json)
