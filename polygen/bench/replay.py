"""A source that has no card: it gives the times of a record back, launch by launch.

A contender's launches are values with the recorded percentiles, in an order that depends on the row
and the contender alone; so a replayed record has the medians of the record it comes from, whatever
is killed and resumed between.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polygen.bench import record as records
from polygen.bench import statistics
from polygen.bench.source import EMPTY, POLYGEN, Call, Errors, Job
from polygen.errors import BenchError
from polygen.runtime.child import Stage


class ReplaySource:
    """The times of a record.

    Args:
        path: of the record.

    Raises:
        BenchError: it is no record.
    """

    def __init__(self, path: Path) -> None:
        self._record = records.load(path)
        self._rows = {line["key"]: line for line in self._record["rows"]}

    def about(self, stage: Stage) -> dict[str, Any]:
        """The last run's versions and ceilings."""
        made = self._record["runs"][-1]
        kept = ("versions", "ceilings", "missing", "gpu", "conditions")
        return {name: made[name] for name in kept if name in made}

    def open(self, job: Job, stage: Stage) -> ReplayWork:
        """A row of the record.

        Raises:
            BenchError: the record has no such row.
        """
        if job.row.key not in self._rows:
            raise BenchError("the record has no such row", where=job.row.key)
        line = self._rows[job.row.key]
        return ReplayWork(line, self._record["runs"][line["run"]].get("ceilings"))


class ReplayWork:
    """One row of a record."""

    def __init__(self, line: dict[str, Any], ceilings: dict[str, Any] | None) -> None:
        self._line, self._ceilings = line, ceilings

    def make(self, name: str) -> Call:
        """The contender's recorded launches; as in the record where it took no part."""
        if self._line.get("error") and name == POLYGEN:
            raise BenchError(self._line["error"])
        if name not in self._line.get("times", {}):
            raise BenchError(self._line.get("skipped", {}).get(name, "not in the record"))
        return self._call(name, self._line["times"][name])

    def empty(self) -> Call | None:
        """The recorded launches of the empty kernel; None: the record is older than these."""
        found = self._line.get(EMPTY)
        return None if found is None else self._call(EMPTY, found)

    def _call(self, name: str, found: dict[str, Any]) -> Call:
        launches = self._launches(name, found)
        return lambda: next(launches)

    def _launches(self, name: str, found: dict[str, Any]) -> Iterator[float]:
        """Endless: every hundred and one launches have the recorded percentiles."""
        values = statistics.samples(statistics.from_json(found))
        random.Random(f"{self._line['key']} {name}").shuffle(values)
        return itertools.cycle(values)

    def check(self, name: str, call: Call) -> Errors:
        """The recorded errors; none recorded counts as exact, null as no number."""
        found = self._line.get("errors", {}).get(name, [0.0, 0.0])
        frobenius, largest = (math.nan if value is None else value for value in found)
        return frobenius, largest

    def poison(self) -> None:
        """Nothing: there is no output."""

    def left(self) -> Errors:
        """As `check` of polygen."""
        return self.check(POLYGEN, lambda: None)

    def timed(self, calls: Sequence[Call]) -> list[float]:
        """What the launches return."""
        return [float(call()) for call in calls]

    def captured(self, name: str, call: Call) -> Call:
        """The recorded launches again, from the first."""
        return self._call(EMPTY, self._line[EMPTY]) if name == EMPTY else self.make(name)

    def facts(self, name: str) -> dict[str, Any]:
        """As recorded."""
        kept: dict[str, Any] = self._line.get("facts", {}).get(name, {})
        return kept

    def conditions(self) -> dict[str, Any]:
        """As recorded, with the ceilings of the run that the row comes from."""
        kept: dict[str, Any] = self._line.get("card", {})
        return kept | ({"ceilings": self._ceilings} if self._ceilings else {})
