"""A recorded graph -> steps that run it: the plan, which any graph of the same structure shares.

1. Groups around products that polygen takes are steps (`polygen.adapters.numpy.products`); so is
   every other product, and every fold.
2. Pointwise operations of one shape that wait for the same steps are one kernel. What only one
   later kernel of that shape reads is computed in it, and so is a single number that only one
   reads, once per element.
3. A fold takes the kernel in whose only result it is alone interested: nothing is written between.
   One of few elements to one number also takes the kernel of single numbers that alone reads it.
4. Kernels stay below what one can have of parameters: large ones are cut.

Slots number the values: first the inputs, then the nodes in the order in which they were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polygen.adapters.numpy.operations import Shape
from polygen.adapters.numpy.steps import Member, Step, function, into, is_itself

_MOST_MEMBERS = 32  # operations of one kernel


@dataclass(frozen=True, slots=True)
class Taken:
    """A group that is a kernel of polygen: its members' slots, its operands and results."""

    slots: frozenset[int]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    run: Callable[..., Any]


def plan(
    members: Sequence[Member], kept: frozenset[int], taken: Sequence[Taken], backend: Any,
    *, apart: bool = False,
) -> list[Step]:  # fmt: skip
    """The steps of a graph.

    Args:
        members: all operations, each after those that it reads.
        kept: slots whose values are wanted.
        taken: groups that are kernels.
        backend: for which the steps are.
        apart: whether each operation is a step of its own; then there are no groups.
    """
    graph = _Graph(members, kept, taken)
    if apart:
        steps = _apart(graph)
    else:
        cuts = [part for one in graph.kernels() for part in _parts(one)]
        parts = _with_totals(_with_folds(cuts, graph, backend), graph, backend)
        steps = [Step(part) for part in parts]
    for step in steps:
        group = graph.groups.get(step.members[0].slot)
        if group is not None:
            step.reads, step.writes, step.run = group.reads, group.writes, group.run
        else:
            step.reads, step.writes = graph.ends(step.members)
            made = into if apart and step.members[1:] else function
            step.run = made(step, backend)
    last = {slot: number for number, step in enumerate(steps) for slot in step.reads}
    for number, step in enumerate(steps):
        unread = (s for s in step.reads if last[s] == number and s not in kept)
        step.done = tuple(unread)
    return steps


def _parts(kernel: tuple[Member, ...]) -> list[tuple[Member, ...]]:
    return [kernel[first : first + _MOST_MEMBERS] for first in range(0, len(kernel), _MOST_MEMBERS)]


@dataclass(slots=True)
class _Graph:
    members: Sequence[Member]
    kept: frozenset[int]
    taken: Sequence[Taken]
    by_slot: dict[int, Member] = field(init=False)
    readers: dict[int, list[Member]] = field(init=False)
    groups: dict[int, Taken] = field(init=False)
    levels: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.by_slot = {member.slot: member for member in self.members}
        self.groups = {slot: group for group in self.taken for slot in group.slots}
        self.readers, self.levels = {}, {}
        for member in self.members:
            for slot in dict.fromkeys(member.reads):
                self.readers.setdefault(slot, []).append(member)

    def ends(self, members: Sequence[Member]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a kernel reads, and which of its values are read outside or wanted."""
        own = {member.slot for member in members}
        reads = dict.fromkeys(s for member in members for s in member.reads if s not in own)
        writes = [s for s in sorted(own) if s in self.kept or self._leaves(s, own)]
        writes = [s for s in writes if self.by_slot[s].operation.name != "store"]
        return tuple(reads), tuple(writes)

    def shapes(self, members: Sequence[Member]) -> list[Shape]:
        """Of the arrays that a kernel reads."""
        reads = self.ends(members)[0]
        pairs = ((r, s) for m in members for r, s in zip(m.reads, m.operation.shapes, strict=True))
        return list({slot: shape for slot, shape in pairs if slot in reads}.values())

    def _leaves(self, slot: int, own: set[int]) -> bool:
        return any(reader.slot not in own for reader in self.readers.get(slot, ()))

    def level(self, slot: int) -> int:
        """How many steps that are no pointwise kernels a value waits for, and its own."""
        if slot not in self.by_slot:
            return 0
        if slot not in self.levels:
            member, group = self.by_slot[slot], self.groups.get(slot)
            if group is not None:
                self.levels[slot] = 1 + max(map(self.level, group.reads), default=0)
            elif member.operation.kind != "pointwise":
                self.levels[slot] = 1 + max(map(self.level, member.reads))
            else:
                self.levels[slot] = max(self._waits(member, read) for read in member.reads)
        return self.levels[slot]

    def _waits(self, member: Member, read: int) -> int:
        """A smaller array is computed before what it is stretched to.

        Kernels of one level are in the order of their sizes: a single number comes before all but
        arrays without elements.
        """
        source = self.by_slot.get(read)
        level = self.level(read)
        if source is None or source.operation.kind != "pointwise" or read in self.groups:
            return level
        one = source.operation
        first = one.size == 1 and member.operation.size > 0
        return level + (one.shape != member.operation.shape and not first)

    def kernels(self) -> list[tuple[Member, ...]]:
        """The graph in pieces, in an order in which they can run."""
        keys: dict[int, tuple[Any, ...]] = {}
        for member in reversed(self.members):
            one, group = member.operation, self.groups.get(member.slot)
            level = self.level(member.slot)
            if group is not None:
                key: tuple[Any, ...] = (level, 0, min(group.slots))
            elif one.kind != "pointwise":
                key = (level, 0, member.slot)
            else:
                key = (level, 1, one.size, len(one.shape), one.shape)
                inside = {keys[reader.slot] for reader in self.readers.get(member.slot, ())}
                if member.slot not in self.kept and len(inside) == 1:
                    (outer,) = inside
                    joins = outer[1] == 1 and (one.size == 1 or outer[2:] == key[2:])
                    key = outer if joins else key
            keys[member.slot] = key
        found: dict[tuple[Any, ...], list[Member]] = {}
        for member in self.members:
            found.setdefault(keys[member.slot], []).append(member)
        return [tuple(found[key]) for key in sorted(found)]


def _with_folds(
    kernels: list[tuple[Member, ...]], graph: _Graph, backend: Any
) -> list[tuple[Member, ...]]:
    """Kernels that only a fold waits for become a part of it."""
    only: dict[int, tuple[Member, ...]] = {}  # by the one result
    for kernel in kernels:
        if kernel[0].operation.kind == "pointwise" and kernel[0].slot not in graph.groups:
            _, writes = graph.ends(kernel)
            if len(writes) == 1 and writes[0] not in graph.kept:
                only[writes[0]] = kernel
    found: list[tuple[Member, ...]] = []
    for kernel in kernels:
        (first, *others) = kernel
        joined: tuple[Member, ...] = ()
        if first.operation.kind == "fold" and not others:
            (read,) = first.reads
            before = only.get(read, ()) if len(graph.readers[read]) == 1 else ()
            one = first.operation
            if before and (backend.totals(one) or backend.folds(one, graph.shapes(before))):
                joined = before
                found.remove(joined)
        found.append((*joined, first, *others))
    return found


def _with_totals(
    parts: list[tuple[Member, ...]], graph: _Graph, backend: Any
) -> list[tuple[Member, ...]]:
    """Folds to one number, with the pointwise kernel that alone reads it."""
    found = list(parts)
    for part in parts:
        fold = part[-1]
        if fold.operation.kind != "fold" or fold.slot in graph.kept:
            continue
        if not backend.totals(fold.operation):
            continue
        readers = {reader.slot for reader in graph.readers.get(fold.slot, ())}
        at = found.index(part)
        for place in range(at + 1, len(found)):
            behind = found[place]
            if readers & {member.slot for member in behind}:
                if readers <= {member.slot for member in behind} and _is_of_numbers(behind, graph):
                    found[place] = (*part, *behind)
                    del found[at]
                break
            if any(member.operation.name == "store" for member in behind):
                break  # what the fold reads may be written
    return found


def _is_of_numbers(part: tuple[Member, ...], graph: _Graph) -> bool:
    """Whether a kernel is pointwise, and of single numbers."""
    if part[0].slot in graph.groups:
        return False
    ones = (
        shape for member in part for shape in (*member.operation.shapes, member.operation.shape)
    )
    return all(m.operation.kind == "pointwise" for m in part) and all(
        math.prod(shape) == 1 for shape in ones
    )


def _apart(graph: _Graph) -> list[Step]:
    """Each operation as a step; what is only written to memory is written by its function."""
    steps: list[Step] = []
    for member in graph.members:
        if member.operation.name == "store" and steps:
            (before,) = steps[-1].members
            read = graph.readers.get(before.slot) == [member] and before.slot not in graph.kept
            if read and is_itself(before.operation) and before.operation.direct:
                steps[-1] = Step((before, member))
                continue
        steps.append(Step((member,)))
    return steps
