"""Operations that run at once: where recording them has gained nothing.

A place of a program whose operation was forced again and again in graphs without any kernel of
several operations is better off without a graph. There the operation runs as soon as it is met, if
its operands are there. Now and then it is recorded all the same: where its graph has become one
that fuses, recording begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.adapters.numpy.backends import active
from polygen.adapters.numpy.nodes import Node
from polygen.adapters.numpy.operations import Operation
from polygen.adapters.numpy.planning import plan
from polygen.adapters.numpy.steps import Member

_AFTER = 8  # graphs that gained nothing
_AGAIN = 64  # runs at once between two that are recorded
_MOST = 4096  # places, and ways

# By the code's first line, instruction and family: another code of such would be slower, no more.
Place = tuple[int, int, int]
counts: dict[Place, int] = {}
_ways: dict[tuple[Operation, tuple[int, ...], Any], Any] = {}
_changes = 0  # how often a place was new among `counts`, or is recorded again


def is_alone(place: Place) -> bool:
    """Whether an operation, of operands that are there, is to run at once.

    Args:
        place: that asks for it, one of `counts`.
    """
    global _changes
    count = counts[place]
    if count < _AFTER:
        return False
    if count < _AFTER + _AGAIN:
        counts[place] = count + 1
        return True
    counts[place] = _AFTER - 1
    _changes += 1
    return False


def changes() -> int:
    """How often something changed that a gain makes forgotten: until then it teaches nothing."""
    return _changes


def learn(order: Sequence[Node], gained: frozenset[int] | None) -> int:
    """Note what became of operations that were recorded.

    Args:
        order: a graph that is going to run.
        gained: which of them begin kernels of several operations; None: there is no such kernel.

    Returns:
        `changes`.
    """
    global _changes
    if gained is None:
        if len(counts) >= _MOST:
            counts.clear()
        for node in order:
            one = node.operation
            if node.place is not None and one is not None and one.kind != "product":
                key = (node.place[0].co_firstlineno, node.place[1], one.family)
                count = counts.get(key, 0)
                counts[key] = count + 1
                if not count:
                    _changes += 1
    elif counts:
        for number in gained:
            place, one = order[number].place, order[number].operation
            if place is not None and one is not None:
                counts.pop((place[0].co_firstlineno, place[1], one.family), None)
    return _changes


_APART = ((), (0,), (0, 1))  # slots of operands that are not the same


def _shared(args: Sequence[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Slots of operands, one for an array that is several of them; and their values."""
    slots: list[int] = []
    values: list[Any] = []
    for number, arg in enumerate(args):
        twin = next((n for n in range(number) if arg is args[n] and type(arg) is Node), None)
        slots.append(len(values) if twin is None else slots[twin])
        if twin is None:
            values.append(arg.value if type(arg) is Node else arg)
    return tuple(slots), values


def run(one: Operation, args: Sequence[Any]) -> Any:
    """The backend's array of an operation, computed as the graph of it alone would.

    Args:
        one: the operation.
        args: nodes whose values are there, and Python's numbers.
    """
    backend, way = active(), None
    if len(args) == 1:
        way = one.ways.get(backend)
        if way is not None:
            return way(args[0].value)
    elif len(args) == 2:
        first, second = args
        if first is not second:
            way = one.ways.get(backend)
            if way is not None:
                return way(
                    first.value if type(first) is Node else first,
                    second.value if type(second) is Node else second,
                )
    slots, values = _shared(args)
    key = (one, slots, backend)
    way = _ways.get(key)
    if way is None:
        if len(_ways) >= _MOST:
            _ways.clear()
        own = len(values)
        (step,) = plan([Member(own, one, key[1])], frozenset([own]), (), backend)
        way = _ways[key] = step.run
    if len(slots) < 3 and slots == _APART[len(slots)]:
        one.ways[backend] = way
    return way(*values)
