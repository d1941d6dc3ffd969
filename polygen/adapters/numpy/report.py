"""`polygen_report`: what a program made of its recorded operations so far."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.adapters.numpy import products
from polygen.adapters.numpy.products import Record
from polygen.adapters.numpy.structures import counts
from polygen.brief import Brief


@dataclass(frozen=True, slots=True, repr=False)
class Report(Brief):
    """Counts since the process began.

    Attributes:
        forced: how often recorded operations were run.
        planned: how often that was a graph of a new structure.
        steps: kernels and library calls that ran for it.
        groups: products with work around them, the latest, and whether they became kernels.
    """

    forced: int
    planned: int
    steps: int
    groups: tuple[Record, ...]

    def __str__(self) -> str:
        head = f"{self.forced} graphs run, {self.planned} planned, {self.steps} steps"
        return "\n".join([head, *map(str, self.groups)])


def polygen_report() -> Report:
    """What was run and planned so far, and what became of the groups around products."""
    return Report(counts.forced, counts.planned, counts.steps, tuple(products.records))
