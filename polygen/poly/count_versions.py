"""Counters for the buffers whose slots are not functions of the loops, from the leaves that use
them.

1. At each place, the leaves that touch a buffer, or wait for or arrive at a barrier of it, in the
   order of the tree.
2. Leaves share a counter as long as each is done with a version before any of them meets the next.
3. It goes up behind the last of them; where that has several instances a version, at the leaf that
   closes their group, or the groups of its steps.
"""

from __future__ import annotations

from polygen import isl, remembered
from polygen.errors import IllegalSchedule
from polygen.poly.before import by_agent
from polygen.poly.counters import Counter, tagged_once
from polygen.poly.derivation import Derivation
from polygen.poly.handover import shared_name, text
from polygen.poly.happens_before import Order
from polygen.poly.tile_program import Place
from polygen.poly.versions import of_each_agent

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


def count_versions(work: Derivation) -> tuple[Counter, ...]:
    """The counters of all places."""
    found: list[Counter] = []
    order = work.order()
    for buffers in _groups(work):
        for place in work.program.places:
            found += _of_place(work, order, buffers, place)
    return tuple(found)


def _groups(work: Derivation) -> list[tuple[str, ...]]:
    """Buffers in shared memory that need counters, those that are handed over together as one."""
    together: dict[str, tuple[str, ...]] = {}
    for buffer in work.program.buffers:
        of = [s.buffers for s in work.syncs if buffer.name in s.buffers]
        if buffer.space == "shared" and buffer.versions and (of or not buffer.slot):
            group = of[0] if of else (buffer.name,)
            together[group[0]] = group
    return list(together.values())


_Use = dict[str, isl.Map]  # leaves that meet one version between them, each with its cells


def _of_place(
    work: Derivation, order: Order, buffers: tuple[str, ...], place: Place
) -> list[Counter]:
    agents = len(place.agents)
    step = work.model.next(buffers[0])
    shared: list[list[_Use]] = []
    for use in _uses(work, buffers, place):
        for one in shared:
            if all(_side_by_side(order, step, agents, other, use) for other in one):
                one.append(use)
                break
        else:
            shared.append([use])
    skips = {
        name: cells
        for sync in work.syncs
        if sync.buffers and sync.buffers[0] == buffers[0]
        for name, cells in sync.skips
        if work.facts[name].place == place
    }
    counters = []
    for number, one in enumerate(shared):
        name = f"{shared_name(buffers)}_{place.name}{'_behind' * number}"
        counters.append(_counter(work, name, buffers, place, one, skips))
    return counters


def _uses(work: Derivation, buffers: tuple[str, ...], place: Place) -> list[_Use]:
    """Who meets the versions of a place, in the order of the tree."""
    found: dict[str, _Use] = {}
    statements = {s.name for s in work.program.statements if s.place == place}
    lead = work.program.buffer(buffers[0])
    for statement, cells in work.accesses(buffers, place, statements):
        local = _own_cells(cells, place, lead.versions)
        use = found.setdefault(statement, {})
        use[statement] = use[statement].union(local).coalesce() if statement in use else local
    for sync in work.syncs:
        if not set(sync.buffers) & set(buffers):
            continue
        for side in (sync.signals, ((sync.wait, sync.waits_for),)):
            leaf = side[0][0]
            if work.facts[leaf].place == place and leaf in work.leaves:
                found[leaf] = {
                    name: _own_cells(
                        work.model.map(cells).set_tuple_name(_OUT, lead.name), place, lead.versions
                    )
                    for name, cells in side
                }
    return sorted(found.values(), key=lambda use: work.position(next(iter(use))))


def _own_cells(cells: isl.Map, place: Place, versions: int) -> isl.Map:
    """Of copies in several blocks the own one: all have the same version."""
    for n in range(place.blocks):
        cells = cells.equate(_IN, n, _OUT, versions + n)
    return cells


def _side_by_side(order: Order, step: isl.Map, agents: int, one: _Use, other: _Use) -> bool:
    """Whether two users are both done with a version before either meets the next."""
    each = of_each_agent(step, agents)
    for first, second in ((one, other), (other, one)):
        for x, own in first.items():
            later = remembered.composed(by_agent(own, agents), each)
            for y, next_own in second.items():
                pairs = remembered.composed(later, by_agent(next_own, agents).reverse())
                if not pairs.is_subset(order.before(x, y)):
                    return False
    return True


def _counter(
    work: Derivation,
    name: str,
    buffers: tuple[str, ...],
    place: Place,
    uses: list[_Use],
    skips: dict[str, str],
) -> Counter:
    every = {leaf: cells for use in uses for leaf, cells in use.items()}
    return Counter(
        name,
        place.name,
        buffers,
        tuple((leaf, text(cells)) for leaf, cells in every.items()),
        tuple((leaf, text(cells)) for leaf, cells in _advances(work, uses[-1]).items()),
        tuple(skips.items()),
    )


def _advances(work: Derivation, last: _Use) -> _Use:
    """Where the counter goes up: at the last user, or where its group is closed."""
    found: _Use = {}
    for leaf, cells in last.items():
        agents = len(work.facts[leaf].place.agents)
        group, short = leaf, cells
        while not tagged_once(short, agents):  # of steps, what closes those of a version in turn
            group = work.facts[group].group
            if not group:
                raise IllegalSchedule(
                    f"{leaf} meets a version several times, and nothing closes them as a group",
                    where=str(cells.get_tuple_name(_OUT)),
                )
            loops = agents + len(work.leaf(group).loops)
            short = cells.project_out(_IN, loops, cells.dim(_IN) - loops)
        found[group] = short.set_tuple_name(_IN, group)
    return found
