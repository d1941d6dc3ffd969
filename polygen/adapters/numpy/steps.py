"""What runs a step of a plan: a library's function as it is, or one that is fused.

A step is some operations, in order, with the slots that they read and write
(`polygen.adapters.numpy.planning`); what runs it takes its operands and gives its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from polygen.adapters.numpy.elementwise import Ends
from polygen.adapters.numpy.operations import Operation, apply
from polygen.adapters.numpy.totals import Part, Total


@dataclass(frozen=True, slots=True)
class Member:
    """One operation: the slots that it reads, and the one that it writes."""

    slot: int
    operation: Operation
    reads: tuple[int, ...]


@dataclass(slots=True)
class Step:
    """What runs at once.

    Attributes:
        members: its operations, in order.
        writes: slots of its results.
        reads: slots of its operands.
        run: on the operands; gives a result, or a tuple where there are several.
        done: slots that nobody reads any more, after it.
    """

    members: tuple[Member, ...]
    writes: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    run: Callable[..., Any] = apply
    done: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " + ".join(member.operation.name for member in self.members)


def into(step: Step, backend: Any) -> Callable[..., Any]:
    """A function of the module that writes to memory."""
    before, store = step.members
    function = getattr(backend.module, before.operation.name)
    places, target = [step.reads.index(s) for s in before.reads], step.reads.index(store.reads[0])
    return lambda *operands: function(*(operands[p] for p in places), out=operands[target])


def is_itself(one: Operation) -> bool:
    """Whether an operation is a function of the module, of its operands alone."""
    return one.kind == "pointwise" and one.name not in ("astype", "store", "where")


def function(step: Step, backend: Any) -> Callable[..., Any]:
    """What runs a step: a library's function as it is, or a fused one."""
    members = step.members
    last = members[-1].operation
    if len(members) == 1 and last.direct:
        return _single(members[0], step, backend)
    folds = [number for number, one in enumerate(members) if one.operation.kind == "fold"]
    if folds and backend.totals(members[folds[0]].operation):
        return _total_function(step, folds[0], backend)
    if folds:
        return _fold_function(step, backend)
    composed = _composed(step.reads, members, step.writes, backend)
    return backend.fuse(composed, _ends(step))  # type: ignore[no-any-return]


def _fold_function(step: Step, backend: Any) -> Callable[..., Any]:
    """What runs a step that ends with a fold, and is one kernel."""
    fold, reads = step.members[-1].operation, step.reads
    twice = len(reads) == 1 and backend.is_read_twice(fold)
    reads = reads * 2 if twice else reads
    fused = backend.fuse(_composed(reads, step.members, step.writes, backend))
    return _shaped(fused, twice, fold)


def _total_function(step: Step, at: int, backend: Any) -> Callable[..., Any]:
    """What runs a fold to one number, the operation `at` of a step, with those around it."""
    members, reads = step.members, step.reads
    fold, first, last = members[at], members[:at], members[at + 1 :]
    (read,) = fold.reads
    before = _part(first, (read,), (), reads, backend) if first else None
    behind = _part(last, step.writes, (fold.slot,), reads, backend) if last else None
    place = 0 if before else reads.index(read)
    whole = Total(before, place, fold.operation, behind)
    composed = _composed(reads, members, step.writes, backend, shaped=True)
    return backend.total(whole, composed)  # type: ignore[no-any-return]


def _part(
    members: tuple[Member, ...], writes: tuple[int, ...], first: tuple[int, ...],
    reads: tuple[int, ...], backend: Any,
) -> Part:  # fmt: skip
    """Pointwise operations that read some slots first, and others of the whole's."""
    own = {member.slot for member in members} | set(first)
    others = tuple(dict.fromkeys(s for m in members for s in m.reads if s not in own))
    inner = Step(members, writes, (*first, *others))
    function = _composed(inner.reads, members, writes, backend)
    return Part(function, _ends(inner), tuple(map(reads.index, others)))


def _shaped(fused: Callable[..., Any], twice: bool, fold: Operation) -> Callable[..., Any]:
    """A fused fold whose axes may be kept, of an array that it may be given twice."""
    if twice and fold.keepdims:
        return lambda operand: fused(operand, operand).reshape(fold.shape)
    if twice:
        return lambda operand: fused(operand, operand)
    if math.prod(fold.shape) == 0 or not fold.keepdims:
        return fused
    return lambda *operands: fused(*operands).reshape(fold.shape)


def _composed(
    reads: Sequence[int], members: Sequence[Member], writes: Sequence[int], backend: Any,
    *, shaped: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """A function of some slots, that gives what operations write to others.

    Args:
        reads: the slots of its operands.
        members: the operations.
        writes: the slots of its results.
        backend: runs them.
        shaped: whether folds keep axes that they are told to keep, which CuPy's fusion cannot.
    """
    module = backend.module

    def composed(*operands: Any) -> Any:
        values = dict(zip(reads, operands, strict=True))
        for member in members:
            given = [values[slot] for slot in member.reads]
            if member.operation.kind == "fold":
                found = backend.fold(member.operation, given[0])
                values[member.slot] = found.reshape(member.operation.shape) if shaped else found
            else:
                values[member.slot] = apply(module, member.operation, given)
        results = tuple(values[slot] for slot in writes)
        return results if len(results) > 1 else results[0] if results else None

    return composed


def _ends(step: Step) -> Ends:
    """Of a step without a fold."""
    members = step.members
    shapes = {s: own for m in members for s, own in zip(m.reads, m.operation.shapes, strict=True)}
    forms = {m.slot: m.operation.form for m in members}
    own = {slot: number for number, slot in enumerate((*step.reads, *forms))}
    text = [(m.operation.name, m.operation.loop, m.operation.dtype,
             *(own[slot] for slot in m.reads)) for m in members]  # fmt: skip
    shape = max(
        (m.operation.shape for m in members), key=lambda one: (math.prod(one) != 1, len(one))
    )
    return Ends(
        tuple(shapes[slot] for slot in step.reads), tuple(forms[slot] for slot in step.writes),
        shape, (*text, tuple(own[slot] for slot in step.writes)),
    )  # fmt: skip


def _single(member: Member, step: Step, backend: Any) -> Callable[..., Any]:
    """One function as it is, or with what it is told besides."""
    one, module = member.operation, backend.module
    itself = is_itself(one) or one.name == "where"
    if itself and member.reads == step.reads:
        return getattr(module, one.name)  # type: ignore[no-any-return]
    if one.kind == "fold":
        alone = backend.alone(one)
        if alone is not None:
            return alone  # type: ignore[no-any-return]
        return methodcaller(one.name, axis=one.axis, keepdims=one.keepdims)
    places = [step.reads.index(slot) for slot in member.reads]
    return lambda *operands: apply(module, one, [operands[place] for place in places], direct=True)
