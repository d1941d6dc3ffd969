"""Leads a run: rows in, a record out, whatever happens on the way.

1. The rows that the record lacks are compiled by as many processes as there are cores.
2. A child process then measures one row at a time. The parent kills it when a stage takes too long
   or it dies; the library that was at work is left out of that row, and the record says why. When
   polygen's kernel was at work the row is an error, and the next row goes on with a new child.
3. The record is written after every row, so that a run that is killed goes on where it was.

With a replayed record the child has its times from there, and nothing is compiled; all else is
the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from polygen.bench import record as records
from polygen.bench import worker
from polygen.bench.card import smi
from polygen.bench.compiling import Compiled, Compiler
from polygen.bench.peers import PEERS
from polygen.bench.protocol import REPEATS
from polygen.bench.provenance import provenance
from polygen.bench.record import NO_TIME, Line, Record
from polygen.bench.rows import Row
from polygen.bench.source import Job
from polygen.errors import BenchError, ToolchainMissing
from polygen.runtime.child import Lost, Watched
from polygen.runtime.environment import current_arch

COMPILE_SHARE = 0.4  # part of the budget in which polygen's kernels have to be there
SLOW = ("inductor", "inductor_joined")  # the libraries that take seconds for a row
QUICK_SECONDS = 1.5  # that a row without them takes, until there are rows to tell
SLOW_SECONDS = 6.0  # that each of them takes for a row at least
FALLBACK = ("separate", "cublaslt")  # libraries that a row is measured with when others broke it

Ask = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """What to run.

    Attributes:
        rows: in order.
        suites: their names.
        peers: names of the libraries.
        out: the record's file.
        budget: seconds in all; None: no limit.
        fresh: start a new record whatever is there.
        refill: measure again rows in which a library had no time.
        replayed: a record that has the times; None: this machine's card.
        repeats: launches of every contender.
        command: the command line, for the record.
    """

    rows: tuple[Row, ...]
    suites: tuple[str, ...]
    peers: tuple[str, ...]
    out: Path
    budget: float | None = None
    fresh: bool = False
    refill: bool = False
    replayed: Path | None = None
    repeats: int = REPEATS
    command: str = ""


class Progress(Protocol):
    """Hears of the run as it goes."""

    def begin(self, rows: int, already: int) -> None:
        """Rows to measure, and rows that are there already."""

    def say(self, text: str) -> None:
        """Something that takes a while begins or has ended."""

    def row(self, line: Line) -> None:
        """A row is in the record."""


class Clock:
    """The time that a run may take, in seconds."""

    def __init__(self, budget: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._now, self._start = budget, now, now()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._now() - self._start

    @property
    def over(self) -> bool:
        """Whether no row is begun any more."""
        return self._budget is not None and self.elapsed >= self._budget

    def left(self, share: float = 1.0, least: float = 1.0) -> float:
        """Seconds until a share of the budget is spent; ten minutes without a budget."""
        return 600.0 if self._budget is None else max(least, self._budget * share - self.elapsed)

    def leave_out(self, peers: Sequence[str], rows: int, quick: float) -> dict[str, str]:
        """The libraries that there is no more time for.

        Args:
            peers: those that take part.
            rows: how many are to come.
            quick: seconds that a row takes without the slow libraries.
        """
        slow = [name for name in SLOW if name in peers]
        if self._budget is None or not slow:
            return {}
        if self.elapsed + (rows - 1) * quick + SLOW_SECONDS * len(slow) <= self._budget:
            return {}
        why = f"{NO_TIME} after {self.elapsed:.0f} s for {rows} more rows"
        return dict.fromkeys(slow, why)


def run(request: Request, progress: Progress, now: Callable[[], float] = time.monotonic) -> Record:
    """Measure what the record lacks, and keep it.

    Args:
        request: what to measure, and where to.
        progress: hears what happens.
        now: the clock that the budget is of, in seconds.

    Raises:
        BenchError: another run writes the record, it is none, or the child cannot start.
        ToolchainMissing: there is no card.
        CacheError: the record cannot be written.
    """
    with _alone(request.out):
        record = records.empty()
        if request.out.exists() and not request.fresh:
            record = records.load(request.out)
        rows = records.unfinished(request.rows, record, request.peers, request.refill)
        progress.begin(len(rows), len(request.rows) - len(rows))
        if rows:
            _run(request, record, rows, progress, Clock(request.budget, now))
        return record


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Nobody else writes the record; the lock ends with the process, however that ends."""
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_name(f".{out.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BenchError(
            "another run writes this record", where=str(out), nearest="Wait, or name another --out"
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who has opened it holds a lock of nothing
        lock.release()


def _run(
    request: Request, record: Record, rows: list[Row], progress: Progress, clock: Clock
) -> None:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(os.cpu_count()))
    child = _child(request)
    compiler: Compiler | None = None
    made = provenance(request.command, request.suites, request.repeats)
    try:
        child.start()  # imports its libraries meanwhile
        kernels: Callable[[Row], Compiled]
        if request.replayed is not None:
            kernels = _recorded(records.load(request.replayed))
        else:
            arch = current_arch()
            if arch is None:
                raise ToolchainMissing(
                    "there is no GPU to measure on",
                    nearest="Run it where there is one, or --replay a record",
                )
            made["target"] = arch
            compiler = Compiler(arch, "triton" in request.peers)
            kernels = _compiled(compiler, rows, clock, progress)
        made["before"] = smi()
        made |= child.ask(worker.ABOUT)
        record["runs"].append(made)
        record["suites"] |= made["suites"]
        progress.say(f"card described after {clock.elapsed:.0f} s")
        _measure(request, record, rows, kernels, child.ask, clock, progress)
        made["after"] = smi()
        made["seconds"] = round(clock.elapsed, 1)
        records.save(request.out, record)
    except Lost as lost:
        raise BenchError(
            "the measuring process does not work",
            where=lost.stage,
            why=lost.why,
            nearest=f"See {_log(request.out)}",
        ) from None
    finally:
        child.stop()
        if compiler is not None:
            compiler.close()


def _log(out: Path) -> Path:
    """Where the child prints."""
    return out.with_suffix(".log")


def _child(request: Request) -> Watched:
    if request.replayed is not None:
        return Watched(functools.partial(worker.replay, request.replayed))
    return Watched(worker.gpu, log=_log(request.out))


def _recorded(replayed: Record) -> Callable[[Row], Compiled]:
    """In place of compiling: what the replayed record says of the kernels."""
    about = {line["key"]: line.get("polygen", {}) for line in replayed["rows"]}
    return lambda row: {"kernel": None, "about": about.get(row.key, {})}


def _compiled(
    compiler: Compiler, rows: Sequence[Row], clock: Clock, progress: Progress
) -> Callable[[Row], Compiled]:
    """All kernels, before anything is measured, for nothing should run beside that."""
    compiler.submit(rows)
    found = {}
    for number, row in enumerate(rows, 1):
        found[row] = compiler.result(row, clock.left(COMPILE_SHARE))
        if number % 20 == 0 or number == len(rows):
            progress.say(f"{number} kernels compiled after {clock.elapsed:.0f} s")
    compiler.close()
    return found.__getitem__


def _measure(
    request: Request,
    record: Record,
    rows: Sequence[Row],
    kernels: Callable[[Row], Compiled],
    ask: Ask,
    clock: Clock,
    progress: Progress,
) -> None:
    """Measure rows until the time is over."""
    number = len(record["runs"]) - 1
    missing = record["runs"][number].get("missing", {})
    quick: list[float] = []
    for place, row in enumerate(rows):
        if clock.over:
            break
        mean = sum(quick) / len(quick) if quick else QUICK_SECONDS
        leave_out = clock.leave_out(request.peers, len(rows) - place, mean)
        begun = clock.elapsed
        leave_out |= {n: why for n, why in missing.items() if n in request.peers}
        line = records.heading(row, request.suites) | {"run": number}
        before: Line = next((old for old in record["rows"] if old["key"] == row.key), {})
        peers = [n for n in PEERS if n in request.peers or n in before.get("times", {})]
        line |= measured(row, kernels(row), ask, peers, leave_out, request.repeats)
        facts = line.get("facts", {})
        slow = sum(facts.get(name, {}).get("seconds_to_make", 0.0) for name in SLOW)
        quick.append(max(0.0, clock.elapsed - begun - slow))
        records.merge(record, line, request.rows)
        _note_unfinished(request, record)
        records.save(request.out, record)
        progress.row(line)
    _note_unfinished(request, record)


def _note_unfinished(request: Request, record: Record) -> None:
    left = records.unfinished(request.rows, record, request.peers)
    record["unfinished"] = [row.key for row in left]


def measured(
    row: Row,
    kernel: Compiled,
    ask: Ask,
    peers: Sequence[str],
    leave_out: dict[str, str],
    repeats: int = REPEATS,
) -> Line:
    """What the child finds of a row, whatever happens to the child.

    Args:
        row: what.
        kernel: what was compiled.
        ask: has the child do a job.
        peers: names of the libraries.
        leave_out: those that are not tried, with the reason.
        repeats: launches of every contender.

    Raises:
        Lost: the child does not start.
    """
    if "error" in kernel:
        return {"error": kernel["error"]}
    left_out = dict(leave_out)
    restarts = 0
    while True:
        job = Job(row, kernel["kernel"], tuple(peers), dict(left_out), repeats)
        try:
            return {"polygen": kernel["about"], **ask(job)}
        except Lost as lost:
            why = f"{lost.stage}: {lost.why}"
            if lost.stage == "start":
                restarts += 1
                if restarts > 1:  # the next row would meet the same
                    raise
            elif lost.stage in peers and lost.stage not in left_out:
                left_out[lost.stage] = why
            elif lost.stage == "time" and set(peers) - set(FALLBACK) - set(left_out):
                left_out |= {n: f"left out after {why}" for n in peers if n not in FALLBACK}
            else:
                return {"polygen": kernel["about"], "error": why}


def default_peers() -> tuple[str, ...]:
    """All libraries, in the order in which a row meets them."""
    return tuple(PEERS)


def check_peers(names: Sequence[str]) -> tuple[str, ...]:
    """Names of libraries, in the order in which a row meets them.

    Raises:
        BenchError: one does not exist.
    """
    known = default_peers()
    for name in names:
        if name not in known:
            raise BenchError(
                f"no library is called {name!r}",
                where="--peers",
                nearest=f"Known: {', '.join(known)}, all, none",
            )
    return tuple(name for name in known if name in names)
