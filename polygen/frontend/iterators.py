"""Names of iterators: i and j run over a matrix, k along its sum; others take further letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count, islice

from polygen.frontend.shapes import ITERATORS

_BATCH = "bcdefgh"
_SUMMED = "lopqruz"
_GROUPS = "ge"


class Iterators:
    """The names that a program's statements give to the axes of their domains.

    Args:
        taken: names of arguments and dims. A dim is a parameter of the same sets, and an argument
            of the same name would make a statement hard to read.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = frozenset(taken)

    def output(self, rank: int) -> tuple[str, ...]:
        """One per axis of a value: i and j for the last two, letters from b for those before."""
        row, column, _ = ITERATORS
        leading = islice(self._free(_BATCH), max(rank - 2, 0))
        return (*leading, *(row, column)[: min(rank, 2)])

    def group(self) -> str:
        """The one over groups of rows."""
        return next(self._free(_GROUPS))

    def summed(self, number: int) -> tuple[str, ...]:
        """One per axis that is summed: k, then l and further letters."""
        further = islice(self._free(_SUMMED), max(number - 1, 0))
        return (*ITERATORS[2:], *further)[:number]

    def _free(self, letters: str) -> Iterator[str]:
        numbered = (f"{letters[0]}{number}" for number in count())
        return (name for name in chain(letters, numbered) if name not in self._taken)
