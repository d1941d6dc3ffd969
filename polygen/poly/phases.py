"""Phases of mbarriers: what an agent passes over, and turns where a parity bit is not enough.

A barrier's counter goes through the versions of its buffer one by one. An agent that meets only
some of them *skips* the others: after each of its own tiles those up to its next one, and before
its first one those that come before. A parity bit tells a phase from the one before it, no more: if
a wait may then begin before the phase before its own has completed, the agents take *turns*.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen import isl, remembered
from polygen.errors import IllegalSchedule
from polygen.poly.derivation import Derivation
from polygen.poly.handover import text
from polygen.poly.happens_before import Order, signals_of
from polygen.poly.tile_program import Place, Sync
from polygen.poly.versions import TileModel, union_of_maps

_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out


def tell_apart(work: Derivation) -> None:
    """Derive skips and turns."""
    for sync in work.syncs:
        if sync.kind == "mbarrier":
            _skips(work, sync)
    skipped = [s for s in work.syncs if s.kind == "mbarrier" and s.skips]
    wanted = [sync for sync in skipped if not early(work.order(), sync).is_empty()]
    if wanted:
        _turns(work, wanted)
        for sync in wanted:
            rest = early(work.order(), sync)
            if not rest.is_empty():
                raise IllegalSchedule(
                    f"{sync.name}: a wait may begin before the phase before its own is over: "
                    f"{isl.sample_pair(rest)}",
                    where=sync.buffers[0],
                )
    for first, last in work.program.turns:
        _asked(work, first, last)


def met(model: TileModel, buffer: str, cells: isl.Map, agents: int) -> tuple[isl.Set, isl.Set]:
    """(agent, cell) pairs of one side, and those that a counter of the same agents passes.

    Args:
        model: the program.
        buffer: whose versions are counted.
        cells: leaf instance -> cell.
        agents: leading coordinates of the instances.

    Returns:
        Two sets over agents and cells.
    """
    both = tagged(cells, agents)
    versions = model.versions[buffer]
    whose = both.project_out(_SET, agents, versions).insert_dims(_SET, agents, versions)
    all_cells = model.cells[buffer].reset_tuple_id().insert_dims(_SET, 0, agents)
    return both, whose.intersect(all_cells)


def tagged(cells: isl.Map, agents: int) -> isl.Set:
    """The pairs (agent, cell) of a relation from instances to cells."""
    domain = cells.domain()
    rest = domain.dim(_SET) - agents
    who = domain.identity().project_out(_OUT, agents, rest).reset_tuple_id(_OUT)
    return who.flat_range_product(cells.reset_tuple_id(_OUT)).range()


def _skips(work: Derivation, sync: Sync) -> None:
    """What the agents of either side pass over."""
    found: list[tuple[str, str]] = []
    for side in (sync.signals, ((sync.wait, sync.waits_for),)):
        leaf = side[0][0]
        place = work.facts[leaf].place
        if leaf not in work.leaves or len(place.agents) == place.blocks:
            continue
        cells = union_of_maps(work.model.map(r).set_tuple_name(_IN, leaf) for _, r in side)
        agents = len(place.agents)
        both, wanted = met(work.model, sync.buffers[0], cells, agents)
        missing = wanted.subtract(both).coalesce()
        if missing.is_empty():
            continue
        name = f"skip_{sync.name.partition('_')[2]}"
        if name not in work.leaves:
            _put_skips(work, name, leaf, missing, agents)
        found += _passed(work, name, sync.buffers[0], missing, agents)
    if found:
        work.change(sync, skips=tuple(found))


def _put_skips(work: Derivation, name: str, leaf: str, missing: isl.Set, agents: int) -> None:
    """After each own iteration of the outermost loop, and before the first."""
    place = work.facts[leaf].place
    outer = work.loops(leaf)[0]
    own = work.domain(leaf).project_out(_SET, agents + 1, work.domain(leaf).dim(_SET) - agents - 1)
    anchors = tuple(
        x for x in work.facts if work.facts[x].place == place and work.loops(x)[:1] == (outer,)
    )
    work.put(name, "skip", (outer.variable,), own, place, anchors, 1, (outer.variable,), after=True)
    first = _before_first(own, missing, agents)
    everyone = tuple(x for x in work.facts if work.facts[x].place == place)
    if not first.is_empty():
        # Who skips does so whatever the sizes: with nothing to pass over it changes nothing.
        who = first.range().project_out(_SET, agents, first.range().dim(_SET) - agents)
        sizes = isl.dim_type.param
        domain = who.project_out(sizes, 0, who.dim(sizes))
        work.put(f"{name}_first", "skip", (), domain.coalesce(), place, everyone, 0, ())


def _same_agents(instances: isl.Set, missing: isl.Set, agents: int) -> isl.Map:
    pairs = isl.Map.from_domain_and_range(instances.reset_tuple_id(), missing)
    for n in range(agents):
        pairs = pairs.equate(_IN, n, _OUT, n)
    return pairs


def _after_own(own: isl.Set, missing: isl.Set, agents: int) -> isl.Map:
    """Missing (agent, cell) -> own iterations before it."""
    return _same_agents(own, missing, agents).intersect(_ordered(own, missing, agents)).reverse()


def _ordered(own: isl.Set, missing: isl.Set, agents: int) -> isl.Map:
    """Iterations whose outermost coordinate is smaller than the first version's."""
    pairs = isl.Map.from_domain_and_range(own.reset_tuple_id(), missing)
    less = isl.Constraint.inequality_alloc(isl.LocalSpace.from_space(pairs.get_space()))
    less = less.set_coefficient_val(_OUT, agents, isl.Val(1))
    less = less.set_coefficient_val(_IN, agents, isl.Val(-1)).set_constant_val(isl.Val(-1))
    return pairs.add_constraint(less)


def _before_first(own: isl.Set, missing: isl.Set, agents: int) -> isl.Map:
    """Missing pairs that no own iteration precedes, with themselves."""
    preceded = _after_own(own, missing, agents).domain()
    return missing.subtract(preceded).identity()


def _passed(
    work: Derivation, name: str, buffer: str, missing: isl.Set, agents: int
) -> list[tuple[str, str]]:
    """Which versions each skip passes over."""

    def named(pairs: isl.Map, leaf: str) -> str:
        cells = pairs.project_out(_OUT, 0, agents).set_tuple_name(_OUT, buffer)
        return text(cells.set_tuple_name(_IN, leaf))

    own = work.domain(name)
    found = [(name, named(_after_own(own, missing, agents).lexmax().reverse(), name))]
    first = _before_first(own, missing, agents)
    if not first.is_empty():
        size = first.dim(_IN)
        once = first.reset_tuple_id(_IN).project_out(_IN, agents, size - agents)
        found.append((f"{name}_first", named(once, f"{name}_first")))
    return found


def early(order: Order, sync: Sync) -> isl.Map:
    """Waits for a phase that may begin before the phase before it is complete."""
    steps = (1 - sync.phase) * sync.slots
    found: isl.Map | None = None
    waits = order.waits_for(sync).reverse()
    for signal, cells in sync.signals:
        arrives = order.model.map(cells).intersect_domain(order.times[signal].domain())
        later = remembered.composed(arrives, order.model.next(sync.buffers[0], steps))
        need = remembered.composed(later, waits)
        # An arrival is made when it has begun; bytes come later than who asks for them goes on.
        unit = order.leaves[signal].unit
        at_once = unit is None or unit.completion == "now"
        rest, _ = order.uncovered(signal, sync.wait, need, started=at_once)
        if found is None or found.is_empty():
            found = rest
    assert found is not None
    return found


def late(order: Order, sync: Sync) -> isl.Map:
    """Waits that may still be waiting when the phase after their own completes."""
    steps = (1 + sync.phase) * sync.slots
    found: isl.Map | None = None
    waits = order.waits_for(sync)
    for signal, cells in signals_of(sync):
        arrives = order.model.map(cells).intersect_domain(order.times[signal].domain())
        later = remembered.composed(waits, order.model.next(sync.buffers[0], steps))
        need = remembered.composed(later, arrives.reverse())
        if order.leaves[sync.wait].place == order.leaves[signal].place:
            need = remembered.without(need, order.before(sync.wait, signal))
        rest, _ = order.uncovered(sync.wait, signal, need, started=True)
        if found is None or found.is_empty():
            found = rest
    assert found is not None
    return found


def _turns(work: Derivation, syncs: Sequence[Sync]) -> None:
    """A token that the agents of a place pass round, one step of the outermost loop each.

    From the first of the waits to the last user of what any of them waits for.
    """
    syncs = sorted(syncs, key=lambda sync: work.position(sync.wait))
    first, last = syncs[0], syncs[-1]
    place = work.facts[first.wait].place
    (variable,) = (one.variable for one in work.loops(first.wait)[:1])
    agents = len(place.agents)
    own = work.domain(first.wait)
    own = own.project_out(_SET, agents + 1, own.dim(_SET) - agents - 1)
    users = [s for b in last.buffers for s in work.model.reads[b] if work.facts[s].place == place]
    enforces = tuple(
        f"{sync.wait} begins when the phase before its own is over, for its parity bit"
        for sync in syncs
    )
    _pass_round(work, place, (variable,), own, (first.wait, users[-1]), enforces)


def _asked(work: Derivation, first: str, last: str) -> None:
    """A token from one statement to another, in every iteration of the loops that they share."""
    place = work.facts[first].place
    around = [
        a.variable for a, b in zip(work.loops(first), work.loops(last), strict=False) if a == b
    ]
    loops, agents = tuple(around), len(place.agents)
    own = work.domain(first)
    own = own.project_out(_SET, agents + len(loops), own.dim(_SET) - agents - len(loops))
    enforces = (
        f"nothing: agents run from {first} to {last} one after another, to keep units busy",
    )
    # A fence stays with the products that it is for: the wait stands before it.
    fence = f"fence_{first}"
    before = fence if fence in work.leaves else first
    _pass_round(work, place, loops, own, (before, last), enforces)


def _pass_round(
    work: Derivation,
    place: Place,
    loops: tuple[str, ...],
    own: isl.Set,
    between: tuple[str, str],
    enforces: tuple[str, ...],
) -> None:
    """The wait for a token, and passing it on.

    Args:
        work: so far.
        place: whose agents take turns.
        loops: a turn is an iteration of these.
        own: the turns of each agent.
        between: the leaf before which it waits, and that behind which it passes the token on.
        enforces: what it is for.
    """
    name, wait, level = "turn", "wait_turn", len(loops)
    work.put(wait, "wait", loops, own, place, (between[0],), level, loops)
    work.put(
        "arrive_turn", "arrive", loops, own, place, (between[1],), level, loops, after=True,
        executes="one",
    )  # fmt: skip
    versions = (*loops, *place.agents[place.blocks :])
    owner = place.agents[: place.blocks]
    head = ",".join((*place.agents, *loops))
    cells = work.model.map(f"arrive_turn[{head}] -> {name}[{','.join((*versions, *owner))}]")
    cells = cells.intersect_domain(work.domain("arrive_turn"))
    work.model.add_token(name, cells.range(), len(versions))
    signals = (("arrive_turn", text(cells)),)
    waits_for = text(cells.set_tuple_name(_IN, wait))
    work.add(Sync("turn", name, wait, signals, waits_for, (name,), 1, -1, 1, enforces=enforces))
