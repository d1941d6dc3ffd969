"""The plan of a graph by its structure: made once, and found again by all graphs that share it.

A structure is which operations read what, and which values are wanted; of graphs with products that
may be kernels, where numbers are constants, the numbers too. Plans of graphs that are alike but for
their sizes share a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from polygen.adapters.numpy.nodes import Node
from polygen.adapters.numpy.planning import plan
from polygen.adapters.numpy.products import taken
from polygen.adapters.numpy.settings import current
from polygen.adapters.numpy.steps import Member, Step
from polygen.adapters.numpy.trials import APART, JOINED, Trial, worthwhile
from polygen.runtime.recent import Recent

_MOST_PLANS = 4096
_MOST_NUMBERS = 8  # kernels with other numbers in them, of one structure


@dataclass(slots=True)
class Counts:
    """What happened in this process.

    Attributes:
        forced: graphs that were run.
        planned: structures that were new.
        steps: kernels, library calls and groups that were run.
    """

    forced: int = 0
    planned: int = 0
    steps: int = 0


counts = Counts()


@dataclass(slots=True)
class Plan:
    """How a graph runs.

    Attributes:
        steps: one after the other.
        gained: what they gain, as `alone.learn` takes it.
        apart: each operation by itself, while it is not known which is faster.
        trial: that finds out; None: it is known.
        runs: how often it was tried in either way.
        learned: what `alone.learn` gave at last.
        only: the step that is all of it, if it is one, with a result at most.
    """

    steps: list[Step]
    gained: frozenset[int] | None
    apart: list[Step] | None = None
    trial: Trial | None = None
    runs: dict[str, int] = field(default_factory=lambda: {JOINED: 0, APART: 0})
    learned: int = -1
    only: Step | None = None

    def __post_init__(self) -> None:
        self.tried(None)

    def tried(self, trial: Trial | None) -> None:
        """Find out by a trial how to run, or by none."""
        self.trial, self.only = trial, None
        if trial is None and len(self.steps) == 1 and len(self.steps[0].writes) <= 1:
            (self.only,) = self.steps

    def settle(self) -> None:
        """Keep what takes less, if that is known."""
        if self.trial is not None and self.trial.winner:
            if self.trial.winner == APART and self.apart is not None:
                self.steps, self.gained = self.apart, None
            self.apart = None
            self.tried(None)


_plans: Recent[Any, Plan] = Recent(_MOST_PLANS)
_trials: Recent[Any, Trial] = Recent(_MOST_PLANS)  # of graphs that are alike but for their sizes
_BY_NUMBERS = Plan([], None)  # of a structure whose plans depend on its numbers and on settings
_numbers: Recent[Any, set[tuple[Any, ...]]] = Recent(_MOST_PLANS)


def plan_of(
    order: list[Node], key: list[Any], values: list[Any], kept: list[int], backend: Any
) -> Plan:
    """The plan of a graph.

    Args:
        order: its nodes, each after what it reads.
        key: each operation, and the slots that it reads: of inputs, or ~place of the graph's own.
        values: of inputs: arrays and numbers.
        kept: places of the nodes that are wanted.
        backend: for which it is.
    """
    structure: Any = (tuple(key), tuple(kept), backend)
    found = _plans.get(structure)
    if found is not None and found is not _BY_NUMBERS:
        return found
    return _made(structure, order, key, values, kept, found is None)


def known_plan(structure: tuple[tuple[Any, ...], tuple[int, ...], Any]) -> Plan | None:
    """The plan of a structure, if it is known and does not depend on numbers.

    Args:
        structure: a graph's key, the places of the nodes that are wanted, and the backend, as
            `plan_of` puts them together.
    """
    found = _plans.get(structure)
    return None if found is _BY_NUMBERS else found


def _made(
    structure: Any, order: list[Node], key: list[Any], values: list[Any], kept: list[int],
    new: bool,
) -> Plan:  # fmt: skip
    """The plan of a structure that is new, or whose plan depends on its numbers too."""
    backend, whole = structure[-1], structure
    with_products = not new or any(node.operation.kind == "product" for node in order)  # type: ignore[union-attr]
    if with_products:
        _plans.put(structure, _BY_NUMBERS)
        structure = (*structure, current())
        whole = (structure, tuple(_numbers_of(order, key, values).values()))
        known = _plans.get(whole)
        if known is not None:
            return known
    steps = _steps(order, key, values, kept, backend, structure if with_products else None)
    found = Plan(steps, _gained(steps, len(values)))
    members = [member for step in steps for member in step.members]
    if found.gained is not None and not with_products and backend.times and worthwhile(members):
        members.sort(key=attrgetter("slot"))
        wanted = frozenset(len(values) + place for place in kept)
        found.apart = plan(members, wanted, (), backend, apart=True)
        families = tuple(part if type(part) is int else part.family for part in key)
        alike = (families, tuple(kept), backend)
        found.tried(_trials.get(alike) or _trials.put(alike, Trial()))
        found.settle()
    return _plans.put(whole, found)


def _gained(steps: Sequence[Step], first: int) -> frozenset[int] | None:
    """Which operations begin kernels of several, reading nothing pending; None: none does."""
    joined = [step for step in steps if len(step.members) > 1]
    begun = [m for step in joined for m in step.members if max(m.reads) < first]
    return frozenset(member.slot - first for member in begun) if joined else None


def _steps(
    order: list[Node], key: list[Any], values: list[Any], kept: list[int], backend: Any,
    structure: Any,
) -> list[Step]:  # fmt: skip
    """The steps of a graph; with groups around products if the structure of it is given."""
    counts.planned += 1
    first, members, at = len(values), [], 0
    for place, node in enumerate(order):
        end = at + 1 + len(node.args)
        reads = (slot if slot >= 0 else first + ~slot for slot in key[at + 1 : end])
        members.append(Member(first + place, key[at], tuple(reads)))
        at = end
    wanted = frozenset(first + place for place in kept)
    groups = []
    if structure is not None:
        numbers = _numbers_of(order, key, values)
        seen = _numbers.get(structure) or _numbers.put(structure, set())
        seen.add(tuple(numbers.values()))
        if len(seen) <= _MOST_NUMBERS:  # numbers that change are no constants of kernels
            groups = taken(members, wanted, values, numbers, backend, current())
    return plan(members, wanted, groups, backend)


def _numbers_of(order: list[Node], key: list[Any], values: list[Any]) -> dict[int, Any]:
    """The numbers that a graph reads, by slot."""
    found, at = {}, 0
    for node in order:
        at += 1
        for arg in node.args:
            if type(arg) is not Node:
                found[key[at]] = values[key[at]]
            at += 1
    return found
