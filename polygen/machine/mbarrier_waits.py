"""Waits on mbarriers: who goes on, who is told to ask again, and who waits for ever.

1. A wait may return false until its threads know that the phase is over: the first of every warp
   at every instruction does, and one in eight of the others, by the seed. Asked again for the same
   phase it parks its threads (a real ``try_wait`` would spin). When nobody can run, parked waits
   fail once, so that code that only peeks goes on; if that changes nothing, it is a deadlock.
2. A block whose threads have not waited for the loads into its memory must not end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.mbarrier import (
    Barrier,
    Waiter,
    let_go,
    name_of,
    objects_at,
    places_of,
)
from polygen.machine.report import Stop

if TYPE_CHECKING:
    from polygen.machine.state import Machine

FAILING = 1 / 8  # of the waits that may fail, after the first of a warp at an instruction


def wait(
    machine: Machine,
    lanes: Lanes,
    address: Any,
    which: Any,
    target: int,
    then: int,
    position: int,
) -> None:
    """``mbarrier.try_wait`` and ``test_wait``: threads go to `then`, now or when the phase ends.

    A state is the number of the phase it was taken in, so its lowest bit is that phase's parity.
    """
    places = places_of(machine, lanes, address, position)
    parities = full(lanes, which).astype("i8") & 1
    for at, chosen, barrier in objects_at(machine, lanes, places, position):
        if at // machine.shared_bytes != int(lanes.cta[chosen[0]]):
            machine.findings.add(
                "out-of-bounds-shared",
                f"{lanes.name(int(chosen[0]))} waits on an mbarrier of another block",
                position,
            )
            raise Stop
        for parity in (0, 1):
            some = chosen[parities[chosen] == parity]
            if not len(some):
                continue
            waiter = Waiter(lanes.index[some], parity, then, position, target)
            over = barrier.phase & 1 != parity
            fails = _fails(machine, barrier, over, waiter.threads, at, position)
            if fails.any():
                told = Waiter(waiter.threads[fails], parity, then, position, target)
                let_go(machine, barrier, told, False)
                waiter.threads = waiter.threads[~fails]
            if over:
                let_go(machine, barrier, waiter, True)
            elif len(waiter.threads):
                barrier.waiters.append(waiter)


def _fails(
    machine: Machine, barrier: Barrier, over: bool, threads: Vector, at: int, position: int
) -> Vector:
    """Which threads a wait tells that the phase is not over, though they would wait or go on.

    It may tell those whom nothing has told that it is over: they might have come earlier. It tells
    nobody twice of the same phase, so that loops of few tries go on.
    """
    mbarriers = machine.mbarriers
    failed = mbarriers.failed.setdefault(position, np.zeros(len(mbarriers.denied) // 32, bool))
    key, warps = at << 32 | barrier.phase, threads // 32
    chosen = ~failed[warps] | (mbarriers.random.random() < FAILING)
    chosen &= mbarriers.denied[threads] != key
    if over:
        if machine.shadow is None or barrier.done_clock is None:
            return np.zeros(len(threads), bool)
        single = machine.shadow.single
        for place in np.flatnonzero(chosen).tolist():
            clock, _ = single.of(int(threads[place]))
            chosen[place] = not (clock >= barrier.done_clock).all()
    failed[warps[chosen]] = True
    mbarriers.denied[threads] = key
    return chosen


def fail_waits(machine: Machine) -> bool:
    """Nobody can run: let the parked waits fail once; False when that was tried already."""
    mbarriers = machine.mbarriers
    parked = [barrier for barrier in mbarriers.objects.values() if barrier.waiters]
    if not parked or mbarriers.failed_at == mbarriers.progress:
        return False
    mbarriers.failed_at = mbarriers.progress
    for barrier in parked:
        waiting, barrier.waiters = barrier.waiters, []
        for waiter in waiting:
            let_go(machine, barrier, waiter, False)
    return True


def check_awaited(machine: Machine) -> None:
    """No block may end before the loads into its memory: one of its threads must have waited."""
    shadow, warps = machine.shadow, machine.geometry.warps
    if shadow is None:
        return
    for cta, loaders in enumerate(shadow.loaders):
        mine = slice(cta * shadow.per_cta, cta * shadow.per_cta + warps)
        for at in loaders:
            row = shadow.loader(cta, at)
            column = shadow.column[row]
            if shadow.clock[row, column] > shadow.single.most(mine, int(column)):
                machine.findings.add(
                    "in-flight-access",
                    f"a block ends, and none of its threads has waited for the last bulk load of "
                    f"{name_of(machine, at)}",
                    machine.mbarriers.objects[at].position,
                )


def describe_waits(machine: Machine) -> bool:
    """Report every parked wait as part of a deadlock; False when there is none."""
    found = False
    for at, barrier in machine.mbarriers.objects.items():
        for waiter in barrier.waiters:
            found = True
            lanes = Lanes(machine.geometry, waiter.threads)
            phase = barrier.phase
            missing = f"{barrier.pending} arrivals and {barrier.bytes} bytes are missing"
            machine.findings.add(
                "deadlock",
                f"{lanes.name(0)} waits for parity {waiter.parity} of {name_of(machine, at)}, "
                f"which is in phase {phase}: {missing}",
                waiter.position,
                barrier.position,
                len(waiter.threads),
            )
    return found
