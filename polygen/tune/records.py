"""What was measured: one SQLite file beside the cache of kernels, shared by all processes.

1. A *problem* is a program with its sizes in place of its symbols, its layouts and alignments, on a
   kind of GPU. Names of operands and dims do not matter.
2. A *measurement* is a schedule of it with its time, or with why there is none, under one version
   of the generator and of the compiler. Each is a transaction of its own: a killed process loses
   nothing that it had written, and any number of processes write at once.
3. A *result* is the schedule that a tuner found fastest; `polygen.tune.lookup` finds it for an
   automatic choice.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polygen.errors import CacheError, PolygenError
from polygen.schedule.load import dumps, loads
from polygen.schedule.model import Schedule
from polygen.tune.identity import candidate_key
from polygen.tune.lookup import location

TIMED, REFUSED, WRONG, HUNG, CRASHED = "timed", "refused", "wrong", "hung", "crashed"

BESIDE = "; beside "  # in a version, between the compiler and the key of the anchor

_FORMAT = 1
_WAIT_SECONDS = 60.0  # for other writers

_TABLES = """
CREATE TABLE IF NOT EXISTS problems (
    id INTEGER PRIMARY KEY, program TEXT NOT NULL, arch TEXT NOT NULL, gpu TEXT NOT NULL,
    source TEXT NOT NULL, op TEXT, expression TEXT, signature TEXT, out_dtype TEXT, acc_dtype TEXT,
    sizes TEXT, UNIQUE (program, arch, gpu, source));
CREATE TABLE IF NOT EXISTS measurements (
    problem INTEGER NOT NULL, digest TEXT NOT NULL, compiler TEXT NOT NULL, candidate TEXT NOT NULL,
    name TEXT NOT NULL, schedule TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    microseconds REAL, low REAL, high REAL, repeats INTEGER NOT NULL, rung INTEGER NOT NULL,
    ratio REAL, graph INTEGER NOT NULL, polygen TEXT NOT NULL, date TEXT NOT NULL,
    PRIMARY KEY (problem, digest, compiler, candidate)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    problem INTEGER NOT NULL, digest TEXT NOT NULL, compiler TEXT NOT NULL, name TEXT NOT NULL,
    schedule TEXT NOT NULL, microseconds REAL NOT NULL, anchor TEXT NOT NULL,
    anchor_microseconds REAL NOT NULL, finished INTEGER NOT NULL, polygen TEXT NOT NULL,
    date TEXT NOT NULL, PRIMARY KEY (problem, digest, compiler)) WITHOUT ROWID;
"""
_MEASURE = """
INSERT INTO measurements VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
ON CONFLICT DO UPDATE SET state=excluded.state, reason=excluded.reason,
    microseconds=excluded.microseconds, low=excluded.low, high=excluded.high,
    repeats=excluded.repeats, rung=excluded.rung, ratio=excluded.ratio, graph=excluded.graph,
    date=excluded.date
WHERE excluded.rung >= measurements.rung OR measurements.state <> 'timed'
"""


# --- what is kept ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Target:
    """What is tuned: the problem, the kind of GPU, and how people write the program."""

    program: str  # `canonical`
    arch: str
    gpu: str
    source: str = "gpu"  # where times come from: "gpu", or "replay" of a record
    op: str = ""
    expression: str = ""
    signature: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    out_dtype: str | None = None
    acc_dtype: str = "f32"


@dataclass(frozen=True, slots=True)
class Version:
    """What generated and compiled the kernels that were timed."""

    digest: str
    compiler: str
    polygen: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One schedule of a problem, timed or not.

    Attributes:
        schedule: as fitted.
        state: "timed", or why not: "refused", "wrong", "hung", "crashed".
        reason: for people; "" when timed.
        microseconds: median; None when not timed.
        quartiles: of the times.
        repeats: launches timed.
        rung: round of the search in which it was timed last, from 0.
        ratio: to the time of the anchor in the same batch; clocks drift, this does not.
        graph: whether launches were replays of a CUDA graph.
        date: day and time, ISO; "" until it is written.
    """

    schedule: Schedule
    state: str
    reason: str = ""
    microseconds: float | None = None
    quartiles: tuple[float, float] | None = None
    repeats: int = 0
    rung: int = 0
    ratio: float | None = None
    graph: bool = False
    date: str = ""


# --- writing -----------------------------------------------------------------------------------
class Records:
    """The records, open for writing.

    Args:
        path: the file; None: `location`. It and its folder are made if needed.

    Raises:
        CacheError: it cannot be written, or is no file of records.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or location()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Autocommit: every statement is a transaction.
            self._connection = sqlite3.connect(
                self.path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except (sqlite3.Error, OSError) as reason:
            raise self._unusable(reason) from reason

    def _prepare(self) -> None:
        run = self._connection.execute
        _use_log(self._connection)
        run("PRAGMA synchronous = NORMAL")  # a power failure may lose the last lines, no more
        found = run("PRAGMA user_version").fetchone()[0]
        if found not in (0, _FORMAT):
            raise sqlite3.DatabaseError(f"its format is {found}, this version writes {_FORMAT}")
        if found == _FORMAT:
            return
        run("BEGIN IMMEDIATE")  # one of several first users makes the tables
        for statement in _TABLES.split(";"):
            run(statement)
        run(f"PRAGMA user_version = {_FORMAT}")
        run("COMMIT")

    def _unusable(self, reason: Exception) -> CacheError:
        return CacheError(
            "the records of tuning cannot be used",
            where=str(self.path),
            why=str(reason),
            nearest="Remove the file if it is damaged, or name another folder in POLYGEN_CACHE_DIR",
        )

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was written stays."""
        self._connection.close()

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except sqlite3.Error as reason:
            raise self._unusable(reason) from reason

    def problem(self, target: Target) -> int:
        """The number of a problem; it is entered if it is new."""
        key = (target.program, target.arch, target.gpu, target.source)
        self._run(
            "INSERT INTO problems (program, arch, gpu, source, op, expression, signature, "
            "out_dtype, acc_dtype, sizes) VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
            (
                *key, target.op, target.expression, json.dumps(target.signature),
                target.out_dtype, target.acc_dtype, json.dumps(dict(target.sizes)),
            ),
        )  # fmt: skip
        where = "program = ? AND arch = ? AND gpu = ? AND source = ?"
        return int(self._run(f"SELECT id FROM problems WHERE {where}", key).fetchone()[0])

    def measure(self, problem: int, version: Version, found: Measurement) -> None:
        """Enter a measurement; of two of one schedule the one of the later round stays."""
        low, high = found.quartiles or (None, None)
        self._run(
            _MEASURE,
            (
                problem, version.digest, version.compiler, candidate_key(found.schedule),
                found.schedule.name, dumps(found.schedule), found.state, found.reason,
                found.microseconds, low, high, found.repeats, found.rung, found.ratio,
                int(found.graph), version.polygen, now(),
            ),
        )  # fmt: skip

    def measured(self, problem: int, version: Version) -> dict[str, Measurement]:
        """The measurements of a problem under a version, by `candidate_key`."""
        rows = self._run(
            "SELECT candidate, schedule, state, reason, microseconds, low, high, repeats, rung, "
            "ratio, graph, date FROM measurements "
            "WHERE problem = ? AND digest = ? AND compiler = ?",
            (problem, version.digest, version.compiler),
        )
        return {row[0]: self._measurement(row[1:]) for row in rows}

    def _measurement(self, row: tuple[Any, ...]) -> Measurement:
        text, state, reason, median, low, high, repeats, rung, ratio, graph, date = row
        quartiles = None if low is None else (low, high)
        schedule = loads(text, str(self.path))
        return Measurement(
            schedule, state, reason, median, quartiles, repeats, rung, ratio, bool(graph), date
        )

    def conclude(
        self,
        problem: int,
        version: Version,
        winner: Measurement,
        anchor: tuple[str, float],
        *,
        finished: bool,
    ) -> None:
        """Enter the best schedule known, and the anchor's name and time; replaces the last one."""
        self._run(
            "INSERT OR REPLACE INTO results VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                problem, version.digest, version.compiler, winner.schedule.name,
                dumps(winner.schedule), winner.microseconds, *anchor, int(finished),
                version.polygen, now(),
            ),
        )  # fmt: skip

    def concluded(self, problem: int, version: Version) -> float | None:
        """The anchor's time in a tuning of this version that was finished; None without one."""
        row = self._run(
            "SELECT anchor_microseconds FROM results "
            "WHERE problem = ? AND digest = ? AND compiler = ? AND finished = 1",
            (problem, version.digest, version.compiler),
        ).fetchone()
        return float(row[0]) if row else None

    def stale_best(self, problem: int, version: Version) -> Iterator[Schedule]:
        """The best schedules of a problem under other versions, the newest first."""
        rows = self._run(
            "SELECT schedule FROM results WHERE problem = ? AND NOT (digest = ? AND compiler = ?) "
            "ORDER BY date DESC",
            (problem, version.digest, version.compiler),
        ).fetchall()
        for (text,) in rows:
            with contextlib.suppress(PolygenError):  # of a version with other fields
                yield loads(text, str(self.path))

    def problems(self) -> list[tuple[int, Target]]:
        """All problems with their numbers, in the order of their entry."""
        rows = self._run(
            "SELECT id, program, arch, gpu, source, op, expression, signature, sizes, out_dtype, "
            "acc_dtype FROM problems ORDER BY id"
        ).fetchall()
        return [
            (
                number,
                Target(
                    program, arch, gpu, source, op, expression, tuple(json.loads(signature)),
                    tuple(json.loads(sizes).items()), out_dtype, acc_dtype,
                ),
            )
            for number, program, arch, gpu, source, op, expression, signature, sizes, out_dtype,
            acc_dtype in rows
        ]  # fmt: skip

    def latest_version(self, problem: int) -> Version | None:
        """The version under which a problem was measured last; None if it never was."""
        row = self._run(
            "SELECT digest, compiler, polygen FROM measurements WHERE problem = ? "
            "ORDER BY date DESC LIMIT 1",
            (problem,),
        ).fetchone()
        return Version(*row) if row else None


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log; SQLite does not wait for others who do so at the same time."""
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as reason:
            if "locked" not in str(reason) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def now() -> str:
    """The time in ISO format, UTC, to the microsecond."""
    return datetime.now(UTC).isoformat()
