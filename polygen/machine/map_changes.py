"""Tensor maps that a kernel makes or changes: ``tensormap.replace``, and who may use them when.

1. Writes of a map are those of any thread (the generic proxy); copies read it through a proxy of
   its own. Between them there have to be, in this order, a release by a thread that knows of the
   writes (``fence.proxy.tensormap::generic``, or ``tensormap.cp_fenceproxy`` that copies as well),
   and an acquire of the map, in the block that uses it, by a thread that knows of the release.
2. A release leaves what its thread knew, an acquire the bytes that it found and whether releases
   cover them. A copy uses the map of an acquire that its thread knows of: nothing is amiss when the
   bytes are still those, and that acquire was in order.
3. A map that no store of the launch has touched needs no fence. Where blocks run in different
   waves, what those of the first stored is left alone, as in `stores`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import grids, map_image
from polygen.machine.clocks import CODE
from polygen.machine.lane_clocks import ACTOR, ACTORS
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import BASE, locate_global, locate_shared, split
from polygen.machine.report import Stop
from polygen.machine.tensormap import IMAGE_BYTES, PlacedMap

if TYPE_CHECKING:
    from polygen.machine.state import Machine

_PIECE = 16
_KEPT = 64  # releases of a warp


@dataclass(slots=True)
class _Event:
    """A fence: who did it, and what it has."""

    time: Vector  # the record of its thread, (1, 1)
    owner: Vector  # the first block of its cluster, (1, 1)
    clock: Vector  # of a release: what its thread knew
    data: bytes = b""  # of an acquire: the map
    good: bool = True  # of an acquire: releases cover the writes of the map


@dataclass(slots=True)
class MapFences:
    """The fences of tensor maps in a wave, and what images have been found to mean."""

    known: dict[bytes, PlacedMap | str] = field(default_factory=dict)
    releases: dict[int, list[_Event]] = field(default_factory=dict)  # by clock row
    acquires: dict[tuple[int, int], dict[int, _Event]] = field(default_factory=dict)
    # by block and place, then thread


# --- images --------------------------------------------------------------------------------------
def meaning(machine: Machine, data: bytes) -> PlacedMap | str:
    """The map that an image is, or why it is none."""
    known = machine.map_fences.known
    found = known.get(data)
    if found is None:
        if not known:
            for number, one in enumerate(machine.tensor_maps):
                known[map_image.image(number, one, BASE)] = one
        found = known.get(data)
    if found is None:
        found = known[data] = map_image.read(data, machine.tensor_maps, BASE)
    return found


def check_box(
    machine: Machine, lanes: Lanes, lane: int, placed: PlacedMap, at: Vector, position: int
) -> None:
    """A box of a map that was changed on the device may lie anywhere; stops outside of arrays."""
    room = machine.memory.room
    lost = (at < 0) | (at >= machine.memory.size)
    lost |= room.take(at, mode="clip") < placed.element
    if lost.any():
        machine.findings.add(
            "out-of-bounds-global",
            f"{lanes.name(lane)} copies a box of {placed.name} at "
            f"{machine.memory.describe(int(at[lost.argmax()]))}",
            position,
            count=int(lost.sum()),
        )
        raise Stop


# --- tensormap.replace ---------------------------------------------------------------------------
def replace(machine: Machine, lanes: Lanes, address: Any, value: Any, *rest: Any) -> None:
    """``tensormap.replace``; rest: field, number of the dim, state space, position."""
    field_name, place, space, position = rest
    address, value = full(lanes, address), full(lanes, value)
    spaces = [(space, np.arange(lanes.count), address)]
    if space == "generic":
        spaces = split(lanes, address)
    for where, places, inside in spaces:
        if where not in ("global", "shared"):
            machine.findings.add(
                "bad-descriptor",
                f"{lanes.name(int(places[0]))} replaces a field of a tensor map in {where} memory",
                position,
            )
            raise Stop
        for lane, at in zip(places.tolist(), inside, strict=True):
            one = lanes.pick(np.array([lane]))
            _replace(machine, one, where, at, (field_name, place, int(value[lane])), position)


def _replace(
    machine: Machine,
    one: Lanes,
    space: str,
    address: Any,
    change: tuple[str, int, int],
    position: int,
) -> None:
    place = _located(machine, one, space, address, position)
    if place is None:
        return
    memory = machine.spaces[space][1]
    old = memory[place : place + IMAGE_BYTES].tobytes()
    _read(machine, one, space, place, position)
    new = map_image.changed(old, *change)
    if new is None:
        machine.findings.add(
            "bad-descriptor",
            f"{one.name(0)} replaces .{change[0]} of what is no tensor map, nor zeros",
            position,
        )
        raise Stop
    _write(machine, one, space, place, new, position)


def _located(machine: Machine, one: Lanes, space: str, address: Any, position: int) -> int | None:
    """The place of an image in its memory, one lane; None where there is none."""
    locate = locate_global if space == "global" else locate_shared
    at, good = locate(machine, one, np.atleast_1d(address), IMAGE_BYTES, position)
    return None if good is not None and not len(good) else int(at[0])


def _read(machine: Machine, lanes: Lanes, space: str, place: int, position: int) -> None:
    """All lanes read an image."""
    if space == "global":
        at = np.full(lanes.count, place)
        grids.check(machine, lanes, at, IMAGE_BYTES, position, writes=False)
        if machine.stores is not None:
            machine.stores.read(machine, lanes, at, IMAGE_BYTES, position)
    elif machine.shadow is not None:
        machine.shadow.read(*_pieces(lanes, place), _PIECE, position)


def _write(machine: Machine, one: Lanes, space: str, place: int, new: bytes, position: int) -> None:
    """One lane writes an image."""
    data, at = np.frombuffer(new, np.uint8), np.array([place])
    if space == "global":
        grids.check(machine, one, at, IMAGE_BYTES, position, writes=True)
        if machine.stores is not None:
            machine.stores.write(machine, one, at, IMAGE_BYTES, data[None], position)
    elif machine.shadow is not None:
        machine.shadow.write(*_pieces(one, place), _PIECE, position)
    machine.spaces[space][1][place : place + IMAGE_BYTES] = data


def _pieces(lanes: Lanes, place: int) -> tuple[Lanes, Vector]:
    """Lanes that access the 16-byte pieces of an image, each all of them."""
    count = IMAGE_BYTES // _PIECE
    many = lanes.pick(np.repeat(np.arange(lanes.count), count))
    return many, np.tile(place + _PIECE * np.arange(count), lanes.count)


# --- fences --------------------------------------------------------------------------------------
def copy_release(machine: Machine, lanes: Lanes, target: Any, source: Any, position: int) -> None:
    """``tensormap.cp_fenceproxy``: warps copy an image to global memory, and release."""
    target, source = full(lanes, target), full(lanes, source)
    for warp in np.unique(lanes.index >> 5).tolist():
        mine = np.flatnonzero(lanes.index >> 5 == warp)
        part, one = lanes.pick(mine), lanes.pick(mine[:1])
        if len(np.unique(target[mine])) > 1 or len(np.unique(source[mine])) > 1:
            machine.findings.add(
                "divergent-warp-operation",
                f"the lanes of {one.name(0)}'s warp do not name one tensor map",
                position,
            )
            raise Stop
        shared = _located(machine, one, "shared", source[mine[0]], position)
        place = _located(machine, one, "global", target[mine[0]], position)
        if shared is None or place is None:
            continue
        _read(machine, part, "shared", shared, position)
        image = machine.shared[shared : shared + IMAGE_BYTES].tobytes()
        _write(machine, one, "global", place, image, position)
        if machine.shadow is not None:  # all lanes have taken part, and are ordered by it
            stamp = _stamp(machine, one, position)
            machine.shadow.tick(machine.shadow.rows(one))
            _leave(machine, one, stamp)


def release(machine: Machine, lanes: Lanes, position: int) -> None:
    """``fence.proxy.tensormap::generic.release``: what its threads know is there for maps."""
    shadow = machine.shadow
    if shadow is None:
        return
    for place in range(lanes.count):
        one = lanes.pick(np.array([place]))
        _leave(machine, one, _stamp(machine, one, position))
    shadow.count_fence(np.unique(shadow.rows(lanes)))


def _leave(machine: Machine, one: Lanes, stamp: tuple[Vector, Vector]) -> None:
    """A release with a given record, by a thread that knows what it knows now."""
    shadow, thread = machine.shadow, int(one.index[0])
    assert shadow is not None
    kept = machine.map_fences.releases.setdefault(int(shadow.row_of[thread]), [])
    kept.append(_Event(*stamp, shadow.released(thread)[0]))
    del kept[:-_KEPT]


def _stamp(machine: Machine, one: Lanes, position: int) -> tuple[Vector, Vector]:
    """The record of a thread's fence, and whose it is."""
    assert machine.shadow is not None
    first = one.cta // machine.geometry.cluster * machine.geometry.cluster
    return machine.shadow.mark(one, position), machine.geometry.ctas[first][:, None]


def acquire(machine: Machine, lanes: Lanes, address: Any, position: int) -> None:
    """``fence.proxy.tensormap::generic.acquire`` of one map by every lane."""
    addresses = full(lanes, address)
    for lane in range(lanes.count):
        one = lanes.pick(np.array([lane]))
        place = _located(machine, one, "global", addresses[lane], position)
        if place is None or machine.shadow is None or machine.stores is None:
            continue
        data = machine.memory.bytes[place : place + IMAGE_BYTES].tobytes()
        good = _covered(machine, one, place, position)
        event = _Event(*_stamp(machine, one, position), np.zeros(0, np.int64), data, good)
        key = int(one.cta[0]), place
        machine.map_fences.acquires.setdefault(key, {})[int(one.index[0])] = event


def _covered(machine: Machine, one: Lanes, place: int, position: int) -> bool:
    """Whether releases that a thread knows of cover all stores to an image."""
    time, owner = _stored(machine, place)
    assert machine.stores is not None
    left = (owner >= 0) & (machine.stores.place_of[np.maximum(owner, 0)] >= 0)
    for events in machine.map_fences.releases.values():
        for event in reversed(events):
            if not left.any():
                return True
            if _knows(machine, one, event, position):
                left &= ~_reaches(machine, event, time, owner)
    return not left.any()


def _stored(machine: Machine, place: int) -> tuple[Vector, Vector]:
    """The records of the last stores to an image, and whose they are."""
    stores = machine.stores
    assert stores is not None
    cells = stores.cells(np.array([place]), IMAGE_BYTES)[0]
    return stores.last.time[cells], stores.last.owner[cells]


def _knows(machine: Machine, one: Lanes, event: _Event, position: int) -> bool:
    """Whether a fence is ordered before what a thread does now."""
    shadow, order, stores = machine.shadow, machine.order, machine.stores
    assert shadow is not None and stores is not None
    _, mine = _stamp(machine, one, position)
    rows = shadow.rows(one)
    if event.owner[0, 0] != mine[0, 0]:
        if order is None:
            return False
        column = order.column(event.owner, event.time, stores.place_of)
        return bool(column[0, 0] >= 0) and bool(
            (event.time <= shadow.clock[rows[:, None], column]).all()
        )
    wrong = event.time > shadow.seen(rows, event.time)
    wrong = shadow.single.excuse(wrong, one.index, event.time)
    wrong |= shadow.beside(event.time, shadow.mark(one, position))
    return not wrong.any()


def _reaches(machine: Machine, event: _Event, time: Vector, owner: Vector) -> Vector:
    """Which stores a release covers."""
    near = (owner == event.owner[0, 0]) & (time <= event.clock[(time >> ACTOR) & ACTORS])
    order, stores = machine.order, machine.stores
    if order is None or stores is None:
        return near
    column = order.column(owner, time, stores.place_of)
    return near | ((column >= 0) & (time <= event.clock[column]))


def use(machine: Machine, lanes: Lanes, lane: int, place: int, data: bytes, position: int) -> None:
    """A copy uses the map at a place in global memory."""
    if machine.shadow is None or machine.stores is None:
        return
    time, owner = _stored(machine, place)
    if (owner < 0).all():
        return
    one = lanes.pick(np.array([lane]))
    events = machine.map_fences.acquires.get((int(one.cta[0]), place), {}).values()
    mine = [event for event in events if _knows(machine, one, event, position)]
    if any(event.good and event.data == data for event in mine):
        return
    if any(event.data == data for event in mine):
        lacks = "without fence.proxy.tensormap::generic.release between the store and the acquire"
    elif mine:
        lacks = "stored after the last fence.proxy.tensormap::generic.acquire that it knows of"
    else:
        lacks = "without fence.proxy.tensormap::generic.acquire in between"
    record = int(time[(owner >= 0).argmax()])
    machine.findings.add(
        "missing-map-fence",
        f"{one.name(0)} uses a tensor map at {machine.memory.describe(place)}, which this launch "
        f"has stored, {lacks}",
        position,
        record & CODE,
    )
