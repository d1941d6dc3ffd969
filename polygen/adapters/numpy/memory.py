"""Whether two arrays of a backend have an element in common.

A backend tells what owns the memory of an array. What came from elsewhere, as a buffer of another
library, may come twice: it counts as one memory, in which addresses decide.

Two parts of one array are apart if their bytes are, or, as columns of a matrix, if they are in
every row: with a step of either as the pitch, each stays inside of it, at other places.
"""

from __future__ import annotations

import functools
from typing import Any

_MOST = 4096  # pairs of parts whose answer is kept

# Strides, extents, and bytes of an element.
_Part = tuple[tuple[int, ...], tuple[int, ...], int]


class _Foreign:
    """All memory that belongs to nothing the backend knows: parts of it are told by addresses."""


FOREIGN = _Foreign()


def are_apart(first: Any, second: Any, backend: Any) -> bool:
    """Whether two arrays surely have no element in common.

    Args:
        first: an array of the backend, or a number.
        second: likewise.
        backend: tells addresses.
    """
    if not hasattr(first, "strides") or not hasattr(second, "strides"):
        return True
    if first is second:
        return False
    if backend.memory(first) is not backend.memory(second):
        return True
    return parts_are_apart(first, second, backend)


def parts_are_apart(first: Any, second: Any, backend: Any) -> bool:
    """Whether two arrays of one memory surely have no element in common; as `are_apart`."""
    one = first.strides, first.shape, first.itemsize
    other = second.strides, second.shape, second.itemsize
    return _are_apart(one, other, backend.address(second) - backend.address(first))


@functools.lru_cache(_MOST)
def _are_apart(first: _Part, second: _Part, between: int) -> bool:
    """Whether two parts of one memory are apart, the second so many bytes behind the first."""
    start = max(0, -between)
    pair = [(_steps(first), first[2], start), (_steps(second), second[2], start + between)]
    if any(step < 0 for steps, _, _ in pair for step, _ in steps):
        return False
    bounds = [(at, at + size + _span(steps)) for steps, size, at in pair]
    if _disjoint(bounds):
        return True
    for pitch in {step for steps, _, _ in pair for step, _ in steps if step}:
        inside = []
        for steps, size, at in pair:
            low = at % pitch
            end = low + size + _span([one for one in steps if one[0] % pitch])
            inside.append((low, end))
        if all(end <= pitch for _, end in inside) and _disjoint(inside):
            return True
    return False


def is_same(first: Any, second: Any, backend: Any) -> bool:
    """Whether two arrays have the same elements in the same places."""
    if first is second:
        return True
    if first.strides != second.strides or first.shape != second.shape:
        return False
    return bool(first.dtype == second.dtype and backend.address(first) == backend.address(second))


def _steps(part: _Part) -> list[tuple[int, int]]:
    """Step in bytes and extent of each axis along which there is a step."""
    return [pair for pair in zip(part[0], part[1], strict=True) if pair[1] > 1]


def _span(steps: list[tuple[int, int]]) -> int:
    return sum(step * (extent - 1) for step, extent in steps)


def _disjoint(pair: list[tuple[int, int]]) -> bool:
    (low, high), (other, end) = pair
    return high <= other or end <= low
