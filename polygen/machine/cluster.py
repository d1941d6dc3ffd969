"""Cluster barriers: ``barrier.cluster.arrive`` and ``barrier.cluster.wait``.

Every thread of the cluster arrives once per phase; the phase ends when all that have not exited
have arrived. ``arrive`` never waits; ``wait`` parks the thread until the phase it arrived in ends.
A ``.relaxed`` arrival publishes what its warps have fenced before: all they knew, or, by
``fence.mbarrier_init``, what they did themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polygen.machine.clocks import CODE
from polygen.machine.lane_clocks import ACTOR, ACTORS
from polygen.machine.lanes import Geometry, Lanes, Vector
from polygen.machine.race_reports import NEVER

if TYPE_CHECKING:
    from polygen.machine.state import Machine


class Clusters:
    """The barrier of every cluster of a wave."""

    def __init__(self, geometry: Geometry) -> None:
        self.per_cluster = geometry.padded * geometry.cluster
        count = geometry.total // self.per_cluster
        self.arrived = np.zeros(geometry.total, bool)  # in the phase under way
        self.due = np.full(geometry.total, -1)  # the phase each thread arrived in; -1: in none
        self.phase = np.zeros(count, np.int64)
        self.parked: list[list[tuple[Vector, int, int]]] = [[] for _ in range(count)]
        self.clock: list[tuple[Vector, Vector] | None] = [None] * count
        self.done: list[tuple[Vector, Vector] | None] = [None] * count
        self.held: dict[int, tuple[Vector, Vector]] = {}  # by clock row: what it has fenced
        self.initialisers: set[int] = set()  # clock rows that have initialised mbarriers

    def arrive(
        self, machine: Machine, lanes: Lanes, relaxed: bool, position: int
    ) -> list[tuple[int, Vector]]:
        """Threads arrive; returns (block, threads) of those set free."""
        if machine.shadow is not None:
            machine.shadow.single.meet(lanes, ~machine.exited)
        twice = self.arrived[lanes.index]
        if twice.any():
            machine.findings.add(
                "barrier-count",
                f"{lanes.name(int(twice.argmax()))} arrives twice at the cluster barrier",
                position,
            )
        free: list[tuple[int, Vector]] = []
        for cluster in np.unique(lanes.index // self.per_cluster).tolist():
            threads = lanes.index[lanes.index // self.per_cluster == cluster]
            self.arrived[threads] = True
            self.due[threads] = self.phase[cluster]
            if machine.shadow is not None and relaxed:
                for row in np.unique(machine.shadow.row_of[threads]).tolist():
                    if row in self.held:
                        self.clock[cluster] = _joined(self.clock[cluster], self.held[row])
            elif machine.shadow is not None:
                rows = np.unique(machine.shadow.row_of[threads])
                new = machine.shadow.clock[rows].max(0), machine.shadow.fenced[rows].max(0)
                self.clock[cluster] = _joined(self.clock[cluster], new)
                machine.shadow.tick(rows)
            free += self.check(machine, cluster)
        return free

    def check(self, machine: Machine, cluster: int) -> list[tuple[int, Vector]]:
        """End the phase if every thread alive has arrived."""
        mine = slice(cluster * self.per_cluster, (cluster + 1) * self.per_cluster)
        if not self.arrived[mine].any() or not (self.arrived[mine] | machine.exited[mine]).all():
            return []
        self.arrived[mine] = False
        self.phase[cluster] += 1
        self.done[cluster] = _joined(self.done[cluster], self.clock[cluster])
        self.clock[cluster] = None
        parked, self.parked[cluster] = self.parked[cluster], []
        for threads, _, _ in parked:
            self._learn(machine, cluster, threads)
        return [(block, threads) for threads, block, _ in parked]

    def wait(
        self, machine: Machine, lanes: Lanes, then: int, position: int
    ) -> list[tuple[int, Vector]]:
        """Threads wait for the phase they arrived in; returns those that need not."""
        free: list[tuple[int, Vector]] = []
        early = self.due[lanes.index] < 0
        if early.any():
            machine.findings.add(
                "barrier-count",
                f"{lanes.name(int(early.argmax()))} waits at the cluster barrier, where it has not "
                "arrived since it last waited",
                position,
                count=int(early.sum()),
            )
        for cluster in np.unique(lanes.index // self.per_cluster).tolist():
            threads = lanes.index[lanes.index // self.per_cluster == cluster]
            over = self.due[threads] < self.phase[cluster]
            if over.any():
                self._learn(machine, cluster, threads[over])
                free.append((then, threads[over]))
            self.due[threads] = -1
            if not over.all():
                self.parked[cluster].append((threads[~over], then, position))
        return free

    def _learn(self, machine: Machine, cluster: int, threads: Vector) -> None:
        done = self.done[cluster]
        if machine.shadow is None or done is None:
            return
        rows = np.unique(machine.shadow.row_of[threads])
        machine.shadow.clock[rows] = np.maximum(machine.shadow.clock[rows], done[0])
        machine.shadow.fenced[rows] = np.maximum(machine.shadow.fenced[rows], done[1])

    def thread_exit(self, machine: Machine, threads: Vector) -> list[tuple[int, Vector]]:
        """Threads left: phases that waited for them may end."""
        free: list[tuple[int, Vector]] = []
        for cluster in np.unique(threads // self.per_cluster).tolist():
            free += self.check(machine, cluster)
        return free

    def describe_waits(self, machine: Machine) -> bool:
        """Report parked threads as part of a deadlock."""
        found = False
        for cluster, parked in enumerate(self.parked):
            mine = slice(cluster * self.per_cluster, (cluster + 1) * self.per_cluster)
            missing = int((~(self.arrived[mine] | machine.exited[mine])).sum())
            for threads, _, position in parked:
                found = True
                machine.findings.add(
                    "deadlock",
                    f"{Lanes(machine.geometry, threads).name(0)} waits at the cluster barrier; "
                    f"{missing} threads have not arrived",
                    position,
                    count=len(threads),
                )
        return found


def _joined(
    old: tuple[Vector, Vector] | None, new: tuple[Vector, Vector] | None
) -> tuple[Vector, Vector] | None:
    if old is None or new is None:
        return old or new
    return np.maximum(old[0], new[0]), np.maximum(old[1], new[1])


def hold(machine: Machine, lanes: Lanes, own: bool) -> None:
    """A fence by some lanes: what relaxed arrivals of their warps publish from now on.

    Args:
        machine: the wave.
        lanes: those that execute it.
        own: a fence of mbarriers' initialisations, which covers nothing that others did.
    """
    shadow = machine.shadow
    if shadow is None:
        return
    last = dict(zip(shadow.rows(lanes).tolist(), lanes.index.tolist(), strict=True))
    if own:
        last = {row: at for row, at in last.items() if row in machine.clusters.initialisers}
    if not last:
        return
    for row, thread in last.items():
        found = shadow.released(thread)
        if own:
            mine = np.arange(len(found[0])) == shadow.column[row]
            found = np.where(mine, found[0], 0), np.where(mine, found[1], 0)
        held = _joined(machine.clusters.held.get(row), found)
        assert held is not None
        machine.clusters.held[row] = held
    rows = np.array(sorted(last))
    unfenced = shadow.unfenced[rows]
    shadow.tick(rows)  # what follows is not covered
    shadow.unfenced[rows] = unfenced


def check_ends(machine: Machine) -> None:
    """A block may end only when others are known to have done with its shared memory.

    One of its threads has to know: it is there until the last of them has left.
    """
    shadow, geometry = machine.shadow, machine.geometry
    if shadow is None or geometry.cluster == 1:
        return
    cells, reads = shadow.bytes // shadow.granule, shadow.reads.settled(shadow.met)
    warps = np.arange(geometry.warps)
    for cta in range(len(geometry.ctas)):
        mine = slice(cta * cells, (cta + 1) * cells)
        rows = slice(cta * shadow.per_cta, cta * shadow.per_cta + geometry.warps)
        for rank in range(geometry.cluster):
            if rank == cta % geometry.cluster:
                continue
            for column in (rank * shadow.per_cta + warps).tolist():
                last = int(reads[column, mine].max()) if reads is not None else 0
                written = shadow.written[mine]
                theirs = written[(written < NEVER) & ((written >> ACTOR & ACTORS) == column)]
                last = max(last, int(theirs.max(initial=0)))
                if last > shadow.single.most(rows, column):
                    name = Lanes(geometry, np.array([cta * geometry.padded])).name(0)
                    machine.findings.add(
                        "out-of-bounds-shared",
                        f"the block of {name} may end before {shadow.who(last)} has accessed its "
                        "shared memory",
                        last & CODE,
                    )
