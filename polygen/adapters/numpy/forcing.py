"""Forces values: the graph behind a node is collected, planned once per structure, and run.

Which nodes of it somebody can still ask for is told by their reference counts: those are stored,
all others live inside of kernels. A count that is too high stores a value that nobody needs, and
one that is too low cannot be, so that results do not depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from polygen.adapters.numpy import alone, nodes
from polygen.adapters.numpy.backends import active
from polygen.adapters.numpy.memory import FOREIGN, are_apart, is_same, parts_are_apart
from polygen.adapters.numpy.nodes import Node
from polygen.adapters.numpy.operations import (
    COMPARISONS,
    KNOWN,
    Operation,
    apply,
    form_of,
    operation,
)
from polygen.adapters.numpy.steps import Member, Step
from polygen.adapters.numpy.structures import Plan, counts, known_plan, plan_of
from polygen.adapters.numpy.trials import APART, JOINED


def value_of(node: Node) -> Any:
    """The array that a node stands for, computed if it is not there yet.

    Raises:
        Exception: what NumPy or CuPy raised, with a note that says which line recorded it.
    """
    if node.value is None:
        graph = _Graph()
        graph.visit(node)
        _run(graph)
    elif node.borrowed:
        node.own()
    return node.value


def read(node: Node) -> Any:
    """The array that a node stands for, to be read at once and not kept."""
    return value_of(node) if node.value is None else node.value


def compares(node: Node) -> bool:
    """Whether a pending value is a comparison of a single number with one of Python's."""
    one = node.operation
    if one is None or one.shape or one.name not in COMPARISONS:
        return False
    return [type(arg) is Node for arg in node.args].count(True) == 1


def compared(node: Node) -> np.ndarray[Any, Any]:
    """The comparison of a number with one of Python's: by the host, which waits for it in any case.

    The node stays pending for whoever wants it on the device.
    """
    backend, one = active(), node.operation
    assert one is not None
    given = [backend.host(read(arg)) if type(arg) is Node else arg for arg in node.args]
    return np.asarray(apply(np, one, given))


def store(there: Node, node: Node, *, unseen: bool = False, passing: bool = False) -> bool:
    """Compute a pending value straight into memory, if nothing else of that memory is read for it.

    Args:
        there: its value is the memory.
        node: what is to be written there.
        unseen: whether only the caller has it, and it is not among what is pending.
        passing: whether its last operand, pending too, is hardly asked for again: it stays pending
            then, where it reads nothing that is written here.

    Returns:
        Whether it was done.
    """
    backend, target = active(), there.value
    if node.value is not None or not isinstance(target, backend.module.ndarray):
        return False
    if there.form is not node.form and tuple(there.form) != tuple(node.form):
        return False  # a value of another type than the memory's would have to be kept besides
    key = ("store", there.form, node.form)
    one = KNOWN.get(key) or operation(key)
    if one is None:
        return False
    graph = _Graph()
    graph.visit(node)
    same = _same_place(graph, target, backend)
    if same is None:
        return False
    if prepare_write(target, but=graph.order[:-1] if unseen else graph.order):
        if node.value is not None:
            return False  # something else has asked for it
        graph = _Graph()  # or for a part of it
        graph.visit(node)
    if passing and same == 1 and not _reads(graph.order[:-1], there):
        graph.passing = graph.slots[node.args[-1]]
    if not _stored(graph, one, there, node, backend):
        graph.visit(Node(node.form, one, (there, node), node.depth + 1, None, node.place))
        _run(graph, node)
    if not unseen:
        node.borrow(target)
    return True


def _stored(graph: _Graph, one: Operation, there: Node, node: Node, backend: Any) -> bool:
    """Run what `_run` would of a graph with a node behind it that stores its last one.

    Args:
        graph: whose last node is to be stored.
        one: the store.
        there: where.
        node: the last one.
        backend: runs it.

    Returns:
        Whether it was done: where its plan is known, a single step, and there is nothing to learn.
    """
    order, values = graph.order, graph.values
    slot = graph.slots.get(there)
    given = values if slot is not None else [*values, there.value]
    slot = len(values) if slot is None else slot
    last = len(order)
    kept = _kept(graph, last - 1)
    planned = known_plan(((*graph.key, one, slot, ~(last - 1)), (*kept, last), backend))
    if planned is None or planned.only is None or planned.gained is None:
        return False
    if planned.learned != alone.changes():
        return False
    counts.forced += 1
    counts.steps += 1
    found = _made(planned.only, given, [*order, node], len(given), backend)
    for place in kept:
        order[place].settle(found)
    return True


def _kept(graph: _Graph, last: int) -> list[int]:
    """Places of nodes before the last one that somebody can still ask for."""
    counted = list(map(sys.getrefcount, graph.order))
    for slot in graph.edges:
        counted[~slot] -= 1
    if graph.passing < 0:
        counted[~graph.passing] -= 1
    return [place for place in range(last) if counted[place] > _OWN]


def _reads(order: Sequence[Node], wanted: Node) -> bool:
    for node in order:
        for arg in node.args:
            if arg is wanted:
                return True
    return False


def _same_place(graph: _Graph, target: Any, backend: Any) -> int | None:
    """How many inputs of a graph are what is in some memory; None: it reads other parts of it."""
    for one in graph.order:
        if one.operation.kind == "product":  # type: ignore[union-attr]
            return None
    memory, found = backend.memory(target), 0
    for value in graph.values:
        if value is target:
            found += 1
            continue
        if not isinstance(value, backend.module.ndarray) or backend.memory(value) is not memory:
            continue
        if is_same(value, target, backend):
            found += 1
        elif not parts_are_apart(value, target, backend):
            return None
    return found


def prepare_write(target: Any, but: Collection[Node] = ()) -> bool:
    """See to it that nothing still needs what is in some memory now.

    Args:
        target: an array of the backend.
        but: pending nodes that are computed by the write itself, each once.

    Returns:
        Whether something was computed for that, and perhaps some of these nodes with it.
    """
    waiting, borrowed = nodes.pending(), nodes.borrowed()
    if len(waiting) == len(but) and not borrowed:
        return False  # nothing is pending but what the write computes
    backend, computed = active(), False
    for node in waiting:
        if node in but:
            continue
        for arg in node.args:
            if type(arg) is Node and arg.value is not None and _meets(arg.value, target, backend):
                value_of(node)
                computed = True
                break
    for node in borrowed:
        if _meets(node.value, target, backend):
            node.own()
    return computed


def _meets(value: Any, target: Any, backend: Any) -> bool:
    """Whether something of an array may be written by a write to another."""
    if not isinstance(value, backend.module.ndarray):
        return False
    memory = backend.memory(value)
    if memory is not backend.memory(target):
        return False
    return memory is not FOREIGN or not are_apart(value, target, backend)


class _Graph:
    """What is pending behind a node.

    Attributes:
        order: nodes, each after what it reads.
        slots: of inputs; of the graph's own nodes ~place.
        values: of inputs: arrays and numbers.
        key: each operation, and the slots that it reads.
        edges: slots of the graph's own nodes, as often as its nodes read them.
        passing: the slot of what is not to be kept for the one array that has it; 0: none.
    """

    __slots__ = ("edges", "key", "order", "passing", "slots", "values")

    def __init__(self) -> None:
        self.order: list[Node] = []
        self.slots: dict[Node, int] = {}
        self.values: list[Any] = []
        self.key: list[Any] = []
        self.edges: list[int] = []
        self.passing = 0

    def visit(self, node: Node) -> int:
        """Put a node, and before it what it waits for, at the end.

        Args:
            node: what is pending; operations that wait for each other are few.

        Returns:
            Its slot.
        """
        slots = self.slots
        part: list[Any] = [node.operation]
        for arg in node.args:
            if type(arg) is Node:
                slot = slots.get(arg)
                if slot is None:
                    if arg.value is None:
                        slot = self.visit(arg)
                        self.edges.append(slot)
                    else:
                        values = self.values
                        slots[arg] = slot = len(values)
                        values.append(arg.value)
                elif slot < 0:
                    self.edges.append(slot)
            else:
                slot = len(self.values)
                self.values.append(arg)
            part.append(slot)
        self.key += part
        order = self.order
        slots[node] = slot = ~len(order)
        order.append(node)
        return slot


def _counted() -> int:
    """What Python counts for a node that only the graph it is in holds."""
    nodes = {Node(form_of((), np.dtype(float)), None, (), 0, None, None): 0}
    order = list(nodes)
    return next(map(sys.getrefcount, order))


_OWN = _counted()


def _run(graph: _Graph, unkept: Node | None = None) -> None:
    order, values = graph.order, graph.values
    last = len(order) - 1
    kept = _kept(graph, last)
    kept.append(last)
    if unkept is not None:
        kept = [place for place in kept if order[place] is not unkept]
    backend = active()
    planned = plan_of(order, graph.key, values, kept, backend)
    if planned.trial is not None:
        planned.settle()  # where a graph alike was faster one way
    if planned.gained is None or planned.learned != alone.changes():
        planned.learned = alone.learn(order, planned.gained)
    first = len(values)
    only = planned.only
    if only is not None:
        counts.forced += 1
        counts.steps += 1
        order[kept[0]].settle(_made(only, values, order, first, backend))
        return
    values.extend([None] * len(order))
    if planned.trial is None:
        _execute(planned.steps, values, order, first, backend)
    else:
        _try(planned, values, graph, first, backend)
    for place in kept:
        order[place].settle(values[first + place])


def _try(planned: Plan, values: list[Any], graph: _Graph, first: int, backend: Any) -> None:
    """Run a plan in one of two ways, and keep what takes less of them when that is known."""
    trial, apart, order = planned.trial, planned.apart, graph.order
    assert trial is not None and apart is not None
    given = tuple(values)

    def joined() -> None:
        again = _Graph()  # what finding the plan takes
        again.visit(order[-1])
        values[:] = given
        _execute(planned.steps, values, order, first, backend)

    def by_itself() -> None:
        values[:] = given
        _execute(apart, values, order, first, backend)

    ways = {JOINED: joined, APART: by_itself}
    if backend.waits():
        trial.run(ways, backend.timed, planned.runs)
        planned.settle()
    else:  # nothing can be timed
        joined()


def _execute(
    steps: Sequence[Step], values: list[Any], order: list[Node], first: int, backend: Any
) -> None:
    counts.forced += 1
    counts.steps += len(steps)
    for step in steps:
        found = _made(step, values, order, first, backend)
        if len(step.writes) == 1:
            values[step.writes[0]] = found
        elif step.writes:
            for slot, value in zip(step.writes, found, strict=True):
                values[slot] = value
        for slot in step.done:
            values[slot] = None


def _made(step: Step, values: list[Any], order: list[Node], first: int, backend: Any) -> Any:
    """What a step gives; an error says where the operation that fails was recorded."""
    operands = [values[slot] for slot in step.reads]
    try:
        return step.run(*operands)
    except Exception as error:
        guilty = _guilty(step, operands, backend)
        place = nodes.described(order[guilty.slot - first].place or nodes.here())
        error.add_note(f"recorded at {place}: {guilty.operation.name}")
        raise


def _guilty(step: Step, operands: list[Any], backend: Any) -> Member:
    """The operation of a step that fails; the last one where none does alone."""
    values = dict(zip(step.reads, operands, strict=True))
    for member in step.members:
        try:
            given = [values[slot] for slot in member.reads]
            values[member.slot] = apply(backend.module, member.operation, given)
        except Exception:
            return member
    return step.members[-1]
