"""What has to be complete when a version is released: one wait for all releases, or two.

A wait for groups leaves as many in flight as it may before every release. Where a product is
carried from one tile of rows to the next, fewer groups were issued before a kernel's first release
than before all others; then that one has a wait of its own.
"""

from __future__ import annotations

import functools

from polygen import isl
from polygen.errors import IllegalSchedule
from polygen.poly.derivation import Derivation
from polygen.poly.happens_before import Order
from polygen.poly.tile_program import Sync
from polygen.poly.versions import same_agent

_SET, _OUT = isl.dim_type.set, isl.dim_type.out


def retire_before(
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
    waits = {s: pairs.set_tuple_name(_OUT, name) for s, pairs in needs.items()}
    pending = -1
    while all(
        pairs.is_subset(order.complete_at(s, name, pending + 1)) for s, pairs in waits.items()
    ):
        pending += 1
    if pending < 0:
        statement = next(iter(needs))
        raise IllegalSchedule(
            f"{arrive} releases what {statement} has yet to use",
            where=leaf.place.name,
            nearest="Reduce pipeline.in_flight",
        )
    first = _first_alone(work, name, order, waits, pending + 1)
    if first is None:
        work.add(Sync("retire", name, name, unit=unit_name, pending=pending))
        return
    # Before the first release fewer groups were issued than before all others: it has its own wait.
    others = work.domain(name).subtract(first)
    work.take_out(name)
    for one, domain, left in ((f"{name}_first", first, pending), (name, others, pending + 1)):
        when = work.times_like(arrive, level)
        work.put(one, "retire", leaf.loops, domain, place, (arrive,), level, when)
        work.add(Sync("retire", one, one, unit=unit_name, pending=left))


def _first_alone(
    work: Derivation, name: str, order: Order, waits: dict[str, isl.Map], pending: int
) -> isl.Set | None:
    """The first instance of a wait, if all others may leave so many groups and this one not."""
    if not work.program.first_waits:
        return None
    open_parts = (pairs.subtract(order.complete_at(s, name, pending)) for s, pairs in waits.items())
    rest = functools.reduce(isl.Set.union, (part.range() for part in open_parts))
    agents = len(work.facts[name].place.agents)
    zero = isl.Set.universe(rest.get_space())
    for n in range(agents, zero.dim(_SET)):
        zero = zero.fix_val(_SET, n, isl.Val(0))
    return rest.coalesce() if not rest.is_empty() and rest.is_subset(zero) else None
