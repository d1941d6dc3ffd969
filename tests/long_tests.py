"""Tests that take long, as was measured: `long_tests.txt` lists them, and they are ``slow``.

    POLYGEN_NOTE_LONG=0.6 .venv/bin/pytest -n 2 -m "not gpu"   # those that take 0.6 s and more

writes the list anew: a test that ran is listed if it took so long, one that did not stays as it
was. Of the cases of one test the shortest is left to `make test`, if all of them are long and it is
not four times as long: something of every test runs there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LIST = Path(__file__).parent / "long_tests.txt"
_FAR = 4  # times as long as what is listed


def listed(path: Path = LIST) -> frozenset[str]:
    """Names of tests."""
    return frozenset(path.read_text().splitlines()) if path.exists() else frozenset()


def chosen(seconds: Mapping[str, float], before: Iterable[str], limit: float) -> list[str]:
    """The new list.

    Args:
        seconds: of the tests that ran, by their names.
        before: names that are listed.
        limit: in seconds.
    """
    long = {name for name, took in seconds.items() if took >= limit}
    cases = defaultdict[str, list[str]](list)
    for name in seconds:
        cases[name.partition("[")[0]].append(name)
    for own in cases.values():
        shortest = min(own, key=lambda name: seconds[name])
        if long.issuperset(own) and seconds[shortest] < _FAR * limit:
            long.remove(shortest)
    return sorted({name for name in before if name not in seconds} | long)


class Notes:
    """Adds up how long tests take, and writes the list at the end."""

    def __init__(self, limit: float) -> None:
        self._limit, self._seconds = limit, Counter[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        made = LIST.with_suffix(".new")
        made.write_text("".join(f"{n}\n" for n in chosen(self._seconds, listed(), self._limit)))
        made.replace(LIST)
