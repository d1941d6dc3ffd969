"""``cp.async``: copies that land between their issue and the wait that covers them.

1. Each thread numbers its groups; a copy belongs to the group open when it was issued.
2. From issue to wait the bytes are *in flight*: any access to them is a finding.
3. The data lands at issue (``early``), at the wait (``late``), or at either by a seeded coin
   (``random``): a missing wait gives wrong values in at least one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import grids, mbarrier
from polygen.machine.data import WHOLE
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.memory import locate_global, locate_shared

if TYPE_CHECKING:
    from polygen.machine.state import Machine


@dataclass(slots=True)
class Copy:
    """The copies one executed instruction started."""

    thread: Vector  # thread numbers in the wave
    group: Vector
    target: Vector  # absolute bytes in shared memory
    source: Vector  # bytes in global memory
    valid: Vector  # bytes to copy; the rest of `size` is zero
    size: int
    position: int
    landed: bool = False

    def pick(self, chosen: Vector) -> Copy:
        """The part at the given mask."""
        return Copy(
            self.thread[chosen],
            self.group[chosen],
            self.target[chosen],
            self.source[chosen],
            self.valid[chosen],
            self.size,
            self.position,
            self.landed,
        )


class Copies:
    """All cp.async copies in flight."""

    def __init__(self, threads: int) -> None:
        self.group = np.zeros(threads, np.int64)
        self.pending: list[Copy] = []
        self.arrivals: list[tuple[Vector, Vector, bool, int]] = []  # see `arrive_after`


def _land(machine: Machine, copy: Copy) -> None:
    """Move the data."""
    kind = WHOLE[copy.size]
    data = machine.memory.bytes.view(kind).take(copy.source // copy.size)
    if (copy.valid != copy.size).any():
        raw = data.view("u1").reshape(len(data), copy.size)
        raw[np.arange(copy.size) >= copy.valid[:, None]] = 0
    machine.shared.view(kind)[copy.target // copy.size] = data


def _sources(
    machine: Machine, lanes: Lanes, address: Vector, valid: Vector, size: int, position: int
) -> Vector:
    """Global byte positions; lanes that copy nothing, or are out of bounds, read position 0."""
    result = np.zeros(lanes.count, np.int64)
    same = lanes.count > 0 and valid.min() == valid.max()
    for amount in [int(valid[0])] if same else np.unique(valid).tolist():
        if amount == 0:
            continue
        chosen = np.flatnonzero(valid == amount)
        part, here = (lanes, address) if same else (lanes.pick(chosen), address[chosen])
        # alignment is that of the whole copy, bounds those of the bytes read
        at, good = locate_global(machine, part, here, amount, position, size)
        if good is None:
            result[chosen] = at
        else:
            result[chosen[good]] = at[good]
            valid[np.delete(chosen, good)] = 0
    return result


def copy_async(
    machine: Machine,
    lanes: Lanes,
    target: Any,
    source: Any,
    valid: Any,
    size: int,
    position: int,
) -> None:
    """``cp.async`` of `size` bytes, of which `valid` come from global memory."""
    target, source = full(lanes, target), full(lanes, source)
    valid = np.minimum(full(lanes, valid).astype("i8"), size)
    at, good = locate_shared(machine, lanes, target, size, position)
    if good is not None:
        lanes, at = lanes.pick(good), at[good]
        source, valid = source[good], valid[good]
    origin = _sources(machine, lanes, source, valid, size, position)
    grids.check(machine, lanes.pick(valid > 0), origin[valid > 0], 1, position, writes=False)
    if machine.footprint is not None:
        machine.footprint.touch(origin[valid > 0], size, False)
    if machine.stores is not None:
        whole = valid == size
        if whole.all():
            machine.stores.read(machine, lanes, origin, size, position)
        else:
            machine.stores.read(machine, lanes.pick(whole), origin[whole], size, position)
    copies = machine.copies
    copy = Copy(lanes.index, copies.group[lanes.index], at, origin, valid, size, position)
    if machine.shadow is not None:
        machine.shadow.write(lanes, at, size, position, flight=True)
    mode = machine.completion
    if mode == "early" or (mode == "random" and machine.random.random() < 0.5):
        _land(machine, copy)
        copy.landed = True
    copies.pending.append(copy)


def commit(machine: Machine, lanes: Lanes) -> None:
    """``cp.async.commit_group``."""
    machine.copies.group[lanes.index] += 1


def wait(machine: Machine, lanes: Lanes, pending: int, everything: bool) -> None:
    """``cp.async.wait_group`` (at most `pending` groups stay open) or ``wait_all``."""
    copies = machine.copies
    if not copies.pending:
        return
    limit = copies.group - pending if not everything else np.full_like(copies.group, 1 << 60)
    member = np.zeros(len(copies.group), bool)
    member[lanes.index] = True
    left = []
    for copy in copies.pending:
        done = member[copy.thread] & (copy.group < limit[copy.thread])
        if not done.any():
            left.append(copy)
            continue
        part = copy if done.all() else copy.pick(done)
        if not part.landed:
            _land(machine, part)
        if machine.shadow is not None:
            rows = machine.shadow.row_of[part.thread]
            machine.shadow.land(rows, part.target, part.size, part.position, part.thread & 31)
        if not done.all():
            left.append(copy.pick(~done))
    copies.pending = left


def arrive_after(machine: Machine, lanes: Lanes, address: Any, noinc: bool, position: int) -> None:
    """``cp.async.mbarrier.arrive``: arrive when the thread's copies so far have landed."""
    if not noinc:  # the arrival to come is added to what the phase expects
        one = np.full(lanes.count, -1, np.int64)
        mbarrier.arrive(machine, lanes, address, one, np.int64(0), False, False, position)
    machine.copies.arrivals.append((lanes.index, full(lanes, address), noinc, position))
    if machine.completion == "early":
        finish_arrivals(machine)


def finish_arrivals(machine: Machine) -> bool:
    """Land the copies that announced arrivals wait for, and arrive; False when there are none."""
    waiting, machine.copies.arrivals = machine.copies.arrivals, []
    for threads, address, _, position in waiting:
        lanes = Lanes(machine.geometry, threads)
        wait(machine, lanes, 0, True)
        one = np.ones(lanes.count, np.int64)
        mbarrier.arrive(machine, lanes, address, one, np.int64(0), False, True, position)
    return bool(waiting)


def drain(machine: Machine) -> None:
    """Land what is still in flight when the kernel ends."""
    for copy in machine.copies.pending:
        if not copy.landed:
            _land(machine, copy)
    machine.copies.pending = []
