"""Checks a plan against itself before code is written: one that fails is a bug, no user's mistake.

1. Buffers do not overlap, lie inside the launch's shared memory and are aligned for their accesses;
   rows and swizzles fill their slots.
2. Every statement that the loops of a place call has a leaf there, with as many iterators as the
   call passes. What a leaf then makes of them is checked where it is written (`polygen.emit.leaf`).
3. A barrier expects the bytes that the copies of its statement bring.
4. The launch has the threads that the places count on; places have their agents' warps, leaves
   their statements' places and units (`polygen.lower.verify_agents`); shared memory is what the
   tile program counts on (`polygen.lower.verify_memory`), parameters and tensor maps are the
   program's (`polygen.lower.verify_parameters`).
5. Leaves work on the cells of the tile program, and at the addresses of the program's accesses
   (`polygen.lower.verify_accesses`).
6. Parts of folds are whole, written once, and all read (`polygen.lower.folds`); so are parts of the
   keys of a chain (`polygen.lower.key_parts`).
7. Agents, lanes and blocks have their own parts of a tile (`polygen.lower.verify_places`), and of
   panels (`polygen.lower.verify_panels`).
8. What synchronises, and the loops, are those that were proved (`polygen.lower.verify_syncs`).
9. Of a dependent launch, statements whose leaves touch global memory are those that wait, or read
   what is settled, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import VerifyError
from polygen.hardware.matrix_layout import MatrixLayout
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.buffers import Rows
from polygen.lower.fragments import Make
from polygen.lower.key_parts import check_parts
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.promoting import Promote
from polygen.lower.resources import thread_count
from polygen.lower.result_work import Epilogue, Exchange, Finish, Lines, Store, Warm
from polygen.lower.tallies import check_tallies
from polygen.lower.tally import Leave, Tally
from polygen.lower.verify_accesses import check_accesses
from polygen.lower.verify_agents import check_agents
from polygen.lower.verify_folds import check_folds
from polygen.lower.verify_memory import check_memory
from polygen.lower.verify_panels import check_panels
from polygen.lower.verify_parameters import check_parameters
from polygen.lower.verify_places import check_places
from polygen.lower.verify_syncs import check_syncs
from polygen.lower.work import Clear, Copy, Fill, FindPages, Locate, Move, Send, Stream
from polygen.poly.ast import Block, Call, For, If, LoopAst, Marked
from polygen.poly.row_groups import prove_row_groups
from polygen.poly.tile_program import INSIDE
from polygen.poly.tile_walk import prove_walk

# Work that may touch global memory.
_OUTSIDE = (
    Copy, Epilogue, Fill, FindPages, Finish, Leave, Lines, Make, Move, Promote, Store, Tally, Warm,
)  # fmt: skip


def verify(plan: KernelPlan) -> KernelPlan:
    """The plan, if it is sound.

    Raises:
        VerifyError: what is wrong with it.
    """
    _check_buffers(plan)
    _check_calls(plan)
    _check_bytes(plan)
    check_agents(plan)
    check_memory(plan)
    check_parameters(plan)
    check_accesses(plan)
    if plan.epilogue.folds or plan.epilogue.before:
        plan = replace(plan, proofs=(*plan.proofs, *check_folds(plan)))
    parts = check_parts(plan)
    if parts:
        plan = replace(plan, proofs=(*plan.proofs, *parts))
    if plan.of(Tally):
        plan = replace(plan, proofs=(*plan.proofs, *check_tallies(plan)))
    _check_outside(plan)
    _check_domain(plan)
    _check_groups(plan)
    check_places(plan)
    check_panels(plan)
    check_syncs(plan)
    wanted = thread_count(plan.schedule, plan.tiles, plan.device)
    last = max(place.first_warp + place.warps for place in plan.places)
    if plan.launch.threads != wanted or last * plan.device.warp_size > wanted:
        raise VerifyError(
            f"{plan.launch.threads} threads do not make the block's warps", where=plan.entry
        )
    return plan


def _check_domain(plan: KernelPlan) -> None:
    """The tiles that have products are those that were proved, wherever they are asked for.

    The walks that find them are proved as they are written here.
    """
    proved = INSIDE in plan.tile_program.parameters
    walks = {locate.walk for locate in plan.of(Locate)}
    located = {walk.domain if walk else None for walk in walks} or {plan.tile_domain}
    if located != {plan.tile_domain} or proved != (plan.tile_domain is not None):
        raise VerifyError(f"products are not those of {plan.tile_domain}", where=plan.entry)
    for locate in plan.of(Locate):
        if locate.walk is None:
            continue
        prove_walk(locate.walk)
        order = (locate.along, locate.group, plan.device.warp_size)
        if (locate.walk.dim, locate.walk.group, locate.walk.lanes) != order:
            raise VerifyError(f"tiles are not walked in {locate.walk}", where=plan.entry)


def _check_groups(plan: KernelPlan) -> None:
    """Where rows are in groups, the walk that finds them is proved as it is written here."""
    walk = plan.group_walk
    if (walk is None) != (plan.match.groups is None):
        raise VerifyError("groups of rows have no walk, or none is there", where=plan.entry)
    if walk is not None:
        prove_row_groups(walk, plan.tiles.cta[0] * plan.schedule.cluster.m)
        if walk.lanes != plan.device.warp_size:
            raise VerifyError(f"{walk.lanes} lanes walk over groups together", where=plan.entry)


def _check_outside(plan: KernelPlan) -> None:
    """Of a dependent launch, whatever touches global memory is said to: it waits before."""
    program, early = plan.tile_program, plan.launch.dependent
    if program.dependent != early:
        kind = "dependent launch" if early else "launch"
        raise VerifyError(f"the tile program is not that of a {kind}", where=plan.entry)
    waits = {s.name: s.outside or s.settled for s in program.statements}
    order = plan.program.in_order
    settled = () if order is None else order.settled
    for one in (one for one in program.statements if one.settled):
        every = [leaf.work for leaf in plan.leaves if leaf.statement == one.name]
        if not every or not all(_reads_only(work, settled) for work in every):
            raise VerifyError(f"{one.name} waits for nobody, and may have to", where=plan.entry)
    for leaf in plan.leaves if early else ():
        # What is no statement is part of others' leaves.
        if isinstance(leaf.work, _OUTSIDE) and not waits.get(leaf.statement, True):
            raise VerifyError(
                f"{leaf.statement} touches global memory, and may do so before its wait",
                where=plan.entry,
            )


def _reads_only(work: object, settled: tuple[str, ...]) -> bool:
    """Whether it touches nothing in global memory but some arrays, which it reads."""
    if isinstance(work, Move):
        return all(box.tensor.name in settled for box in work.boxes)
    return isinstance(work, Clear) or (
        isinstance(work, Stream) and work.copy.tensor.name in settled
    )


def _check_buffers(plan: KernelPlan) -> None:
    end = 0
    for buffer in sorted(plan.buffers, key=lambda b: (b.overlay, b.offset)):
        if buffer.offset < end and not buffer.overlay:
            raise VerifyError(f"{buffer.name} overlaps the buffer before it", where=plan.entry)
        if buffer.offset % buffer.alignment or buffer.slot_bytes % buffer.alignment:
            raise VerifyError(
                f"{buffer.name} is not aligned to {buffer.alignment} bytes", where=plan.entry
            )
        if isinstance(buffer.layout, Rows):
            rows = buffer.layout
            if rows.row_bytes % chunk_bytes() or rows.rows * rows.row_bytes > buffer.slot_bytes:
                raise VerifyError(f"{buffer.name} is not made of whole chunks", where=plan.entry)
            if not rows.swizzle.fits(rows.row_bytes):
                raise VerifyError(f"the swizzle of {buffer.name} leaves its rows", where=plan.entry)
        if isinstance(buffer.layout, MatrixLayout) and buffer.layout.bytes > buffer.slot_bytes:
            raise VerifyError(f"a tile is larger than the slots of {buffer.name}", where=plan.entry)
        end = max(end, buffer.end)
    if end > plan.launch.shared_bytes:
        raise VerifyError(
            f"buffers end at {end}, the launch has {plan.launch.shared_bytes} bytes",
            where=plan.entry,
        )


def leaves_of(plan: KernelPlan, place: str) -> dict[str, Leaf]:
    """Statement -> its leaf, of one place and of all."""
    return {leaf.statement: leaf for leaf in plan.leaves if leaf.place in ("", place)}


def _check_calls(plan: KernelPlan) -> None:
    for place in plan.places:
        known = leaves_of(plan, place.name)
        for call in calls(place.loops):
            leaf = known.get(call.statement)
            if leaf is None or len(leaf.loops) != len(call.arguments):
                raise VerifyError(
                    f"{call.statement} with {len(call.arguments)} arguments has no leaf",
                    where=f"{plan.entry}, {place.name}",
                )


def _check_bytes(plan: KernelPlan) -> None:
    brought = (
        {
            leaf.statement: sum(boxes.bytes for boxes in leaf.work.boxes)
            for leaf in plan.leaves
            if isinstance(leaf.work, Move)
        }
        | {
            leaf.statement: leaf.work.blocks * sum(one.part_bytes for one in leaf.work.landings)
            for leaf in plan.leaves
            if isinstance(leaf.work, Send)
        }
        | {
            leaf.statement: leaf.work.cluster[1] * leaf.work.part_bytes
            for leaf in plan.leaves
            if isinstance(leaf.work, Exchange)
        }
    )
    for placed in plan.syncs:
        wanted = sum(brought.get(signal, 0) for signal, _ in placed.sync.signals)
        if placed.bytes != wanted:
            raise VerifyError(
                f"{placed.name} expects {placed.bytes} bytes, copies bring {wanted}",
                where=plan.entry,
            )


def calls(node: LoopAst) -> list[Call]:
    """All statement calls of a loop nest."""
    if isinstance(node, Call):
        return [node]
    if isinstance(node, Block):
        return [call for child in node.children for call in calls(child)]
    if isinstance(node, If):
        return calls(node.then) + (calls(node.otherwise) if node.otherwise else [])
    assert isinstance(node, For | Marked)
    return calls(node.body)
