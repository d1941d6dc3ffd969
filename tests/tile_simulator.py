"""A bounded model of what is emitted: loops of all places, run in random orders; no proof code.

Every agent is one or two strands: an agent of several threads has an elected warp (or lane) and
the rest. Strands run the loops that isl generates. mbarriers have a phase, pending arrivals, bytes
under way and one parity bit per wait; slots come from the counters of each strand, or from a
buffer's formula; copies complete late and in any order, groups late, products late and in order.
Every read checks that its cell holds what the sequential meaning wrote there last, that nothing is
still on its way into it, and that the copy engine sees what threads wrote; every write, that
nothing still reads.
Two fences are modelled: generic writes before the copy engine, registers before products.

Not modelled: threads below warps, addresses inside a slot, the frame of a kernel.
"""

from __future__ import annotations

import random
from collections import Counter as Count
from dataclasses import dataclass, field

from polygen import isl
from polygen.poly import ast
from polygen.poly.emitted import Emitted
from polygen.poly.tile_program import (
    Place,
    Sync,
    SyncStatement,
    TileProgram,
    TileStatement,
    Varying,
)
from polygen.poly.tile_tree import times
from polygen.poly.varying import numbered, positions

Instance = tuple[int, ...]
Cell = tuple[int, ...]
Call = tuple[str, Instance]
Key = tuple[object, ...]  # buffer, slot, owner and parts, strand
Strand = tuple[str, Instance, int]  # place, agent, 0 for the elected one
_PARAM, _IN = isl.dim_type.param, isl.dim_type.in_
_WARP, _BURST = 32, 12


class Wrong(AssertionError):
    """The kernel hangs, or something reads what it must not see."""


def number(expression: ast.Expr, values: dict[str, int]) -> int:
    """The value of an index expression or condition, with isl's meaning of "/" and "%"."""
    if isinstance(expression, ast.Const):
        return expression.value
    if isinstance(expression, ast.Var):
        return values[expression.name]
    a, b = number(expression.left, values), number(expression.right, values)
    if expression.op in ("/", "%"):
        if a < 0 or b <= 0:
            raise Wrong(f"{expression} divides {a} by {b}")
        return a // b if expression.op == "/" else a % b
    return {
        "+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b),
        "&&": int(bool(a) and bool(b)), "||": int(bool(a) or bool(b)),
        "==": int(a == b), "<=": int(a <= b), "<": int(a < b), ">=": int(a >= b), ">": int(a > b),
    }[expression.op]  # fmt: skip


def run_loops(
    node: ast.LoopAst, values: dict[str, int], varying: Varying | None = None
) -> list[Call]:
    """The statement instances that the loops execute, in order.

    Args:
        node: the loops.
        values: of parameters, and of iterators around.
        varying: what is another number in every iteration of a loop.
    """
    if isinstance(node, ast.Call):
        return [(node.statement, tuple(number(a, values) for a in node.arguments))]
    if isinstance(node, ast.Block):
        return [call for child in node.children for call in run_loops(child, values, varying)]
    if isinstance(node, ast.Marked):
        return run_loops(node.body, values, varying)
    if isinstance(node, ast.If):
        branch = node.then if number(node.condition, values) else node.otherwise
        return run_loops(branch, values, varying) if branch is not None else []
    inner = {**values, node.iterator: number(node.first, values)}
    done: list[Call] = []
    while number(node.condition, inner):
        if varying is not None and node.iterator == varying.loop:
            last = len(varying.numbers) - 1
            own = varying.numbers[min(max(inner[node.iterator] - inner[varying.begin], 0), last)]
            inner[varying.name] = inner[own]
        done += run_loops(node.body, inner, varying)
        inner[node.iterator] += node.step
    return done


def agents(place: Place) -> list[Instance]:
    """The coordinates of all agents of a place."""
    found: list[Instance] = [()]
    for count in place.counts:
        found = [(*agent, value) for agent in found for value in range(count)]
    return found


@dataclass(slots=True)
class _Op:
    """Something that completes in the background."""

    name: str
    instance: Instance
    agent: Strand
    keys: list[tuple[Key, Cell, bool]]  # key, cell, whether it is written
    arrivals: list[Key] = field(default_factory=list)
    group: int = 0


@dataclass(slots=True)
class _Barrier:
    """An mbarrier."""

    completed: int = 0
    arrived: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Held:
    """What a piece of memory holds."""

    writer: Call | None = None
    cell: Cell = ()
    fenced: bool = True
    strand: Strand | None = None
    writing: list[_Op] = field(default_factory=list)
    reading: list[_Op] = field(default_factory=list)


class Model:
    """A kernel with fixed sizes, ready to run."""

    def __init__(self, emitted: Emitted, sizes: dict[str, int]) -> None:
        self.emitted, self.sizes, self.program = emitted, sizes, emitted.program
        self.buffers = {b.name: b for b in self.program.buffers}
        self.leaves: dict[str, TileStatement | SyncStatement]
        self.leaves = {s.name: s for s in self.program.statements}
        self.leaves |= {leaf.name: leaf for leaf in emitted.leaves}
        self.statements = {s.name: s for s in self.program.statements}
        varying = self.program.varying
        self.at = {} if varying is None else positions(varying, self.leaves.values())
        self.closes = {s.group for s in self.program.statements if s.group}
        self._read_accesses()
        self._read_meaning()
        self._read_syncs()
        self._read_counters()
        self._read_trees()

    # ---- reading -----------------------------------------------------------------------------

    def _pairs(self, text: str) -> list[tuple[Instance, Cell]]:
        relation = isl.Map(f"{self.program.prefix}{{ {text} }}")
        if self.program.varying is not None:
            at = self.at.get(str(relation.get_tuple_name(_IN)))
            relation = numbered(self.program.varying, relation, at)
        for name, value in self.sizes.items():
            place = relation.find_dim_by_name(_PARAM, name)
            if place >= 0:
                relation = relation.fix_val(_PARAM, place, isl.Val(value))
        relation = relation.project_out(_PARAM, 0, relation.dim(_PARAM))
        size = relation.dim(_IN)
        return [(p[:size], p[size:]) for p in isl.points(relation)]

    def _read_accesses(self) -> None:
        self.access: dict[Call, list[tuple[str, Cell, bool]]] = {}
        for s in self.program.statements:
            for cells, writes in ((s.reads, False), (s.writes, True)):
                for cell in cells:
                    head, _, more = cell.partition(" : ")
                    bounds = f"{s.place.bounds} and {s.bounds} and {more or '1 = 1'}"
                    buffer = head.partition("[")[0]
                    for instance, at in self._pairs(f"{s.instance} -> {head} : {bounds}"):
                        entry = self.access.setdefault((s.name, instance), [])
                        entry.append((buffer, at, writes))

    def _read_meaning(self) -> None:
        """The instance that wrote each cell last, for every read."""
        when: list[tuple[Cell, Call]] = []
        self.wanted: Count[Call] = Count()
        order = times(self.program.order)
        for name, s in self.statements.items():
            vector = order.get(name, ("0",))
            bounds = f"{s.place.bounds} and {s.bounds}"
            for instance, at in self._pairs(f"{s.instance} -> [{','.join(vector)}] : {bounds}"):
                self.wanted[name, instance] += 1
                if name in order:
                    when.append((at, (name, instance)))
        last: dict[tuple[str, Cell], Call] = {}
        self.expected: dict[tuple[Call, str, Cell], Call | None] = {}
        for _, call in sorted(when):
            accesses = self.access.get(call, ())
            for buffer, cell, writes in accesses:
                if not writes:
                    self.expected[call, buffer, cell] = last.get((buffer, cell))
            for buffer, cell, writes in accesses:
                if writes:
                    last[buffer, cell] = call

    def _read_syncs(self) -> None:
        self.signals: dict[str, list[tuple[Sync, dict[Instance, list[Cell]]]]] = {}
        self.waits: dict[str, tuple[Sync, dict[Instance, list[Cell]]]] = {}
        self.plain: dict[str, Sync] = {}
        self.expects: dict[tuple[str, Cell], int] = {}
        for sync in self.emitted.syncs:
            if sync.kind not in ("mbarrier", "turn"):
                self.plain[sync.wait] = sync
                continue
            self.waits[sync.wait] = (sync, _grouped(self._pairs(sync.waits_for)))
            for leaf, text in sync.signals:
                self.signals.setdefault(leaf, []).append((sync, _grouped(self._pairs(text))))
                if leaf in self.statements:
                    self._count_bytes(sync, leaf)

    def _count_bytes(self, sync: Sync, leaf: str) -> None:
        kept, moving = self._kept(sync.buffers[0]), self.statements[leaf]
        strands = 1 if moving.place.threads == 1 or moving.executes == "one" else 2
        for (name, _), accesses in self.access.items():
            for buffer, cell, writes in accesses if name == leaf else ():
                if writes and buffer in sync.buffers:
                    key = (sync.name, cell[:kept])
                    self.expects[key] = self.expects.get(key, 0) + strands

    def _kept(self, buffer: str) -> int:
        return self.buffers[buffer].versions + self.buffers[buffer].owner

    def _read_counters(self) -> None:
        self.counter_of: dict[tuple[str, str], str] = {}
        self.steps: dict[str, list[tuple[str, dict[Instance, int]]]] = {}
        for counter in self.emitted.counters:
            for leaf, _ in counter.uses:
                for buffer in counter.buffers:
                    self.counter_of[leaf, buffer] = counter.name
            for leaf, text in counter.advances:
                once = dict.fromkeys((i for i, _ in self._pairs(text)), 1)
                self.steps.setdefault(leaf, []).append((counter.name, once))
            for leaf, text in counter.skips:  # a version is one, however many blocks have it
                kept = self.buffers[counter.buffers[0]].versions
                passed = {(i, cell[:kept]) for i, cell in self._pairs(text)}
                many = dict(Count(i for i, _ in passed))
                self.steps.setdefault(leaf, []).append((counter.name, many))

    def _read_trees(self) -> None:
        self.programs: dict[Strand, list[Call]] = {}
        for tree in self.emitted.trees:
            calls, loops, varying = dict(tree.calls), tree.loops(), self.program.varying
            for agent in agents(tree.place):
                values = self.sizes | dict(zip(tree.place.agents, agent, strict=True))
                trace = [
                    (calls.get(name, name), (*agent, *at))
                    for name, at in run_loops(loops, values, varying)
                ]
                for strand in range(1 if tree.place.threads == 1 else 2):
                    self.programs[tree.place.name, agent, strand] = trace
        self.place = {p.name: p for p in self.program.places}
        done = Count(
            call
            for (_, _, strand), trace in self.programs.items()
            if strand == 0
            for call in trace
            if call[0] in self.statements
        )
        if done != self.wanted:
            different = (done - self.wanted) + (self.wanted - done)
            raise Wrong(f"missing or more than once: {sorted(different)[:3]}")

    def run(self, seed: int) -> int:
        """One run in a random order; the number of steps.

        Raises:
            Wrong: something is read that must not be, or nothing can go on.
        """
        return _Run(self, random.Random(seed)).run()


def _grouped(pairs: list[tuple[Instance, Cell]]) -> dict[Instance, list[Cell]]:
    found: dict[Instance, list[Cell]] = {}
    for instance, cell in pairs:
        found.setdefault(instance, []).append(cell)
    return found


def _mod(text: str, values: dict[str, int]) -> int:
    """A slot formula: sums, products, "mod" and "floor"."""
    python = text.replace(" mod ", " % ").replace("floor(", "(").replace("/", "//")
    return int(eval(python, {"__builtins__": {}}, values))


class _Run:
    """The state of one run."""

    def __init__(self, model: Model, rnd: random.Random) -> None:
        self.model, self.rnd = model, rnd
        self.position = dict.fromkeys(model.programs, 0)
        self.memory: dict[Key, _Held] = {}
        self.barriers: dict[Key, _Barrier] = {}
        self.counters: dict[tuple[Strand, str], int] = {}
        self.queues: dict[tuple[Key, str], list[_Op]] = {}
        self.closed: dict[tuple[Key, str], int] = {}
        self.flying: list[_Op] = []
        self.meeting: dict[Key, set[Strand]] = {}
        self.passed: set[tuple[Key, Strand]] = set()
        self.turns: dict[Strand, int] = {}
        self.dirty: dict[Strand, set[Key]] = {}  # registers that products may not touch yet
        self.generic: dict[Strand, list[_Held]] = {}
        self.speed: dict[object, float] = {}

    def run(self) -> int:
        steps = 0
        ready = list(self.position)
        while True:
            idle: list[object] = ["copies"] if self.flying else []
            idle += [key for key, queue in self.queues.items() if queue]
            choices = [*ready, *idle]
            if not choices:
                break
            chosen = self.rnd.choices(choices, [self._speed(c) for c in choices])[0]
            if chosen in self.position:
                moved = self._burst(chosen)  # type: ignore[arg-type]
                steps += moved
                if moved:
                    ready = self._unfinished()
                else:
                    ready.remove(chosen)  # type: ignore[arg-type]
            else:
                self._complete(chosen)
                ready = self._unfinished()
        at = [self.model.programs[s][self.position[s]] for s in self._unfinished()]
        stuck = [f"{name}{instance}" for name, instance in at]
        if stuck:
            raise Wrong("nothing moves: " + ", ".join(stuck[:4]))
        return steps

    def _unfinished(self) -> list[Strand]:
        return [s for s, at in self.position.items() if at < len(self.model.programs[s])]

    def _speed(self, choice: object) -> float:
        if choice not in self.speed:
            self.speed[choice] = 10 ** self.rnd.uniform(-2, 2)
        return self.speed[choice]

    def _burst(self, strand: Strand) -> int:
        program = self.model.programs[strand]
        moved = 0
        for _ in range(self.rnd.randint(1, _BURST)):
            at = self.position[strand]
            if at == len(program) or not self._step(strand, *program[at]):
                break
            self.position[strand] += 1
            moved += 1
            if self.position[strand] == len(program):
                self._ends(strand)
        return moved

    # ---- leaves ------------------------------------------------------------------------------

    def _step(self, strand: Strand, name: str, instance: Instance) -> bool:
        """Run one leaf of a strand; whether it could."""
        model = self.model
        leaf = model.leaves[name]
        mine = leaf.executes != "one" or strand[2] == 0
        if isinstance(leaf, TileStatement):
            if leaf.unit.collective or self._closes_collective(name):
                came_last = (("all", name, strand[:2]), strand) not in self.passed
                if not self._meet(("all", name, strand[:2]), strand, self._strands(strand[:2])):
                    return False
                mine = came_last  # once for the agent, when all of it is there
            if mine:
                self._statement(strand, leaf, instance)
        elif leaf.kind == "wait":
            if mine and not self._may_pass(strand, name, instance):
                return False
        elif leaf.kind == "bar":
            if mine and not self._meet(*self._rendezvous(strand, name)):
                return False
        elif leaf.kind == "retire":
            if mine and not self._retired(strand, name):
                return False
        elif leaf.kind == "fence":
            if mine:
                self._fence(strand, name)
        elif leaf.kind == "arrive":
            one_warp = leaf.executes == "warps" and leaf.place.threads == _WARP
            here = ("warp", name, strand[:2])
            if one_warp and not self._meet(here, strand, self._strands(strand[:2])):
                return False
            weight = self._weight(leaf, strand)
            if weight:
                self._arrive(strand, name, instance, weight)
        for counter, by in model.steps.get(name, ()):
            if instance in by:
                key = (strand, counter)
                self.counters[key] = self.counters.get(key, 0) + by[instance]
        return True

    def _strands(self, agent: tuple[str, Instance]) -> set[Strand]:
        return {(*agent, n) for n in (0, 1) if (*agent, n) in self.position}

    def _closes_collective(self, name: str) -> bool:
        return any(s.group == name and s.unit.collective for s in self.model.program.statements)

    def _meet(self, key: Key, strand: Strand, everyone: set[Strand]) -> bool:
        """A rendezvous: true once all have come."""
        if (key, strand) in self.passed:
            self.passed.discard((key, strand))
            return True
        here = self.meeting.setdefault(key, set())
        here.add(strand)
        if here != everyone:
            return False
        self.passed |= {(key, s) for s in everyone if s != strand}
        here.clear()
        return True

    def _rendezvous(self, strand: Strand, name: str) -> tuple[Key, Strand, set[Strand]]:
        """The hardware barrier of a leaf: one a block, or one an agent."""
        place = self.model.place[strand[0]]
        if self.model.plain[name].scope == "agent":
            return ("bar", strand[:2]), strand, self._strands(strand[:2])
        block = strand[1][: place.blocks]
        every = {s for s in self.position if s[0] == strand[0] and s[1][: place.blocks] == block}
        return ("bar", strand[0], block), strand, every

    def _weight(self, leaf: SyncStatement, strand: Strand) -> int:
        threads = leaf.place.threads
        if threads == 1:
            return 1
        first = _WARP if threads > _WARP else 1
        if leaf.executes == "all":
            return first if strand[2] == 0 else threads - first
        if leaf.executes == "warps":
            return 1 if strand[2] == 0 else max(threads // _WARP - 1, 0)
        return 1 if strand[2] == 0 else 0

    # ---- mbarriers and turns -----------------------------------------------------------------

    def _rank(self, strand: Strand, name: str, buffer: str, cell: Cell) -> int:
        """The number that slot and parity are made of."""
        model = self.model
        counter = model.counter_of.get((name, buffer))
        if counter is None:
            raise Wrong(f"{name} has no counter for {buffer}")
        return self.counters.get((strand, counter), 0)

    def _barrier(self, sync: Sync, slot: int, cell: Cell) -> _Barrier:
        owner = cell[self.model.buffers[sync.buffers[0]].versions :]
        return self.barriers.setdefault((sync.name, slot, owner), _Barrier())

    def _token(self, strand: Strand, agent: int) -> _Barrier:
        return self.barriers.setdefault(("turn", strand[0], strand[1][:-1], agent), _Barrier())

    def _may_pass(self, strand: Strand, name: str, instance: Instance) -> bool:
        sync, cells = self.model.waits[name]
        if sync.kind == "turn":
            mine = strand[1][-1]
            round_ = self.turns.get(strand, 0) + (mine == 0)
            if self._token(strand, mine).completed % 2 == round_ % 2:
                return False
            self.turns[strand] = self.turns.get(strand, 0) + 1
            return True
        for cell in cells.get(instance, ()):
            rank = self._rank(strand, name, sync.buffers[0], cell)
            parity = (rank // sync.slots - sync.phase) % 2
            if self._barrier(sync, rank % sync.slots, cell).completed % 2 == parity:
                return False
        return True

    def _arrive(self, strand: Strand, name: str, instance: Instance, weight: int) -> None:
        for sync, cells in self.model.signals.get(name, ()):
            if sync.kind == "turn":
                count = self.model.place[strand[0]].counts[-1]
                barrier = self._token(strand, (strand[1][-1] + 1) % count)
                self._add(sync, barrier, weight, 0)
                continue
            for cell in cells.get(instance, ()):
                rank = self._rank(strand, name, sync.buffers[0], cell)
                self._add(sync, self._barrier(sync, rank % sync.slots, cell), weight, 0)

    def _add(self, sync: Sync, barrier: _Barrier, arrivals: int, size: int) -> None:
        barrier.arrived += arrivals
        barrier.bytes += size
        if barrier.arrived > sync.arrivals:
            raise Wrong(f"{sync.name}: {barrier.arrived} arrivals in a phase of {sync.arrivals}")
        if barrier.arrived == sync.arrivals and not barrier.bytes:
            barrier.completed += 1
            barrier.arrived = 0

    # ---- memory ------------------------------------------------------------------------------

    def _key(self, strand: Strand, name: str, buffer: str, cell: Cell, part: int) -> Key:
        known = self.model.buffers[buffer]
        if known.slot is not None:
            values = dict(zip(known.slot[0], cell, strict=False))
            slot = _mod(known.slot[1], values)
        elif known.space == "shared" and known.versions:
            slot = self._rank(strand, name, buffer, cell) % known.slots
        else:
            slot = 0
        return (buffer, slot, cell[known.versions :], part)

    def _keys(
        self, strand: Strand, leaf: TileStatement, instance: Instance
    ) -> list[tuple[Key, Cell, bool]]:
        """What an instance touches: its own strand's part, or in shared memory all that is read."""
        found = []
        every = sorted(self._strands(strand[:2]))
        for buffer, cell, writes in self.model.access.get((leaf.name, instance), ()):
            shared = self.model.buffers[buffer].space == "shared"
            if leaf.unit.collective and not shared:
                parts = [s[2] for s in every]
            elif writes or not shared:
                parts = [strand[2]]
            else:
                parts = self._parts_of(buffer)
            for part in parts:
                found.append((self._key(strand, leaf.name, buffer, cell, part), cell, writes))
        return found

    def _parts_of(self, buffer: str) -> list[int]:
        """Into how many parts strands cut what they write."""
        for s in self.model.program.statements:
            if any(cell.partition("[")[0] == buffer for cell in s.writes):
                return [0] if s.place.threads == 1 or s.executes == "one" else [0, 1]
        return [0]

    def _statement(self, strand: Strand, leaf: TileStatement, instance: Instance) -> None:
        name = leaf.name
        if name in self.model.closes:
            self._close(strand, name, leaf, instance)
        keys = self._keys(strand, leaf, instance)
        if leaf.unit.completion == "now":
            for key, cell, writes in keys:
                self._touch_register(strand, key)
                if not writes:
                    self._read(leaf, instance, key, cell, None)
            for key, cell, writes in keys:
                if writes:
                    self._write(strand, leaf, instance, key, cell, None)
            return
        at_once = ("scalar", "register") if leaf.unit.takes_registers else ("scalar",)
        for key, cell, _ in keys:
            if self._space(key) in at_once:  # taken at the issue
                self._touch_register(strand, key)
                self._read(leaf, instance, key, cell, None)
        keys = [item for item in keys if self._space(item[0]) not in at_once]
        op = _Op(name, instance, strand, keys)
        self._begin(leaf, op)
        if leaf.unit.completion == "bytes":
            self._announce(strand, op)
            self.flying.append(op)
            return
        queue = self._queue(strand, leaf)
        op.group = self.closed.get(queue, 0)
        self.queues.setdefault(queue, []).append(op)
        if leaf.group == name:
            self.closed[queue] = op.group + 1

    def _queue(self, strand: Strand, leaf: TileStatement) -> tuple[Key, str]:
        who: Key = strand[:2] if leaf.unit.collective else strand
        return who, leaf.unit.name

    def _close(self, strand: Strand, name: str, leaf: TileStatement, instance: Instance) -> None:
        for unit in {s.unit.name: s for s in self.model.program.statements if s.group == name}:
            if unit == leaf.unit.name:
                continue  # closes its own group, after its issue
            collective = self._closes_collective(name)
            key = (strand[:2] if collective else strand, unit)
            self.closed[key] = self.closed.get(key, 0) + 1

    def _space(self, key: Key) -> str:
        return self.model.buffers[str(key[0])].space

    def _touch_register(self, strand: Strand, key: Key) -> None:
        if self._space(key) == "register":
            self.dirty.setdefault(strand, set()).add(key)

    def _begin(self, leaf: TileStatement, op: _Op) -> None:
        for key, cell, writes in op.keys:
            register = self._space(key) == "register"
            if register and leaf.unit.collective:
                for strand in self._strands(op.agent[:2]):
                    if key in self.dirty.get(strand, ()):
                        raise Wrong(f"{op.name}{op.instance}: {key} without a fence")
            if not writes and not register:
                self._read(leaf, op.instance, key, cell, op)
        for key, _, writes in op.keys:
            held = self.memory.setdefault(key, _Held())
            if writes:
                self._check_free(op.name, op.instance, key, op)
                held.writing.append(op)
            else:
                held.reading.append(op)

    def _same_queue(self, op: _Op | None, other: _Op) -> bool:
        """Whether one unit runs both in order."""
        if op is None:
            return False
        a, b = self.model.statements[op.name], self.model.statements[other.name]
        return a.unit.in_order and a.unit == b.unit and op.agent[:2] == other.agent[:2]

    def _check_free(self, name: str, instance: Instance, key: Key, op: _Op | None) -> None:
        held = self.memory.setdefault(key, _Held())
        for other in (*held.writing, *held.reading):
            if not self._same_queue(op, other):
                raise Wrong(
                    f"{name}{instance} writes {key} while {other.name}{other.instance} is at it"
                )
        self._clash(name, instance, key)

    def _clash(self, name: str, instance: Instance, key: Key) -> None:
        """Bytes that buffers share under different names."""
        mine = self.model.buffers[str(key[0])]
        others = [*mine.overlays]
        others += [b.name for b in self.model.program.buffers if mine.name in b.overlays]
        if not others:
            return
        for other, held in self.memory.items():
            if other[0] in others:
                if held.writing or held.reading:
                    raise Wrong(f"{name}{instance} writes {key} while {other} is in use")
                held.writer = None

    def _read(
        self, leaf: TileStatement, instance: Instance, key: Key, cell: Cell, op: _Op | None
    ) -> None:
        held = self.memory.setdefault(key, _Held())
        who = f"{leaf.name}{instance}"
        for other in held.writing:
            if other is not op and not self._same_queue(op, other):
                raise Wrong(f"{who} reads {key} while {other.name}{other.instance} is under way")
        buffer = self.model.buffers[str(key[0])]
        wanted = self.model.expected[(leaf.name, instance), buffer.name, cell]
        if held.writer != wanted or held.cell != cell:
            raise Wrong(f"{who} reads {buffer.name}{cell} and finds {held.writer}")
        if leaf.unit.proxy == "async" and buffer.space == "shared" and not held.fenced:
            raise Wrong(f"{who} reads {key} without a fence")

    def _write(
        self,
        strand: Strand,
        leaf: TileStatement,
        instance: Instance,
        key: Key,
        cell: Cell,
        op: _Op | None,
    ) -> None:
        self._check_free(leaf.name, instance, key, op)
        held = self.memory[key]
        held.writer, held.cell, held.strand = (leaf.name, instance), cell, strand
        held.fenced = leaf.unit.proxy == "async"
        if not held.fenced:
            self.generic.setdefault(strand, []).append(held)

    def _fence(self, strand: Strand, name: str) -> None:
        if self.model.plain[name].unit == "fence.proxy.async":
            for held in self.generic.pop(strand, ()):
                held.fenced = held.fenced or held.strand == strand
        else:
            self.dirty.pop(strand, None)

    # ---- in the background -------------------------------------------------------------------

    def _announce(self, strand: Strand, op: _Op) -> None:
        """The bytes that the own block's barrier has to see, and where this Move's go."""
        model = self.model
        place = model.place[strand[0]]
        for sync, cells in model.signals.get(op.name, ()):
            lead = sync.buffers[0]
            versions = model.buffers[lead].versions
            for cell in cells.get(op.instance, ()):
                rank = self._rank(strand, op.name, lead, cell)
                slot = rank % sync.slots
                home = cell[versions : versions + place.blocks] == strand[1][: place.blocks]
                if home and strand[2] == 0:  # by one thread
                    size = model.expects[sync.name, cell]
                    self._add(sync, self._barrier(sync, slot, cell), 1, size)
                kept = model._kept(lead)
                for buffer, at, writes in model.access[op.name, op.instance]:
                    if writes and buffer in sync.buffers and at[:kept] == cell:
                        op.arrivals.append((sync, slot, cell))

    def _complete(self, chosen: object) -> None:
        if chosen == "copies":
            op = self.flying.pop(self.rnd.randrange(len(self.flying)))
        else:
            queue = self.queues[chosen]  # type: ignore[index]
            leaf = self.model.statements[queue[0].name]
            at = 0 if leaf.unit.in_order else self.rnd.randrange(len(queue))
            op = queue.pop(at)
        leaf = self.model.statements[op.name]
        for key, cell, writes in op.keys:
            held = self.memory[key]
            if writes:
                held.writing.remove(op)
            else:
                self._read(leaf, op.instance, key, cell, op)
                held.reading.remove(op)
        for key, cell, writes in op.keys:
            if writes:
                self._write(op.agent, leaf, op.instance, key, cell, op)
        for sync, slot, cell in op.arrivals:
            self._add(sync, self._barrier(sync, slot, cell), 0, -1)  # type: ignore[arg-type]

    def _retired(self, strand: Strand, name: str) -> bool:
        sync = self.model.plain[name]
        for who in (strand, strand[:2]):
            key = (who, sync.unit)
            limit = self.closed.get(key, 0) - sync.pending
            if any(op.group < limit for op in self.queues.get(key, ())):
                return False
        return True

    def _ends(self, strand: Strand) -> None:
        """Shared memory lives as long as its block: the copy engine has to be done with it."""
        for op in self.queues.get((strand, "tma.store"), ()):
            raise Wrong(f"{strand} ends while {op.name}{op.instance} reads")


def numbers(program: TileProgram, known: tuple[dict[str, int], ...]) -> tuple[dict[str, int], ...]:
    """Sizes, and where blocks share the last round's tiles, how many are a block's own.

    Of k tiles there are so many times as many as the program wants, as of blocks of two; where not
    all tiles have products, none of them has, or all but one.
    """
    known = tuple(_fitting(program, one) for one in known)
    if "inside" in program.parameters:
        each_way = ((one, {0, max(one.get("tiles", 2) - 1, 0)}) for one in known)
        known = tuple(one | {"inside": n} for one, counts in each_way for n in sorted(counts))
    if "own_tiles" not in program.parameters:
        return known
    each = ((one, own) for one in known for own in {0, one["tiles"] // 2, one["tiles"]})
    return tuple(
        one | {"own_tiles": own, "part_tiles": -(-one["k_tiles"] // 2)} for one, own in each
    )


def _fitting(program: TileProgram, known: dict[str, int]) -> dict[str, int]:
    names = ",".join(program.parameters)
    for each in range(1, 9):
        fitting = known | {"k_tiles": each * known["k_tiles"]}
        given = " and ".join(f"{name} = {size}" for name, size in fitting.items())
        if not isl.Set(f"[{names}] -> {{ : {program.context} and {given} }}").is_empty():
            return fitting
    raise AssertionError(program.context)


def fault(emitted: Emitted, sizes: tuple[dict[str, int], ...], seeds: range) -> str:
    """What goes wrong in some order, with some sizes; empty if nothing does."""
    for size in sizes:
        try:
            model = Model(emitted, size)
            for seed in seeds:
                model.run(seed)
        except Wrong as wrong:
            return f"{size}: {wrong}"
    return ""
