"""The state of a derivation: one tree, its leaves, and the syncs found so far.

Passes put leaves into the tree; nothing that is there changes its place relative to the rest, so
that what is known of the order stays known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polygen import isl, remembered
from polygen.errors import IllegalSchedule
from polygen.poly.agent_order import Known, LeafFacts
from polygen.poly.before import earlier
from polygen.poly.happens_before import Order
from polygen.poly.tile_program import Place, Sync, SyncStatement, TileProgram, TileStatement
from polygen.poly.tile_tree import (
    Loop,
    insert,
    leaves,
    level_children,
    loops_around,
    replace_leaf,
    times,
    without,
)
from polygen.poly.versions import Dependence, TileModel, union_of_maps

_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out


class Derivation:
    """What is built up while syncs are derived."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.model = TileModel(program, printed=True)
        self.tree = program.schedule
        self.leaves: dict[str, SyncStatement] = {}
        self.syncs: tuple[Sync, ...] = ()
        self.facts = {s.name: LeafFacts.of(s) for s in program.statements}
        self._domains: dict[str, isl.Set] = {}
        self._known = Known()
        self._timed: dict[tuple[str, tuple[str, ...]], isl.Map] = {}
        self._runs: dict[str, isl.Set] = {}
        self.dependences = self.model.dependences()
        self._check_schedule()

    def _check_schedule(self) -> None:
        """Refuse a schedule that reverses a dependence, before anything is synchronised.

        Raises:
            IllegalSchedule: with the pair.
        """
        order, ordered = self.order(), dict[tuple[str, str], isl.Map]()
        # Values before slots: what a reader lacks says more than who comes too early to write.
        for need in sorted(self.dependences, key=lambda need: need.kind == "reuse"):
            pair = need.source.name, need.target.name
            if pair not in ordered:
                ordered[pair] = earlier(*(order.times[name] for name in pair))
            wrong = isl.beyond(need.relation, ordered[pair])
            if wrong is not None:
                fields = dict(self.program.fields)
                field = fields.get(need.buffer.name.partition("_")[0])
                raise IllegalSchedule(
                    f"the schedule breaks a dependence: {isl.sample_pair(wrong)}",
                    where=need.buffer.name,
                    why="the second instance needs what the first leaves behind, but is not "
                    "scheduled after it",
                    nearest=f"Change {field}" if field else "Change the schedule",
                )

    def order(self, syncs: tuple[Sync, ...] | None = None) -> Order:
        """What the tree and the syncs order."""
        used = self.syncs if syncs is None else syncs
        return Order(self.model, _Times(self), dict(self.facts), used, self._known)

    def time(self, name: str, vector: tuple[str, ...]) -> isl.Map:
        """When a leaf's instances run, by a time vector over its coordinates."""
        found = self._timed.get((name, vector))
        if found is None:
            # Of sets of its own: isl may rewrite in place what it computes with, and the domains of
            # leaves are printed.
            prefix, leaf = self.program.prefix, self.leaf(name)
            runs = remembered.read_map(f"{prefix}{{ {leaf.instance} -> [{','.join(vector)}] }}")
            found = self._timed[name, vector] = runs.intersect_domain(self._instances(leaf))
        return found

    def _instances(self, leaf: TileStatement | SyncStatement) -> isl.Set:
        """All instances of a leaf for all sizes that there may be; not to be printed."""
        prefix, domain = self.program.prefix, leaf.domain
        found = self._runs.get(domain)
        if found is None:
            named = f"{prefix}{{ {domain} }}" if isinstance(leaf, TileStatement) else domain
            sizes = remembered.read_set(f"{prefix}{{ : {self.program.context} }}")
            found = remembered.read_set(named).intersect_params(sizes)
            self._runs[domain] = found
        return found

    def leaf(self, name: str) -> TileStatement | SyncStatement:
        """A statement, of the program or of its synchronisation."""
        return self.leaves[name] if name in self.leaves else self.program.statement(name)

    def instance(self, name: str) -> str:
        """``name[agents..., loops...]``."""
        return self.leaf(name).instance

    def domain(self, name: str) -> isl.Set:
        """All instances."""
        if name not in self.leaves:
            return self.model.domains[name]
        if name not in self._domains:
            self._domains[name] = isl.Set(self.leaves[name].domain)
        return self._domains[name]

    def position(self, name: str) -> int:
        """Where a leaf stands in the text of the tree."""
        return leaves(self.tree).index(name)

    def loops(self, name: str) -> tuple[Loop, ...]:
        """The loops around a leaf."""
        return loops_around(self.tree, name)

    def put(
        self,
        name: str,
        kind: str,
        loops: tuple[str, ...],
        domain: isl.Set,
        place: Place,
        near: tuple[str, ...],
        level: int,
        when: tuple[str, ...],
        *,
        after: bool = False,
        executes: str = "all",
    ) -> None:
        """Put a leaf into the tree.

        Args:
            name: of the leaf.
            kind: of sync statement.
            loops: its coordinates after the agents.
            domain: its instances.
            place: who executes it.
            near: leaves that it stands before, or after.
            level: loops around it.
            when: its time in each of them.
            after: whether it stands after them.
            executes: which threads.
        """
        named = domain.set_tuple_name(name)
        self.leaves[name] = SyncStatement(name, kind, loops, str(named), place, executes)
        self._domains[name] = named
        self.facts[name] = LeafFacts.of(self.leaves[name])
        self.tree = insert(self.tree, level, near, name, when, after=after)

    def wrap(self, name: str, around: Loop) -> None:
        """Put a loop around a leaf."""
        self.tree = replace_leaf(self.tree, name, around)

    def take_out(self, *names: str) -> None:
        """Remove leaves from the tree."""
        self.tree = without(self.tree, *names)
        for name in names:
            del self.leaves[name], self.facts[name]

    def times_like(self, name: str, level: int) -> tuple[str, ...]:
        """When a leaf runs in the outermost `level` loops."""
        return tuple(one.time(name) for one in self.loops(name)[:level])

    def iterations(
        self, name: str, level: int, *, everyone: bool
    ) -> tuple[tuple[str, ...], isl.Set]:
        """The loops around a leaf, and in which of their iterations it runs.

        Args:
            name: the leaf.
            level: how many loops.
            everyone: whether all agents of a block take part if one does.

        Returns:
            Names of `level` loops, and the set over agents and loops.
        """
        outer = self.loops(name)[:level]
        place = self.facts[name].place
        variables = tuple(one.variable for one in outer)
        when = ",".join((*place.agents, *(one.time(name) for one in outer)))
        runs = self.model.map(f"{self.instance(name)} -> [{when}]")
        found = runs.intersect_domain(self.domain(name)).range()
        for n in range(place.blocks, len(place.agents)) if everyone else ():
            found = found.project_out(_SET, n, 1).insert_dims(_SET, n, 1)
            found = found.lower_bound_val(_SET, n, isl.Val(0))
            found = found.upper_bound_val(_SET, n, isl.Val(place.counts[n] - 1))
        return variables, found.coalesce()

    def gaps(self, name: str, level: int) -> list[tuple[str, ...]]:
        """The children under `level` loops that a leaf's place takes part in, as leaves."""
        place = self.facts[name].place
        found = []
        for child in level_children(self.tree, level, name):
            own = tuple(x for x in leaves(child) if self.facts[x].place == place)
            if own:
                found.append(own)
        return found

    def add(self, sync: Sync) -> None:
        """One sync more."""
        self.syncs = (*self.syncs, sync)

    def change(self, sync: Sync, **changes: object) -> None:
        """Other values in a sync."""
        new = replace(sync, **changes)  # type: ignore[arg-type]
        self.syncs = tuple(new if s is sync else s for s in self.syncs)

    def leveled(
        self, name: str, buffer: str, accesses: list[tuple[str, isl.Map]], partner: str
    ) -> tuple[tuple[str, ...], isl.Map]:
        """Under how many loops a sync on a buffer stands: as many as determine the version.

        Where loops have one iteration, more of them determine it as well: then it stands in those
        that it shares with the leaf at the other end, so that one tree orders both.

        Args:
            name: of the new leaf.
            buffer: whose cells the accesses reach, without parts.
            accesses: of the statements of one place.
            partner: a leaf at the other end.

        Returns:
            The loops, and the relation from the new leaf's instances to cells.
        """
        first = self.program.statement(accesses[0][0])
        versions, agents = self.program.buffer(buffer).versions, len(first.place.agents)
        level = 0
        for statement, cells in accesses:
            count = len(self.program.statement(statement).loops)
            few = next(
                n
                for n in range(count + 1)
                if _versions(_outer(cells, agents + n), versions).is_single_valued()
            )
            level = max(level, few)
        shared = [a == b for a, b in zip(self.loops(first.name), self.loops(partner), strict=False)]
        while level < min(len(shared), len(first.loops)) and all(shared[: level + 1]):
            deeper = _outer(accesses[0][1], agents + level + 1)
            if not one_a_version(deeper, agents, versions):
                break
            level += 1
        found = union_of_maps(
            _outer(cells, agents + level).set_tuple_name(_IN, name) for _, cells in accesses
        )
        return first.loops[:level], found

    def accesses(
        self, buffers: tuple[str, ...], place: Place, statements: set[str]
    ) -> list[tuple[str, isl.Map]]:
        """Accesses to buffers by some statements of a place, as cells of the first buffer."""
        found = []
        for name in buffers:
            buffer = self.program.buffer(name)
            for table in (self.model.reads, self.model.writes):
                for statement, access in table[name].items():
                    if statement in statements and self.facts[statement].place == place:
                        cells = self.model.whole(buffer, access).set_tuple_name(_OUT, buffers[0])
                        found.append((statement, cells))
        return sorted(found, key=lambda item: self.position(item[0]))

    def likely(self, sync: Sync, needs: tuple[Dependence, ...]) -> list[Dependence]:
        """Dependences, those that a sync was most likely made for first."""

        def rank(need: Dependence) -> tuple[bool, bool]:
            other = bool(sync.buffers) and need.buffer.name not in sync.buffers
            kinds = {0: "flow", -1: "reuse"}
            wrong = sync.kind == "mbarrier" and kinds.get(sync.phase) != need.kind
            return other, wrong

        return sorted(needs, key=rank)


class _Times(Mapping[str, isl.Map]):
    """When the leaves of a tree run: worked out for those that are asked for, which are few."""

    def __init__(self, work: Derivation) -> None:
        self._work, self._tree = work, work.tree
        self._vectors: dict[str, tuple[str, ...]] | None = None

    def __getitem__(self, name: str) -> isl.Map:
        if self._vectors is None:
            self._vectors = times(self._tree)
        return self._work.time(name, self._vectors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(leaves(self._tree))

    def __len__(self) -> int:
        return len(leaves(self._tree))


def _outer(cells: isl.Map, kept: int) -> isl.Map:
    """A relation of the outermost coordinates of its instances."""
    return cells.project_out(_IN, kept, cells.dim(_IN) - kept)


def one_a_version(cells: isl.Map, agents: int, versions: int) -> bool:
    """Whether an agent meets every version in one instance."""
    who = cells.domain().identity()
    who = who.project_out(_OUT, agents, cells.dim(_IN) - agents).reset_tuple_id(_OUT)
    met = _versions(cells, versions).reset_tuple_id(_OUT)
    return bool(who.flat_range_product(met).is_injective())


def _versions(cells: isl.Map, count: int) -> isl.Map:
    """Cells without their owner."""
    return cells.project_out(_OUT, count, cells.dim(_OUT) - count)
