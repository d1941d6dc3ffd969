"""The values of a program by name: who makes each, what it depends on, its number at a point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from polygen.frontend.functions import TABLE
from polygen.frontend.program import Access, Argument, Constant, Pointwise, Statement


@dataclass(slots=True)
class Values:
    """Statements by the value that they write."""

    statements: tuple[Statement, ...]
    writers: dict[str, Statement] = field(init=False)
    _behind: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writers = {s.write.name: s for s in self.statements}

    def written_once(self, value: str) -> bool:
        """Whether one statement makes all of a value: an output may be put together of several."""
        return sum(one.write.name == value for one in self.statements) == 1

    def behind(self, value: str) -> frozenset[str]:
        """All values and arrays that a value is made from, itself among them."""
        found = self._behind.get(value)
        if found is None:
            writer = self.writers.get(value)
            reads = () if writer is None else (access.name for access in writer.reads)
            found = frozenset({value}).union(*(self.behind(name) for name in reads))
            self._behind[value] = found
        return found

    def depends(self, argument: Argument, on: Iterable[str]) -> bool:
        """Whether an argument is made from one of some values."""
        return isinstance(argument, Access) and not self.behind(argument.name).isdisjoint(on)

    def number(self, value: str, known: Mapping[str, float], seen: dict[str, float]) -> float:
        """A value at one point, from numbers for what no pointwise statement makes.

        Args:
            value: whose number.
            known: numbers by name; others get one that depends on their name alone.
            seen: what has been computed; arrays and coordinates have their numbers there.
        """
        if value in known:
            return known[value]
        if value not in seen:
            writer = self.writers.get(value)
            if isinstance(writer, Pointwise):
                given = [self._operand(arg, known, seen) for arg in writer.args]
                seen[value] = self._applied(writer, given)
            else:
                seen[value] = _fixed(value)
        return seen[value]

    def _operand(self, arg: Argument, known: Mapping[str, float], seen: dict[str, float]) -> float:
        if isinstance(arg, Constant):
            return arg.value
        if isinstance(arg, Access):
            return self.number(arg.name, known, seen)
        return _fixed(str(arg))

    @staticmethod
    def _applied(writer: Pointwise, given: list[float]) -> float:
        if writer.function == "cast":
            return given[0]
        with np.errstate(all="ignore"):
            return float(TABLE[writer.function].reference(*map(np.float64, given)))


def _fixed(name: str) -> float:
    """A number between 0 and 2 that belongs to a name."""
    return (sum(ord(letter) * (7 + at) for at, letter in enumerate(name)) % 197) / 98.5
