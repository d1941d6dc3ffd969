"""What trees and synchronisation order, pair of leaves by pair of leaves.

A dependence a -> b between agents is kept by a path

    a complete -> signal, barrier, wait -> (signal, barrier, wait ->) b

whose links inside one agent are the order of its tree. *Complete* depends on a's unit: at once;
when a wait for its commit group has passed; or by an mbarrier alone. The group of an instance is
the first one closed after it; it is complete at a wait that leaves n groups pending if the n-th
group closed after it was closed before the wait.

Inside an agent of many threads each thread knows its own order only: `each_thread` says when that
is enough. Only the pairs on a path are ever built: the order of all leaves at once is what isl is
slow at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polygen import isl
from polygen.hardware.units import Unit
from polygen.poly.tile_program import Place, Sync, SyncStatement, TileStatement
from polygen.poly.versions import Dependence, TileModel, same_agent

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_LINKS = ("mbarrier", "bar", "turn")
_HOPS = 2  # barriers on a path
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


@dataclass(slots=True)
class Known:
    """Relations that stay true when more leaves are put into the trees."""

    before: dict[tuple[str, str], isl.Map] = field(default_factory=dict)
    later: dict[tuple[str, int], isl.Map] = field(default_factory=dict)
    complete: dict[tuple[str, str, int], isl.Map] = field(default_factory=dict)
    relation: dict[tuple[Sync, str], isl.Map] = field(default_factory=dict)
    chains: dict[tuple[object, ...], isl.Map | None] = field(default_factory=dict)


class Order:
    """What is ordered, given times inside agents and a set of syncs."""

    def __init__(
        self,
        model: TileModel,
        times: dict[str, isl.Map],
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
        self.links = tuple(s for s in syncs if s.kind in _LINKS)

    def having(self, syncs: tuple[Sync, ...]) -> Order:
        """The same trees with other syncs."""
        return Order(self.model, self.times, self.leaves, syncs, self.known)

    def before(self, first: str, second: str) -> isl.Map:
        """Pairs of one agent, the first earlier in its tree."""
        found = self.known.before.get((first, second))
        if found is None:
            pairs = isl.Map.lex_lt_map(self.times[first], self.times[second])
            found = same_agent(pairs, len(self.leaves[first].place.agents))
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

    def group_of(self, leaf: str) -> isl.Map:
        """An instance -> the instance that closes its group."""
        group = self.leaves[leaf].group
        if group == leaf:
            return self.times[leaf].domain().identity()
        return self.before(leaf, group).lexmin()

    def closed_later(self, group: str, count: int) -> isl.Map:
        """A group -> the one closed `count` groups later by the same agent."""
        found = self.known.later.get((group, count))
        if found is None:
            if count == 0:
                found = self.times[group].domain().identity()
            elif count == 1:
                found = self.before(group, group).lexmin().coalesce()
            else:
                step = self.closed_later(group, 1)
                found = self.closed_later(group, count - 1).apply_range(step).coalesce()
            self.known.later[group, count] = found
        return found

    def complete_at(self, leaf: str, retire: str, pending: int) -> isl.Map:
        """Pairs: complete at a wait that leaves `pending` groups."""
        found = self.known.complete.get((leaf, retire, pending))
        if found is None:
            group = self.leaves[leaf].group
            later = self.group_of(leaf).apply_range(self.closed_later(group, pending))
            found = later.apply_range(self.before(group, retire)).coalesce()
            self.known.complete[leaf, retire, pending] = found
        return found

    def retires(self, leaf: str) -> tuple[Sync, ...]:
        """The waits for groups of a leaf's unit at its place."""
        facts = self.leaves[leaf]
        if facts.unit is None or facts.unit.completion != "groups":
            return ()
        return tuple(
            s
            for s in self.syncs
            if s.kind == "retire"
            and s.unit == facts.unit.name
            and self.leaves[s.wait].place == facts.place
        )

    def complete(self, leaf: str, at: str) -> isl.Map | None:
        """Pairs of one agent: `leaf` is complete when `at` starts; None if never."""
        facts, then = self.leaves[leaf], self.leaves[at]
        if facts.place != then.place:
            return None
        if facts.unit is None or facts.unit.completion == "now":
            return self.after(leaf, at)
        key = ("complete", leaf, at, self.retires(leaf))
        if key not in self.known.chains:
            found = None
            for retire in self.retires(leaf):
                one = self._through(leaf, retire, at)
                if one is not None and not one.is_empty():
                    found = one if found is None else found.union(one)
            self.known.chains[key] = found
        return self.known.chains[key]

    def _through(self, leaf: str, retire: Sync, at: str) -> isl.Map | None:
        waited = self.complete_at(leaf, retire.wait, retire.pending)
        if retire.wait == at:
            return waited
        unit, then = self.leaves[leaf].unit, self.leaves[at]
        speaks = unit is not None and unit.collective
        if speaks or self.leaves[retire.wait].executes == then.executes or then.kind == "bar":
            return waited.apply_range(self.before(retire.wait, at))
        if self.leaves[retire.wait].executes == "all":
            return waited.apply_range(self.before(retire.wait, at))
        return None

    def relation(self, sync: Sync, signal: str) -> isl.Map:
        """Signal instance -> the wait instances that have seen it."""
        found = self.known.relation.get((sync, signal))
        if found is None:
            found = self._relation(sync, signal)
            self.known.relation[sync, signal] = found
        return found

    def _relation(self, sync: Sync, signal: str) -> isl.Map:
        waits = self.times[sync.wait].domain()
        if sync.kind == "bar":
            if sync.scope == "agent":
                return waits.identity()
            place = self.leaves[sync.wait].place
            meets = isl.Map.from_domain_and_range(waits, waits)
            for n in range(waits.dim(isl.dim_type.set)):
                if n < place.blocks or n >= len(place.agents):
                    meets = meets.equate(_IN, n, _OUT, n)
            return meets
        arrives = self.model.map(dict(sync.signals)[signal])
        arrives = arrives.intersect_domain(self.times[signal].domain())
        rounds = self.model.next(sync.buffers[0], -sync.phase * sync.slots)
        meets = arrives.apply_range(rounds).apply_range(self.waits_for(sync).reverse())
        return meets

    def waits_for(self, sync: Sync) -> isl.Map:
        """Wait instance -> the cell of its barrier."""
        return self.model.map(sync.waits_for).intersect_domain(self.times[sync.wait].domain())

    def _first(self, leaf: str, at: str, *, started: bool) -> isl.Map | None:
        """`leaf` -> the first instance of `at` at which it is complete.

        What a barrier's first signal after it guarantees, the later ones do as well.
        """
        key = ("first", leaf, at, started, () if started else self.retires(leaf))
        if key not in self.known.chains:
            found = self.after(leaf, at) if started else self.complete(leaf, at)
            if found is not None and not found.is_empty() and found.n_basic_map() > _FEW:
                found = found.lexmin().coalesce()
            self.known.chains[key] = found
        return self.known.chains[key]

    def uncovered(
        self, source: str, target: str, need: isl.Map, fence: str = "", *, started: bool = False
    ) -> tuple[isl.Map, frozenset[str]]:
        """The part of `need` that no path keeps, and the syncs on the paths of the rest.

        Args:
            source: leaf.
            target: leaf.
            need: source instance -> target instance.
            fence: that the path has to contain, on the source's side.
            started: whether the source has only to have started.
        """
        used: set[str] = set()
        frontier = self._beginnings(source, fence, started)
        for hop in range(_HOPS):
            reached = []
            for sync, path, parts in frontier:
                if not self._leads_to(sync, target, _HOPS - hop - 1):
                    continue
                chain = self._chain((source, path, started, fence, self.retires(source)), parts)
                if chain is None:
                    continue
                reached.append((sync, path, chain))
                covers = self._ends(sync, chain, target)
                if covers is None or covers.is_disjoint(need):
                    continue
                need, used = need.subtract(covers), used | {name for name, _ in path}
                if need.is_empty():
                    return need, frozenset(used)
            frontier = self._continued(reached)
        return need, frozenset(used)

    def _beginnings(self, source: str, fence: str, started: bool) -> list[_Step]:
        found: list[_Step] = []
        place = self.leaves[source].place
        fences = [s for s in self.syncs if s.kind == "fence" and s.unit == fence]
        for sync in self.links:
            for signal, _ in signals_of(sync):
                if signal == source and not fence:
                    found.append((sync, ((sync.name, signal),), (("sync", sync, signal),)))
                elif self.leaves[signal].place != place:
                    continue
                elif fence:
                    for one in fences:
                        if self.leaves[one.wait].place == place:
                            parts: tuple[_Part, ...] = (
                                ("first", source, one.wait, started),
                                ("first", one.wait, signal, True),
                                ("sync", sync, signal),
                            )
                            path = ((one.name, ""), (sync.name, signal))
                            found.append((sync, path, parts))
                else:
                    parts = (("first", source, signal, started), ("sync", sync, signal))
                    found.append((sync, ((sync.name, signal),), parts))
        return found

    def _continued(self, reached: list[tuple[Sync, _Path, isl.Map]]) -> list[_Step]:
        found: list[_Step] = []
        for sync, path, chain in reached:
            for link in self.links:
                if link.name in dict(path):
                    continue
                for signal, _ in signals_of(link):
                    longer = (*path, (link.name, signal))
                    if sync.wait == signal:
                        found.append((link, longer, (("is", chain), ("sync", link, signal))))
                    elif self.leaves[sync.wait].place == self.leaves[signal].place:
                        middle = ("first", sync.wait, signal, True)
                        found.append(
                            (link, longer, (("is", chain), middle, ("sync", link, signal)))
                        )
        return found

    def _chain(self, key: tuple[object, ...], parts: tuple[_Part, ...]) -> isl.Map | None:
        if key in self.known.chains:
            return self.known.chains[key]
        result: isl.Map | None = None
        for number, part in enumerate(parts):
            one = self._part(part)
            if one is None or one.is_empty():
                result = None
                break
            result = one if number == 0 or result is None else result.apply_range(one)
        if result is not None:
            result = None if result.is_empty() else result.coalesce()
        self.known.chains[key] = result
        return result

    def _part(self, part: _Part) -> isl.Map | None:
        kind = part[0]
        if kind == "is":
            return part[1]  # type: ignore[return-value]
        if kind == "sync":
            return self.relation(part[1], part[2])  # type: ignore[arg-type]
        return self._first(part[1], part[2], started=bool(part[3]))  # type: ignore[arg-type]

    def _ends(self, sync: Sync, chain: isl.Map, target: str) -> isl.Map | None:
        covers = chain if sync.wait == target else None
        follows = self.after(sync.wait, target)
        if follows is not None:
            follows = chain.apply_range(follows)
            covers = follows if covers is None else covers.union(follows)
        return covers

    def _leads_to(self, sync: Sync, target: str, hops: int) -> bool:
        """Whether a path over this sync can end at the target at all."""
        wait, place = self.leaves[sync.wait], self.leaves[target].place
        if wait.place == place and (sync.wait == target or self.each_thread(sync.wait, target)):
            return True
        return hops > 0 and any(
            self.leaves[signal].place == wait.place and self._leads_to(link, target, hops - 1)
            for link in self.links
            if link.name != sync.name
            for signal, _ in signals_of(link)
        )

    def open_part(self, need: Dependence) -> tuple[isl.Map, frozenset[str]]:
        """The part of a dependence that is not kept, and the syncs that keep the rest."""
        rest, used = need.relation, frozenset[str]()
        source, target = need.source, need.target
        if need.local:
            rest, used = self._open_inside(need)
            if rest.is_empty():
                return rest, used
        if need.buffer.space != "shared":
            return rest, used
        fence = need.fence.name if need.fence is not None else ""
        rest, more = self.uncovered(source.name, target.name, rest, fence)
        retires = (s.name for s in self.retires(source.name))
        return rest, used | more | frozenset(retires)

    def _open_inside(self, need: Dependence) -> tuple[isl.Map, frozenset[str]]:
        """The part of a dependence inside one agent that its own order does not keep."""
        source, target, rest = need.source, need.target, need.relation
        if source.unit.in_order and source.unit == target.unit:
            return rest.subtract(self.before(source.name, target.name)), frozenset()
        if need.fence is not None:
            used: set[str] = set()
            if need.fence.by == "target":
                for one in self.syncs:
                    if one.kind == "fence" and one.unit == need.fence.name and not rest.is_empty():
                        done = self.complete(source.name, one.wait)
                        if done is not None:
                            covers = done.apply_range(self.before(one.wait, target.name))
                            rest, used = rest.subtract(covers), used | {one.name}
            return rest, frozenset(used)
        if need.buffer.space == "scalar":
            return rest.subtract(self.before(source.name, target.name)), frozenset()
        if stays_in_thread(need):
            done = self.complete(source.name, target.name)
            if done is not None:
                rest = rest.subtract(done)
        return rest, frozenset(s.name for s in self.retires(source.name))


_Part = tuple[object, ...]
_Path = tuple[tuple[str, str], ...]  # syncs, each with its signal
_Step = tuple[Sync, _Path, tuple[_Part, ...]]


def signals_of(sync: Sync) -> tuple[tuple[str, str], ...]:
    """The leaves that signal; a rendezvous signals itself."""
    return sync.signals or ((sync.wait, ""),)


def stays_in_thread(need: Dependence) -> bool:
    """Whether both ends of a dependence inside an agent are one thread."""
    return (
        need.buffer.space in ("register", "scalar")
        or need.source.place.threads == 1
        or need.source.executes == need.target.executes == "one"
    )
