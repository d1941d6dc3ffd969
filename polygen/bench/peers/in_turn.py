"""Products one after another, each followed by its steps: how libraries of fixed forms do a row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polygen.bench.operations import Operation, results
from polygen.bench.source import Call


@dataclass(frozen=True, slots=True)
class Stage:
    """A product and its steps.

    Attributes:
        product: queues the product, and gives its value.
        steps: each changes the value in place, and gives it.
    """

    product: Callable[[], Any]
    steps: Sequence[Callable[[Any], Any]]

    def __call__(self) -> Any:
        """Queue all of it; gives the value."""
        return functools.reduce(lambda value, step: step(value), self.steps, self.product())


def in_turn(op: Operation, stages: Sequence[Stage]) -> Call:
    """The stages from the last to the first, so that a step finds the values it takes.

    Args:
        op: whose stages they are.
        stages: of each of its chains, in their order.

    Returns:
        A call that gives the result, or a tuple of them.
    """
    ends, last_first = results(op), [*enumerate(stages)][::-1]

    def call() -> Any:
        values = {number: stage() for number, stage in last_first}
        found = tuple(values[number] for number in ends)
        return found if len(found) > 1 else found[0]

    return call
