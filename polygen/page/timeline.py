"""Which leaf of which place runs for which k tile: the loops that are emitted, run at a small size.

1. The loops of every place are walked for each of its agents, with a few k tiles and output tiles:
   a list of leaf instances in order.
2. Between two leaves that synchronise, the instances of a statement for one k tile are one *step*.
   Every step takes one unit of time; leaves that synchronise take none.
3. An agent waits at an mbarrier until the steps that its phase needs have been taken, at a barrier
   of threads until all have come. What the sets of the `Sync` records say decides, nothing else.

So lengths mean nothing; what runs beside what, and who waits for whom, is the program's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from polygen.errors import VerifyError
from polygen.page.loops import Instance, Point, calls
from polygen.page.phases import Barrier
from polygen.poly.place_trees import PlaceTree
from polygen.poly.tile_program import INSIDE, Sync, SyncStatement, TileProgram, TileStatement

_MORE_K_TILES = 3  # than slots of the longest ring: the ring comes round
_BLOCKING = ("wait", "bar")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that an agent does, or waits for.

    Attributes:
        leaf: the statement; of a wait, the leaf that waits.
        sync: what is waited for; "" of a step.
        start: in steps from the kernel's beginning.
        end: behind it.
        at: the tile that it is for, as "i 0, k 3"; "" where there is only one.
        k: that k tile, or -1.
        count: instances of the leaf.
    """

    leaf: str
    sync: str
    start: int
    end: int
    at: str
    k: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Track:
    """The events of agents that do the same at the same time.

    Attributes:
        place: whose agents.
        agents: how they are told, as "turn 0"; "" for the only one.
        events: in order.
    """

    place: str
    agents: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All tracks.

    Attributes:
        sizes: the k tiles and output tiles that were run.
        steps: until the last agent is done.
        tracks: by place.
    """

    sizes: tuple[tuple[str, int], ...]
    steps: int
    tracks: tuple[Track, ...]


def timeline(
    program: TileProgram,
    leaves: tuple[SyncStatement, ...],
    syncs: tuple[Sync, ...],
    trees: tuple[PlaceTree, ...],
    most_k_tiles: int,
) -> Timeline:
    """Run the loops of a kernel at a small size.

    Args:
        program: the tile program.
        leaves: that synchronise it.
        syncs: what they belong to.
        trees: of the places, as emitted.
        most_k_tiles: that the problem has; fewer are run where the ring comes round sooner.

    Raises:
        VerifyError: nothing can go on, which the proofs exclude.
    """
    slots = max((b.slots for b in program.buffers if b.space == "shared"), default=1)
    agents = max(
        (place.counts[-1] for place in program.places if "turn" in place.agents), default=1
    )
    known = {"k_tiles": min(most_k_tiles, slots + _MORE_K_TILES), "tiles": 2 * agents}
    known[INSIDE] = max(1, known["tiles"] - 1) if "tiles" in program.parameters else 1
    sizes = {name: known[name] for name in program.parameters}
    runs = _Run(program, leaves, syncs, trees, sizes)
    runs.run()
    return Timeline(tuple(sizes.items()), runs.steps, _tracks(runs.agents))


# --- running ----------------------------------------------------------------------------------
class _Agent:
    """One agent: what it still has to do, and what it has done."""

    def __init__(self, tree: PlaceTree, at: Point, sizes: dict[str, int]) -> None:
        self.place, self.at = tree.place, at
        self.block = at[: tree.place.blocks]
        named = dict(tree.calls)
        values = sizes | dict(zip(tree.place.agents, at, strict=True))
        self.todo = [(named.get(n, n), (*at, *p)) for n, p in calls(tree.loops(), values)]
        self.position = 0
        self.clock = 0
        self.events: list[Event] = []
        self.open: dict[tuple[str, str, int], int] = {}  # steps since the last synchronisation

    @property
    def next(self) -> Instance | None:
        """The leaf that comes, if any."""
        return self.todo[self.position] if self.position < len(self.todo) else None


class _Run:
    """All agents, until they are done."""

    def __init__(
        self,
        program: TileProgram,
        more: tuple[SyncStatement, ...],
        syncs: tuple[Sync, ...],
        trees: tuple[PlaceTree, ...],
        sizes: dict[str, int],
    ) -> None:
        leaves: dict[str, TileStatement | SyncStatement] = {s.name: s for s in program.statements}
        leaves |= {leaf.name: leaf for leaf in more}
        self.leaves = leaves
        self.waits = {
            sync.wait: Barrier(sync, program, sizes, leaves[sync.wait].place.blocks)
            for sync in syncs
            if sync.kind in ("mbarrier", "turn")
        }
        self.bars = {s.name: s for s in syncs if s.kind == "bar"}
        self.agents = [
            _Agent(one, at, sizes)
            for one in trees
            for at in itertools.product(*map(range, one.place.counts))
        ]
        self.done: dict[Instance, int] = {}  # when
        self.came: dict[tuple[str, Point], dict[Point, int]] = {}  # at a barrier of a block

    @property
    def steps(self) -> int:
        """Until the last agent is done."""
        return max(agent.clock for agent in self.agents)

    def run(self) -> None:
        """Let every agent go on as far as it can, until all are done."""
        waiting = list(self.agents)
        while waiting:
            before = [agent.position for agent in waiting]
            for agent in waiting:
                while agent.next is not None and self._step(agent, *agent.next):
                    agent.position += 1
                    if agent.next is None:
                        self._close(agent)
            if before == [agent.position for agent in waiting]:
                stuck = ", ".join(f"{agent.next}" for agent in waiting)
                raise VerifyError(f"nothing goes on: {stuck}", where="timeline")
            waiting = [agent for agent in waiting if agent.next is not None]

    def _step(self, agent: _Agent, name: str, instance: Point) -> bool:
        """Do one leaf; False if it has to wait for another agent."""
        leaf = self.leaves[name]
        if isinstance(leaf, TileStatement):
            at, k = self._told(agent, leaf, instance)
            key = (name, at, k)
            agent.open[key] = agent.open.get(key, 0) + 1
            if leaf.op == "frame" or leaf.op == "commit":
                agent.open.pop(key)
            self.done[name, instance] = agent.clock + len(agent.open)
            return True
        if leaf.kind in _BLOCKING:
            self._close(agent)
        at, k = self._told(agent, leaf, instance)
        if leaf.kind == "wait":
            needed = self.waits[name].needed(instance)
            if any(one not in self.done for one in needed):
                return False
            sync = self.waits[name].sync.name
            self._wait(agent, name, sync, max((self.done[n] for n in needed), default=0), at, k)
        elif leaf.kind == "bar" and self.bars[name].scope == "place":
            everybody = [a for a in self.agents if (a.place, a.block) == (agent.place, agent.block)]
            here = self.came.setdefault((name, instance[len(agent.at) :]), {})
            here[agent.at] = agent.clock
            if any(other.at not in here for other in everybody):
                return False
            self._wait(agent, name, name, max(here[a.at] for a in everybody), at, k)
        elif leaf.kind != "bar":
            self._close(agent)
        self.done[name, instance] = agent.clock
        return True

    def _told(
        self, agent: _Agent, leaf: TileStatement | SyncStatement, instance: Point
    ) -> tuple[str, int]:
        """The tile that an instance is for."""
        values = dict(zip(leaf.loops, instance[len(agent.at) :], strict=True))
        named = [f"{name} {values[name]}" for name in ("i", "k", "t") if name in values]
        return ", ".join(named), values.get("k", -1)

    def _close(self, agent: _Agent) -> None:
        """The steps since the last synchronisation follow each other."""
        for (name, at, k), count in agent.open.items():
            agent.events.append(Event(name, "", agent.clock, agent.clock + 1, at, k, count))
            agent.clock += 1
        agent.open.clear()

    def _wait(self, agent: _Agent, leaf: str, sync: str, until: int, at: str, k: int) -> None:
        end = max(agent.clock, until)
        agent.events.append(Event(leaf, sync, agent.clock, end, at, k))
        agent.clock = end


def _tracks(agents: list[_Agent]) -> tuple[Track, ...]:
    """Agents of a place that do the same at the same time are one track."""
    found: dict[tuple[str, tuple[Event, ...]], list[_Agent]] = {}
    for agent in agents:
        found.setdefault((agent.place.name, tuple(agent.events)), []).append(agent)
    return tuple(
        Track(place, _told_agents(alike), events) for (place, events), alike in found.items()
    )


def _told_agents(alike: list[_Agent]) -> str:
    """Agents by their coordinates, as ranges where they are all of them."""
    names = alike[0].place.agents
    values = [sorted({agent.at[position] for agent in alike}) for position in range(len(names))]
    whole = math.prod(map(len, values)) == len(alike)
    if not whole or any(found[-1] - found[0] >= len(found) for found in values):
        return f"{', '.join(names)} = " + "; ".join(str(agent.at) for agent in alike)
    return ", ".join(
        f"{name} {found[0]}" if len(found) == 1 else f"{name} {found[0]} to {found[-1]}"
        for name, found in zip(names, values, strict=True)
    )
