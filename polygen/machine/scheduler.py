"""Who runs next.

1. Threads that can run are grouped by block; the lowest block runs first, so that structured code
   reconverges by itself. A block that waits too long gets its turn: somebody may be spinning.
2. Blocks with warp-synchronous instructions take whole warps; parts of warps are held back until
   their mates arrive, or until nobody else can run.
3. When nobody can run, one asynchronous operation completes; when there is none, parked mbarrier
   waits fail once; when that changed nothing, it is a deadlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.errors import MachineFault, StepLimit
from polygen.machine import (
    asynchronous,
    bulk,
    bulk_stores,
    cluster,
    mbarrier_waits,
    registers,
    unwritten,
    wgmma,
)
from polygen.machine.blocks import width
from polygen.machine.lanes import Lanes, Vector
from polygen.machine.module import Instruction
from polygen.machine.report import Stop

if TYPE_CHECKING:
    from polygen.machine.state import Machine
    from polygen.machine.translate import Translation


PATIENCE = 400  # steps another block may run before one that is ready


class Scheduler:
    """Runs one wave to its end."""

    def __init__(self, machine: Machine, translation: Translation, max_steps: int) -> None:
        self.machine, self.translation, self.max_steps = machine, translation, max_steps
        self.blocks = machine.program.blocks
        self.ready: dict[int, list[Lanes]] = {}
        self.held: dict[int, Lanes] = {}  # parts of warps in front of an aligned block
        self.since: dict[int, int] = {}  # step since which a block has been ready
        self.patience = PATIENCE
        self.steps = 0
        if machine.shadow is not None:
            machine.unwritten = dict.fromkeys(translation.doubt.registers, unwritten.EVERYWHERE)
            machine.shadow.followed = translation.doubt.loads

    def run(self) -> None:
        """Execute until every thread has left.

        Raises:
            StepLimit: too many steps.
            Stop: a finding that leaves nothing sensible to continue with.
        """
        machine = self.machine
        start = machine.everyone
        if not start.everyone:
            start = Lanes(machine.geometry, np.flatnonzero(machine.geometry.exists))
        self.push(0, start)
        while True:
            if self.ready:
                self._step(self._choose())
            elif not self._unblock():
                break
        asynchronous.drain(machine)
        bulk_stores.drain(machine)
        wgmma.unfinished(machine)
        registers.unfinished(machine)
        cluster.check_ends(machine)

    def _choose(self) -> int:
        """The lowest ready block, unless another one has waited too long (a spin loop below it)."""
        lowest = min(self.ready)
        if len(self.ready) == 1:
            self.patience = PATIENCE
            return lowest
        oldest = min(self.since, key=self.since.__getitem__)
        if self.steps - self.since[oldest] <= self.patience:
            return lowest
        self.patience = max(self.patience // 2, 2)
        return oldest

    def push(self, block: int, lanes: Lanes) -> None:
        """Threads are ready to run a block."""
        if lanes.count:
            self.ready.setdefault(block, []).append(lanes)
            self.since.setdefault(block, self.steps)

    def push_threads(self, free: list[tuple[int, Vector]]) -> None:
        """Threads released by a barrier."""
        by_block: dict[int, list[Vector]] = {}
        for block, threads in free:
            by_block.setdefault(block, []).append(threads)
        for block, parts in by_block.items():
            self.push(block, self._join(parts))

    def _join(self, parts: list[Vector]) -> Lanes:
        machine = self.machine
        total = sum(len(part) for part in parts)
        if total == machine.geometry.total:
            return machine.everyone
        return Lanes(machine.geometry, np.sort(np.concatenate(parts)))

    def _take(self, number: int) -> Lanes:
        """All threads ready for a block, as one group."""
        groups = self.ready.pop(number)
        del self.since[number]
        if number in self.held:
            groups.append(self.held.pop(number))
        if len(groups) == 1:
            return groups[0]
        return self._join([group.index for group in groups])

    def _step(self, number: int) -> None:
        machine = self.machine
        lanes = self._take(number)
        if number >= len(self.blocks):
            self._leave(lanes)
            return
        block = self.blocks[number]
        fine = lanes.whole(block.together)
        if fine is not None:  # keep back the lanes whose mates are not here yet
            self.held[number] = lanes.pick(~fine)
            lanes = lanes.pick(fine)
            if not lanes.count:
                return
        self._execute(number, lanes)
        self.steps += 1
        if self.steps > self.max_steps:
            line = machine.program.kernel.instructions[block.begin].line
            raise StepLimit(
                f"the kernel ran {self.max_steps} blocks without ending",
                where=f"PTX line {line}",
                why="most likely a loop whose condition never changes",
                nearest="Raise max_steps if the launch is really that long",
            )

    def _execute(self, number: int, lanes: Lanes) -> None:
        machine, block = self.machine, self.blocks[number]
        function = self.translation.block(number, lanes.everyone)
        try:
            result = function(machine, machine.registers, lanes)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            code = machine.program.kernel.instructions
            first, last = code[block.begin], code[block.end - 1]
            raise MachineFault(
                "the machine fails, by a mistake of its own or of the text",
                line=first.line,
                why=f"{type(error).__name__} before line {last.line}: {error}",
            ) from error
        machine.instructions += (block.end - block.begin) * lanes.warps
        one = block.terminator
        if one is None:
            self.push(number + 1, lanes)
        elif one.parts[0] == "bra":
            self._branch(lanes, result, machine.program.block_of[one.operands[0]], number + 1)
        elif one.parts[0] in ("ret", "exit", "trap"):
            if one.parts[0] == "trap":
                self._trap(lanes, result, block.end - 1)
            self._branch(lanes, result, len(self.blocks), number + 1)
        else:
            self._barrier(number, lanes, result)
        if machine.mbarriers.free:
            self._collect()
        if machine.completion == "random" and machine.bulk.loads and machine.random.random() < 0.2:
            bulk.land_one(machine)
            self._collect()

    def _trap(self, lanes: Lanes, predicate: Any, position: int) -> None:
        some = lanes if predicate is None or predicate.all() else lanes.pick(predicate)
        if some.count:
            sentence = f"{some.name(0)} executes trap"
            self.machine.findings.add("trap", sentence, position, count=some.count)

    def _branch(self, lanes: Lanes, predicate: Any, target: int, following: int) -> None:
        if predicate is None or predicate.all():
            self.push(target, lanes)
        elif not predicate.any():
            self.push(following, lanes)
        else:
            self.push(target, lanes.pick(predicate))
            self.push(following, lanes.pick(~predicate))

    def _barrier(self, number: int, lanes: Lanes, given: Any) -> None:
        machine, block = self.machine, self.blocks[number]
        one, position = block.terminator, block.end - 1
        assert one is not None
        if one.parts[0] == "mbarrier":
            slot = machine.program.stored.get(one.operands[0], -1)
            address, phase = given
            mbarrier_waits.wait(machine, lanes, address, phase, slot, number + 1, position)
            return
        if "cluster" in one.parts[1:2]:
            self._cluster(number, lanes, one, position)
            return
        barrier, count, predicate = given
        simple = count is None and predicate is None and getattr(barrier, "ndim", 0) == 0
        if lanes.everyone and simple and not machine.barriers.open and one.parts[1] == "sync":
            if machine.shadow is not None:
                shadow = machine.shadow
                shadow.single.meet(lanes, ~machine.exited)
                rows = np.arange(len(shadow.loaders) * shadow.per_cta).reshape(-1, shadow.per_cta)
                shadow.join_groups(rows[:, : machine.geometry.warps])
            self.push(number + 1, lanes)
            return
        free = machine.barriers.arrive(machine, lanes, given, one, position, number + 1)
        self.push_threads(free)

    def _cluster(self, number: int, lanes: Lanes, one: Instruction, position: int) -> None:
        machine = self.machine
        if one.parts[2] == "arrive":
            relaxed = "relaxed" in one.parts
            self.push(number + 1, lanes)
            self.push_threads(machine.clusters.arrive(machine, lanes, relaxed, position))
        else:
            self.push_threads(machine.clusters.wait(machine, lanes, number + 1, position))

    def _leave(self, lanes: Lanes) -> None:
        machine = self.machine
        machine.exited[lanes.index] = True
        self.push_threads(machine.barriers.thread_exit(machine, np.unique(lanes.cta)))
        self.push_threads(machine.clusters.thread_exit(machine, lanes.index))

    # --- nobody can run ----------------------------------------------------------------------
    def _unblock(self) -> bool:
        """Let something happen; False when the wave is over."""
        machine = self.machine
        happened = asynchronous.finish_arrivals(machine) or bulk.land_next(machine)
        if happened or mbarrier_waits.fail_waits(machine):
            self._collect()
            return True
        if self.held:
            self._release_held()
            return True
        if self._report_waits():
            raise Stop
        return False

    def _collect(self) -> None:
        """Take over the threads that mbarriers have released."""
        free, self.machine.mbarriers.free = self.machine.mbarriers.free, []
        self.push_threads(free)

    def _release_held(self) -> None:
        """Lanes wait for mates that will not come: fine only when those have exited."""
        machine = self.machine
        number = min(self.held)
        lanes = self.held.pop(number)
        block = self.blocks[number]
        unit, _ = machine.geometry.units(block.together)
        here = np.zeros(machine.geometry.total, bool)
        here[lanes.index] = True
        elsewhere = np.isin(unit, unit[lanes.index]) & ~here & ~machine.exited
        if elsewhere.any() and block.strict:
            code = machine.program.kernel.instructions
            position = max(range(block.begin, block.end), key=lambda at: width(code[at]))
            mate = Lanes(machine.geometry, np.flatnonzero(elsewhere)[:1])
            machine.findings.add(
                "divergent-warp-operation",
                f"{lanes.name(0)} is there, {mate.name(0)} is not",
                position,
                count=lanes.count,
            )
            self._report_waits()
            raise Stop
        self._execute(number, lanes)

    def _report_waits(self) -> bool:
        """Report everybody parked as a deadlock; False when nobody is."""
        machine = self.machine
        found = mbarrier_waits.describe_waits(machine)
        found = machine.clusters.describe_waits(machine) or found
        for (cta, number), barrier in machine.barriers.open.items():
            if not barrier.parked:
                continue
            found = True
            threads = np.concatenate([part for part, _ in barrier.parked])
            here = len(np.unique(np.concatenate(barrier.arrived) // 32))
            expected = barrier.expected // 32 or machine.live_warps(cta)
            machine.findings.add(
                "deadlock",
                f"{Lanes(machine.geometry, np.sort(threads)).name(0)} waits at barrier {number}: "
                f"{here} of {expected} warps arrived",
                barrier.position,
                count=len(threads),
            )
        return found
