"""What the tree of one agent orders, and when what it has issued is complete.

*Complete* depends on a statement's unit: at once; when a wait for its commit group has passed; or
by an mbarrier alone. The group of an instance is the first one closed after it; it is complete at a
wait that leaves n groups pending if the n-th group closed after it was closed before the wait.

All instances of a group are complete together. So what is complete when is computed for groups,
whose instances have fewer coordinates, once for all statements that they close.

Inside an agent of many threads each thread knows its own order only: `each_thread` says when that
is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polygen import isl, remembered
from polygen.hardware.units import Unit
from polygen.poly.before import earlier_of_agent
from polygen.poly.tile_program import Place, Sync, SyncStatement, TileStatement
from polygen.poly.versions import TileModel

_FEW = 2  # pieces of a relation whose lexmin would cost more than it saves


@dataclass(frozen=True, slots=True)
class LeafFacts:
    """What ordering needs to know of a leaf."""

    name: str
    place: Place
    executes: str
    kind: str  # "statement", or a sync statement's
    unit: Unit | None = None
    group: str = ""

    @classmethod
    def of(cls, leaf: TileStatement | SyncStatement) -> LeafFacts:
        """The facts of a statement or of a synchronisation's leaf."""
        if isinstance(leaf, TileStatement):
            return cls(leaf.name, leaf.place, leaf.executes, "statement", leaf.unit, leaf.group)
        return cls(leaf.name, leaf.place, leaf.executes, leaf.kind)

    @property
    def by_groups(self) -> bool:
        """Whether it is complete when a wait for its group has passed."""
        return self.unit is not None and self.unit.completion == "groups"


@dataclass(slots=True)
class Known:
    """Relations that stay true when more leaves are put into the trees."""

    before: dict[tuple[str, str], isl.Map] = field(default_factory=dict)
    next_of: dict[tuple[str, str], isl.Map] = field(default_factory=dict)
    last_of: dict[tuple[str, str], isl.Map] = field(default_factory=dict)
    groups: dict[str, isl.Map] = field(default_factory=dict)
    later: dict[tuple[str, int], isl.Map] = field(default_factory=dict)
    retired: dict[tuple[str, str, int], isl.Map] = field(default_factory=dict)
    first_retired: dict[tuple[str, str, int], isl.Map] = field(default_factory=dict)
    complete: dict[tuple[str, str, int], isl.Map] = field(default_factory=dict)
    relation: dict[tuple[Sync, str], isl.Map] = field(default_factory=dict)
    chains: dict[tuple[object, ...], isl.Map | None] = field(default_factory=dict)


class AgentOrder:
    """What is ordered inside agents, given times and a set of syncs."""

    def __init__(
        self,
        model: TileModel,
        times: Mapping[str, isl.Map],
        leaves: dict[str, LeafFacts],
        syncs: tuple[Sync, ...],
        known: Known | None = None,
    ) -> None:
        """Args:
        model: the program.
        times: leaf -> (instance -> time vector); all vectors have one length.
        leaves: facts of every leaf.
        syncs: what synchronises.
        known: of an order with the same leaves, or fewer.
        """
        self.model, self.times, self.leaves, self.syncs = model, times, leaves, syncs
        self.known = Known() if known is None else known

    def before(self, first: str, second: str) -> isl.Map:
        """Pairs of one agent, the first earlier in its tree."""
        found = self.known.before.get((first, second))
        if found is None:
            agents = len(self.leaves[first].place.agents)
            found = earlier_of_agent(self.times[first], self.times[second], agents)
            self.known.before[first, second] = found
        return found

    def each_thread(self, first: str, second: str) -> bool:
        """Whether it is enough that every thread keeps its own order between two leaves."""
        a, b = self.leaves[first], self.leaves[second]
        return (
            a.place.threads == 1
            or a.executes == b.executes
            or "bar" in (a.kind, b.kind)
            or (a.executes == "all" and b.executes == "warps")  # begins with the warp's barrier
            or (a.executes == "all" and a.kind in ("wait", "retire"))  # all have waited
            or (a.unit is not None and a.unit.collective)
        )

    def after(self, first: str, second: str) -> isl.Map | None:
        """`before`, where the order of each thread is enough; else None."""
        if self.leaves[first].place != self.leaves[second].place:
            return None
        return self.before(first, second) if self.each_thread(first, second) else None

    def next_of(self, first: str, second: str) -> isl.Map:
        """`before`, of the second leaf as little as makes no difference: the first after each.

        What a barrier's first signal after something guarantees, the later ones do as well.
        """
        found = self.known.next_of.get((first, second))
        if found is None:
            found = _least(self.before(first, second))
            self.known.next_of[first, second] = found
        return found

    def last_of(self, first: str, second: str) -> isl.Map:
        """`before`, of the first leaf only the last instance before each of the second."""
        found = self.known.last_of.get((first, second))
        if found is None:
            found = remembered.last_source(self.before(first, second))
            self.known.last_of[first, second] = found
        return found

    def group_of(self, leaf: str) -> isl.Map:
        """An instance -> the instance that closes its group."""
        found = self.known.groups.get(leaf)
        if found is None:
            group = self.leaves[leaf].group
            if group == leaf:
                found = self.times[leaf].domain().identity()
            else:
                found = remembered.least(self.before(leaf, group))
            self.known.groups[leaf] = found
        return found

    def closed_later(self, group: str, count: int) -> isl.Map:
        """A group -> the one closed `count` groups later by the same agent."""
        found = self.known.later.get((group, count))
        if found is None:
            if count == 0:
                found = self.times[group].domain().identity()
            elif count == 1:
                found = remembered.least(self.before(group, group))
            else:
                step = self.closed_later(group, 1)
                found = remembered.composed(self.closed_later(group, count - 1), step)
            self.known.later[group, count] = found
        return found

    def retired_at(self, group: str, retire: str, pending: int) -> isl.Map:
        """Pairs: a group, complete at a wait that leaves `pending` groups."""
        found = self.known.retired.get((group, retire, pending))
        if found is None:
            closers = self._closers(group)
            if pending and len(closers) > 1:
                found = self._retired_among(closers, group, retire, pending)
            else:
                found = remembered.composed(
                    self.closed_later(group, pending), self.before(group, retire)
                )
            self.known.retired[group, retire, pending] = found
        return found

    def _closers(self, group: str) -> tuple[str, ...]:
        """What closes groups of the same unit at the same place: waits count all of them."""
        own = [f for f in self.leaves.values() if f.by_groups and f.group]
        kinds = {(f.place, f.unit) for f in own if f.group == group}
        return tuple(dict.fromkeys(f.group for f in own if (f.place, f.unit) in kinds))

    def _retired_among(
        self, closers: tuple[str, ...], group: str, retire: str, pending: int
    ) -> isl.Map:
        """`retired_at`, where several statements close groups: as many of any of them follow."""
        found: isl.Map | None = None
        for closer in closers:
            after = remembered.composed(
                self.next_of(group, closer), self.retired_at(closer, retire, pending - 1)
            )
            found = after if found is None else found.union(after)
        assert found is not None
        return found.coalesce()

    def complete_at(self, leaf: str, retire: str, pending: int) -> isl.Map:
        """Pairs: complete at a wait that leaves `pending` groups."""
        found = self.known.complete.get((leaf, retire, pending))
        if found is None:
            waited = self.retired_at(self.leaves[leaf].group, retire, pending)
            found = remembered.composed(self.group_of(leaf), waited)
            self.known.complete[leaf, retire, pending] = found
        return found

    def retires(self, leaf: str) -> tuple[Sync, ...]:
        """The waits for groups of a leaf's unit at its place."""
        facts = self.leaves[leaf]
        if facts.unit is None or not facts.by_groups:
            return ()
        return tuple(
            s
            for s in self.syncs
            if s.kind == "retire"
            and s.unit == facts.unit.name
            and self.leaves[s.wait].place == facts.place
        )

    def complete(self, leaf: str, at: str, only: isl.Set | None = None) -> isl.Map | None:
        """Pairs of one agent: `leaf` is complete when `at` starts; None if never.

        Args:
            leaf: what has to be complete.
            at: when.
            only: the instances of `leaf` that matter; None if all.
        """
        facts = self.leaves[leaf]
        if facts.place != self.leaves[at].place:
            return None
        if facts.unit is None or facts.unit.completion == "now":
            return self.after(leaf, at)
        found: isl.Map | None = None
        for retire in self.retires(leaf):
            one = self.complete_at(leaf, retire.wait, retire.pending)
            if only is not None:
                one = one.intersect_domain(only)
            if retire.wait != at:
                if not self._tells(leaf, retire, at):
                    continue
                then = self.before(retire.wait, at)
                one = remembered.composed(one, then) if only is None else one.apply_range(then)
            if not one.is_empty():
                found = one if found is None else found.union(one)
        return found

    def _tells(self, leaf: str, retire: Sync, at: str) -> bool:
        """Whether who executes `at` knows of a wait for groups that came before."""
        wait, then, unit = self.leaves[retire.wait], self.leaves[at], self.leaves[leaf].unit
        return (
            (unit is not None and unit.collective)
            or wait.executes in (then.executes, "all")
            or then.kind == "bar"
        )

    def first_started(self, leaf: str, at: str) -> isl.Map | None:
        """`leaf` -> the first instance of `at` after it; None if there is none."""
        found = self.after(leaf, at)
        return None if found is None or found.is_empty() else self.next_of(leaf, at)

    def first_retired(self, leaf: str, at: str) -> isl.Map | None:
        """Groups that close instances of `leaf` -> the first `at` at which they are complete."""
        facts = self.leaves[leaf]
        waits = self.retires(leaf) if facts.place == self.leaves[at].place else ()
        waits = tuple(w for w in waits if w.wait == at or self._tells(leaf, w, at))
        key = ("retired", facts.group, at, waits)
        if key not in self.known.chains:
            found: isl.Map | None = None
            for wait in waits:
                one = self._first_at(facts.group, wait)
                if wait.wait != at:
                    one = remembered.composed(one, self.next_of(wait.wait, at))
                if not one.is_empty():
                    found = one if found is None else found.union(one).coalesce()
            self.known.chains[key] = None if found is None else _least(found)
        return self.known.chains[key]

    def _first_at(self, group: str, wait: Sync) -> isl.Map:
        key = (group, wait.wait, wait.pending)
        found = self.known.first_retired.get(key)
        if found is None:
            found = self.known.first_retired[key] = _least(self.retired_at(*key))
        return found


def _least(pairs: isl.Map) -> isl.Map:
    return remembered.least(pairs) if pairs.n_basic_map() > _FEW else pairs
