"""Barriers between roles as relations: what the hardware guarantees once they are in place.

A barrier record is read back as a relation from instances that have completed to instances that
start. A count too small guarantees nothing, another ring depth or phase relates other steps. With
the order inside each thread of control, these relations say what is ordered and what is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from polygen import isl
from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.roles import PREFIX, RoleProgram


@dataclass(frozen=True, slots=True)
class Mbarrier:
    """One mbarrier per slot of a ring.

    Attributes:
        name: "full_ring", "empty_ring".
        memory: the ring.
        signal: the statement whose completion arrives.
        wait: the statement that waits before it starts.
        slots: barriers, used in turn.
        phase: a wait at step g is for the signals of step g + phase * slots.
        arrivals: that complete a phase.
        lag: steps between a signal's statement and its arrival.
        pending: products issued later that may still run at the arrival.
        remote: whether signals arrive at the barriers of the other blocks that share the ring.
        per_group: whether every consumer warpgroup has its own.
        dependences: what is unordered without it.
    """

    name: str
    memory: str
    signal: str
    wait: str
    slots: int
    phase: int
    arrivals: int
    lag: int = 0
    pending: int = 0
    remote: bool = False
    per_group: bool = False
    dependences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupBarrier:
    """A barrier of one warpgroup between its threads' panel and the copy engine's turn at it.

    Attributes:
        name: "staged".
        before: the statement of all threads.
        after: the statement of one thread that hands its work to the copy engine.
        pending: how many of the latter may still be reading when the barrier opens.
        dependences: what is unordered without it.
    """

    name: str
    before: str
    after: str
    pending: int
    dependences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """Consumers of alternate tiles start their main loops one after the other.

    A parity bit tells a phase from the one before it, no more: a wait for a phase may begin only
    when the one before has completed. A consumer that skips tiles cannot know that by itself.

    Attributes:
        name: "turn".
        statement: what the consumers do in turns.
        dependences: what is unordered without it.
    """

    name: str
    statement: str
    dependences: tuple[str, ...] = ()


Sync: TypeAlias = Mbarrier | GroupBarrier | Turn


@lru_cache(maxsize=256)
def guaranteed(program: RoleProgram, sync: Sync) -> isl.UnionMap:
    """What a barrier guarantees: completed instance -> instance that starts."""
    if isinstance(sync, Turn):
        return isl.UnionMap(PREFIX + "{ }")  # orders starts only
    if isinstance(sync, GroupBarrier):
        text = (
            f"{sync.before}[c,w,v,g] -> {sync.after}[c,w,0,g]; "
            f"{sync.after}[c,w,0,g] -> {sync.before}[c,w,v,h] : h >= g + {2 + sync.pending}"
        )
    else:
        reach = reach_of(program, sync)
        if sync.arrivals < signals_of(program, sync):
            return isl.UnionMap(PREFIX + "{ }")  # the phase completes before all have arrived
        early = max(0, sync.pending - sync.lag)
        step = f"g = h + {sync.phase * sync.slots - early}"
        text = f"{sync.signal}[c,w,v,g] -> {sync.wait}[d,x,y,h] : {step} and {condition(reach)}"
    relation = isl.UnionMap(PREFIX + "{ " + text + " }")
    return relation.intersect_domain(program.domain).intersect_range(program.domain)


def signals_of(program: RoleProgram, sync: Mbarrier) -> int:
    """Arrivals at one barrier per phase; a copy arrives once, at its own block's barrier."""
    places = reach_of(program, sync)
    if not sync.per_group and is_private(program, places):
        # Every warpgroup has its panels; at a barrier that they share, all of them arrive.
        places = places.apply_range(isl.Map("{ [c,w,v] -> [c,x,v] }"))
        known = isl.Map(f"{{ [c,w,v] -> [d,x,y] : 0 <= x < {_groups(program)} }}")
        places = places.intersect(known)
    if program.statement(sync.signal).engine == "copy":
        places = places.intersect(isl.Map("{ [c,w,v] -> [c,x,y] }"))
    return count_arrivals(places)


def is_private(program: RoleProgram, places: isl.Map) -> bool:
    """Whether every warpgroup has its own cells: none meets another."""
    return _groups(program) > 1 and all(point[1] == point[4] for point in isl.points(places))


def _groups(program: RoleProgram) -> int:
    return max(statement.counts[1] for statement in program.statements)


def condition(reach: isl.Map) -> str:
    """The place relation as a condition over c, w, v and d, x, y."""
    pairs = [dict(zip("cwvdxy", point, strict=True)) for point in isl.points(reach)]
    return (
        "("
        + " or ".join(
            "(" + " and ".join(f"{d} = {value}" for d, value in pair.items()) + ")"
            for pair in pairs
        )
        + ")"
        if pairs
        else "1 = 0"
    )


@lru_cache(maxsize=64)
def needed_orders(program: RoleProgram, memory: str) -> isl.UnionMap:
    """Dependences through a ring that thread order alone does not keep."""
    return program.dependences(memory).subtract(thread_order(program, True))


@lru_cache(maxsize=64)
def thread_order(program: RoleProgram, completed: bool) -> isl.UnionMap:
    """`RoleProgram.thread_order`, computed once."""
    return program.thread_order(completed=completed)


def pairs(relation: isl.UnionMap) -> list[tuple[str, str, isl.Map]]:
    """The relation by source and target statement."""
    maps = relation.get_map_list()
    found = []
    for position in range(maps.n_map()):
        one = maps.get_at(position)
        source = str(one.get_tuple_name(isl.dim_type.in_))
        target = str(one.get_tuple_name(isl.dim_type.out))
        if not one.is_empty():
            found.append((source, target, one))
    return sorted(found, key=lambda item: item[:2])


def distance_of(relation: isl.Map) -> int:
    """The distance in steps, the same for all pairs."""
    bare = relation.reset_tuple_id(isl.dim_type.in_).reset_tuple_id(isl.dim_type.out)
    steps = bare.deltas().project_out(isl.dim_type.set, 0, 3)
    point = steps.sample_point()
    value = int(point.get_coordinate_val(isl.dim_type.set, 0).to_python())
    only = steps.fix_val(isl.dim_type.set, 0, isl.Val(value))
    if not steps.is_subset(only):
        raise IllegalSchedule(
            f"a dependence has no constant distance: {isl.sample_pair(relation)}", where="roles"
        )
    return value


def places_of(relation: isl.Map) -> isl.Map:
    """Which thread of control of the source meets which of the target, at any step."""
    bare = relation.project_out(isl.dim_type.in_, 3, 1).project_out(isl.dim_type.out, 3, 1)
    return isl.Map(f"{{ {_bare_text(bare)} }}")


def _bare_text(relation: isl.Map) -> str:
    """The place pairs of a relation, one by one: there are few."""
    bound = relation.fix_val(isl.dim_type.param, 0, isl.Val(64))
    bound = bound.project_out(isl.dim_type.param, 0, 1)
    named = bound.reset_tuple_id(isl.dim_type.in_).reset_tuple_id(isl.dim_type.out)
    pairs = sorted(isl.points(named))
    return "; ".join(
        f"[{','.join(map(str, pair[:3]))}] -> [{','.join(map(str, pair[3:]))}]" for pair in pairs
    )


def count_arrivals(places: isl.Map) -> int:
    """How many sources meet the target that most meet."""
    targets = [tuple(point[3:]) for point in isl.points(places)]
    return max(targets.count(target) for target in set(targets))


def is_local(places: isl.Map) -> bool:
    """Whether sources meet targets of their own block only."""
    return all(point[0] == point[3] for point in isl.points(places))


@lru_cache(maxsize=256)
def reach_of(program: RoleProgram, sync: Mbarrier) -> isl.Map:
    """Which signals arrive at the barrier that a wait looks at."""
    for source, target, relation in pairs(needed_orders(program, sync.memory)):
        if (source, target) == (sync.signal, sync.wait):
            places = places_of(relation)
            if sync.remote:
                return places
            return places.intersect(isl.Map("{ [c,w,v] -> [c,x,y] }"))
    raise VerifyError(
        f"{sync.name}: nothing depends from {sync.signal} to {sync.wait}", where=program.name
    )


@lru_cache(maxsize=256)
def ordered(program: RoleProgram, syncs: tuple[Sync, ...]) -> isl.UnionMap:
    """All pairs (completed, started) that barriers and thread order keep."""
    edges = isl.UnionMap(PREFIX + "{ }")
    for sync in syncs:
        edges = edges.union(guaranteed(program, sync))
    before, after = thread_order(program, True), starts(program, syncs)
    once = before.apply_range(edges).apply_range(after)
    return once.union(once.apply_range(once))


def starts(program: RoleProgram, syncs: tuple[Sync, ...]) -> isl.UnionMap:
    """Pairs (started, starts later or is the same) that thread order and turns keep."""
    order = thread_order(program, False)
    for sync in syncs:
        if isinstance(sync, Turn):
            text = f"{sync.statement}[c,w,v,g] -> {sync.statement}[c,w,v,h] : g < h"
            turns = isl.UnionMap(PREFIX + "{ " + text + " }")
            order = order.union(turns.intersect_domain(program.domain))
    return order.intersect_range(program.domain)
