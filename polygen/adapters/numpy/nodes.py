"""Recorded operations: nodes of a graph, each with the place in the program that recorded it.

A node never changes what it stands for: it is pending until something forces its value, and from
then on it is that value. An array points to a node; writing to an array makes it point to another.
"""

from __future__ import annotations

import sys
import weakref
from types import CodeType, FrameType
from typing import Any

from polygen.adapters.numpy.operations import ArrayForm, Operation, form_of

PACKAGE = __name__.rpartition(".")[0]
_MOST_FORGOTTEN = 1024


class Node:
    """One value.

    Attributes:
        form: its shape and type.
        operation: that computes it; None: it was there.
        args: nodes and Python's numbers that the operation reads; empty once the value is known.
        depth: operations that are pending on the way to it.
        value: an array of the backend; None: pending.
        place: code object and instruction that recorded it; None: what runs now.
        borrowed: whether the value lies in memory that is another array's, and may be written to:
            then it is copied before.
    """

    __slots__ = ("__weakref__", "args", "borrowed", "depth", "form", "operation", "place", "value")

    def __init__(
        self, form: ArrayForm, operation: Operation | None, args: tuple[Any, ...],
        depth: int, value: Any, place: tuple[CodeType, int] | None,
    ) -> None:  # fmt: skip
        self.form, self.operation, self.args = form, operation, args
        self.depth, self.value, self.place, self.borrowed = depth, value, place, False

    def settle(self, value: Any) -> None:
        """From now on it is a value, and what it was computed from may go."""
        self.value, self.args, self.depth, self.place = value, (), 0, None

    def borrow(self, value: Any) -> None:
        """From now on it is what a part of an array is, as long as that is not written to."""
        self.settle(value)
        self.borrowed = True
        _borrowed.append(_reference(self))
        if len(_borrowed) > _MOST_FORGOTTEN:
            borrowed()

    def own(self) -> None:
        """Have memory of its own."""
        if self.borrowed:
            self.value, self.borrowed = self.value.copy(), False


def known(value: Any) -> Node:
    """A node of a value that is there, an array of the backend."""
    return Node(form_of(value.shape, value.dtype), None, (), 0, value, None)


# --- which operations are pending -----------------------------------------------------------------
_reference = weakref.ref
_pending: list[weakref.ref[Node]] = []
_borrowed: list[weakref.ref[Node]] = []
_until = _MOST_FORGOTTEN  # look for nodes that are no more when there are so many


def noted(operation: Operation, args: tuple[Any, ...], depth: int, place: Any) -> Node:
    """A pending node, noted so that a write to what it reads can wait for it.

    Args:
        operation: what computes it.
        args: what that reads.
        depth: operations that are pending on the way to its operands.
        place: that records it: code object and instruction.
    """
    global _until
    node = Node(operation.form, operation, args, depth + 1, None, place)
    _pending.append(_reference(node))
    if len(_pending) > _until:
        _until = len(pending()) + _MOST_FORGOTTEN
    return node


def pending() -> list[Node]:
    """The nodes whose values nobody has asked for yet, in the order in which they were recorded."""
    if not _pending:
        return []
    alive = [node for one in _pending if (node := one()) is not None and node.value is None]
    if len(alive) != len(_pending):
        _pending[:] = map(_reference, alive)
    return alive


def borrowed() -> list[Node]:
    """The nodes whose values are parts of other arrays."""
    if not _borrowed:
        return []
    alive = [node for one in _borrowed if (node := one()) is not None and node.borrowed]
    if len(alive) != len(_borrowed):
        _borrowed[:] = map(_reference, alive)
    return alive


# --- places ---------------------------------------------------------------------------------------
def outside(frame: FrameType) -> FrameType | None:
    """The innermost frame outside of this package: the user's code.

    Frames, their code and `id` are asked for as seldom as can be: where a library audits what runs
    (filelock does, which PyTorch imports), each of them calls it.

    Args:
        frame: where to begin.
    """
    while frame.f_globals.get("__package__") == PACKAGE:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame


def here() -> tuple[CodeType, int] | None:
    """The place of the user's code that runs."""
    frame = outside(sys._getframe(1))
    return None if frame is None else (frame.f_code, frame.f_lasti)


def described(place: tuple[CodeType, int] | None) -> str:
    """A place as text: file and line."""
    if place is None:
        return "an unknown place"
    code, instruction = place
    line = code.co_firstlineno
    for first, last, number in code.co_lines():
        if first <= instruction < last and number is not None:
            line = number
    return f"{code.co_filename}:{line}"
