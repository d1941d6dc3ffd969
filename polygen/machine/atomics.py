"""Atomic updates of global and shared memory.

Lanes with equal addresses take turns in thread order, so that every update sees the one before it;
one turn of all addresses is one vector operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import grids
from polygen.machine.arithmetic import flush, from_bf16, greater, lesser, to_bf16, to_half
from polygen.machine.data import spread
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import split

if TYPE_CHECKING:
    from polygen.machine.state import Machine


def _increment(old: Vector, limit: Vector) -> Vector:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Vector, limit: Vector) -> Vector:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _least(a: Any, b: Any) -> Any:
    return lesser(a, b, False)


def _most(a: Any, b: Any) -> Any:
    return greater(a, b, False)


def _halves(function: Callable[[Any, Any], Any], kind: str) -> Callable[[Any, Any], Any]:
    """An update of one or two 16-bit floats in a word, each rounded by itself."""

    def update(old: Any, b: Any) -> Any:
        a, c = np.ascontiguousarray(old), np.ascontiguousarray(b)
        if "bf16" in kind:
            wide = function(from_bf16(a.view("u2")), from_bf16(c.view("u2")))
            return to_bf16(wide).view(a.dtype)
        return to_half(function(a.view("f2"), c.view("f2"))).view(a.dtype)

    return update


_NAN = np.array(0x7FFFFFFF, "u4").view("f4")


def _sum(old: Vector, b: Vector) -> Vector:
    """A sum of float32."""
    total = old + b
    return np.where(total == total, total, _NAN)


def _flushed_sum(old: Vector, b: Vector) -> Vector:
    """A sum of float32 in global memory, where atomics know no subnormal numbers."""
    return flush(_sum(flush(old), flush(b)))


PACKED = {
    f"{name}.{kind}": _halves(function, kind)
    for name, function in (("add", np.add), ("min", _least), ("max", _most))
    for kind in ("f16", "f16x2", "bf16", "bf16x2")
}
UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, b: old + b,
    "add.f32": _sum,
    "add.flushed": _flushed_sum,
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "inc": _increment,
    "dec": _decrement,
    **PACKED,
}


def _turns(index: Vector) -> list[Vector]:
    """Lane places cut into turns: within one turn every index occurs once."""
    order = np.argsort(index, kind="stable")
    ordered, places = index[order], np.arange(len(index))
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    turn = places - np.maximum.accumulate(np.where(first, places, 0))
    by_turn = order[np.argsort(turn, kind="stable")]
    return np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])


def atomic(
    machine: Machine,
    lanes: Lanes,
    address: Any,
    operand: Any,
    swap: Any,
    operation: str,
    dtype: str,
    space: str,
    whole: int,
    position: int,
) -> tuple[Vector, ...]:
    """``atom`` and ``red``; `whole` bytes from the address on have to be there and aligned.

    Returns:
        The value each lane found before its own update.
    """
    address, b, c = full(lanes, address), full(lanes, operand), full(lanes, swap)
    rest = operation, dtype
    if space == "generic":
        result = np.zeros(lanes.count, dtype)
        for inner, places, inside in split(lanes, address):
            some = lanes.pick(places)
            result[places] = atomic(
                machine, some, inside, b[places], c[places], *rest, inner, whole, position
            )[0]
        return (result,)
    kind = np.dtype(dtype)
    locate, memory = machine.spaces[space]
    at, good = locate(machine, lanes, address, whole, position)
    if good is not None:
        found: tuple[Vector, ...] = (np.zeros(0, dtype),)
        if len(good):
            some = lanes.pick(good)
            mine = address[good], b[good], c[good]
            found = atomic(machine, some, *mine, *rest, space, whole, position)
        return spread(lanes.count, good, found)
    _note(machine, lanes, at, kind.itemsize, space, position)
    data, index = memory.view(kind), at // kind.itemsize
    if (operation, dtype) == ("add", "f4"):
        operation = "add.flushed" if space == "global" else "add.f32"
    old = np.empty(lanes.count, kind)
    for chosen in _turns(index):
        here = index[chosen]
        before = data[here]
        old[chosen] = before
        if operation == "cas":
            data[here] = np.where(before == b[chosen], c[chosen], before)
        else:
            data[here] = UPDATES[operation](before, b[chosen])
    return (old,)


def exchange_pairs(
    machine: Machine,
    lanes: Lanes,
    address: Any,
    low: Any,
    high: Any,
    other_low: Any,
    other_high: Any,
    operation: str,
    space: str,
    position: int,
) -> tuple[Vector, ...]:
    """``atom`` of 128 bits: ``exch`` stores the value, ``cas`` the other where it finds the value.

    Returns:
        The low and high halves that each lane found.
    """
    address = full(lanes, address)
    given = [full(lanes, one) for one in (low, high, other_low, other_high)]
    result = np.zeros((2, lanes.count), "u8")
    parts = split(lanes, address) if space == "generic" else [(space, slice(None), address)]
    for inner, places, inside in parts:
        some = lanes if inner == space else lanes.pick(places)
        locate, memory = machine.spaces[inner]
        at, good = locate(machine, some, inside, 16, position)
        chosen = np.arange(lanes.count)[places]
        if good is not None:
            some, at, chosen = some.pick(good), at[good], chosen[good]
        if not len(at):
            continue
        _note(machine, some, at, 16, inner, position)
        data, index = memory.view("u8").reshape(-1, 2), at // 16
        value, other = np.stack(given[:2], 1)[chosen], np.stack(given[2:], 1)[chosen]
        for turn in _turns(index):
            here = index[turn]
            before = data[here]
            result[:, chosen[turn]] = before.T
            if operation == "cas":
                same = (before == value[turn]).all(1)[:, None]
                data[here] = np.where(same, other[turn], before)
            else:
                data[here] = value[turn]
    return tuple(result)


def _note(machine: Machine, lanes: Lanes, at: Vector, size: int, space: str, position: int) -> None:
    """What watches memory learns of atomics."""
    if space == "shared" and machine.shadow is not None:
        machine.shadow.read(lanes, at, size, position)
        machine.shadow.write(lanes, at, size, position)
    if space == "global":
        grids.check(machine, lanes, at, size, position, writes=True)
    if space == "global" and machine.stores is not None:
        machine.stores.update(at, size)
    if machine.order is not None:
        facts = machine.program.facts
        kinds = position in facts.acquires, position in facts.releases
        machine.order.update(lanes, space, at, *kinds, position)
