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
from polygen.adapters.numpy.planning import Member, plan

_AFTER = 8  # graphs that gained nothing
_AGAIN = 64  # runs at once between two that are recorded
_MOST = 4096  # places, and ways

# By code (its address: another code in its place would be slower, no more), instruction, family.
_counts: dict[tuple[int, int, int], int] = {}
_ways: dict[tuple[Operation, tuple[int, ...], Any], Any] = {}


def is_alone(place: Any, one: Operation) -> bool:
    """Whether an operation is to run at once.

    Args:
        place: that asks for it, from `nodes.here`.
        one: the operation, of operands that are there.
    """
    key = (id(place[0]), place[1], one.family)
    count = _counts.get(key, 0)
    if count < _AFTER:
        return False
    _counts[key] = count + 1 if count < _AFTER + _AGAIN else _AFTER - 1
    return True


def learn(order: Sequence[Node], gained: frozenset[int] | None) -> None:
    """Note what became of operations that were recorded.

    Args:
        order: a graph that is going to run.
        gained: which of them begin kernels of several operations; None: there is no such kernel.
    """
    if gained is None:
        if len(_counts) >= _MOST:
            _counts.clear()
        for node in order:
            one = node.operation
            if node.place is not None and one is not None and one.kind != "product":
                key = (id(node.place[0]), node.place[1], one.family)
                _counts[key] = _counts.get(key, 0) + 1
    elif _counts:
        for number in gained:
            place, one = order[number].place, order[number].operation
            if place is not None and one is not None:
                _counts.pop((id(place[0]), place[1], one.family), None)


_APART = ((), (0,), (0, 1), (0, 1, 2))  # slots of operands that are not the same


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
    values: list[Any] = [arg.value if type(arg) is Node else arg for arg in args]
    slots: tuple[int, ...] = _APART[len(args)]
    if len(args) > 1:
        first = args[0]
        if len(args) > 2 or (first is args[1] and type(first) is Node):
            slots, values = _shared(args)
    backend = active()
    key = (one, slots, backend)
    way = _ways.get(key)
    if way is None:
        if len(_ways) >= _MOST:
            _ways.clear()
        own = len(values)
        (step,) = plan([Member(own, one, key[1])], frozenset([own]), (), backend)
        way = _ways[key] = step.run
    return way(*values)
