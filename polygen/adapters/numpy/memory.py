"""Which arrays of a backend lie in whose memory, and whether two have an element in common.

Two parts of one array are apart if their bytes are, or, as columns of a matrix, if they are in
every row: with a step of either as the pitch, each stays inside of it, at other places.
"""

from __future__ import annotations

from typing import Any


def memory_of(value: Any) -> Any:
    """The array that owns the memory of an array."""
    while getattr(value, "base", None) is not None and hasattr(value.base, "strides"):
        value = value.base
    return value


def are_apart(first: Any, second: Any, backend: Any) -> bool:
    """Whether two arrays surely have no element in common.

    Args:
        first: an array of the backend, or a number.
        second: likewise.
        backend: tells addresses.
    """
    if not hasattr(first, "strides") or not hasattr(second, "strides"):
        return True
    if memory_of(first) is not memory_of(second):
        return True
    pair = [(_steps(one), one.itemsize, backend.address(one)) for one in (first, second)]
    if any(step < 0 for steps, _, _ in pair for step, _ in steps):
        return False
    lowest = min(address for *_, address in pair)
    bounds = [(at, at + size + _span(steps)) for steps, size, at in pair]
    if _disjoint(bounds):
        return True
    for pitch in {step for steps, _, _ in pair for step, _ in steps}:
        inside = []
        for steps, size, address in pair:
            start = (address - lowest) % pitch
            end = start + size + _span([one for one in steps if one[0] % pitch])
            inside.append((start, end))
        if all(end <= pitch for _, end in inside) and _disjoint(inside):
            return True
    return False


def is_same(first: Any, second: Any, backend: Any) -> bool:
    """Whether two arrays have the same elements in the same places."""
    forms = [(one.shape, one.strides, one.dtype, backend.address(one)) for one in (first, second)]
    return bool(forms[0] == forms[1])


def _steps(array: Any) -> list[tuple[int, int]]:
    """Step in bytes and extent of each axis along which there is a step."""
    return [pair for pair in zip(array.strides, array.shape, strict=True) if pair[1] > 1]


def _span(steps: list[tuple[int, int]]) -> int:
    return sum(step * (extent - 1) for step, extent in steps)


def _disjoint(pair: list[tuple[int, int]]) -> bool:
    (low, high), (other, end) = pair
    return high <= other or end <= low
