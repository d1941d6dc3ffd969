"""mbarrier objects: arrivals, transaction bytes, phases and the waits on them.

1. An object counts pending arrivals and transaction bytes. When both reach zero its phase ends: the
   count is armed again and every wait for that phase's parity succeeds.
2. An arrival releases what its warp knows, and of what other lanes of the warp did only what a
   barrier of the warp has ordered; the end of a phase publishes it; a successful wait takes it
   over. Arrivals count one by one: who comes after the last of a phase belongs to the next. A bulk
   copy that completes bytes releases what its loader wrote.

Waits are in `mbarrier_waits`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import SLOT, WINDOW_SHARED, locate_shared, rank_in
from polygen.machine.report import Stop
from polygen.machine.special import RESERVED

if TYPE_CHECKING:
    from polygen.machine.state import Machine

MOST_BYTES = (1 << 20) - 1


@dataclass(slots=True)
class Waiter:
    """Threads parked at one wait instruction."""

    threads: Vector
    parity: int
    block: int  # where they go on
    position: int
    target: int  # storage slot of the predicate, -1 when unused


@dataclass(slots=True)
class Barrier:
    """One mbarrier object."""

    count: int
    pending: int
    position: int
    bytes: int = 0
    phase: int = 0
    clock: Vector | None = None  # released by the arrivals of the phase under way
    fenced: Vector | None = None
    done_clock: Vector | None = None  # published by completed phases
    done_fenced: Vector | None = None
    waiters: list[Waiter] = field(default_factory=list)
    arrivals: int = 0  # of the phase under way


class Mbarriers:
    """All mbarrier objects of a wave, by absolute shared byte."""

    def __init__(self, threads: int, seed: int) -> None:
        self.objects: dict[int, Barrier] = {}
        self.progress = 0  # counts arrivals; tells a deadlock from a peek that failed
        self.failed_at = -1
        self.free: list[tuple[int, Vector]] = []  # released threads, for the scheduler
        self.random = random.Random(seed)
        self.failed: dict[int, Vector] = {}  # instruction -> warps whose wait there has failed
        self.denied = np.full(threads, -1, np.int64)  # object and phase of the last such failure


def plain_address(machine: Machine, lanes: Lanes, address: Any) -> Vector:
    """Shared addresses, from shared or generic ones."""
    wide = full(lanes, address).astype("u8")
    return np.where(wide >= np.uint64(WINDOW_SHARED), wide - np.uint64(WINDOW_SHARED), wide)


def places_of(machine: Machine, lanes: Lanes, address: Any, position: int) -> Vector:
    """Absolute bytes of 8-byte objects; a bad address ends the run."""
    at, good = locate_shared(machine, lanes, plain_address(machine, lanes, address), 8, position)
    if good is not None:
        raise Stop
    return at


def name_of(machine: Machine, at: int) -> str:
    """An object in words."""
    return f"the mbarrier at shared byte {at % machine.shared_bytes - RESERVED}"


def objects_at(
    machine: Machine, lanes: Lanes, places: Vector, position: int
) -> list[tuple[int, Vector, Barrier]]:
    """Lanes by object, in thread order: (its place, places of the lanes, the object)."""
    first, own = int(places[0]), np.arange(lanes.count)
    if (places == first).all():
        split = [(first, own)]
    else:
        split = [(at, np.flatnonzero(places == at)) for at in np.unique(places).tolist()]
    found = []
    for at, chosen in split:
        barrier = machine.mbarriers.objects.get(at)
        if barrier is None:
            machine.findings.add(
                "uninitialised-shared-read",
                f"{lanes.name(int(chosen[0]))} uses {name_of(machine, at)}, which was never "
                "initialised",
                position,
            )
            raise Stop
        found.append((at, chosen, barrier))
    shadow = machine.shadow
    if shadow is not None:  # the initialisation must be ordered before this use
        rows = shadow.row_of[lanes.index]
        new = np.flatnonzero((np.diff(rows, prepend=-1) != 0) | (np.diff(places, prepend=-1) != 0))
        shadow.check_read(lanes.pick(new), places[new], 8, position, rows[new])
    return found


def initialise(machine: Machine, lanes: Lanes, address: Any, count: Any, position: int) -> None:
    """``mbarrier.init``."""
    places, counts = places_of(machine, lanes, address, position), full(lanes, count)
    if machine.shadow is not None:
        machine.shadow.write(lanes, places, 8, position)
        machine.clusters.initialisers.update(machine.shadow.rows(lanes).tolist())
    for at, number in zip(places.tolist(), counts.tolist(), strict=True):
        if not 1 <= number < 1 << 20:
            machine.findings.add("barrier-count", f"an mbarrier count of {number}", position)
        machine.mbarriers.objects[at] = Barrier(number, number, position)


def invalidate(machine: Machine, lanes: Lanes, address: Any, position: int) -> None:
    """``mbarrier.inval``."""
    for at in places_of(machine, lanes, address, position).tolist():
        machine.mbarriers.objects.pop(at, None)


def arrive(
    machine: Machine,
    lanes: Lanes,
    address: Any,
    amount: Any,
    expected: Any,
    drop: bool,
    release: bool,
    position: int,
) -> tuple[Vector]:
    """``mbarrier.arrive``: `amount` arrivals after expecting `expected` bytes, per lane.

    Returns:
        The phase before the arrival, as an opaque state.
    """
    places = places_of(machine, lanes, address, position)
    amounts, bytes_ = full(lanes, amount), full(lanes, expected)
    state = np.zeros(lanes.count, "u8")
    for at, chosen, barrier in objects_at(machine, lanes, places, position):
        _check_alive(machine, lanes, int(chosen[0]), at, position)
        phase, warp = barrier.phase, -1
        for lane in chosen.tolist():
            if int(lanes.index[lane]) // 32 != warp:
                phase, warp = barrier.phase, int(lanes.index[lane]) // 32
            elif barrier.phase != phase:
                _report_early(machine, lanes, lane, at, barrier, position)
            state[lane] = barrier.phase
            if machine.shadow is not None and release:
                _release(machine, barrier, int(lanes.index[lane]))
            barrier.bytes += int(bytes_[lane])
            if drop:
                barrier.count -= 1
            barrier.pending -= int(amounts[lane])
            barrier.arrivals += int(amounts[lane])
            _complete(machine, at, barrier, position)
        if machine.shadow is not None and release:
            machine.shadow.tick(np.unique(machine.shadow.row_of[lanes.index[chosen]]))
    return (state,)


def _report_early(
    machine: Machine, lanes: Lanes, lane: int, at: int, barrier: Barrier, position: int
) -> None:
    """Lanes of one warp are not ordered by the instruction that they execute together."""
    machine.findings.add(
        "barrier-count",
        f"{lanes.name(lane)} arrives at {name_of(machine, at)}, which expects {barrier.count} "
        f"arrivals, in phase {barrier.phase}, which lanes of its warp have begun by the same "
        "instruction: who counts in which phase is not said",
        position,
        barrier.position,
    )


def _check_alive(machine: Machine, lanes: Lanes, lane: int, at: int, position: int) -> None:
    cta = at // machine.shared_bytes
    if cta != int(lanes.cta[lane]) and not machine.live_warps(cta):
        machine.findings.add(
            "out-of-bounds-shared",
            f"{lanes.name(lane)} reaches shared memory of a block that has already ended",
            position,
        )


def _release(machine: Machine, barrier: Barrier, thread: int) -> None:
    shadow = machine.shadow
    assert shadow is not None
    clock, fenced = shadow.released(thread)
    barrier.clock = clock if barrier.clock is None else np.maximum(barrier.clock, clock)
    barrier.fenced = fenced if barrier.fenced is None else np.maximum(barrier.fenced, fenced)


def expect_bytes(
    machine: Machine, lanes: Lanes, address: Any, expected: Any, sign: int, position: int
) -> None:
    """``mbarrier.expect_tx`` (sign 1) and ``mbarrier.complete_tx`` (sign -1)."""
    places, bytes_ = places_of(machine, lanes, address, position), full(lanes, expected)
    for at, chosen, barrier in objects_at(machine, lanes, places, position):
        for lane in chosen.tolist():
            barrier.bytes += sign * int(bytes_[lane])
            _complete(machine, at, barrier, position)


def complete_bytes(
    machine: Machine,
    at: int,
    amount: int,
    row: int,
    position: int,
    released: tuple[Vector, Vector] | None = None,
) -> None:
    """A bulk copy by the engine of clock row `row` delivered `amount` bytes.

    Args:
        machine: the state.
        at: the object.
        amount: bytes.
        row: of the engine.
        position: of the instruction.
        released: what else it releases: clocks, and what of them was fenced.
    """
    barrier = machine.mbarriers.objects[at]
    if machine.shadow is not None:
        shadow = machine.shadow
        if barrier.clock is None:
            barrier.clock = np.zeros(shadow.clock.shape[1], np.int64)
        column = shadow.column[row]
        barrier.clock[column] = max(int(barrier.clock[column]), int(shadow.clock[row, column]))
        if released is not None:
            clock, fenced = released
            barrier.clock = np.maximum(barrier.clock, clock)
            old = barrier.fenced
            barrier.fenced = fenced if old is None else np.maximum(old, fenced)
    barrier.bytes -= amount
    _complete(machine, at, barrier, position)


def _complete(machine: Machine, at: int, barrier: Barrier, position: int) -> None:
    """End the phase when nothing is pending, and let the waiters go."""
    machine.mbarriers.progress += 1
    if barrier.pending < 0:
        machine.findings.add(
            "barrier-count",
            f"{name_of(machine, at)} expects {barrier.count} arrivals and got more in one phase",
            position,
            barrier.position,
        )
    if abs(barrier.bytes) > MOST_BYTES:
        machine.findings.add(
            "barrier-count",
            f"{name_of(machine, at)} has {barrier.bytes} pending bytes, beyond the limit",
            position,
            barrier.position,
        )
    if barrier.pending > 0 or barrier.bytes != 0:
        return
    barrier.phase += 1
    barrier.pending += max(barrier.count, 1)
    barrier.arrivals = 0
    if machine.shadow is not None and barrier.clock is not None:
        done = barrier.done_clock
        barrier.done_clock = barrier.clock if done is None else np.maximum(done, barrier.clock)
        if barrier.fenced is not None:
            old = barrier.done_fenced
            barrier.done_fenced = barrier.fenced if old is None else np.maximum(old, barrier.fenced)
        barrier.clock = barrier.fenced = None
    waiting, barrier.waiters = barrier.waiters, []
    for waiter in waiting:
        if barrier.phase & 1 != waiter.parity:
            let_go(machine, barrier, waiter, True)
        else:
            barrier.waiters.append(waiter)


def let_go(machine: Machine, barrier: Barrier, waiter: Waiter, success: bool) -> None:
    """Resume parked threads, with the outcome in their predicate."""
    if waiter.target >= 0:
        machine.registers[waiter.target][waiter.threads] = success
    if success and machine.shadow is not None and barrier.done_clock is not None:
        done = barrier.done_clock, barrier.done_fenced
        machine.shadow.single.learn(waiter.threads, ~machine.exited, *done)
    machine.mbarriers.free.append((waiter.block, waiter.threads))


def map_address(machine: Machine, lanes: Lanes, address: Any, rank: Any) -> tuple[Vector]:
    """``mapa``: the same shared address in the CTA of another cluster rank."""
    address, rank = full(lanes, address), full(lanes, rank)
    kind = address.dtype.type
    plain = address & ~kind(0xFF << SLOT)
    return (plain | ((rank.astype(address.dtype) + kind(1)) << kind(SLOT)),)


def rank_of(machine: Machine, lanes: Lanes, address: Any) -> tuple[Vector]:
    """``getctarank``."""
    rank = rank_in(full(lanes, address))
    own = lanes.cta % machine.geometry.cluster
    return (np.where(rank >= 0, rank, own).astype("u4"),)
