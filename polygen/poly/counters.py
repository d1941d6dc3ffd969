"""Which slot of a buffer a leaf works on: counters that follow the versions.

A counter belongs to one place and one buffer (or several that are handed over together). It goes up
where the place is done with a version, and by more where it passes over versions of others. Its
value at a leaf is the rank of the leaf's version among all versions, so that slot = rank mod slots
and parity = rank / slots mod 2. No formula for the rank is needed, and with symbolic trip counts
none is affine. Where a slot is a function of the loops, the buffer says so instead (`Buffer.slot`).

What is proved: the leaf at which a counter goes up meets every version once, in their order, with
the skips, which pass over as many versions as the code says; and every leaf that uses it runs after
it went up for the version before its own, and not after it went up for its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.poly.before import by_agent
from polygen.poly.happens_before import Order
from polygen.poly.phases import met, tagged
from polygen.poly.tile_program import K_TILES, Buffer, Place, Sync, TileProgram
from polygen.poly.versions import of_each_agent, same_agent, union_of_maps

_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out
_WHERE = "counters"


@dataclass(frozen=True, slots=True)
class Counter:
    """A slot that a place keeps.

    Attributes:
        name: of the variable.
        place: whose.
        buffers: whose slots it names.
        uses: leaves that read it, each with its cells as isl text.
        advances: leaves after which it goes up by one, each with its version.
        skips: leaves at which it goes up by the versions they pass over.
    """

    name: str
    place: str
    buffers: tuple[str, ...]
    uses: tuple[tuple[str, str], ...]
    advances: tuple[tuple[str, str], ...]
    skips: tuple[tuple[str, str], ...] = ()


def check_counters(order: Order, program: TileProgram, counters: Iterable[Counter]) -> None:
    """Prove that every counter is the rank of its leaves' versions.

    Raises:
        VerifyError: with a pair of instances.
    """
    known = tuple(counters)
    used = {(name, b) for c in known for name, _ in c.uses for b in c.buffers}
    for buffer in program.buffers:
        if buffer.slot is not None:
            _check_formula(order, buffer)
        elif buffer.space == "shared" and buffer.versions:
            _check_used(order, buffer, used)
    for sync in order.syncs:
        if sync.kind == "mbarrier":
            for name in (sync.wait, *dict(sync.signals)):
                if (name, sync.buffers[0]) not in used:
                    raise VerifyError(
                        f"counters: nothing says which barrier of {sync.name} {name} is about",
                        where=_WHERE,
                    )
    for counter in known:
        lead = counter.buffers[0]
        up = {name: _cells(order, name, text) for name, text in counter.advances}
        skips = {name: _cells(order, name, text) for name, text in counter.skips}
        _check_passing(order, lead, up, skips, counter.name)
        for name, passed in skips.items():
            _check_skip(order, name, program.buffer(lead), passed, up)
        for name, text in counter.uses:
            _check_use(order, lead, name, _cells(order, name, text), up | skips, up)


def passed_over(place: Place, buffer: Buffer, *, looped: bool) -> tuple[str, str]:
    """What a skip passes over: output tiles, and versions of a buffer in each of them, as text.

    Args:
        place: whose agents take turns at tiles, agent 0 at the first one.
        buffer: whose versions are passed.
        looped: whether the skip is behind each tile of its agent, before the tiles of all others;
            else it is before the first one, behind the tiles of the agents before it.

    Raises:
        VerifyError: a tile has versions of more loops than over its k tiles.
    """
    if buffer.versions not in (1, 2):
        raise VerifyError(f"{buffer.name} has versions of {buffer.versions} loops", where="skip")
    tiles = str(place.counts[-1] - 1) if looped else place.agents[-1]
    return tiles, K_TILES if buffer.versions > 1 else "1"


def _check_skip(
    order: Order, leaf: str, buffer: Buffer, passed: isl.Map, up: dict[str, isl.Map]
) -> None:
    """A skip passes over what `passed_over` says; it need not where no tile of its own follows."""
    place = order.leaves[leaf].place
    who, agents = ",".join(place.agents), len(place.agents)
    own = order.times[leaf].domain()
    looped = own.dim(_SET) > agents
    tiles, each = passed_over(place, buffer, looped=looped)
    instance, last = (f"{who},i", "i") if looped else (who, "-1")
    version, inside = ("t,k", f" and 0 <= k < {each}") if buffer.versions > 1 else ("t", "")
    said = order.model.read(
        f"{leaf}[{instance}] -> [{who},{version}] : {last} < t <= {last} + {tiles}{inside}"
    ).intersect_domain(own)
    before = isl.Map(f"{{ [{who},own] -> [{who},{version}] : t < own }}")
    found = _of_agents(passed, agents, buffer.versions)
    wanted = [
        said.intersect_range(_of_agents(c, agents, 1).range().apply(before)) for c in up.values()
    ]
    for one, other in ((found, said), *((each, found) for each in wanted)):
        wrong = one.subtract(other)
        if not wrong.is_empty():
            raise VerifyError(
                f"counters: {leaf} passes over {tiles} tile(s) of {each} version(s), and not "
                f"{isl.sample_pair(wrong)}",
                where=_WHERE,
            )


def _of_agents(cells: isl.Map, agents: int, loops: int) -> isl.Map:
    """Instance -> its agent, and of its cell the first coordinates."""
    return by_agent(cells.project_out(_OUT, loops, cells.dim(_OUT) - loops), agents)


def _check_used(order: Order, buffer: Buffer, used: set[tuple[str, str]]) -> None:
    """Everything that touches a buffer has a counter for it."""
    for table in (order.model.reads, order.model.writes):
        for name in table[buffer.name]:
            if (name, buffer.name) not in used:
                raise VerifyError(
                    f"counters: nothing says which slot of {buffer.name} {name} works on",
                    where=_WHERE,
                )


def _check_formula(order: Order, buffer: Buffer) -> None:
    """A slot that the loops say is one of the buffer's; that of a counter, where there is one.

    A counter gives versions that live at once different slots, and a round later the same.
    """
    slot = order.model.slot(buffer)
    there = slot.intersect_domain(order.model.cells[buffer.name]).range()
    wrong = there.subtract(isl.Set(f"{{ [s] : 0 <= s < {buffer.slots} }}"))
    if not wrong.is_empty():
        raise VerifyError(
            f"counters: {buffer.name} has {buffer.slots} slot(s), {buffer.slot} names "
            f"{isl.sample_point(wrong)}",
            where=_WHERE,
        )
    counted = any(buffer.name in s.buffers for s in order.syncs if s.kind == "mbarrier")
    for distance in range(1, buffer.slots + 1) if counted else ():
        later = order.model.next(buffer.name, distance)
        same = later.intersect(slot.apply_range(slot.reverse()))
        unlike = later.subtract(same) if distance == buffer.slots else same
        if not unlike.is_empty():
            raise VerifyError(
                f"counters: slot {buffer.slot} of {buffer.name}: {isl.sample_pair(unlike)}, "
                f"{distance} version(s) apart of {buffer.slots} slot(s)",
                where=_WHERE,
            )


def _cells(order: Order, leaf: str, text: str) -> isl.Map:
    if leaf not in order.times:
        raise VerifyError(f"counters: {leaf} is in no tree", where=_WHERE)
    return order.model.map(text).intersect_domain(order.times[leaf].domain())


def _check_use(
    order: Order,
    buffer: str,
    leaf: str,
    own: isl.Map,
    passing: dict[str, isl.Map],
    up: dict[str, isl.Map],
) -> None:
    """After the counter went up for the version before, and not after it went up for its own."""
    agents = len(order.leaves[leaf].place.agents)
    step, mine = of_each_agent(order.model.next(buffer), agents), by_agent(own, agents)
    for name, cells in passing.items():
        later = remembered.composed(by_agent(cells, agents), step)
        earlier = remembered.composed(later, mine.reverse())
        wrong = isl.beyond(earlier, order.before(name, leaf))
        if wrong is not None:
            raise VerifyError(
                f"counters: {leaf} runs before its counter is there: {isl.sample_pair(wrong)}",
                where=_WHERE,
            )
    for name, cells in up.items():
        if name == leaf:
            continue
        same = remembered.composed(mine, by_agent(cells, agents).reverse())
        wrong = isl.beyond(same, order.before(leaf, name))
        if wrong is not None:
            raise VerifyError(
                f"counters: {leaf} runs when its counter has gone on: {isl.sample_pair(wrong)}",
                where=_WHERE,
            )


def _check_passing(
    order: Order,
    buffer: str,
    up: dict[str, isl.Map],
    skips: dict[str, isl.Map],
    name: str,
) -> None:
    """Every version once, in their order."""
    first = next(iter(up))
    agents = len(order.leaves[first].place.agents)
    cells = union_of_maps(c.set_tuple_name(_IN, first) for c in up.values())
    both, wanted = met(order.model, buffer, cells, agents)
    for skipped in skips.values():
        both = both.union(tagged(skipped, agents))
    missing = wanted.subtract(both)
    if not missing.is_empty():
        raise VerifyError(
            f"counters: {name} passes over a version: {isl.sample_point(missing)}", where=_WHERE
        )
    for leaf, own in up.items():
        if not tagged_once(own, agents):
            raise VerifyError(f"counters: {leaf} meets a version twice", where=_WHERE)
    step = of_each_agent(order.model.next(buffer), agents)
    passing = {leaf: by_agent(own, agents) for leaf, own in (up | skips).items()}
    for x, one in passing.items():
        for y, other in passing.items():
            pairs = remembered.composed(remembered.composed(one, step), other.reverse())
            if x == y and x in skips:
                pairs = pairs.subtract(pairs.domain().identity())
            wrong = isl.beyond(pairs, order.before(x, y))
            if wrong is not None:
                raise VerifyError(
                    f"counters: {x} leaves the order of versions: {isl.sample_pair(wrong)}",
                    where=_WHERE,
                )


def tagged_once(cells: isl.Map, agents: int) -> bool:
    """Whether no agent meets a cell at two instances."""
    who = cells.domain().identity()
    who = who.project_out(_OUT, agents, cells.dim(_IN) - agents).reset_tuple_id(_OUT)
    return bool(who.flat_range_product(cells.reset_tuple_id(_OUT)).is_injective())


def check_sides(order: Order, sync: Sync) -> None:
    """Either side of an mbarrier meets every version of the buffers it handles.

    Raises:
        VerifyError: with an agent and a cell.
    """
    for side in (sync.signals, ((sync.wait, sync.waits_for),)):
        leaf = side[0][0]
        place = order.leaves[leaf].place
        cells = {name: _cells(order, name, text) for name, text in side}
        if order.leaves[leaf].unit is not None:
            continue  # a Move signals by itself: its instances are the program's
        versions = order.model.versions[sync.buffers[0]]
        for name, own in cells.items():
            short = own.project_out(_OUT, versions, own.dim(_OUT) - versions)
            if not short.is_single_valued():
                raise VerifyError(f"counters: {name} meets several versions", where=_WHERE)
        mine = {
            name: _cells(order, name, text)
            for name, text in sync.skips
            if order.leaves[name].place == place
        }
        local = {n: _once_each(c, place.blocks, versions) for n, c in cells.items()}
        _check_passing(order, sync.buffers[0], local, mine, sync.name)


def _once_each(cells: isl.Map, blocks: int, versions: int) -> isl.Map:
    """Of the barriers of several blocks, the one of the own block: the others are met at once."""
    for n in range(blocks):
        cells = cells.equate(_IN, n, _OUT, versions + n)
    return cells


def check_turns(order: Order, sync: Sync) -> None:
    """A token goes round: agent after agent, the first one to agent 0, once for every wait.

    Every agent waits at a barrier of its own, so its parity changes with each of its waits. The
    first wait of all has nobody before it; the emitter lets agent 0 pass once.

    Raises:
        VerifyError: with a pair of turns.
    """
    if (sync.slots, sync.phase) != (1, -1):
        raise VerifyError(
            f"counters: {sync.name} is not from one turn to the next: {sync.slots} slot(s), phase "
            f"{sync.phase}",
            where=_WHERE,
        )
    ((signal, arrives),) = sync.signals
    gives, takes = _cells(order, signal, arrives), _cells(order, sync.wait, sync.waits_for)
    place = order.leaves[sync.wait].place
    agents = len(place.agents)
    if not gives.range().is_equal(takes.range()) or not takes.is_injective():
        raise VerifyError(f"counters: {sync.name} is not passed on once a wait", where=_WHERE)
    if not gives.is_injective() or not (gives.is_single_valued() and takes.is_single_valued()):
        raise VerifyError(f"counters: {sync.name} is not passed on once a wait", where=_WHERE)
    # Passed on before it is taken, it arrives twice where a neighbour waits once.
    held = takes.apply_range(gives.reverse())
    passed = isl.beyond(held, order.before(sync.wait, signal))
    if passed is not None:
        raise VerifyError(
            f"counters: {sync.name} is passed on before it is taken: {isl.sample_pair(passed)}",
            where=_WHERE,
        )
    step = order.model.next(sync.buffers[0])
    own = takes.apply_range(step).apply_range(takes.reverse())
    last, count = agents - 1, place.counts[-1]
    following = isl.Map(f"{{ [a] -> [b] : b = (a + 1) mod {count} and 0 <= a < {count} }}")
    whose = takes.domain().identity()
    rest = takes.dim(_IN) - agents
    whose = whose.project_out(_OUT, agents, rest).project_out(_OUT, 0, last).reset_tuple_id(_OUT)
    wrong = own.subtract(whose.apply_range(following).apply_range(whose.reverse()))
    if not wrong.is_empty():
        raise VerifyError(
            f"counters: {sync.name} goes to the wrong agent: {isl.sample_pair(wrong)}", where=_WHERE
        )
    beginnings = takes.range().subtract(step.range())
    first = takes.intersect_range(beginnings).domain().apply(whose)
    if not first.is_subset(isl.Set("{ [0] }")):
        raise VerifyError(f"counters: {sync.name} does not begin with agent 0", where=_WHERE)
    mine = takes.apply_range(order.model.next(sync.buffers[0], count)).apply_range(takes.reverse())
    mine = same_agent(mine, agents)
    skewed = isl.beyond(mine, order.before(sync.wait, sync.wait))
    if skewed is not None:
        raise VerifyError(
            f"counters: turns are taken out of order: {isl.sample_pair(skewed)}", where=_WHERE
        )
