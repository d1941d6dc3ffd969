"""Wave after wave of a launch, in this process or in several: the same report.

1. The blocks of a launch are cut into waves, whatever the number of processes; a cluster stays
   whole. Each wave has findings, a profile and counts of its own, which are added up in the order
   of the waves (`Sum`).
2. With several processes each takes every so-many-th wave, in memory of its own, and notes what it
   touches (`footprint`). Where waves turn out not to be independent, nothing of it counts:
   `NotApart`, and the launch runs again in one process.
3. A kernel whose blocks may wait for each other, or where there are no processes to be had, runs in
   one from the beginning.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from polygen.errors import PolygenError, PtxError
from polygen.machine.alignment import Alignment
from polygen.machine.footprint import Footprint, Union, may_be_apart
from polygen.machine.lanes import Geometry, Vector
from polygen.machine.leaving import Gate, who_stays
from polygen.machine.profile import Profiler
from polygen.machine.report import Findings, Stop
from polygen.machine.scheduler import Scheduler
from polygen.machine.state import Machine, Options, Placed
from polygen.machine.translate import Translation
from polygen.machine.unwritten import Again

WAVE_THREADS = 8192  # threads per wave: large enough to amortise, small enough for the cache
SHADOW_LIMIT = 128 << 20  # bytes of race-detection state per wave

Place = Callable[[frozenset[int]], Placed]  # fresh memory; the buffers to watch for loads


@dataclass(frozen=True, slots=True)
class Task:
    """What every wave of a launch has in common."""

    translation: Translation
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    waves: tuple[Vector, ...]  # numbers of blocks
    shared: tuple[int, int, int]  # first byte, end, dynamic bytes
    options: Options
    max_steps: int
    gate: Gate | None = None


@dataclass(slots=True)
class Outcome:
    """What came of one wave."""

    findings: dict[tuple[str, int, int], list[Any]]
    rows: dict[tuple[int, str], list[int]]  # of the profile
    needed: tuple[int, int]  # alignment of dynamic shared memory, and the instruction
    instructions: int
    stopped: bool = False
    error: PolygenError | None = None
    # of a wave that ran apart: bytes read and written, packed, and what it left in those
    touched: tuple[Vector, Vector] | None = None
    left: Vector = None


@dataclass(slots=True)
class Sum:
    """What waves found together."""

    findings: Findings
    profiler: Profiler | None
    alignment: Alignment
    instructions: int = 0

    def add(self, one: Outcome) -> bool:
        """Add a wave, in their order; False when the launch ends with it.

        Raises:
            PolygenError: what the wave met.
        """
        for key, (sentence, count) in one.findings.items():
            self.findings.found.setdefault(key, [sentence, 0])[1] += count
        if self.profiler is not None:
            for place, counts in one.rows.items():
                self.profiler.add(*place, *counts)
        if one.needed[0] > self.alignment.needed:
            self.alignment.needed, self.alignment.position = one.needed
        self.instructions += one.instructions
        if one.error is not None:
            raise one.error
        return not one.stopped


class NotApart(Exception):
    """Waves that ran side by side depend on each other."""


def cut(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    cluster: tuple[int, int, int],
    shadow_bytes: int,
    together: bool,
    runs: tuple[int, ...] = (),
) -> tuple[Vector, ...]:
    """CTA numbers in launch order, cut into waves; CTAs of a cluster are neighbours.

    Args:
        grid: of the launch.
        block: of the launch.
        cluster: of the kernel.
        shadow_bytes: of race detection, per CTA.
        together: all are in one, as those of a cooperative launch.
        runs: the clusters that run, by number; (): all.
    """
    gx, gy, gz = grid
    threads = int(np.prod(block))
    cx, cy, cz = cluster
    z, y, x = np.meshgrid(np.arange(gz), np.arange(gy), np.arange(gx), indexing="ij")
    rank = x % cx + cx * (y % cy + cy * (z % cz))
    group = x // cx + gx // cx * (y // cy + gy // cy * (z // cz))
    order = np.lexsort((rank.ravel(), group.ravel()))
    if runs:
        order = order.reshape(-1, cx * cy * cz)[list(runs)].ravel()
    if together:
        return (order,)
    size = cx * cy * cz
    count = WAVE_THREADS // (-(-threads // 32) * 32 * size)
    count = max(1, min(count, SHADOW_LIMIT // (shadow_bytes * size))) * size
    return tuple(order[begin : begin + count] for begin in range(0, len(order), count))


def run_waves(
    task: Task, place: Place, workers: int, progress: Callable[[int, int], None] | None
) -> tuple[Sum, Placed]:
    """Run all waves; the sum of what they found, and the memory as they leave it.

    Args:
        task: the launch.
        place: makes its memory.
        workers: processes at most.
        progress: called with the number of blocks that have run, and of all.

    Raises:
        PolygenError: the first that a wave met.
    """
    kernel = task.translation.program.kernel
    count = min(workers, len(task.waves))
    if count > 1 and may_be_apart(kernel) and _can_fork():
        try:
            return _sum(task, place(frozenset()), _apart(task, place, count), progress)
        except NotApart:
            pass
    watched: frozenset[int] = frozenset()
    while True:
        placed = place(watched)
        try:
            return _sum(task, placed, _one_by_one(task, placed), progress)
        except Again as again:
            task, watched = _again(task, watched, again)


def _again(task: Task, watched: frozenset[int], again: Again) -> tuple[Task, frozenset[int]]:
    """The launch and the buffers to watch, when it begins again."""
    if again.loads:
        task = replace(task, translation=task.translation.following)
    return task, watched | again.buffers


def _sum(
    task: Task,
    placed: Placed,
    outcomes: Iterator[Outcome],
    progress: Callable[[int, int], None] | None,
) -> tuple[Sum, Placed]:
    profiler = Profiler() if task.options.profiler is not None else None
    found = Sum(Findings(task.translation.program.kernel), profiler, placed.alignment)
    union, done = None, 0
    for ctas, one in zip(task.waves, outcomes, strict=False):
        if one.touched is not None:
            union = union or Union(*(np.zeros_like(part) for part in one.touched))
            if not union.takes(*one.touched):
                raise NotApart
            size = placed.memory.size
            placed.memory.bytes[np.unpackbits(one.touched[1], count=size).view(bool)] = one.left
        if not found.add(one):
            break
        done += len(ctas)
        if progress is not None:
            progress(done, sum(map(len, task.waves)))
    return found, placed


def _one_by_one(task: Task, placed: Placed) -> Iterator[Outcome]:
    for number in range(len(task.waves)):
        yield _wave(task, placed, number)


def _wave(task: Task, placed: Placed, number: int) -> Outcome:
    """Run one wave on the memory of its launch."""
    program, ctas = task.translation.program, task.waves[number]
    findings = Findings(program.kernel)
    profiler = Profiler() if task.options.profiler is not None else None
    options = replace(task.options, seed=task.options.seed + number, profiler=profiler)
    mine = replace(placed, alignment=replace(placed.alignment, needed=1, position=-1))

    ctas, instructions = _staying(task, mine, ctas)
    geometry = Geometry(task.grid, task.block, ctas, program.kernel.cluster)
    if placed.stores is not None:
        placed.stores.begin(ctas)
    if placed.grids is not None:
        placed.grids.begin(geometry.total)
    machine = Machine(program, geometry, mine, findings, task.shared, options)
    machine.instructions = instructions
    error, stopped = None, False
    with np.errstate(all="ignore"):
        try:
            Scheduler(machine, task.translation, task.max_steps).run()
        except Stop:
            stopped = True
        except PolygenError as met:
            error = met
    needed = mine.alignment.needed, mine.alignment.position
    rows = profiler.rows if profiler is not None else {}
    return Outcome(findings.found, rows, needed, machine.instructions, stopped, error)


def _staying(task: Task, placed: Placed, ctas: Vector) -> tuple[Vector, int]:
    """The blocks of a wave that do not leave at once, and what the others have executed."""
    if (gate := task.gate) is None:
        return ctas, 0
    geometry = Geometry(task.grid, task.block, ctas, task.translation.program.kernel.cluster)
    stays = who_stays(task.translation, gate, geometry, placed)
    if stays is None:
        return ctas, 0
    return ctas[stays], gate.instructions * (len(ctas) - len(stays)) * geometry.warps


# --- several processes ---------------------------------------------------------------------------
def _can_fork() -> bool:
    """Whether this process may have others, and they may begin with what it knows."""
    methods = multiprocessing.get_all_start_methods()
    return "fork" in methods and not multiprocessing.current_process().daemon


def _apart(task: Task, place: Place, count: int) -> Iterator[Outcome]:
    """The outcomes in the order of the waves, of `count` processes."""
    context = multiprocessing.get_context("fork")
    members: list[tuple[Any, Connection]] = []
    try:
        for first in range(count):
            here, there = context.Pipe(False)
            mine = range(first, len(task.waves), count)
            process = context.Process(target=_serve, args=(task, place, mine, there), daemon=True)
            process.start()
            there.close()
            members.append((process, here))
        for number in range(len(task.waves)):
            try:
                yield members[number % count][1].recv()
            except EOFError:
                raise PtxError(
                    "a process that ran a part of the launch has died",
                    why="most likely for want of memory",
                    nearest="Give workers=1",
                ) from None
    finally:
        for process, here in members:
            here.close()
            process.terminate()
            process.join()


def _serve(task: Task, place: Place, mine: range, out: Connection) -> None:
    """In a process: run some of the waves, and send what came of them."""
    watched: frozenset[int] = frozenset()
    while True:
        placed, outcomes = place(watched), []
        try:
            for number in mine:
                outcomes.append(_noted(task, placed, number))
                if outcomes[-1].stopped or outcomes[-1].error is not None:
                    break  # the launch ends there, or before
            break
        except Again as again:
            task, watched = _again(task, watched, again)
    for one in outcomes:
        out.send(one)


def _noted(task: Task, placed: Placed, number: int) -> Outcome:
    """Run a wave, with what it touches and leaves."""
    placed.footprint = Footprint(placed.memory.size)
    one = _wave(task, placed, number)
    one.touched = placed.footprint.packed()
    one.left = placed.memory.bytes[placed.footprint.written]
    return one
