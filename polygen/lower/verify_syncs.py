"""Checks that what synchronises a kernel is what was proved, in every leaf and loop.

1. The loops of every place call the instances of its proved tree, each once (`check_loops`).
2. Barriers are the proved records; who arrives, waits, fences and skips has the leaf for it, with
   the slot of the counter that it was proved to have.
3. Counters go up behind the leaves that were proved for it, and have as many slots as buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polygen.errors import VerifyError
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Exchange, Finish, Lines, Panel, Store
from polygen.lower.sync_work import Grids, Groups, Nothing, Placed, Signal, Skip, Turn
from polygen.lower.synchronise import counter_of, placed, versions_passed
from polygen.lower.tally import Tally
from polygen.lower.work import Combine, Fill, LocateRows, Move, Product, Send
from polygen.poly.read_loops import check_loops, check_variable
from polygen.poly.tile_program import SyncStatement

_PLAIN = ("retire", "fence", "grid")


def check_syncs(plan: KernelPlan) -> None:
    """Check the leaves, barriers, counters and loops of a kernel.

    Raises:
        VerifyError: with what differs.
    """
    proved = plan.synchronised
    varying = proved.program.varying
    if (varying is None) == bool(plan.of(LocateRows)):
        raise VerifyError("tiles of rows have another number of tiles of keys", where=plan.entry)
    for tree in plan.trees:
        loops = plan.place(tree.place.name).loops
        check_loops(tree, loops)
        if varying is not None:
            check_variable(loops, varying.name, varying.loop, "locate")
    if {tree.place.name for tree in plan.trees} != {place.name for place in plan.places}:
        raise VerifyError("a place runs no tree that was proved", where=plan.entry)
    wanted = [replace(one, bytes=0) for one in placed(proved, {})]
    if [replace(one, bytes=0) for one in plan.syncs] != wanted:
        raise VerifyError(
            f"barriers are {', '.join(map(str, plan.syncs))}", where=plan.entry,
            why=f"proved were {', '.join(map(str, wanted))}",
        )  # fmt: skip
    known = {leaf.name for leaf in proved.leaves}
    synchronising = [leaf for leaf in plan.leaves if leaf.statement in known]
    if [leaf.statement for leaf in synchronising] != [leaf.name for leaf in proved.leaves]:
        raise VerifyError("a leaf that synchronises is left out, or stands twice", where=plan.entry)
    for leaf, statement in zip(synchronising, proved.leaves, strict=True):
        _check_leaf(plan, leaf, statement)
    for leaf in plan.leaves:
        _check_counters(plan, leaf)
    for place in plan.places:
        own = [one for one in proved.counters if one.place == place.name]
        slots = tuple((c.name, plan.tile_program.buffer(c.buffers[0]).slots) for c in own)
        if place.counters != slots:
            raise VerifyError(f"{place.name} counts {place.counters}", where=plan.entry)


def _check_leaf(plan: KernelPlan, leaf: Leaf, statement: SyncStatement) -> None:
    """A leaf that synchronises does what its record says."""
    where, proved = f"{plan.entry}, {leaf.statement}", plan.synchronised
    made = (leaf.op, leaf.loops, leaf.place)
    plain = next((s for s in proved.syncs if s.kind in _PLAIN and s.wait == statement.name), None)
    kind = plain.kind if plain is not None else statement.kind
    if made != (kind, statement.loops, statement.place.name):
        raise VerifyError(f"{made} is no {kind} of the {statement.place.name}", where=where)
    work = leaf.work
    if plain is not None:
        pending = plain.pending if isinstance(work, Groups) else 0
        if not isinstance(work, Groups | Grids | Nothing) or (
            isinstance(work, Groups) and work.pending != pending
        ):
            raise VerifyError(f"waits for all but {work}, and not {pending}", where=where)
        if isinstance(work, Groups) != (kind == "retire") or (
            isinstance(work, Grids) and work != Grids()  # of all parameters
        ):
            raise VerifyError(f"{kind} is {work}", where=where)
        return
    if statement.kind == "skip":
        passing = versions_passed(proved, statement)
        if not isinstance(work, Skip) or work.counters != passing:
            raise VerifyError(f"{work} passes over other versions than {passing}", where=where)
        return
    own = next(
        one for one in plan.syncs
        if statement.name in (one.sync.wait, *dict(one.sync.signals))
    )  # fmt: skip
    barrier = work if isinstance(work, Placed) else None
    if isinstance(work, Signal | Turn):
        barrier = work.placed
    if barrier != own:
        raise VerifyError(f"is for {barrier}, and was proved for {own}", where=where)
    if isinstance(work, Signal):
        arrives = statement.kind == "arrive"
        counter = counter_of(proved, statement.name, own.sync.buffers[0])
        said = (work.counter, bool(work.agent), work.threads, bool(work.everywhere))
        executes = statement.executes if arrives else ""
        if said != (counter, own.owners > 1, executes, arrives and own.remote):
            raise VerifyError(
                f"{work} is not of {counter}, by {executes or 'who waits'}", where=where
            )
        written = {s.name: s.unit.proxy for s in plan.tile_program.statements}
        acquired = any(written.get(name) == "generic" for name, _ in own.sync.signals)
        if work.across != (acquired and not arrives):
            raise VerifyError("what threads of other blocks wrote is not acquired", where=where)


def _check_counters(plan: KernelPlan, leaf: Leaf) -> None:
    """A leaf works on the slots that were proved, and counters go up behind it."""
    where, proved = f"{plan.entry}, {leaf.statement}", plan.synchronised
    panels = _panels(leaf)
    for panel in panels:
        buffer = plan.tile_program.buffer(panel.buffer)
        slot = f"{counter_of(proved, leaf.statement, panel.buffer)}.slot"
        slot = slot if buffer.slot is None else f"p % {buffer.slots}"
        if buffer.slots != plan.buffer(panel.buffer).slots:
            raise VerifyError(f"{panel.buffer} has other slots than {buffer.slots}", where=where)
        if panel.slot != slot:
            raise VerifyError(f"takes slot {panel.slot} of {panel.buffer}, not {slot}", where=where)
    for counter, ring in _counted(leaf):
        wanted = counter_of(proved, leaf.statement, ring)
        if counter != wanted:
            raise VerifyError(
                f"takes the slot of {counter or 'no counter'}, not {wanted}", where=where
            )
    up = tuple(c.name for c in proved.counters if leaf.statement in dict(c.advances))
    if leaf.advances != up:
        raise VerifyError(f"{leaf.advances} go up behind it, and not {up}", where=where)
    full = leaf.work.full if isinstance(leaf.work, Move | Send | Exchange) else None
    if full is not None and full not in plan.syncs:
        raise VerifyError(f"brings bytes for {full}, which is no barrier", where=where)
    brings = isinstance(leaf.work, Move | Send) or leaf.op == "give"
    if full is not None and brings and leaf.statement not in dict(full.sync.signals):
        raise VerifyError(f"brings bytes for {full.name}, which does not expect them", where=where)


def _panels(leaf: Leaf) -> tuple[Panel, ...]:
    """Panels that a record names."""
    work = leaf.work
    if isinstance(work, Finish):
        return (*work.operands, *work.results)
    if isinstance(work, Lines):
        return tuple(line.panel for line in work.moved)
    if isinstance(work, Store):
        return tuple(panel for panel, _ in work.panels)
    return ()


def _counted(leaf: Leaf) -> Iterator[tuple[str, str]]:
    """Counters that a record names, each with the buffer whose slot it says."""
    work = leaf.work
    if isinstance(work, Move):
        yield work.counter, work.full.sync.buffers[0]
    elif isinstance(work, Product):
        if work.counter or leaf.unit == "wgmma":
            number = 1 if work.left_counter or work.fragment else 0
            yield work.counter, work.buffers[number]
            if work.left_counter:
                yield work.left_counter, work.buffers[0]
    elif isinstance(work, Exchange):
        yield work.counter, work.given
    elif isinstance(work, Send | Combine):
        yield work.counter, work.landings[0].buffer
    elif isinstance(work, Make | Tally) and leaf.op in ("make", "tally"):
        yield work.counter, work.buffer
    elif isinstance(work, Fill) and leaf.op == "put":
        yield work.counter, work.sources[0].copy.buffer
