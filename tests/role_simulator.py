"""Runs a role program under a set of barriers in random order: an oracle for what is proved of it.

Every thread of control is a generator that stops at its waits; copies, products and stores complete
some time after they were issued. A cell holds the step that last wrote it, so that whoever reads a
cell that is not ready, or is overwritten too early, sees another step's. Mbarriers are the PTX
ISA's: a count of arrivals, a count of bytes, and one parity bit that a wait looks at.

Nothing here uses the relations of `polygen.poly.synchronise`.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache

from polygen.poly.roles import PREFIX, WARPS, RoleProgram, RoleStatement
from polygen.poly.synchronise import GroupBarrier, Mbarrier, Sync, Turn

from polygen import isl

Cell = tuple[str, tuple[int, ...]]
Instance = tuple[int, int, int, int]
Cells = dict[Instance, list[Cell]]
Ready = Callable[[], bool]
_SLOW = 0.01  # how much less often a slow thread or engine gets its turn


class Fault(Exception):
    """A cell of another step was read, or nobody can go on."""


class Mbarriers:
    """The mbarriers of one record: per block, group and slot."""

    def __init__(self, sync: Mbarrier) -> None:
        self.sync = sync
        self.pending: dict[tuple[int, ...], int] = defaultdict(lambda: sync.arrivals)
        self.bytes: dict[tuple[int, ...], int] = defaultdict(int)
        self.completed: dict[tuple[int, ...], int] = defaultdict(int)

    def place(self, block: int, group: int, step: int) -> tuple[int, ...]:
        return block, group if self.sync.per_group else 0, step % self.sync.slots

    def change(self, place: tuple[int, ...], arrivals: int, more: int) -> None:
        self.pending[place] -= arrivals
        self.bytes[place] += more
        if self.pending[place] == 0 and self.bytes[place] == 0:
            self.completed[place] += 1
            self.pending[place] = self.sync.arrivals

    def waits(self, block: int, group: int, step: int) -> Ready:
        """Whether the phase that a wait is for has completed, as far as its parity tells."""
        place = self.place(block, group, step)
        parity = (step // self.sync.slots + self.sync.phase) % 2
        return lambda: self.completed[place] % 2 != parity


@lru_cache(maxsize=64)
def cells(
    program: RoleProgram, statement: str, kind: str, steps: int
) -> dict[Instance, list[Cell]]:
    """The cells that each instance reads or writes."""
    one = program.statement(statement)
    domain = isl.Set(f"{PREFIX}{{ {one.instance} : {one.bounds} }}")
    found: dict[Instance, list[Cell]] = defaultdict(list)
    for access in getattr(one, kind):
        memory = access.partition("[")[0]
        relation = isl.Map(f"{PREFIX}{{ {one.instance} -> {access} }}").intersect_domain(domain)
        relation = relation.fix_val(isl.dim_type.param, 0, isl.Val(steps))
        for c, w, v, g, *cell in isl.points(relation.project_out(isl.dim_type.param, 0, 1)):
            found[c, w, v, g].append((memory, tuple(cell)))
    return found


class Run:
    """One run.

    Args:
        program: the roles.
        syncs: the barriers.
        seed: of the order.
        k_tiles: steps of one output tile.
        tiles: output tiles.
    """

    def __init__(
        self, program: RoleProgram, syncs: tuple[Sync, ...], seed: int, k_tiles: int, tiles: int
    ) -> None:
        self.program, self.k_tiles, self.tiles = program, k_tiles, tiles
        self.steps = k_tiles * tiles
        self.random = random.Random(seed)
        self.mbarriers = [Mbarriers(s) for s in syncs if isinstance(s, Mbarrier)]
        self.group = next((s for s in syncs if isinstance(s, GroupBarrier)), None)
        self.turns = any(isinstance(s, Turn) for s in syncs)
        self.written: dict[Cell, int] = {}
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.issued: dict[tuple[int, ...], int] = defaultdict(int)  # products of a thread
        self.done: dict[tuple[int, ...], int] = defaultdict(int)
        self.stores: dict[tuple[int, ...], list[bool]] = defaultdict(list)  # read yet?
        self.arrived: dict[tuple[int, ...], int] = defaultdict(int)  # warps, at group barriers
        self.turn: dict[int, int] = defaultdict(int)  # tiles whose products have been issued

    def go(self) -> None:
        """To the end.

        Raises:
            Fault: with what went wrong.
        """
        agents = []
        for agent in self._agents():
            speed = self.random.choice((1.0, _SLOW))
            agents.append([agent, speed, next(agent, None)])
        agents = [a for a in agents if a[2] is not None]
        while agents or self.events:
            ready = [a for a in agents if a[2]()]
            choices = [*ready, *self.events]
            if not choices:
                raise Fault(f"{len(agents)} threads wait for ever")
            weights = [a[1] for a in ready] + [speed for speed, _ in self.events]
            (chosen,) = self.random.choices(choices, weights)
            if isinstance(chosen, tuple):
                self.events.remove(chosen)
                chosen[1]()
                continue
            chosen[2] = next(chosen[0], None)
            if chosen[2] is None:
                agents.remove(chosen)

    # --- threads ---------------------------------------------------------------------------------
    def _agents(self) -> Iterator[Iterator[Ready]]:
        roles = dict.fromkeys(s.role for s in self.program.statements)
        for role in roles:
            own = [s for s in self.program.statements if s.role == role]
            most = [range(max(s.counts[i] for s in own)) for i in range(3)]
            for place in itertools.product(*most):
                if all(s.serial for s in own):
                    yield self._thread(own, place, range(self.tiles))
                else:
                    yield self._thread(own, place, range(0, self.tiles, 2))
                    yield self._thread(own, place, range(1, self.tiles, 2))

    def _thread(
        self, statements: list[RoleStatement], place: tuple[int, int, int], tiles: range
    ) -> Iterator[Ready]:
        mine = [s for s in statements if all(p < n for p, n in zip(place, s.counts, strict=True))]
        for tile in tiles:
            if self.turns and not mine[0].serial:
                yield lambda tile=tile: self.turn[place[0]] == tile
            first = tile * self.k_tiles
            for step in range(first, first + self.k_tiles):
                for statement in mine:
                    yield from self._execute(statement, place, tile, step)
            if mine[0].engine == "product":
                self.turn[place[0]] += 1
                thread = (*place, 0 if mine[0].serial else tile % 2)
                yield from self._drain(mine[0], thread, first)

    def _execute(
        self, statement: RoleStatement, place: tuple[int, int, int], tile: int, step: int
    ) -> Iterator[Ready]:
        block, group, _ = place
        if self.group is not None and self.group.after == statement.name:
            yield from self._after_group(place, step)
        for barrier in self.mbarriers:
            if barrier.sync.wait == statement.name:
                yield barrier.waits(block, group, step)
        yield lambda: True
        instance = (*place, step)
        reads = cells(self.program, statement.name, "reads", self.steps)[instance]
        writes = cells(self.program, statement.name, "writes", self.steps)[instance]
        if statement.engine == "copy":
            self._copy(statement, instance, writes)
        elif statement.engine == "product":
            yield from self._product(statement, instance, tile, reads)
        elif statement.engine == "store":
            self._store((block, group), step, reads)
        else:
            self._check(reads, step)
            for cell in writes:
                self.written[cell] = step
            self._arrive(statement, instance)
            if self.group is not None and self.group.before == statement.name:
                yield from self._before_group(place, step)

    def _check(self, reads: list[Cell], step: int) -> None:
        for cell in reads:
            if self.written.get(cell) != step:
                raise Fault(f"{cell} holds step {self.written.get(cell)}, step {step} reads it")

    def _event(self, action: Callable[[], None]) -> None:
        self.events.append((self.random.choice((1.0, _SLOW)), action))

    # --- engines ---------------------------------------------------------------------------------
    def _copy(self, statement: RoleStatement, instance: Instance, writes: list[Cell]) -> None:
        block, group, _, step = instance
        barriers = [b for b in self.mbarriers if b.sync.signal == statement.name]
        everything = cells(self.program, statement.name, "writes", self.steps)
        for barrier in barriers:
            same = [
                cell for other, written in everything.items() for cell in written
                if other[3] == step and other[1] == group and cell[1][0] == block
            ]  # fmt: skip
            barrier.change(barrier.place(block, group, step), 1, len(same))

        def deliver(cell: Cell) -> None:
            self.written[cell] = step
            for barrier in barriers:
                barrier.change(barrier.place(cell[1][0], group, step), 0, -1)

        for cell in writes:
            self._event(lambda cell=cell: deliver(cell))

    def _product(
        self, statement: RoleStatement, instance: Instance, tile: int, reads: list[Cell]
    ) -> Iterator[Ready]:
        *place, step = instance
        thread = (*place, 0 if statement.serial else tile % 2)
        self._check(reads, step)
        number = self.issued[thread]
        self.issued[thread] += 1

        def complete() -> None:
            if self.done[thread] < number:  # in order
                self._event(complete)
                return
            self._check(reads, step)
            self.done[thread] += 1

        self._event(complete)
        for barrier in self.mbarriers:
            if barrier.sync.signal == statement.name:
                released = step - barrier.sync.lag
                if released >= tile * self.k_tiles:
                    most = barrier.sync.pending
                    yield lambda most=most: self.issued[thread] - self.done[thread] <= most
                    self._arrive(statement, (*place, released), barrier)

    def _drain(
        self, statement: RoleStatement, thread: tuple[int, ...], first: int
    ) -> Iterator[Ready]:
        """The products of a tile have completed: what is left is released."""
        yield lambda: self.issued[thread] == self.done[thread]
        end = first + self.k_tiles
        for barrier in self.mbarriers:
            if barrier.sync.signal == statement.name:
                for step in range(max(first, end - barrier.sync.lag), end):
                    self._arrive(statement, (*thread[:3], step), barrier)

    def _store(self, key: tuple[int, int], step: int, reads: list[Cell]) -> None:
        number = len(self.stores[key])
        self.stores[key].append(False)

        def read() -> None:
            self._check(reads, step)
            self.stores[key][number] = True

        self._event(read)

    # --- barriers --------------------------------------------------------------------------------
    def _arrive(
        self, statement: RoleStatement, instance: Instance, only: Mbarriers | None = None
    ) -> None:
        block, group, _, step = instance
        for barrier in self.mbarriers if only is None else [only]:
            if barrier.sync.signal != statement.name:
                continue
            blocks = self._sharers(statement, barrier.sync, instance)
            for there in blocks if barrier.sync.remote else [block]:
                barrier.change(barrier.place(there, group, step), 1, 0)

    def _sharers(self, statement: RoleStatement, sync: Mbarrier, instance: Instance) -> list[int]:
        """The blocks whose waiting statement writes what this instance read."""
        read = set(cells(self.program, statement.name, "reads", self.steps)[instance])
        writes = cells(self.program, sync.wait, "writes", self.steps)
        return sorted({
            other[0] for other, written in writes.items()
            if other[3] == instance[3] and read & set(written)
        })  # fmt: skip

    def _before_group(self, place: tuple[int, int, int], step: int) -> Iterator[Ready]:
        block, group, warp = place
        stores = self.stores[block, group]
        assert self.group is not None
        pending = self.group.pending
        if warp == 0:
            yield lambda: all(stores[: max(0, len(stores) - pending)])
        self.arrived[block, group, step] += 1
        yield lambda: self.arrived[block, group, step] == WARPS

    def _after_group(self, place: tuple[int, int, int], step: int) -> Iterator[Ready]:
        yield lambda: self.arrived[(*place[:2], step)] == WARPS


def fault(
    program: RoleProgram, syncs: tuple[Sync, ...], seeds: range, k_tiles: int = 5, tiles: int = 4
) -> str:
    """What goes wrong in the first of some runs in which anything does, or ""."""
    for seed in seeds:
        try:
            Run(program, syncs, seed, k_tiles, tiles).go()
        except Fault as found:
            return f"seed {seed}: {found}"
    return ""
