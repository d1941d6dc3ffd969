"""Checks that threads are those of the tile program's places, and leaves their statements'.

1. A place has the warps of its agents: one lane of each warp, or whole warps and warpgroups. Places
   of several follow each other, whole warpgroups first, with the registers of the schedule.
2. A leaf is of its statement's place, by its unit, and does what its statement says. What is no
   statement is a part of others: the fused program, and one element of it.
3. Who waits and arrives, fences and meets does so by the unit that was proved.
"""

from __future__ import annotations

import math

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.lower.key_parts import AFTER
from polygen.lower.plan import KernelPlan, Leaf, Place
from polygen.lower.result_work import Epilogue
from polygen.lower.scan_work import PartStore, RowStore
from polygen.lower.sync_work import Groups, Placed, Signal
from polygen.lower.synchronise import AGENTS, rendezvous, unit_of
from polygen.poly.tile_program import TileStatement

# The unit of a statement -> those of its leaf.
_UNITS = {
    "threads": ("threads", "lines", "lanes", "cache", "registers"),
    "tma.load": ("tma",),
    "tma.store": ("tma",),
}
# What a statement is -> what its leaf does; of moves and maps the leaf's name begins so.
_DOES = {"product": "multiply", "commit": "commit", "close": "close", "frame": "locate"}
_NAMED = (
    "store", "prepare", "stage", "fold", "unfold", "give", "take",
    "advance", "weigh", "rescale", "convert", "complete", "leave",
)  # fmt: skip
_PARTS = {"compute": "compute", "finish_element": "edge"}  # of others' leaves


def check_agents(plan: KernelPlan) -> None:
    """Check the places of a kernel, and whose leaves are whose.

    Raises:
        VerifyError: with the place or the leaf, and what it should be.
    """
    for place in plan.places:
        _check_place(plan, place)
    _check_warps(plan)
    statements = {one.calls or one.name: one for one in plan.tile_program.statements}
    synchronising = {one.name for one in plan.synchronised.leaves}
    for leaf in plan.leaves:
        if leaf.statement in statements:
            _check_leaf(plan, leaf, statements[leaf.statement])
        elif leaf.statement not in synchronising:
            _check_part(plan, leaf)
    names = [(leaf.statement, leaf.place, leaf.section) for leaf in plan.leaves]
    if len(set(names)) != len(names):
        raise VerifyError("a statement has two leaves", where=plan.entry)
    for leaf in plan.leaves:
        if leaf.statement in synchronising:
            _check_sync(plan, leaf)


def _check_place(plan: KernelPlan, place: Place) -> None:
    """As many warps as the agents have threads, or one of each."""
    one = next(tree.place for tree in plan.trees if tree.place.name == place.name)
    agents, warp = math.prod(one.counts[one.blocks :]), plan.device.warp_size
    elected = one.threads == 1
    warps = agents if elected else agents * one.threads // warp
    roles, specialised = plan.schedule.roles, plan.schedule.specialised
    registers = 0
    if specialised:
        registers = roles.producer_registers if place.first_warp else roles.consumer_registers
    said = (place.agents, place.elected, place.warps, place.agent, place.registers)
    wanted = (agents, elected, warps, AGENTS[place.name], registers)
    if said != wanted:
        raise VerifyError(f"{place.name} is {said} and not {wanted}", where=plan.entry)


def _check_warps(plan: KernelPlan) -> None:
    """Warps are numbered through, those of whole warpgroups that multiply first."""
    first, multiply = 0, {leaf.place for leaf in plan.leaves if leaf.op == "multiply"}
    for place in sorted(plan.places, key=lambda one: one.first_warp):
        if place.first_warp != first or (first == 0) != (place.name in multiply):
            raise VerifyError(f"{place.name} begins at warp {place.first_warp}", where=plan.entry)
        first += place.warps


def _check_leaf(plan: KernelPlan, leaf: Leaf, one: TileStatement) -> None:
    """What a tile statement is, by its own unit, in its own place."""
    where = f"{plan.entry}, {leaf.statement}"
    everywhere = bool(one.calls) and leaf.place == ""
    if leaf.place != one.place.name and not everywhere:
        raise VerifyError(f"is a leaf of {leaf.place}, its statement of {one.place.name}",
                          where=where)  # fmt: skip
    unit = one.unit.name
    if one.op == "commit":
        closed = [s.unit.name for s in plan.tile_program.statements if s.group == one.name]
        unit = next(iter(closed), unit)
    if leaf.unit not in _UNITS.get(unit, (unit,)):
        raise VerifyError(f"is done by {leaf.unit}, its statement by {unit}", where=where)
    does = _DOES.get(one.op, "")
    named = next((name for name in _NAMED if leaf.statement.startswith(name)), "")
    if leaf.statement.startswith("terms"):
        named = "store_rows_of_states" if isinstance(leaf.work, RowStore) else "store_pairs"
    fits = leaf.op == does if does else leaf.op.startswith(named)
    if does == "locate":
        fits = leaf.op in ("locate", "locate_rows", "located")
    if not fits or (isinstance(leaf.work, Groups) and leaf.work.pending):
        raise VerifyError(f"{leaf.op} is no {does or named}", where=where)
    if leaf.op.startswith("store_") and isinstance(leaf.work, Epilogue):
        rows = leaf.op == "store_rows"
        if leaf.op in ("store_rows", "store_pairs") and rows != leaf.work.staged:
            raise VerifyError(f"{leaf.op} of what is not there", where=where)
        if (leaf.op == "store_streamed") != leaf.work.streamed:
            raise VerifyError(f"{leaf.op} of sums that no register holds", where=where)


def _check_part(plan: KernelPlan, leaf: Leaf) -> None:
    """What no loop calls is the fused program, where it is made."""
    begins = next((name for name in _PARTS if leaf.statement.startswith(name)), None)
    suffix = leaf.work.suffix if isinstance(leaf.work, Epilogue) else None
    if begins is None or leaf.statement != f"{begins}{suffix}" or leaf.op != _PARTS[begins]:
        raise VerifyError(f"{leaf.statement} is no statement", where=plan.entry)
    user = next(place.name for place in plan.places if place.first_warp == 0)
    user = AFTER if plan.of(PartStore) else user
    if leaf.place != user or (leaf.unit, leaf.loops) != ("threads", ()):
        raise VerifyError(f"{leaf.statement} is a part of {leaf.place}", where=plan.entry)


def _check_sync(plan: KernelPlan, leaf: Leaf) -> None:
    """What synchronises does so by its own unit, for its own agents."""
    where, proved = f"{plan.entry}, {leaf.statement}", plan.synchronised
    plain = {s.wait: s for s in proved.syncs if s.kind in ("retire", "fence", "grid")}
    if leaf.statement in plain:
        unit = unit_of(plain[leaf.statement])
    elif isinstance(leaf.work, Placed):
        unit = rendezvous(leaf.work, len(plan.places), plan.device.warp_size)
    else:
        unit = "turn" if leaf.op in ("wait", "arrive") and leaf.unit == "turn" else "mbarrier"
    if leaf.unit != unit:
        raise VerifyError(f"is done by {leaf.unit} and not by {unit}", where=where)
    if isinstance(leaf.work, Signal):
        agent = AGENTS.get(leaf.place) if leaf.work.placed.owners > 1 else ""
        if leaf.work.agent != agent:
            raise VerifyError(f"is of {leaf.work.agent}'s barrier and not {agent}'s", where=where)
        if leaf.work.everywhere:
            _check_everywhere(plan, leaf.work.everywhere, where)


def _check_everywhere(plan: KernelPlan, text: str, where: str) -> None:
    """Of the threads that arrive in other blocks, each arrives at one that shares a tile."""
    cluster = plan.schedule.cluster
    for rank in range(cluster.blocks):
        shared = {
            other
            for other in range(cluster.blocks)
            if other % cluster.m == rank % cluster.m or other // cluster.m == rank // cluster.m
        }
        names = {"rank": rank}
        arriving = {
            thread
            for thread in range(plan.device.group_threads)
            if formula.value(text, names | {"thread": thread})
        }
        if arriving != shared:
            raise VerifyError(
                f"block {rank} arrives at blocks {sorted(arriving)} and not at {sorted(shared)}",
                where=where,
            )
