"""Barriers between roles, from dependences: what each guarantees, and that all together suffice.

1. A dependence whose ends are different threads of control, or whose source is asynchronous, needs
   something to order it. Dependences of one pair of statements through one ring, at one distance in
   steps, become one mbarrier: with the ring's slots, the phase that its wait is for, and as many
   arrivals as source instances meet one target. Threads of one warpgroup that hand panels to the
   copy engine get a barrier of their group.
2. A barrier record is read back as what the *hardware* then guarantees: a relation from instances
   that have completed to instances that start. A count too small guarantees nothing, one too large
   never completes, another ring depth or phase relates other steps.
3. Proved for every number of steps: all dependences lie in (thread order, barrier, thread order)
   chains; without any one barrier some do not; every wait is for something earlier in the
   sequential order, so that nothing waits in a circle; no wait is overtaken by a phase, nor begins
   before the phase before its own is over, so that one parity bit tells phases apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from polygen import isl
from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.legality import Proof
from polygen.poly.role_barriers import (
    GroupBarrier,
    Mbarrier,
    Sync,
    Turn,
    condition,
    count_arrivals,
    distance_of,
    guaranteed,
    is_local,
    is_private,
    needed_orders,
    ordered,
    pairs,
    places_of,
    reach_of,
    signals_of,
    starts,
)
from polygen.poly.roles import PREFIX, RoleProgram


@lru_cache(maxsize=64)
def derive(program: RoleProgram, in_flight: int = 0) -> tuple[tuple[Sync, ...], tuple[Proof, ...]]:
    """Place the barriers of a role program.

    Args:
        program: who does what to which ring.
        in_flight: products that may still run when the next ones are issued.

    Raises:
        IllegalSchedule: no barriers can order the dependences; with one unordered pair.
    """
    found: list[Sync] = []
    for memory, slots in program.memories:
        for source, target, relation in pairs(needed_orders(program, memory)):
            first, second = program.statement(source), program.statement(target)
            if source == target:
                continue
            if first.role == second.role:
                group = GroupBarrier("staged", "finish", "store", max(0, slots - 2))
                if group not in found:
                    found.append(group)
                continue
            distance = distance_of(relation)
            if distance % slots:
                raise IllegalSchedule(
                    f"a dependence is not a whole round of the ring apart: "
                    f"{isl.sample_pair(relation)}",
                    where=memory,
                    nearest="Change pipeline.stages",
                )
            kind = "full" if first.engine == "copy" else "empty"
            delay = in_flight if first.engine == "product" else 0
            places = places_of(relation)
            made = Mbarrier(
                f"{kind}_{memory.removeprefix('panel_')}",
                memory,
                source,
                target,
                slots,
                -distance // slots,
                1 if first.engine == "copy" else count_arrivals(places),
                lag=delay,
                pending=delay,
                remote=not is_local(places),
                per_group=is_private(program, places),
            )
            found.append(made)
    if _early(program, tuple(found)) is not None:
        found += [Turn("turn", s.name) for s in program.statements if not s.serial]
    syncs = tuple(found)
    if any(isinstance(s, Mbarrier) and s.lag >= s.slots for s in syncs):
        slots = min(n for _, n in program.memories)
        raise IllegalSchedule(
            f"pipeline.in_flight = {in_flight} with a ring of {slots}",
            where=program.name,
            why="a slot would be released only after products that wait for its next contents",
            nearest=f"pipeline.in_flight = {slots - 1}",
        )
    missing = _missing(program, syncs)
    if missing is not None:
        raise IllegalSchedule(
            f"no barrier can order a dependence between roles: {isl.sample_pair(missing)}",
            where=program.name,
            why="a panel is written while the copy engine may still read the one in its place",
            nearest="Raise epilogue.slots to 2 or more",
        )
    for sync in found:  # what other barriers and the order of one thread imply anyway
        rest = tuple(s for s in syncs if s is not sync)
        if _missing(program, rest) is None and _early(program, rest) is None:
            syncs = rest
    proofs = verify(program, syncs)
    return tuple(replace(s, dependences=_enforced(program, syncs, s)) for s in syncs), proofs


def verify(program: RoleProgram, syncs: tuple[Sync, ...]) -> tuple[Proof, ...]:
    """Prove a set of barriers sufficient, necessary, live and told apart by parity.

    Raises:
        VerifyError: with a witness.
    """
    for sync in syncs:
        _check_arrivals(program, sync)
    _check_live(program, syncs)
    missing = _missing(program, syncs)
    if missing is not None:
        raise VerifyError(
            f"a dependence between roles is not ordered by any barrier: {isl.sample_pair(missing)}",
            where=program.name,
        )
    for sync in syncs:
        rest = tuple(s for s in syncs if s is not sync)
        if _missing(program, rest) is None and _early(program, rest) is None:
            raise VerifyError(f"{sync.name} enforces no dependence", where=program.name)
    _check_phases(program, syncs)
    early = _early(program, syncs)
    if early is not None:
        raise VerifyError(
            "a wait may begin before the phase before its own has completed, and would take the "
            f"parity of the one before that for its own: {isl.sample_pair(early)}",
            where=program.name,
        )
    count = f"{program.name}, {len(syncs)} barrier(s)"
    return (
        Proof("the barriers order every dependence between roles", count),
        Proof("no barrier can be dropped", count),
        Proof("every wait is for something earlier, so no role waits for ever", count),
        Proof("no wait is more than one phase early or late, so parities tell phases apart", count),
    )


def _check_arrivals(program: RoleProgram, sync: Sync) -> None:
    if not isinstance(sync, Mbarrier):
        return
    signals = signals_of(program, sync)
    if sync.arrivals > signals:
        raise VerifyError(
            f"{sync.name} never completes a phase: it expects {sync.arrivals} arrivals "
            f"and {sync.signal} makes {signals}",
            where=program.name,
        )


def _early(program: RoleProgram, syncs: tuple[Sync, ...]) -> isl.UnionMap | None:
    """Waits that may begin before the phase before their own has completed; None if there are none.

    Pairs (signal of the phase before, wait). The thread must have learnt of that phase from an
    earlier wait of its own, or of a thread that started before it: its own wait proves nothing.
    """
    started = starts(program, syncs)
    for sync in syncs:
        if not isinstance(sync, Mbarrier):
            continue
        step = f"g = h + {(sync.phase - 1) * sync.slots}"
        where = condition(reach_of(program, sync))
        text = f"{sync.signal}[c,w,v,g] -> {sync.wait}[d,x,y,h] : {step} and {where}"
        needed = isl.UnionMap(PREFIX + "{ " + text + " }").intersect_domain(program.domain)
        known = guaranteed(program, sync).apply_range(started)
        later = isl.UnionMap(
            f"{PREFIX}{{ {sync.signal}[c,w,v,g] -> {sync.wait}[d,x,y,h] : "
            f"h > g - {sync.phase * sync.slots} }}"
        )
        early = needed.intersect_range(program.domain).subtract(known.intersect(later))
        if not early.is_empty():
            return early
    return None


def _missing(program: RoleProgram, syncs: tuple[Sync, ...]) -> isl.UnionMap | None:
    """Dependences that these barriers leave unordered; None if there are none."""
    known = ordered(program, syncs)
    for memory, _ in program.memories:
        missing = needed_orders(program, memory).subtract(known)
        if not missing.is_empty():
            return missing
    return None


def _check_live(program: RoleProgram, syncs: tuple[Sync, ...]) -> None:
    """Every wait is for something that happens earlier in the sequential order.

    An arrival that lags happens when a later product has been issued, which waits for its own
    operands: what a wait needs is then that later instance.
    """
    time = program.time
    for sync in syncs:
        edges = guaranteed(program, sync)
        if isinstance(sync, Mbarrier):
            step = f"g = h + {sync.phase * sync.slots + sync.lag}"
            where = condition(reach_of(program, sync))
            text = f"{sync.signal}[c,w,v,g] -> {sync.wait}[d,x,y,h] : {step} and {where}"
            issued = isl.UnionMap(PREFIX + "{ " + text + " }").intersect_domain(program.domain)
            edges = edges.union(issued.intersect_range(program.domain))
        backward = edges.intersect(isl.UnionMap.lex_ge_union_map(time, time))
        if not backward.is_empty():
            pair = isl.sample_pair(backward)
            raise VerifyError(
                f"{sync.name} waits for ever: {pair.target if pair else ''} waits for "
                f"{pair}, which can only run after it",
                where=program.name,
            )


def _check_phases(program: RoleProgram, syncs: tuple[Sync, ...]) -> None:
    """A wait has passed before the signals of the phase after the next can arrive."""
    started = ordered(program, syncs)
    for sync in syncs:
        if not isinstance(sync, Mbarrier):
            continue
        step = f"h = g + {(sync.phase + 1) * sync.slots}"
        where = condition(reach_of(program, sync).reverse())
        text = f"{sync.wait}[c,w,v,g] -> {sync.signal}[d,x,y,h] : {step} and {where}"
        relation = isl.UnionMap(PREFIX + "{ " + text + " }").intersect_domain(program.domain)
        late = relation.intersect_range(program.domain).subtract(started)
        if not late.is_empty():
            raise VerifyError(
                f"{sync.name}: a wait may be overtaken by a phase: {isl.sample_pair(late)}",
                where=program.name,
            )


def _enforced(program: RoleProgram, syncs: tuple[Sync, ...], sync: Sync) -> tuple[str, ...]:
    """The dependences that become unordered without a barrier."""
    rest = tuple(s for s in syncs if s is not sync)
    if isinstance(sync, Turn):
        return (f"{sync.statement}[g] -> {sync.statement}[h] (starts, in the order of steps)",)
    known = ordered(program, rest)
    found = []
    for memory, _ in program.memories:
        missing = needed_orders(program, memory).subtract(known)
        for source, target, relation in pairs(missing):
            steps = _distance_text(relation)
            found.append(f"{source}[g] -> {target}[{steps}] (through {memory})")
    return tuple(found)


def _distance_text(relation: isl.Map) -> str:
    distance = distance_of(relation)
    return f"g + {distance}" if distance else "g"


__all__ = ["GroupBarrier", "Mbarrier", "Sync", "Turn", "derive", "guaranteed", "verify"]
