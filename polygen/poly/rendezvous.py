"""Inside a place: barriers, waits for groups, fences, from the dependences that are still open.

1. A dependence through shared memory between threads of one place needs a barrier between its ends.
   It stands in a gap of the tree, under as few loops as it can; of several gaps the one that orders
   most of what is open. A barrier of one agent's threads is enough if no dependence leaves the
   agent.
2. What completes by groups is waited for in front of a barrier that publishes it, or in front of
   the statement that needs it, with as many groups in flight as may be.
3. A dependence that needs a fence gets it: where the group of its target begins, or in front of the
   signal on its source's side.
4. Shared memory lives as long as its block: what the copy engine still reads when a place is at its
   end is waited for.
"""

from __future__ import annotations

from dataclasses import replace

from polygen import isl, remembered
from polygen.errors import IllegalSchedule
from polygen.poly.derivation import Derivation
from polygen.poly.happens_before import Order, stays_in_thread
from polygen.poly.tile_program import Place, Sync
from polygen.poly.tile_tree import depth, leaves
from polygen.poly.versions import Dependence

_SET = isl.dim_type.set


def meet(work: Derivation) -> None:
    """Derive what synchronises the threads of each place."""
    _barriers(work)
    _retires_at_barriers(work)
    _retires_at_targets(work)
    _fences(work)
    _last_waits(work)


def _needs_barrier(need: Dependence) -> bool:
    """Whether two threads of one place meet in it."""
    return (
        need.source.place == need.target.place
        and need.buffer.space == "shared"
        and need.source.unit.completion != "bytes"
        and not (need.local and stays_in_thread(need) and need.fence is None)
    )


def _left_open(order: Order, need: Dependence) -> isl.Map:
    """What barriers do not order, if everything issued before one were complete there."""
    rest = need.relation
    for sync in order.syncs:
        if sync.kind == "bar" and order.leaves[sync.wait].place == need.source.place:
            across = order.before(need.source.name, sync.wait)
            across = remembered.composed(across, order.relation(sync, sync.wait))
            then = order.before(sync.wait, need.target.name)
            rest = remembered.without(rest, remembered.composed(across, then))
            if rest.is_empty():
                return rest
    if need.source.unit.completion == "now" and need.fence is None:
        rest, _ = order.uncovered(need.source.name, need.target.name, rest)
    return rest


def _barriers(work: Derivation) -> None:
    while True:
        order = work.order()
        pending = [d for d in work.dependences if _needs_barrier(d)]
        still = [d for d in pending if not _left_open(order, d).is_empty()]
        if not still:
            return
        _place_barrier(work, still)


def _place_barrier(work: Derivation, still: list[Dependence]) -> None:
    """One barrier more: under the fewest loops at which one orders the first open dependence."""
    need = min(still, key=lambda d: d.kind != "flow")
    target = need.target.name
    same_target = [d for d in still if d.target.name == target]
    scope = "agent" if all(d.local for d in same_target) else "place"
    best: tuple[int, Sync] | None = None
    tree = work.tree
    for level in range(depth(tree, target) + 1):
        # Directly before the target, if that is as good as elsewhere.
        gaps = sorted(work.gaps(target, level), key=lambda gap: target not in gap)
        for number, gap in enumerate(gaps):
            name = f"bar_{gap[0]}"
            if name in work.leaves or not _can_stand(work, gap, target, level):
                continue
            trial = f"{name}__{level}_{number}"
            sync = Sync("bar", trial, trial, scope=scope)
            _put_barrier(work, sync, gap, target, level)
            order = work.order((*work.syncs, sync))
            if _left_open(order, need).is_empty():
                left = sum(not _left_open(order, d).is_empty() for d in still)
                if best is None or left < best[0]:
                    best = (left, Sync("bar", name, name, scope=scope))
                    chosen = (gap, level)
            work.take_out(trial)
        if best is not None:
            break
    if best is None:
        raise IllegalSchedule(
            f"no barrier can order a dependence between threads: {isl.sample_pair(need.relation)}",
            where=need.buffer.name,
            why="both instances fall into one group of statements, with no gap for a barrier",
            nearest="Reduce pipeline.distance or raise pipeline.stages",
        )
    _, sync = best
    gap, level = chosen
    _put_barrier(work, sync, gap, target, level)
    work.add(sync)


def _can_stand(work: Derivation, gap: tuple[str, ...], target: str, level: int) -> bool:
    """Whether a gap is in the loops of the target, and before something of the program.

    Not in front of what closes a group: what the group has copied is complete behind it, at the
    soonest.
    """
    if gap[0] in work.leaves or work.program.statement(gap[0]).op == "commit":
        return False
    return work.loops(gap[0])[:level] == work.loops(target)[:level]


def _put_barrier(
    work: Derivation, sync: Sync, gap: tuple[str, ...], target: str, level: int
) -> None:
    loops, domain = work.iterations(target, level, everyone=sync.scope == "place")
    place = work.facts[target].place
    work.put(sync.name, "bar", loops, domain, place, gap, level, loops)


def _retires_at_barriers(work: Derivation) -> None:
    """Publish what completes by groups: a wait in front of the barriers that order it."""
    wanted: dict[tuple[str, str, str], list[Dependence]] = {}
    order = work.order()
    for need in work.dependences:
        unit = need.source.unit
        if not _needs_barrier(need) or unit.completion != "groups":
            continue
        if unit.in_order and unit == need.target.unit:
            continue
        part: Sync | None = None
        for sync in work.syncs:
            if sync.kind != "bar" or order.leaves[sync.wait].place != need.source.place:
                continue
            left = _left_open(order.having((sync,)), need)
            if left.is_empty():  # rather than at one that orders a part of it
                part = sync
                break
            if part is None and not left.is_equal(need.relation):
                part = sync
        if part is not None:
            key = (unit.name, part.wait, need.source.executes)
            wanted.setdefault(key, []).append(need)
    for (unit_name, bar, executes), needs in wanted.items():
        _retire(work, unit_name, bar, executes, needs)


def _retire(
    work: Derivation, unit: str, before: str, executes: str, needs: list[Dependence]
) -> None:
    """A wait for groups in front of a leaf, with as many in flight as keep the dependences.

    It stands in front of loops that begin with the leaf, if that leaves as many in flight.
    """
    level, name = len(work.loops(before)), f"wait_{before.removeprefix('bar_')}"
    pending = _pending(work, unit, before, level, executes, needs)
    if pending < 0:
        need = needs[0]
        raise IllegalSchedule(
            f"no wait completes what {need.target.name} needs of {need.source.name}: "
            f"{isl.sample_pair(need.relation)}",
            where=need.buffer.name,
        )
    while before not in work.leaves and leaves(work.loops(before)[level - 1])[0] == before:
        if _pending(work, unit, before, level - 1, executes, needs) < pending:
            break
        level -= 1
    _put_retire(work, name, before, level, executes)
    work.add(Sync("retire", name, name, unit=unit, pending=pending))


def _put_retire(work: Derivation, name: str, before: str, level: int, executes: str) -> None:
    if before in work.leaves:
        loops, domain = work.leaf(before).loops, work.domain(before)
        when = work.times_like(before, level)
    else:
        loops, domain = work.iterations(before, level, everyone=False)
        when = loops
    place = work.facts[before].place
    work.put(name, "retire", loops, domain, place, (before,), level, when, executes=executes)


def _pending(
    work: Derivation,
    unit: str,
    before: str,
    level: int,
    executes: str,
    needs: list[Dependence],
) -> int:
    """How many groups a wait in front of a leaf, under so many of its loops, may leave in flight.

    -1: none there keeps the dependences.
    """
    name = f"wait_{before}__{level}"
    _put_retire(work, name, before, level, executes)
    order = work.order()
    least, most = -1, max(need.buffer.slots for need in needs)
    while least < most:  # what a wait keeps, one that leaves fewer groups keeps as well
        pending = (least + most + 1) // 2
        trial = order.having((*work.syncs, Sync("retire", name, name, unit=unit, pending=pending)))
        if any(trial.is_open(_unfenced(need)) for need in needs):
            most = pending - 1
        else:
            least = pending
    work.take_out(name)
    return least


def _unfenced(need: Dependence) -> Dependence:
    return replace(need, fence=None)


def _retires_at_targets(work: Derivation) -> None:
    """What completes by groups and is needed by its own thread."""
    order = work.order()
    for need in work.dependences:
        unit = need.source.unit
        if not need.local or unit.completion != "groups" or not stays_in_thread(need):
            continue
        rest, _ = order.open_part(need)
        if rest.is_empty():
            continue
        _retire(work, unit.name, need.target.name, need.source.executes, [need])
        order = work.order()


def _fences(work: Derivation) -> None:
    for need in work.dependences:
        if need.fence is None:
            continue
        order = work.order()
        if order.open_part(need)[0].is_empty():
            continue
        if need.fence.by == "target":
            _fence_before_group(work, need)
        else:
            _fence_before_signal(work, order, need)


def _fence_before_group(work: Derivation, need: Dependence) -> None:
    """Where the group of the target begins, in every group."""
    assert need.fence is not None
    name, target = f"fence_{need.target.name}", need.target.name
    level = len(work.leaf(need.target.group).loops)
    loops, domain = work.iterations(target, level, everyone=False)
    work.put(name, "fence", loops, domain, need.target.place, (target,), level, loops)
    work.add(Sync("fence", name, name, unit=need.fence.name))


def _fence_before_signal(work: Derivation, order: Order, need: Dependence) -> None:
    """In front of the barrier that orders the dependence, and of the wait that belongs to it."""
    assert need.fence is not None
    _, used = order.open_part(_unfenced(need))
    for sync in order.links:
        if sync.name not in used:
            continue
        signal = sync.signals[0][0] if sync.signals else sync.wait
        if work.facts[signal].place != need.source.place or signal not in work.leaves:
            continue
        waits = f"wait_{signal.removeprefix('bar_')}"
        near = waits if waits in work.leaves else signal
        leaf = work.leaves[signal]
        level = len(leaf.loops)
        name = f"fence_{signal.removeprefix('bar_')}"
        work.put(
            name,
            "fence",
            leaf.loops,
            work.domain(signal),
            leaf.place,
            (near,),
            level,
            work.times_like(signal, level),
        )
        work.add(Sync("fence", name, name, unit=need.fence.name))
        return


def _last_waits(work: Derivation) -> None:
    """At a place's end: nothing still reads or writes the shared memory of its block."""
    for statement in work.program.statements:
        if statement.unit.completion != "groups" or statement.unit.collective:
            continue
        order = work.order()
        if not _reads_shared(work, statement.name):
            continue
        name = f"wait_last_{statement.name}"
        place = statement.place
        box = _agents(work, place)
        work.put(
            name,
            "retire",
            (),
            box,
            place,
            tuple(order.times),
            0,
            (),
            after=True,
            executes=statement.executes,
        )
        work.add(Sync("retire", name, name, unit=statement.unit.name, pending=0))


def _reads_shared(work: Derivation, statement: str) -> bool:
    return any(
        statement in work.model.reads[b.name] for b in work.program.buffers if b.space == "shared"
    )


def _agents(work: Derivation, place: Place) -> isl.Set:
    return isl.Set(f"{work.program.prefix}{{ [{','.join(place.agents)}] : {place.bounds} }}")
