"""`TileProgram`: what the threads of a kernel do, tile by tile; one form for every kernel.

A statement instance is ``name[agents..., loops...]``. Agents are threads of control of the
statement's *place*: a block of a cluster, a warp, a warpgroup, one elected thread. Loops are loops
over tiles. Copies are statements like any other, and so are waits and arrivals once they have been
derived.

A cell of a buffer is ``buffer[versions..., owner..., parts...]``. Versions grow with time and share
the buffer's slots in turn; the owner tells private copies apart (a warpgroup's panels, a block's
ring); parts are pieces that different instances write.

`order` is the sequential meaning, `schedule` what runs: both are trees over all statements. What
one place runs is the schedule filtered by that place.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.units import Unit, unit
from polygen.poly.tile_tree import Node

# A parameter: how many k tiles an output tile has.
K_TILES = "k_tiles"
# A parameter: how many tiles of a block have products; they come before those that have none.
INSIDE = "inside"
# Parameters: how many tiles a block has for itself, before those whose sums it shares, and how many
# k tiles it adds up of each of these.
OWN_TILES, PART_TILES = "own_tiles", "part_tiles"


@dataclass(frozen=True, slots=True)
class Place:
    """Agents that run one code, each in the order of its tree.

    Attributes:
        name: "producer", "consumer", "warps".
        agents: their coordinates, which are names of the kernel: ("rank", "group").
        counts: how many along each.
        threads: of one agent.
        blocks: how many leading coordinates name the block in its cluster.
    """

    name: str
    agents: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    threads: int = 1
    blocks: int = 0

    @property
    def bounds(self) -> str:
        """Which agents there are, as isl text."""
        each = (f"0 <= {a} < {n}" for a, n in zip(self.agents, self.counts, strict=True))
        return " and ".join(each) or "1 = 1"

    def runs(
        self,
        name: str,
        loops: tuple[str, ...],
        bounds: str,
        reads: tuple[str, ...] = (),
        writes: tuple[str, ...] = (),
        op: str = "map",
        by: str = "threads",
        *,
        executes: str = "all",
        group: str = "",
        calls: str = "",
        settled: bool = False,
    ) -> TileStatement:
        """A statement of its agents, by the unit called `by`."""
        return TileStatement(
            name, loops, bounds, reads, writes, op, unit(by), self, executes, group, calls, settled
        )

    def keeps(
        self,
        name: str,
        versions: int = 0,
        space: str = "register",
        slots: int = 1,
        slot: tuple[tuple[str, ...], str] | None = None,
    ) -> Buffer:
        """Memory of which each of its agents has its own: registers, if no other."""
        return Buffer(name, space, versions, len(self.agents), slots, slot=slot)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that statements share.

    Attributes:
        name: of the cells' tuples.
        space: "shared", "register", or "scalar": what an instruction takes at its issue, such as
            coordinates.
        versions: how many leading dims of a cell are versions.
        owner: how many dims after them tell private copies apart.
        slots: versions that live at once.
        overlays: buffers whose bytes it uses once they are done with.
        slot: the slot of a version as an isl expression over its coordinates, where loops say it;
            else places keep counters.
    """

    name: str
    space: str
    versions: int = 0
    owner: int = 0
    slots: int = 1
    overlays: tuple[str, ...] = ()
    slot: tuple[tuple[str, ...], str] | None = None


@dataclass(frozen=True, slots=True)
class TileStatement:
    """One statement.

    Attributes:
        name: unique in the program.
        loops: its coordinates after the agents.
        bounds: isl text over agents and loops; the agents' own bounds are the place's.
        reads: cells, as isl text over agents and loops.
        writes: likewise.
        op: "move", "product", "map", "frame".
        unit: what executes it.
        place: who.
        executes: "all" threads of the agent, or "one".
        group: the statement whose instances close its groups, where completion is by groups.
        calls: what the emitted loops call it, if not by its name.
        settled: whether nobody writes meanwhile what it reads of global memory, where it writes
            nothing.
    """

    name: str
    loops: tuple[str, ...]
    bounds: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    op: str
    unit: Unit
    place: Place
    executes: str = "all"
    group: str = ""
    calls: str = ""
    settled: bool = False

    @property
    def outside(self) -> bool:
        """Whether it may touch what grids before still do: whatever moves or maps, on chip or not,
        but for reads of what is settled.
        """
        return self.op in ("move", "map") and not self.settled

    @property
    def instance(self) -> str:
        """``multiply[rank,group,i,k]``."""
        return f"{self.name}[{','.join((*self.place.agents, *self.loops))}]"

    @property
    def domain(self) -> str:
        """``multiply[rank,group,i,k] : ...``."""
        return f"{self.instance} : {self.place.bounds} and {self.bounds}"


@dataclass(frozen=True, slots=True)
class Varying:
    """A parameter of the texts that may be another number in every iteration of an outermost loop.

    Attributes:
        name: of the parameter.
        loop: whose iterations have each a number of their own.
        least: of all its numbers.
        window: iterations, one after another, that all claims are about; their numbers are any.
    """

    name: str
    loop: str
    least: int
    window: int

    @property
    def numbers(self) -> tuple[str, ...]:
        """Parameters: the numbers of a window; those before it and behind it are as its ends."""
        return tuple(f"{self.name}_{n}" for n in range(self.window))

    @property
    def begin(self) -> str:
        """A parameter: the window's first iteration."""
        return f"{self.loop}_window"

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that stand for the one."""
        return (self.begin, *self.numbers)

    @property
    def context(self) -> str:
        """What is known about these, as isl text."""
        return " and ".join(f"{one} >= {self.least}" for one in self.numbers)

    def said(self, iteration: str) -> str:
        """That the parameter is the number of an iteration, as isl text."""
        last, cases = self.window - 1, []
        for n, number in enumerate(self.numbers):
            of = "<=" if n == 0 else ">=" if n == last else "="
            cases.append(f"({iteration} {of} {self.begin} + {n} and {self.name} = {number})")
        return " or ".join(cases)


@dataclass(frozen=True, slots=True)
class TileProgram:
    """The statements of a kernel, in no synchronised order yet.

    Attributes:
        parameters: of all sets.
        context: what is known about them.
        buffers: memories that carry dependences.
        statements: all of them.
        order: the sequential meaning.
        schedule: what runs.
        lags: (buffer, steps) by which its release is late in the innermost loop.
        releases: (buffer, statement) in front of which it is released, where that is not behind
            its last use: what is still running is waited for there, and not before.
        turns: (statement, statement) from the first of which to the second the agents of a place go
            one after another: no dependence asks for it, it keeps units of execution busy.
        fields: (buffer, schedule fields that a refusal through it points to).
        dependent: whether it may begin while the grids before it still run.
        varying: a parameter that is another number in every iteration of a loop; None: all are what
            they are for the whole kernel. Synchronisation is derived as if it were one number, and
            proved for any.
    """

    parameters: tuple[str, ...]
    context: str
    buffers: tuple[Buffer, ...]
    statements: tuple[TileStatement, ...]
    order: Node
    schedule: Node
    lags: tuple[tuple[str, int], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    dependent: bool = False
    releases: tuple[tuple[str, str], ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    varying: Varying | None = None

    @property
    def prefix(self) -> str:
        """``[k_tiles,tiles] -> ``."""
        return f"[{','.join(self.parameters)}] -> "

    def statement(self, name: str) -> TileStatement:
        """The statement called `name`."""
        return next(s for s in self.statements if s.name == name)

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`."""
        return next(b for b in self.buffers if b.name == name)

    @property
    def places(self) -> tuple[Place, ...]:
        """Who takes part, in the order of the statements."""
        return tuple(dict.fromkeys(s.place for s in self.statements))


@dataclass(frozen=True, slots=True)
class SyncStatement:
    """A leaf that synchronisation adds to a place's tree.

    Attributes:
        name: unique in the program.
        kind: "wait", "arrive", "bar", "retire", "fence", "skip", "commit" or "grid".
        loops: its coordinates after the agents.
        domain: isl text, with the tuple.
        place: who.
        executes: "all" threads of the agent, "warps" (one thread of each, after a barrier of the
            warp), or "one".
    """

    name: str
    kind: str
    loops: tuple[str, ...]
    domain: str
    place: Place
    executes: str = "all"

    @property
    def instance(self) -> str:
        """``wait_full_ring[rank,group,i,k]``."""
        return f"{self.name}[{','.join((*self.place.agents, *self.loops))}]"


@dataclass(frozen=True, slots=True)
class Sync:
    """One synchronisation between leaves of the trees.

    Attributes:
        kind: "mbarrier"; "bar", a rendezvous of threads; "retire", a wait for groups of a unit;
            "fence"; "turn", a token that the agents of a place pass round; "grid", a wait for the
            grids before this one.
        name: of the barrier.
        signals: the leaves that arrive: statements that complete by bytes, or one arrive leaf, each
            with the barriers it arrives at, as isl text to cells of the first buffer.
        wait: the leaf that waits; of a bar, a retire, a fence and a grid, the leaf itself.
        waits_for: the barrier it waits at, as isl text to one cell.
        buffers: that it hands over.
        slots: barriers, used in turn.
        phase: a wait for version v is for the signals of the version -phase rounds of slots before.
        arrivals: of which one phase consists.
        pending: groups that may be incomplete after a retire.
        unit: of a retire, whose groups; of a fence and a grid, its name.
        scope: of a bar: "place" (all agents of a block), "agent".
        skips: leaves that pass over versions of other agents, with those versions.
        enforces: the dependences that need it.
    """

    kind: str
    name: str
    wait: str
    signals: tuple[tuple[str, str], ...] = ()
    waits_for: str = ""
    buffers: tuple[str, ...] = ()
    slots: int = 1
    phase: int = 0
    arrivals: int = 1
    pending: int = 0
    unit: str = ""
    scope: str = "place"
    skips: tuple[tuple[str, str], ...] = ()
    enforces: tuple[str, ...] = ()
