"""Named barriers: bar.sync, bar.arrive, bar.red and their ``barrier`` spellings.

1. A barrier counts arrivals of threads, whole warps at a time; without a count it expects every
   thread of the CTA that has not exited. A warp that arrives and then waits has arrived twice.
2. Who waits is parked; the arrival that completes the count frees everybody parked there.
3. At that moment what everybody did before arriving becomes ordered before everything the waiters
   do next. Who only arrives goes on, and publishes nothing of what follows.
4. Who arrives must know that the phase before is over: else the arrival may count for that one, and
   which threads meet is a matter of luck.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.module import Instruction
from polygen.machine.writer import Writer

if TYPE_CHECKING:
    from polygen.machine.state import Machine


BARRIERS = 16  # of a block


@dataclass(slots=True)
class Named:
    """One barrier of one CTA in its current phase."""

    expected: int = 0  # threads; 0 means all that are alive
    arrived: list[Vector] = field(default_factory=list)  # thread numbers
    parked: list[tuple[Vector, int]] = field(default_factory=list)  # thread numbers, next block
    votes: list[Vector] = field(default_factory=list)  # predicates of bar.red, as `parked`
    # of those who go on: their clock rows, and what they knew and had fenced when they arrived
    published: list[tuple[Vector, Vector, Vector]] = field(default_factory=list)
    position: int = -1


def operands(w: Writer, one: Instruction) -> str:
    """Source of ``(barrier, count, predicate)``; the count is None when not given."""
    parts = [part for part in one.parts if part not in ("aligned", "cta")]
    if parts[1] == "cluster":
        if parts[2] not in ("arrive", "wait"):
            raise w.refuse(one)
        return "None"
    given = list(one.operands)
    predicate = "None"
    if parts[1] == "red":
        predicate = w.fresh(f"full(L, {w.read(given.pop(), '?')})")
        given.pop(0)
    elif parts[1] not in ("sync", "arrive"):
        raise w.refuse(one)
    number = w.read(given[0], "u4")
    count = w.read(given[1], "u4") if len(given) > 1 else "None"
    return f"({number}, {count}, {predicate})"


def warp_barrier(machine: Machine, lanes: Lanes, mask: Any, position: int) -> None:
    """``bar.warp.sync``: the named lanes must arrive together; the machine runs them together."""
    if machine.shadow is not None:
        machine.shadow.single.meet(lanes, ~machine.exited)
        machine.shadow.tick(np.unique(machine.shadow.row_of[lanes.index]))
    masks = full(lanes, mask)
    present = np.zeros(machine.geometry.total, bool)
    present[lanes.index] = True
    rows = present.reshape(-1, 32)[lanes.index // 32]
    exists = machine.geometry.exists.reshape(-1, 32)[lanes.index // 32]
    named = (masks[:, None] >> np.arange(32, dtype="u4") & np.uint32(1)).astype(bool)
    gone = machine.exited.reshape(-1, 32)[lanes.index // 32]
    missing = (named & ~rows & exists & ~gone).any(1)
    machine.late_warp_barrier(lanes, missing, position)


def proxy_fence(machine: Machine, lanes: Lanes) -> None:
    """``fence.proxy.async``: generic accesses so far are visible to the async proxy."""
    if machine.shadow is not None:
        machine.shadow.fence(lanes)


class Barriers:
    """All named barriers of a wave."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, int], Named] = {}
        # who completed the last phase of a counted barrier: clock columns and times
        self.last: dict[tuple[int, int], tuple[Vector, Vector]] = {}

    def arrive(
        self, machine: Machine, lanes: Lanes, given: Any, one: Instruction, position: int, then: int
    ) -> list[tuple[int, Vector]]:
        """Threads reach a barrier instruction; returns (block, threads) that may run now."""
        if machine.shadow is not None:
            machine.shadow.single.meet(lanes, ~machine.exited)
        number, count, predicate = given
        numbers = full(lanes, number)
        counts = full(lanes, count) if count is not None else np.zeros(lanes.count, "u4")
        waits = "arrive" not in one.parts
        free: list[tuple[int, Vector]] = [] if waits else [(then, lanes.index)]
        keys = lanes.cta.astype("i8") << 8 | numbers.astype("i8")
        for key in np.unique(keys):
            cta, name = int(key) >> 8, int(key) & 255
            if name >= BARRIERS:
                machine.findings.add("barrier-count", f"there is no barrier {name}", position)
            chosen = np.flatnonzero(keys == key)
            wanted = int(counts[chosen[0]])
            while len(chosen):  # more than a phase takes: the surplus opens the next one
                barrier = self.open.setdefault((cta, name), Named())
                if barrier.arrived and barrier.expected != wanted:
                    machine.findings.add(
                        "barrier-count",
                        f"barrier {name} is used with {wanted} and with {barrier.expected} "
                        "threads in one phase",
                        position,
                        barrier.position,
                    )
                left = (
                    wanted - sum(len(part) for part in barrier.arrived) if wanted else len(chosen)
                )
                now, chosen = chosen[: max(left, 32)], chosen[max(left, 32) :]
                if wanted:
                    self._check_phase(machine, (cta, name), lanes.pick(now), position)
                barrier.expected, barrier.position = wanted, position
                barrier.arrived.append(lanes.index[now])
                if not waits and machine.shadow is not None:
                    shadow = machine.shadow
                    rows = np.unique(shadow.row_of[lanes.index[now]])
                    known = shadow.clock[rows].copy(), shadow.fenced[rows].copy()
                    barrier.published.append((rows, *known))
                    shadow.tick(rows)
                if waits:
                    barrier.parked.append((lanes.index[now], then))
                    votes = np.zeros(0, bool) if predicate is None else predicate[now]
                    barrier.votes.append(votes)
                free += self.check(machine, cta, name)
        return free

    def check(self, machine: Machine, cta: int, number: int) -> list[tuple[int, Vector]]:
        """Complete a barrier's phase if everybody it expects is there."""
        barrier = self.open[cta, number]
        arrived = np.concatenate(barrier.arrived)
        padded = machine.geometry.padded
        times = np.bincount(arrived - cta * padded, minlength=padded).reshape(-1, 32)
        here = int(times.max(1).sum()) * 32  # lanes of a warp may come one after the other
        expected = barrier.expected or machine.live_warps(cta) * 32
        if barrier.expected % 32:
            machine.findings.add(
                "barrier-count",
                f"barrier {number} expects {barrier.expected} threads, not whole warps",
                barrier.position,
            )
        if here < expected:
            return []
        if here > expected:
            machine.findings.add(
                "barrier-count",
                f"barrier {number} expects {expected} threads and got {here}",
                barrier.position,
            )
        del self.open[cta, number]
        self._vote(machine, barrier)
        if machine.shadow is not None:
            rows = np.unique(machine.shadow.row_of[arrived])
            clock = machine.shadow.clock[rows]
            waiting = [threads for threads, _ in barrier.parked]
            waits = np.isin(rows, machine.shadow.row_of[np.concatenate(waiting)] if waiting else [])
            for some, known, _ in barrier.published:  # who also waits has come again since
                at = np.searchsorted(rows, some)
                clock[at] = np.where(waits[at, None], clock[at], known)
            columns = machine.shadow.column[rows]
            self.last[cta, number] = columns, clock[np.arange(len(rows)), columns]
            self._order(machine, barrier, arrived)
        return [(block, threads) for threads, block in barrier.parked]

    def _check_phase(
        self, machine: Machine, key: tuple[int, int], lanes: Lanes, position: int
    ) -> None:
        shadow, last = machine.shadow, self.last.get(key)
        if shadow is None or last is None:
            return
        columns, times = last
        ignorant = shadow.clock[shadow.rows(lanes)[:, None], columns] < times
        if ignorant.any():
            lane, place = np.argwhere(ignorant)[0]
            machine.findings.add(
                "barrier-count",
                f"{lanes.name(lane)} arrives at barrier {key[1]} and may be counted for the phase "
                f"before, which {shadow.actor_name(int(columns[place]))} took part in",
                position,
                count=int(ignorant.any(1).sum()),
            )

    def _order(self, machine: Machine, barrier: Named, arrived: Vector) -> None:
        shadow = machine.shadow
        assert shadow is not None
        rows = np.unique(shadow.row_of[arrived])
        waiting = [threads for threads, _ in barrier.parked]
        gets = np.unique(shadow.row_of[np.concatenate(waiting)]) if waiting else rows[:0]
        if len(gets) == len(rows):
            shadow.join(rows)
            return
        clock = [shadow.clock[gets], *(known for _, known, _ in barrier.published)]
        fenced = [shadow.fenced[gets], *(known for _, _, known in barrier.published)]
        shadow.clock[gets] = np.maximum(shadow.clock[gets], np.concatenate(clock).max(0))
        shadow.fenced[gets] = np.maximum(shadow.fenced[gets], np.concatenate(fenced).max(0))
        shadow.tick(rows)

    def _vote(self, machine: Machine, barrier: Named) -> None:
        """The result of ``bar.red`` goes straight to the register storage of the waiters."""
        one = machine.program.kernel.instructions[barrier.position]
        slot = machine.program.stored.get(one.operands[0]) if "red" in one.parts else None
        if slot is None:
            return
        votes = np.concatenate(barrier.votes)
        threads = np.concatenate([threads for threads, _ in barrier.parked])
        if "popc" in one.parts:
            answer: Any = np.uint32(votes.sum())
        else:
            answer = votes.all() if "and" in one.parts else votes.any()
        machine.registers[slot][threads] = answer

    def thread_exit(self, machine: Machine, ctas: Vector) -> list[tuple[int, Vector]]:
        """Threads left: barriers that expect everybody alive may be complete now."""
        free: list[tuple[int, Vector]] = []
        for cta, number in list(self.open):
            if cta in ctas and not self.open[cta, number].expected:
                free += self.check(machine, cta, number)
        return free
