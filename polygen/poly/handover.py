"""Between places or blocks, through shared memory: mbarriers, from the dependences.

1. Dependences of one pair of places, or of a place on itself from block to block, through one
   buffer become one mbarrier: *full* for the values that flow, *empty* for the slots that are
   written again. Buffers that the same statements fill, in the same versions and slots, share it.
2. It lives in the block that waits. The wait stands under as many loops as determine the version,
   before the first statement there that needs it.
3. Statements that complete by bytes signal themselves. Else threads arrive after their last access;
   what completes by groups is waited for before. A release may lag: the last ones, whose time lies
   beyond the loop, are made up for in a loop of their own.
4. Arrivals are counted on the relation from signals to barriers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from polygen import isl
from polygen.errors import IllegalSchedule
from polygen.hardware.device import common_facts
from polygen.poly.agent_order import LeafFacts
from polygen.poly.derivation import Derivation
from polygen.poly.tile_program import Place, Sync
from polygen.poly.tile_tree import loop
from polygen.poly.versions import Dependence, same_agent

_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out


@dataclass(slots=True)
class _Handover:
    """Dependences that one mbarrier enforces."""

    kind: str  # "full" or "empty"
    buffers: tuple[str, ...]
    source: Place
    target: Place
    needs: list[Dependence]

    @property
    def name(self) -> str:
        """``full_ring``, ``empty_r``."""
        return f"{self.kind}_{shared_name(self.buffers)}"


def shared_name(buffers: tuple[str, ...]) -> str:
    """What buffers that are handed over together are called: ``ring``, or ``r`` for ``panel_r``."""
    first, last = buffers[0], buffers[-1]
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    common = "".join(letter for letter, _ in shared)
    return common.removeprefix("panel_").strip("_")


def hand_over(work: Derivation) -> None:
    """Derive the mbarriers between places."""
    for one in _handovers(work):
        _place(work, one)


def _handovers(work: Derivation) -> list[_Handover]:
    found: list[_Handover] = []
    crossing = [d for d in work.dependences if _crosses(d)]
    for need in sorted(crossing, key=lambda d: d.kind != "flow"):
        if need.buffer.space != "shared":
            raise IllegalSchedule(
                f"registers of one agent are read by another: {isl.sample_pair(need.relation)}",
                where=need.buffer.name,
            )
        kind = "full" if need.kind == "flow" else "empty"
        for one in found:
            same = (one.kind, one.source, one.target) == (
                kind,
                need.source.place,
                need.target.place,
            )
            if same and _shared(work, one.buffers[0], need.buffer.name):
                one.needs.append(need)
                one.buffers = tuple(dict.fromkeys((*one.buffers, need.buffer.name)))
                break
        else:
            buffers = (need.buffer.name,)
            found.append(_Handover(kind, buffers, need.source.place, need.target.place, [need]))
    names = [b.name for b in work.program.buffers]
    return sorted(found, key=lambda one: (names.index(one.buffers[0]), one.kind != "full"))


def _crosses(need: Dependence) -> bool:
    """Whether a dependence leads to another place or block, or to who reads a Move's bytes."""
    if need.source.place != need.target.place:
        return True
    if need.buffer.space != "shared":
        return False
    if need.source.unit.completion == "bytes" and need.kind == "flow":
        return True
    blocks = need.source.place.blocks
    return not need.relation.is_subset(same_agent(need.relation, blocks))


def _shared(work: Derivation, first: str, second: str) -> bool:
    """Whether two buffers are handed over together: one Move fills both, in the same slots."""
    if first == second:
        return True
    a, b, model = work.program.buffer(first), work.program.buffer(second), work.model
    return (
        (a.space, a.versions, a.owner, a.slots) == (b.space, b.versions, b.owner, b.slots)
        and set(model.writes[first]) == set(model.writes[second])
        and model.cells[first].is_equal(model.cells[second].set_tuple_name(first))
    )


def _place(work: Derivation, one: _Handover) -> None:
    lead, name = one.buffers[0], one.name
    sources = work.accesses(one.buffers, one.source, {d.source.name for d in one.needs})
    targets = work.accesses(one.buffers, one.target, {d.target.name for d in one.needs})
    wait = f"wait_{name}"
    loops, cells = work.leveled(wait, lead, targets, sources[0][0])
    cells = _own(cells, one.target, work.program.buffer(lead).versions)
    near = tuple(dict.fromkeys(statement for statement, _ in targets))
    work.put(
        wait,
        "wait",
        loops,
        cells.domain(),
        one.target,
        near,
        len(loops),
        work.times_like(near[0], len(loops)),
    )
    by_bytes = all(work.program.statement(s).unit.completion == "bytes" for s, _ in sources)
    signals = _union(sources) if by_bytes else _arrivals(work, one, sources)
    buffer = work.program.buffer(lead)
    work.add(
        Sync(
            "mbarrier",
            name,
            wait,
            tuple((leaf, text(relation)) for leaf, relation in signals),
            text(cells),
            one.buffers,
            buffer.slots,
            0 if one.kind == "full" else -1,
            1 if by_bytes else arrivals([(work.facts[leaf], r) for leaf, r in signals]),
        )
    )


def text(relation: isl.Map) -> str:
    """A relation as the records keep it: without its parameters."""
    return str(relation.coalesce()).partition("{")[2].rpartition("}")[0].strip()


def _own(cells: isl.Map, place: Place, versions: int) -> isl.Map:
    """The barrier in the block that waits, of those that an access reaches."""
    if cells.is_single_valued():
        return cells
    for n in range(place.blocks):
        cells = cells.equate(_IN, n, _OUT, versions + n)
    return cells


def _union(accesses: list[tuple[str, isl.Map]]) -> list[tuple[str, isl.Map]]:
    found: dict[str, isl.Map] = {}
    for statement, cells in accesses:
        known = found.get(statement)
        found[statement] = cells if known is None else known.union(cells).coalesce()
    return list(found.items())


def _arrivals(
    work: Derivation, one: _Handover, sources: list[tuple[str, isl.Map]]
) -> list[tuple[str, isl.Map]]:
    """Leaves that arrive after the last access to a version."""
    lead, place = one.buffers[0], one.source
    name = f"arrive_{one.name}"
    partner = one.needs[0].target.name
    loops, cells = work.leveled(name, lead, sources, partner)
    users = tuple(dict.fromkeys(statement for statement, _ in sources))
    groups = (work.program.statement(s).group for s in users)
    near = tuple(dict.fromkeys((*users, *(group for group in groups if group))))
    level, last = len(loops), users[-1]
    targets = _to_waiting_blocks(work, one, cells)
    when = work.times_like(last, level)
    lag = dict(work.program.lags).get(lead, 0) if one.kind == "empty" else 0
    threads = _arriving(work, users, place)
    slots = work.program.buffer(lead).slots
    if lag >= slots:
        raise IllegalSchedule(
            f"pipeline.in_flight = {lag} with a ring of {slots}: a slot is released only after "
            "products that wait for its next contents",
            where="main loop",
            nearest=f"pipeline.in_flight = {slots - 1}",
        )
    if not lag:
        domain = cells.domain()
        front = dict(work.program.releases).get(lead, "") if one.kind == "empty" else ""
        at, behind = ((front,), False) if front else (near, True)
        work.put(
            name, "arrive", loops, domain, place, at, level, when, after=behind, executes=threads
        )
        _retire_before(work, name, sources, cells)
        return [(name, targets.intersect_domain(domain))]
    early, late = _late_split(cells.domain(), lag)
    delayed = (*when[:-1], f"{when[-1]} + {lag}")
    work.put(
        name, "arrive", loops, early, place, near, level, delayed, after=True, executes=threads
    )
    _retire_before(work, name, sources, cells)
    rest = f"{name}_rest"
    outer = when[:-1]
    # After the innermost loop, in a loop of its own.
    work.put(
        rest, "arrive", loops, late, place, near, level - 1, outer, after=True, executes=threads
    )
    work.wrap(rest, loop(loops[-1], rest))
    drain = f"retire_{one.name}_rest"
    units = [work.program.statement(s).unit for s in users]
    unit = next((u.name for u in reversed(units) if u.completion == "groups"), units[-1].name)
    before = late.project_out(_SET, late.dim(_SET) - 1, 1)
    work.put(drain, "retire", loops[:-1], before, place, (rest,), level - 1, outer, executes="all")
    work.add(Sync("retire", drain, drain, unit=unit, pending=0))
    return [
        (name, targets.intersect_domain(early.set_tuple_name(name))),
        (rest, targets.set_tuple_name(_IN, rest).intersect_domain(late.set_tuple_name(rest))),
    ]


def _arriving(work: Derivation, statements: tuple[str, ...], place: Place) -> str:
    """Which threads arrive: one that speaks for all, one of each warp, or all."""
    if place.threads == 1:
        return "all"
    units = [work.program.statement(s).unit for s in statements]
    if all(u.collective for u in units):
        return "one"
    return "warps" if place.threads > common_facts()["warp_size"] else "all"


def _late_split(domain: isl.Set, lag: int) -> tuple[isl.Set, isl.Set]:
    """Instances that still have one `lag` iterations later in the innermost loop, and the rest."""
    last = domain.dim(_SET) - 1
    moved = domain.get_space().map_from_set()
    shift = isl.Map.universe(moved)
    for n in range(last):
        shift = shift.equate(_IN, n, _OUT, n)
    difference = isl.Constraint.equality_alloc(isl.LocalSpace.from_space(shift.get_space()))
    difference = difference.set_coefficient_val(_OUT, last, isl.Val(1))
    difference = difference.set_coefficient_val(_IN, last, isl.Val(-1))
    shift = shift.add_constraint(difference.set_constant_val(isl.Val(-lag)))
    early = domain.intersect(domain.apply(shift.reverse())).coalesce()
    return early, domain.subtract(early).coalesce()


def _to_waiting_blocks(work: Derivation, one: _Handover, cells: isl.Map) -> isl.Map:
    """From an arrival to the barriers of all blocks that wait for it."""
    place = one.source
    if not place.blocks:
        return cells
    versions = work.program.buffer(one.buffers[0]).versions
    meets: isl.Map | None = None
    for need in one.needs:
        own, other = need.relation.dim(_IN), need.relation.dim(_OUT)
        blocks = need.relation.reset_tuple_id(_IN).reset_tuple_id(_OUT)
        blocks = blocks.project_out(_IN, place.blocks, own - place.blocks)
        blocks = blocks.project_out(_OUT, place.blocks, other - place.blocks)
        meets = blocks if meets is None else meets.union(blocks)
    assert meets is not None
    pairs = bounded(meets)
    name, rest = one.buffers[0], cells.dim(_OUT) - versions - place.blocks
    v = [f"v{i}" for i in range(versions)]
    o = [f"o{i}" for i in range(rest)]
    steps = "; ".join(
        f"{name}[{','.join([*v, str(a), *o])}] -> {name}[{','.join([*v, str(b), *o])}]"
        for a, b in pairs
    )
    spread = isl.UnionMap(f"{{ {steps} }}")
    return isl.Map.from_union_map(isl.UnionMap.from_map(cells).apply_range(spread)).coalesce()


def bounded(blocks: isl.Map) -> list[tuple[int, ...]]:
    """The pairs of blocks that meet, whatever the parameters."""
    bare = blocks.project_out(isl.dim_type.param, 0, blocks.dim(isl.dim_type.param))
    return isl.points(bare)


def _retire_before(
    work: Derivation, arrive: str, sources: list[tuple[str, isl.Map]], cells: isl.Map
) -> None:
    """What has to be complete when a version is released is waited for, with as much in flight as
    may be.
    """
    place = work.facts[arrive].place
    needs: dict[str, isl.Map] = {}
    for statement, own in sources:
        unit = work.program.statement(statement).unit
        if unit.completion != "groups":
            continue
        pairs = same_agent(own.apply_range(cells.reverse()), len(place.agents))
        pairs = pairs.set_tuple_name(_OUT, arrive).intersect_range(work.domain(arrive))
        needs[statement] = pairs if statement not in needs else needs[statement].union(pairs)
    if not needs:
        return
    leaf = work.leaves[arrive]
    name = f"retire_{arrive.removeprefix('arrive_')}"
    level = len(leaf.loops)
    work.put(
        name,
        "retire",
        leaf.loops,
        work.domain(arrive),
        place,
        (arrive,),
        level,
        work.times_like(arrive, level),
    )
    order = work.order()
    (unit_name,) = {work.program.statement(s).unit.name for s in needs}
    pending = -1
    while all(
        pairs.set_tuple_name(_OUT, name).is_subset(order.complete_at(s, name, pending + 1))
        for s, pairs in needs.items()
    ):
        pending += 1
    if pending < 0:
        statement = next(iter(needs))
        raise IllegalSchedule(
            f"{arrive} releases what {statement} has yet to use",
            where=leaf.place.name,
            nearest="Reduce pipeline.in_flight",
        )
    work.add(Sync("retire", name, name, unit=unit_name, pending=pending))


def arrivals(signals: list[tuple[LeafFacts, isl.Map]]) -> int:
    """Arrivals that complete a phase: the same for every barrier and version.

    Raises:
        IllegalSchedule: they differ; with two cells.
    """
    parts: dict[int, isl.Set] = {}  # arrivals so far -> the cells that have as many
    warp = common_facts()["warp_size"]
    for facts, relation in signals:
        each = {"all": facts.place.threads, "warps": facts.place.threads // warp, "one": 1}
        if facts.unit is not None:
            each = dict.fromkeys(each, 1)  # a Move is announced once, by one thread
        for agent in _agents(facts.place):
            mine = relation
            for n, value in enumerate(agent):
                mine = mine.fix_val(_IN, n, isl.Val(value))
            cells = mine.range()
            if not cells.is_empty():
                parts = _with_arrivals(parts, cells.coalesce(), each[facts.executes])
    least, most = min(parts), max(parts)
    if least != most:
        raise IllegalSchedule(
            f"barriers are met by different numbers of arrivals: {least} to {most}",
            where=signals[0][0].name,
        )
    return least


def _with_arrivals(parts: dict[int, isl.Set], cells: isl.Set, weight: int) -> dict[int, isl.Set]:
    """Cells by their arrivals when some of them have had more."""
    found: dict[int, isl.Set] = {}
    for count, have in parts.items():
        hit = have.intersect(cells)
        if hit.is_empty():
            split = [(count, have)]
        else:
            split = [(count, have.subtract(cells)), (count + weight, hit)]
            cells = cells.subtract(have)
        for total, part in split:
            if not part.is_empty():
                found[total] = (part.union(found[total]) if total in found else part).coalesce()
    if not cells.is_empty():
        found[weight] = (cells.union(found[weight]) if weight in found else cells).coalesce()
    return found


def _agents(place: Place) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for count in place.counts:
        found = [(*agent, value) for agent in found for value in range(count)]
    return found
