"""Barriers from dependences: the smallest set that orders all threads meeting in shared memory.

1. A dependence through shared memory whose ends may be different threads needs a barrier between
   them.
2. A barrier is a relation too: (everything a thread did before it) -> (everything any thread does
   after it), and an asynchronous copy has happened only once its own thread waited for its group.
3. Subsets of the places where a barrier could stand are tried, smallest first; the first whose
   relation contains all those dependences is taken. It is sufficient for every size, and necessary:
   every smaller set was refuted.
4. It is live: all warps of the block execute every instance of a block barrier, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from polygen import isl
from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.block import Barrier, block_tree, candidates
from polygen.poly.legality import Proof
from polygen.poly.tiles import PREFIX, TileProgram
from polygen.poly.tree import to_isl_text
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Enforced:
    """A barrier and the dependences that need it: without it, these are unordered."""

    barrier: Barrier
    dependences: tuple[str, ...]  # "copy_a[w,k] -> load_a[w',k,s] (flow through ring_a)"


@dataclass(frozen=True, slots=True)
class _Need:
    """Dependences of one kind through one memory."""

    relation: isl.UnionMap
    kind: str
    memory: str
    scope: str
    asynchronous: bool  # the source is a copy that completes only when waited for


class _Order:
    """Program order inside a warp, from the schedule tree."""

    def __init__(self, time: isl.UnionMap) -> None:
        maps = time.get_map_list()
        found = [maps.get_at(position) for position in range(maps.n_map())]
        self._time = {
            str(m.get_tuple_name(isl.dim_type.in_)): isl.UnionMap.from_map(m) for m in found
        }
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], isl.UnionMap] = {}

    def before(self, sources: tuple[str, ...], targets: tuple[str, ...]) -> isl.UnionMap:
        """Pairs (source, target) of one warp, source first."""
        known = self._known.get((sources, targets))
        if known is None:
            first, second = self._only(sources), self._only(targets)
            known = _same_warp(isl.UnionMap.lex_lt_union_map(first, second))
            self._known[sources, targets] = known
        return known

    def time_of(self, name: str) -> isl.UnionMap:
        """When the instances of one statement run."""
        return self._time[name]

    def _only(self, names: tuple[str, ...]) -> isl.UnionMap:
        result = isl.UnionMap(PREFIX + "{ }")
        for name in names:
            result = result.union(self._time[name])
        return result


def derive(
    program: TileProgram, schedule: Schedule, *, asynchronous: bool
) -> tuple[tuple[Barrier, ...], tuple[Enforced, ...], tuple[Proof, ...]]:
    """Place the barriers of one thread block.

    Args:
        program: the block's statements.
        schedule: the order they run in.
        asynchronous: whether copies complete in groups that have to be waited for.

    Returns:
        The barriers, what each enforces, and what was proved.

    Raises:
        IllegalSchedule: no set of barriers orders all dependences; with one unordered pair.
    """
    needs = _needs(program, asynchronous)
    chosen: list[Barrier] = []
    for scope in ("block", "warp"):
        scoped = [need for need in needs if need.scope == scope]
        if scoped:
            chosen += _smallest(program, schedule, scope, scoped, asynchronous)
    barriers = tuple(chosen)
    enforced = tuple(
        _enforced(program, schedule, barriers, b, needs, asynchronous) for b in barriers
    )
    return barriers, enforced, verify(program, schedule, barriers, asynchronous=asynchronous)


def verify(
    program: TileProgram,
    schedule: Schedule,
    barriers: tuple[Barrier, ...],
    *,
    asynchronous: bool,
) -> tuple[Proof, ...]:
    """Prove a set of barriers sufficient, necessary and live, for every number of k tiles.

    Raises:
        VerifyError: a dependence is unordered, or a barrier enforces nothing; with a witness.
    """
    needs = _needs(program, asynchronous)
    missing = _uncovered(program, schedule, barriers, needs, asynchronous)
    if missing is not None:
        raise VerifyError(
            "a dependence between threads is not ordered by any barrier: "
            f"{isl.sample_pair(missing)}",
            where="barriers",
        )
    for barrier in barriers:
        rest = tuple(b for b in barriers if b is not barrier)
        if _uncovered(program, schedule, rest, needs, asynchronous) is None:
            raise VerifyError(f"{barrier.name} enforces no dependence", where="barriers")
    _check_live(program, schedule, barriers, asynchronous)
    count = f"{len(barriers)} barrier(s)"
    return (
        Proof("the barriers order every dependence between threads", count),
        Proof("no barrier can be dropped", count),
        Proof("all warps pass every barrier in one order, so none waits for ever", count),
    )


def _check_live(
    program: TileProgram, schedule: Schedule, barriers: tuple[Barrier, ...], asynchronous: bool
) -> None:
    """Prove that no warp waits for ever: every warp passes every block barrier, at the same time.

    Program order goes forward in time and a barrier joins equal times, so nothing can wait in a
    circle.

    Raises:
        VerifyError: a warp skips a barrier, or passes it at another time than the others.
    """
    order = _program_order(program, schedule, barriers, asynchronous)
    for barrier in barriers:
        if barrier.scope != "block":
            continue
        time, meet = order.time_of(barrier.name), _meeting(program, barrier)
        instances = time.domain()
        everybody = meet.intersect_domain(instances).range()
        if not everybody.is_subset(instances):
            skipped = everybody.subtract(instances)
            raise VerifyError(f"a warp never passes {barrier.name}: {skipped}", where="barriers")
        if not meet.intersect_domain(instances).apply_range(time).is_single_valued():
            raise VerifyError(f"warps pass {barrier.name} at different times", where="barriers")


def _meeting(program: TileProgram, barrier: Barrier) -> isl.UnionMap:
    """An instance of a block barrier -> the same instance in every warp."""
    t = ",t" if barrier.phase == "main" else ""
    return isl.UnionMap(
        f"{{ {barrier.name}[w{t}] -> {barrier.name}[v{t}] : 0 <= w,v < {program.warps} }}"
    )


@lru_cache(maxsize=16)
def _needs(program: TileProgram, asynchronous: bool) -> tuple[_Need, ...]:
    """Dependences through shared memory, by memory and kind."""
    found = []
    for memory in program.memories:
        if memory.scope == "lane":
            continue
        flow, reuse = program.dependences(memory.name)
        if memory.scope == "block":
            # A thread's own writes follow its own earlier ones in program order. What a warp reads
            # is another matter: one lane may overwrite what its neighbours have yet to read.
            writers = [s.name for s in program.statements if _touches(s.writes, memory.name)]
            reuse = reuse.subtract(_same_warp(_from(reuse, writers)))
        waited = asynchronous and memory.scope == "block"
        found.append(_Need(flow, "flow", memory.name, memory.scope, waited))
        found.append(_Need(reuse, "anti", memory.name, memory.scope, False))
    return tuple(found)


def _touches(cells: tuple[str, ...], memory: str) -> bool:
    """Whether some of the cells lie in `memory`."""
    return any(cell.startswith(memory + "[") for cell in cells)


def _from(relation: isl.UnionMap, statements: Sequence[str]) -> isl.UnionMap:
    """The pairs of `relation` whose source is one of the statements."""
    result = isl.UnionMap(PREFIX + "{ }")
    maps = relation.get_map_list()
    for position in range(maps.n_map()):
        one = maps.get_at(position)
        if one.get_tuple_name(isl.dim_type.in_) in statements:
            result = result.union(isl.UnionMap.from_map(one))
    return result


def _same_warp(relation: isl.UnionMap) -> isl.UnionMap:
    """The pairs of `relation` inside one warp."""
    result = isl.UnionMap(PREFIX + "{ }")
    maps = relation.get_map_list()
    for position in range(maps.n_map()):
        one = maps.get_at(position)
        kept = one.equate(isl.dim_type.in_, 0, isl.dim_type.out, 0)
        result = result.union(isl.UnionMap.from_map(kept))
    return result


def _smallest(
    program: TileProgram,
    schedule: Schedule,
    scope: str,
    needs: Sequence[_Need],
    asynchronous: bool,
) -> list[Barrier]:
    everywhere = [barrier for barrier in candidates(schedule) if barrier.scope == scope]
    # Of sets of one size, the first with a barrier that runs once instead of in every k tile.
    places = sorted(everywhere, key=lambda barrier: barrier.phase == "main")
    for size in range(len(places) + 1):
        for subset in combinations(places, size):
            for waited in _with_waits(subset, schedule, scope, asynchronous):
                if _uncovered(program, schedule, waited, needs, asynchronous) is None:
                    return sorted(waited, key=lambda barrier: barrier.phase != "main")
    missing = _uncovered(program, schedule, tuple(places), needs, asynchronous)
    assert missing is not None  # all places together were among the subsets
    raise IllegalSchedule(
        f"no barrier can order a dependence between threads: {isl.sample_pair(missing)}",
        where="pipeline",
        why="both instances fall into one group of statements, with no place for a barrier between",
        nearest="Reduce pipeline.distance or raise pipeline.stages",
    )


def _with_waits(
    subset: tuple[Barrier, ...], schedule: Schedule, scope: str, asynchronous: bool
) -> list[tuple[Barrier, ...]]:
    """The subset with a wait in front of one of its barriers, the most groups in flight first."""
    if scope != "block" or not asynchronous or not subset:
        return [subset]
    return [
        tuple(replace(b, pending=pending) if b is waiting else b for b in subset)
        for pending in range(schedule.pipeline.distance, -1, -1)
        for waiting in subset
        if waiting.phase == "main"
    ]


def _uncovered(
    program: TileProgram,
    schedule: Schedule,
    barriers: tuple[Barrier, ...],
    needs: Sequence[_Need],
    asynchronous: bool,
) -> isl.UnionMap | None:
    """The dependences that these barriers leave unordered; None if there are none."""
    order = _program_order(program, schedule, barriers, asynchronous)
    for need in needs:
        ordered = isl.UnionMap(PREFIX + "{ }")
        for barrier in barriers:
            if barrier.scope == need.scope:
                ordered = ordered.union(_ordered(program, order, barrier, need))
        missing = need.relation.subtract(ordered)
        if not missing.is_empty():
            return missing
    return None


@lru_cache(maxsize=64)
def _program_order(
    program: TileProgram, schedule: Schedule, barriers: tuple[Barrier, ...], asynchronous: bool
) -> _Order:
    tree = block_tree(program, schedule, barriers, asynchronous=asynchronous, warp=True)
    read = isl.Schedule(to_isl_text(tree, ("k_tiles",)))
    # isl's map knows no bounds: without the domain, barrier instances that never run would order
    # things.
    return _Order(read.get_map().intersect_domain(read.get_domain()))


def _ordered(program: TileProgram, order: _Order, barrier: Barrier, need: _Need) -> isl.UnionMap:
    """Pairs that one barrier orders: source, barrier, target (in any thread that met there)."""
    names = tuple(
        s.name
        for s in program.statements
        if any(c.startswith(need.memory + "[") for c in s.reads + s.writes)
    )
    after = order.before((barrier.name,), names)
    if barrier.scope == "block":
        after = _meeting(program, barrier).apply_range(after)
    if not need.asynchronous:
        return order.before(names, (barrier.name,)).apply_range(after)
    if barrier.pending is None:
        return isl.UnionMap(PREFIX + "{ }")
    # A copy has happened at a wait if the group `pending` places later was committed before that
    # wait.
    later = isl.UnionMap(
        "{ "
        + "; ".join(
            f"{n}[w,k,p] -> commit[w,k + {barrier.pending}]" for n in names if n.startswith("copy")
        )
        + " }"
    )
    waited = later.apply_range(order.before(("commit",), (barrier.wait,)))
    return waited.apply_range(order.before((barrier.wait,), (barrier.name,))).apply_range(after)


def _enforced(
    program: TileProgram,
    schedule: Schedule,
    barriers: tuple[Barrier, ...],
    barrier: Barrier,
    needs: Sequence[_Need],
    asynchronous: bool,
) -> Enforced:
    """What becomes unordered when `barrier` is dropped."""
    order = _program_order(program, schedule, barriers, asynchronous)
    rest = [b for b in barriers if b is not barrier]
    found = []
    for need in needs:
        if need.scope != barrier.scope:
            continue
        missing = need.relation
        for other in rest:
            if other.scope == need.scope:
                missing = missing.subtract(_ordered(program, order, other, need))
        for piece in isl.pieces(missing):
            pair = piece.partition(" : ")[0]
            found.append(f"{pair} ({need.kind} through {need.memory})")
    return Enforced(barrier, tuple(found))
