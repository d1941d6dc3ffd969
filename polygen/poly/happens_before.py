"""What trees and synchronisation order between agents, pair of leaves by pair of leaves.

A dependence a -> b between agents is kept by a path

    a complete -> signal, barrier, wait -> (signal, barrier, wait ->) b

whose links inside one agent are the order of its tree (`agent_order`). Only the pairs on a path are
ever built: the order of all leaves at once is what isl is slow at.

1. Paths are tried one after another, the short ones first, until nothing of a dependence is left.
2. What completes by groups begins its paths at its group: there a dependence has fewer coordinates,
   and all statements of a group share their paths.
3. Most pairs go over the last wait before their target; only what is left over is compared with
   what every earlier wait keeps as well.
4. That something is *not* kept takes one pair that no path keeps: `is_open` follows the paths of a
   few instances, and those of all only if these are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polygen import isl, remembered
from polygen.poly.agent_order import AgentOrder
from polygen.poly.order_path import Hop, Path
from polygen.poly.tile_program import Sync
from polygen.poly.versions import Dependence

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out
_LINKS = ("mbarrier", "bar", "turn")
_HOPS = 2  # barriers on a path
_WITNESSES = 4  # pairs that are tried before all


@dataclass(frozen=True, slots=True)
class _Search:
    """What a path has to lead from and to.

    Attributes:
        source: leaf.
        target: leaf.
        fence: that the path has to contain, on the source's side.
        started: whether the source has only to have started.
        grouped: whether paths begin at the groups of the source instead of at its instances.
        beginning: what tells where its paths begin from others, by content.
        known: where paths have led from there.
        only: the beginnings that matter; None if all.
    """

    source: str
    target: str
    fence: str
    started: bool
    grouped: bool
    beginning: tuple[str, ...]
    known: dict[tuple[object, ...], isl.Map | None]
    only: isl.Set | None = None

    def compose(self, first: isl.Map, second: isl.Map) -> isl.Map:
        """One relation after the other."""
        return _composed(first, second, self.only)

    def subtract(self, need: isl.Map, covers: isl.Map) -> isl.Map:
        """What a relation does not cover."""
        return _without(need, covers, self.only)

    def grouped_from(self, need: isl.Map, closes: isl.Map) -> tuple[isl.Map, isl.Map]:
        """A need from the groups of its instances on, and that of instances in no group."""
        if self.only is None:
            return remembered.moved(need, closes), remembered.unmoved(need, closes)
        return need.apply_domain(closes), need.subtract_domain(closes.domain())


class Order(AgentOrder):
    """What is ordered, given times inside agents and a set of syncs."""

    @property
    def links(self) -> tuple[Sync, ...]:
        """What leads from one agent to another."""
        return tuple(s for s in self.syncs if s.kind in _LINKS)

    def having(self, syncs: tuple[Sync, ...]) -> Order:
        """The same trees with other syncs."""
        return Order(self.model, self.times, self.leaves, syncs, self.known)

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
        arrives = self._cells(dict(sync.signals)[signal])
        arrives = arrives.intersect_domain(self.times[signal].domain())
        rounds = self.model.next(sync.buffers[0], -sync.phase * sync.slots)
        return remembered.composed(
            remembered.composed(arrives, rounds), self.waits_for(sync).reverse()
        )

    def _reached(self, sync: Sync, signal: str) -> isl.Map:
        """`relation`, and of a token that agents pass round all who get it before it is back."""
        once = found = passed_on = self.relation(sync, signal)
        others = self.leaves[sync.wait].place.counts[-1] - 1 if sync.kind == "turn" else 1
        onward = self.first_started(sync.wait, signal) if others > 1 else None
        for _ in range(others - 1 if onward is not None else 0):
            passed_on = remembered.composed(remembered.composed(passed_on, onward), once)
            found = found.union(passed_on)
        return found

    def waits_for(self, sync: Sync) -> isl.Map:
        """Wait instance -> the cell of its barrier."""
        return self._cells(sync.waits_for).intersect_domain(self.times[sync.wait].domain())

    def _cells(self, text: str) -> isl.Map:
        return self.model.read(text)

    def uncovered(
        self,
        source: str,
        target: str,
        need: isl.Map,
        fence: str = "",
        *,
        started: bool = False,
        only: isl.Set | None = None,
    ) -> tuple[isl.Map, frozenset[str]]:
        """The part of `need` that no path keeps, and the syncs on the paths of the rest.

        Args:
            source: leaf.
            target: leaf.
            need: source instance -> target instance.
            fence: that the path has to contain, on the source's side.
            started: whether the source has only to have started.
            only: instances of the source outside of which `need` is empty; None if unknown.
        """
        facts = self.leaves[source]
        grouped = not started and facts.by_groups
        unit = "" if facts.unit is None else facts.unit.name
        beginning = ("group", facts.group, unit) if grouped else ("leaf", source, str(started))
        known = self.known.chains if only is None else {}
        search = _Search(source, target, fence, started, grouped, beginning, known, only)
        if not grouped:
            return self._left(search, need)
        closes = self.group_of(source)
        if only is not None:
            search = replace(search, only=only.apply(closes))
        from_groups, alone = search.grouped_from(need, closes)
        rest, used = self._left(search, from_groups)  # what nothing closes is never complete
        if rest.is_empty():
            return alone, used
        return need.intersect(closes.apply_range(rest)).union(alone), used

    def is_open(self, need: Dependence, gone: Sync | None = None) -> bool:
        """Whether a dependence is not kept: by one pair of it, if a pair at hand shows it.

        Args:
            need: the dependence.
            gone: a sync that this order lacks; pairs near it are tried first.
        """
        near = None if gone is None else self._near(need.source.name, gone)
        pieces = need.relation.get_basic_maps()[:_WITNESSES]
        if near is not None:
            pieces = need.relation.intersect_domain(near).get_basic_maps()[:_WITNESSES] + pieces
        for piece in pieces:
            pair = isl.Map.from_basic_map(piece.sample())
            if pair.is_empty():
                continue
            rest, _ = self.open_part(replace(need, relation=pair), pair.domain())
            if not rest.is_empty():
                return True
        return not self.open_part(need)[0].is_empty()

    def _near(self, source: str, gone: Sync) -> isl.Set | None:
        """Instances that are the last ones before an instance of a wait for groups."""
        facts = self.leaves[source]
        if gone.kind != "retire" or not facts.by_groups:
            return None
        if self.leaves[gone.wait].place != facts.place:
            return None
        waited = remembered.last_source(self.retired_at(facts.group, gone.wait, gone.pending))
        return self.group_of(source).intersect_range(waited.domain()).domain()

    def _left(self, search: _Search, need: isl.Map) -> tuple[isl.Map, frozenset[str]]:
        """The part of `need` that no path keeps, from where paths begin; and the syncs used."""
        used: frozenset[str] = frozenset()
        paths = self._beginnings(search)
        for hop in range(_HOPS):
            chains: dict[Path, isl.Map] = {}
            open_ = _HOPS - hop - 1
            ready = (p for p in paths if self._leads_to(p.last, search.target, open_))
            for path, covers in self._covers(search, ready, chains):
                rest = search.subtract(need, covers)
                if rest.is_empty():
                    return rest, used | path.names
                if not rest.plain_is_equal(need) and not covers.is_disjoint(need):
                    need, used = rest, used | path.names
            paths = [longer for path in chains for longer in self._continued(path)]
        return need, used

    def _covers(
        self, search: _Search, paths: Iterator[Path], chains: dict[Path, isl.Map]
    ) -> Iterator[tuple[Path, isl.Map]]:
        """What paths keep: over the last wait before each target first, then over any.

        Args:
            search: from where to where.
            paths: to follow. The first ones often keep all there is: the others wait until asked.
            chains: gets where they lead.
        """
        target = search.target
        for path in paths:
            chain, wait = self._chain(search, path), path.last.wait
            if chain is None:
                continue
            chains[path] = chain
            if wait != target and self.after(wait, target) is not None:
                yield path, search.compose(chain, self.last_of(wait, target))
        for path, chain in chains.items():
            follows = self.after(path.last.wait, target)
            if follows is not None:
                yield path, search.compose(chain, follows)
            if path.last.wait == target:
                yield path, chain

    def _beginnings(self, search: _Search) -> list[Path]:
        found: list[Path] = []
        place = self.leaves[search.source].place
        fences = [
            s
            for s in self.syncs
            if s.kind == "fence" and s.unit == search.fence and self.leaves[s.wait].place == place
        ]
        for sync in self.links:
            for signal, _ in signals_of(sync):
                hops = (Hop(sync, signal),)
                if signal == search.source and not search.fence:
                    found.append(Path(hops))
                elif self.leaves[signal].place == place:
                    found += [Path(hops, f) for f in fences] if search.fence else [Path(hops)]
        return found

    def _continued(self, path: Path) -> list[Path]:
        """The paths of one barrier more."""
        passed, place = {hop.sync.name for hop in path.hops}, self.leaves[path.last.wait].place
        return [
            Path((*path.hops, Hop(link, signal)), path.fence)
            for link in self.links
            if link.name not in passed
            for signal, _ in signals_of(link)
            if self.leaves[signal].place == place
        ]

    def _chain(self, search: _Search, path: Path) -> isl.Map | None:
        """Where a path leads: from its beginnings to the waits of its last barrier."""
        key = (*search.beginning, self.retires(search.source), path)
        if key not in search.known:
            to_signal = self._to_signal(search, path)
            found: isl.Map | None = None
            if to_signal is not None and not to_signal.is_empty():
                last = path.hops[-1]
                found = search.compose(to_signal, self._reached(last.sync, last.signal))
            search.known[key] = None if found is None or found.is_empty() else found
        return search.known[key]

    def _to_signal(self, search: _Search, path: Path) -> isl.Map | None:
        """Where a path leads before its last barrier; None if nowhere."""
        signal = path.hops[-1].signal
        if len(path.hops) > 1:
            shorter = Path(path.hops[:-1], path.fence)
            first, wait = self._chain(search, shorter), shorter.last.wait
        elif path.fence is not None:
            first, wait = self._begin(search, path.fence.wait), path.fence.wait
        else:
            return self._begin(search, signal)
        if first is None or wait == signal:
            return first
        second = self.first_started(wait, signal)
        return None if second is None else search.compose(first, second)

    def _begin(self, search: _Search, at: str) -> isl.Map | None:
        """From where paths begin to the first instance of a leaf by which that is done."""
        source = self.leaves[search.source]
        found: isl.Map | None = None
        if search.grouped:
            found = self.first_retired(source.name, at)
        elif at == source.name and not search.fence:
            found = self.times[at].domain().identity()
        elif search.started or source.unit is None or source.unit.completion == "now":
            found = self.first_started(source.name, at)
        return (
            found if found is None or search.only is None else found.intersect_domain(search.only)
        )

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

    def open_part(
        self, need: Dependence, only: isl.Set | None = None
    ) -> tuple[isl.Map, frozenset[str]]:
        """The part of a dependence that is not kept, and the syncs that keep the rest.

        Args:
            need: the dependence.
            only: instances of its source outside of which it is empty; None if nothing is known.
        """
        rest, used = need.relation, frozenset[str]()
        source, target = need.source, need.target
        if need.local:
            rest, used = self._open_inside(need, only)
            if rest.is_empty():
                return rest, used
        if need.buffer.space != "shared":
            return rest, used
        fence = need.fence.name if need.fence is not None else ""
        rest, more = self.uncovered(source.name, target.name, rest, fence, only=only)
        retires = (s.name for s in self.retires(source.name))
        return rest, used | more | frozenset(retires)

    def _open_inside(
        self, need: Dependence, only: isl.Set | None
    ) -> tuple[isl.Map, frozenset[str]]:
        """The part of a dependence inside one agent that its own order does not keep."""
        source, target, rest = need.source, need.target, need.relation
        if source.unit.in_order and source.unit == target.unit:
            return _without(rest, self.before(source.name, target.name), only), frozenset()
        if need.fence is not None:
            used: set[str] = set()
            if need.fence.by == "target":
                for one in self.syncs:
                    if one.kind == "fence" and one.unit == need.fence.name and not rest.is_empty():
                        done = self._done(need, one.wait, only)
                        if done is not None:
                            then = self.before(one.wait, target.name)
                            covers = _composed(done, then, only)
                            rest, used = _without(rest, covers, only), used | {one.name}
            return rest, frozenset(used)
        if need.buffer.space == "scalar":
            return _without(rest, self.before(source.name, target.name), only), frozenset()
        if stays_in_thread(need):
            done = self._done(need, target.name, only)
            if done is not None:
                rest = _without(rest, done, only)
        return rest, frozenset(s.name for s in self.retires(source.name))

    def _done(self, need: Dependence, at: str, only: isl.Set | None) -> isl.Map | None:
        """Pairs of one agent: what the source does to the buffer is done when `at` starts."""
        source = need.source
        reads = source.name not in self.model.writes[need.buffer.name]
        if reads and need.buffer.space == "register" and source.unit.takes_registers:
            found = self.after(source.name, at)
            return found if found is None or only is None else found.intersect_domain(only)
        return self.complete(source.name, at, only)


def _composed(first: isl.Map, second: isl.Map, only: isl.Set | None) -> isl.Map:
    """One relation after the other; what holds for all instances is kept."""
    return remembered.composed(first, second) if only is None else first.apply_range(second)


def _without(need: isl.Map, covers: isl.Map, only: isl.Set | None) -> isl.Map:
    """What a relation does not cover; what holds for all instances is kept."""
    return remembered.without(need, covers) if only is None else need.subtract(covers)


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
