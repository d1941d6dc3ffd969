"""The data of many accesses: elements out of a memory and into it.

What an access moves lies at a multiple of its size, and is moved as one element of that size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.machine.lanes import Lanes, Vector, full

WHOLE = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}  # what so many bytes are moved as


def gather(memory: Vector, at: Vector, dtype: str, count: int) -> tuple[Vector, ...]:
    """`count` elements from every byte position."""
    kind = np.dtype(dtype)
    size = kind.itemsize * count
    if count == 1:
        return (memory.view(kind).take(at // size),)
    rows = memory.view(WHOLE.get(size, f"V{size}")).take(at // size).view(kind)
    return tuple(np.ascontiguousarray(rows.reshape(-1, count).T))


def scatter(lanes: Lanes, memory: Vector, at: Vector, dtype: str, values: tuple[Any, ...]) -> None:
    """Write elements at every byte position."""
    kind = np.dtype(dtype)
    size = kind.itemsize * len(values)
    if len(values) == 1:
        memory.view(kind)[at // size] = values[0]
    else:
        rows = np.stack([full(lanes, value) for value in values], 1).astype(kind, copy=False)
        whole = np.dtype(WHOLE.get(size, f"V{size}"))
        memory.view(whole)[at // size] = rows.view(whole)[:, 0]


def as_bytes(lanes: Lanes, values: tuple[Any, ...], dtype: str) -> Vector:
    """The bytes each lane stores, one row per lane."""
    columns = [full(lanes, value).astype(dtype, copy=False) for value in values]
    return np.stack(columns, 1).view(np.uint8).reshape(lanes.count, -1)


def spread(count: int, good: Vector, values: tuple[Vector, ...]) -> tuple[Vector, ...]:
    """Results of the good lanes among all lanes; the others read all ones."""
    result = []
    for value in values:
        wide = np.full(count * value.itemsize, 0xFF, np.uint8).view(value.dtype)
        wide[good] = value
        result.append(wide)
    return tuple(result)
