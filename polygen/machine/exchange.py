"""Warp-wide exchanges: shuffles, votes, reductions, matches and the election of a lane.

Values of a set of lanes become a warps × 32 matrix with a mask of the lanes present; a lane named
in a member mask but absent is a divergence finding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from polygen.machine.lanes import Lanes, Vector, full

if TYPE_CHECKING:
    from polygen.machine.state import Machine

_LANE = np.arange(32)
Exchange: TypeAlias = Callable[..., tuple[Vector, ...]]


def _matrix(machine: Machine, lanes: Lanes, value: Any) -> Vector:
    """(warps of the wave, 32); absent lanes hold zeros."""
    value = full(lanes, value)
    if lanes.complete and lanes.count == machine.geometry.total:
        return value.reshape(-1, 32)
    wide = np.zeros(machine.geometry.total, value.dtype)
    wide[lanes.index] = value
    return wide.reshape(-1, 32)


def _back(lanes: Lanes, matrix: Vector) -> Vector:
    return np.ascontiguousarray(matrix).reshape(-1)[lanes.index]


def _members(machine: Machine, lanes: Lanes, mask: Any, position: int) -> Vector:
    """Per (warp, lane): whether the lane is present and in the member mask; checks the mask."""
    present = np.zeros(machine.geometry.total, bool)
    present[lanes.index] = True
    grid = present.reshape(-1, 32)
    masks = _matrix(machine, lanes, mask).astype("u4")
    named = (masks[:, :, None] >> _LANE.astype("u4") & np.uint32(1)).astype(bool)
    exists = machine.geometry.exists.reshape(-1, 32)
    absent = named & grid[:, :, None] & ~(grid & exists)[:, None, :] & exists[:, None, :]
    if absent.any():
        warp, lane, other = (int(x) for x in np.argwhere(absent)[0])
        place = int(np.flatnonzero(lanes.index == warp * 32 + lane)[0])
        machine.findings.add(
            "divergent-warp-operation",
            f"{lanes.name(place)} names lane {other} in its member mask, which does not take part",
            position,
            count=int(absent.any(2).sum()),
        )
    alone = grid & exists & ~named[:, _LANE, _LANE]
    if alone.any():
        warp, lane = (int(x) for x in np.argwhere(alone)[0])
        place = int(np.flatnonzero(lanes.index == warp * 32 + lane)[0])
        machine.findings.add(
            "divergent-warp-operation",
            f"{lanes.name(place)} executes it and does not name itself in its member mask",
            position,
            count=int(alone.sum()),
        )
    # a lane counts when some participant names it: they share a mask (`_by_mask`)
    return grid & np.where(grid[:, :, None], named, False).any(1)


def _by_mask(at: int) -> Callable[[Exchange], Exchange]:
    """Lanes with other masks, as the halves of a warp have, do an exchange of their own each.

    `at` is the place of the mask among the operands.
    """

    def wrap(function: Exchange) -> Exchange:
        @functools.wraps(function)
        def apart(machine: Machine, lanes: Lanes, *rest: Any) -> tuple[Vector, ...]:
            mask = rest[at]
            if getattr(mask, "ndim", 0) == 0 or (mask == mask[:1]).all():
                return function(machine, lanes, *rest)
            found: list[Vector] = []
            for one in np.unique(mask):
                places = np.flatnonzero(mask == one)
                mine = [each[places] if getattr(each, "ndim", 0) else each for each in rest]
                some = function(machine, lanes.pick(places), *mine)
                found = found or [np.zeros(lanes.count, part.dtype) for part in some]
                for whole, part in zip(found, some, strict=True):
                    whole[places] = part
            return tuple(found)

        return apart

    return wrap


def shuffle(
    machine: Machine,
    lanes: Lanes,
    value: Any,
    lane_operand: Any,
    control: Any,
    mask: Any,
    mode: str,
    position: int,
) -> tuple[Vector, Vector]:
    """``shfl.sync``: the value of another lane, and whether that lane was in range."""
    _members(machine, lanes, mask, position)
    data = _matrix(machine, lanes, value)
    b = _matrix(machine, lanes, lane_operand).astype("i8") & 31
    c = _matrix(machine, lanes, control).astype("i8")
    segment, clamp = c >> 8 & 31, c & 31
    least, most = _LANE & segment, (_LANE & segment) | (clamp & ~segment)
    if mode == "up":
        other = _LANE - b
        inside = other >= most
    elif mode == "down":
        other = _LANE + b
        inside = other <= most
    elif mode == "bfly":
        other = _LANE ^ b
        inside = other <= most
    else:
        other = least | (b & ~segment)
        inside = other <= most
    other = np.where(inside, other, _LANE)
    return (
        _back(lanes, np.take_along_axis(data, other, 1)),
        _back(lanes, np.broadcast_to(inside, data.shape)),
    )


@_by_mask(1)
def vote(
    machine: Machine, lanes: Lanes, predicate: Any, mask: Any, mode: str, position: int
) -> tuple[Vector]:
    """``vote.sync``: all, any, uni or ballot over the member lanes."""
    members = _members(machine, lanes, mask, position)
    votes = _matrix(machine, lanes, predicate)
    yes = (votes & members).any(1)
    every = (votes | ~members).all(1)
    if mode == "ballot":
        bits = ((votes & members) << _LANE.astype("u8")).sum(1).astype("u4")
        answer: Vector = bits
    elif mode == "all":
        answer = every
    elif mode == "any":
        answer = yes
    else:
        answer = every | ~yes
    return (_back(lanes, np.repeat(answer[:, None], 32, 1)),)


def active_mask(machine: Machine, lanes: Lanes) -> tuple[Vector]:
    """``activemask``."""
    present = np.zeros(machine.geometry.total, "u8")
    present[lanes.index] = 1
    bits = (present.reshape(-1, 32) << _LANE.astype("u8")).sum(1).astype("u4")
    return (_back(lanes, np.repeat(bits[:, None], 32, 1)),)


_REDUCE = {
    "add": (np.add, 0),
    "min": (np.minimum, None),
    "max": (np.maximum, None),
    "and": (np.bitwise_and, -1),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
}


@_by_mask(1)
def reduce(
    machine: Machine, lanes: Lanes, value: Any, mask: Any, operation: str, position: int
) -> tuple[Vector]:
    """``redux.sync`` over the member lanes."""
    members = _members(machine, lanes, mask, position)
    data = _matrix(machine, lanes, value)
    function, neutral = _REDUCE[operation]
    if neutral is None:
        limits = np.iinfo(data.dtype)
        neutral = limits.max if operation == "min" else limits.min
    neutral_word = np.array(neutral, "i8").astype(data.dtype)
    kept = np.where(members, data, neutral_word)
    total = function.reduce(kept, axis=1, dtype=data.dtype)
    return (_back(lanes, np.repeat(total[:, None], 32, 1)),)


@_by_mask(1)
def match_any(
    machine: Machine, lanes: Lanes, value: Any, mask: Any, position: int
) -> tuple[Vector]:
    """``match.any.sync``: the member lanes that hold the same value."""
    members = _members(machine, lanes, mask, position)
    data = _matrix(machine, lanes, value)
    same = (data[:, :, None] == data[:, None, :]) & members[:, None, :]
    bits = (same << _LANE.astype("u8")).sum(2).astype("u4")
    return (_back(lanes, bits),)


@_by_mask(1)
def match_all(
    machine: Machine, lanes: Lanes, value: Any, mask: Any, position: int
) -> tuple[Vector, Vector]:
    """``match.all.sync``: the member lanes if all of them hold one value, and whether they do."""
    members = _members(machine, lanes, mask, position)
    data = _matrix(machine, lanes, value)
    first = np.take_along_axis(data, members.argmax(1)[:, None], 1)
    same = ((data == first) | ~members).all(1, keepdims=True)
    bits = (members << _LANE.astype("u8")).sum(1, keepdims=True)
    answer = np.where(same, bits, 0).astype("u4")
    return tuple(_back(lanes, np.broadcast_to(one, data.shape)) for one in (answer, same))


@_by_mask(0)
def elect(machine: Machine, lanes: Lanes, mask: Any, position: int) -> tuple[Vector, Vector]:
    """``elect.sync``: the lowest member lane, and whether this lane is it."""
    members = _members(machine, lanes, mask, position)
    leader = np.repeat(members.argmax(1).astype("u4")[:, None], 32, 1)
    return _back(lanes, leader), _back(lanes, leader == _LANE)
