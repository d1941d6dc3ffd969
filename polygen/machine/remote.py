"""``st.async``: stores to the shared memory of a block of the cluster, which count at an mbarrier.

1. A store is queued at issue like a bulk copy: its bytes are in flight until it lands, and then its
   mbarrier, in the block that they land in, gets their number.
2. Unlike a bulk copy it is its thread's own: completing its bytes releases what the thread knew
   when it issued the store (PTX ISA: the complete-tx has ``.release`` semantics at ``.cluster``
   scope).
3. Whole words are modelled, and vectors of two and four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import bulk
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.mbarrier import plain_address
from polygen.machine.memory import locate_shared
from polygen.machine.report import Stop

if TYPE_CHECKING:
    from polygen.machine.state import Machine

_WORD_BYTES = 4


def store_async(machine: Machine, lanes: Lanes, target: Any, barrier: Any, *rest: Any) -> None:
    """Stores of all lanes; rest: the values of each, then the position."""
    *values, position = rest
    size = _WORD_BYTES * len(values)
    places = _located(machine, lanes, target, size, position)
    homes = _located(machine, lanes, barrier, 8, position)
    data = np.stack([full(lanes, value).view("u4") for value in values], axis=1).view("u1")
    away = places // machine.shared_bytes != homes // machine.shared_bytes
    if away.any():
        machine.findings.add(
            "out-of-bounds-shared",
            f"{lanes.name(int(away.argmax()))} stores to one block, with an mbarrier of another",
            position,
        )
        raise Stop
    if len(np.unique(places)) < len(places):
        machine.findings.add(
            "race-write-write",
            f"lanes of the warp of {lanes.name(0)} store to one place of the cluster's memory",
            position,
        )
    for home in np.unique(homes).tolist():
        chosen = np.flatnonzero(homes == home)
        _send(machine, lanes.pick(chosen), places[chosen], data[chosen], home, position)


def _located(machine: Machine, lanes: Lanes, address: Any, size: int, position: int) -> Vector:
    """Absolute bytes; a bad address ends the run."""
    at, good = locate_shared(machine, lanes, plain_address(machine, lanes, address), size, position)
    if good is not None:
        raise Stop
    return at


def _send(
    machine: Machine, lanes: Lanes, places: Vector, data: Vector, home: int, position: int
) -> None:
    """Queue the stores of some lanes that count at one mbarrier."""
    cta = home // machine.shared_bytes
    if home not in machine.mbarriers.objects:
        machine.findings.add(
            "uninitialised-shared-read",
            f"{lanes.name(0)} names the mbarrier at shared byte {home % machine.shared_bytes}, "
            "never initialised",
            position,
        )
        raise Stop
    if any(int(own) != cta for own in lanes.cta) and not machine.live_warps(cta):
        machine.findings.add(
            "out-of-bounds-shared",
            f"{lanes.name(0)} stores to the shared memory of a block that has already ended",
            position,
        )
    engine, released = 0, None
    shadow = machine.shadow
    if shadow is not None:
        rows = shadow.row_of[lanes.index]
        engine = shadow.loader(cta, home)
        shadow.check_read(lanes.pick(np.array([0])), np.array([home]), 8, position, rows[:1])
        shadow.write(lanes, places, data.shape[1], position, flight=True, rows=rows, actor=engine)
        known = [shadow.released(int(thread)) for thread in lanes.index]
        released = (
            np.max([clock for clock, _ in known], axis=0),
            np.max([fenced for _, fenced in known], axis=0),
        )
        shadow.tick(np.unique(rows))
    bulk.queue(
        machine, bulk.Load(places, data, places, data.shape[1], home, engine, position, released)
    )
