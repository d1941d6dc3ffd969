"""The blocks for which results are followed: one whose tile ends outside, and the first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polygen.emit.proofs.elements import Block
from polygen.emit.proofs.threads import (
    APART,
    IN_FRONT,
    SHARED,
    Arrays,
    lay_out,
    of_kernel,
    of_place,
    size,
    times,
    whole_place,
)
from polygen.lower.accesses import ROWS_BEFORE, ROWS_OF_GROUP
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue
from polygen.lower.tally import Tally
from polygen.poly.pointwise import Pointwork

_KEPT = 1 << 54  # where the workspace's arrays begin


def pointwork(plan: KernelPlan, e: Epilogue) -> Pointwork:
    """What the program says of an epilogue, or of a pass before it."""
    every = zip((*plan.epilogue.before, plan.epilogue), (*plan.work.before, plan.work), strict=True)
    return next(work for one, work in every if one == e)


def end(plan: KernelPlan, role: str) -> int:
    """A size that ends inside of a tile: of rows of the second, of columns of the third."""
    side = "mn".index(role)
    return (side + 2) * plan.tiles.cta[side] - min(3 + 2 * side, plan.tiles.cta[side] - 1)


def blocks(
    plan: KernelPlan, place: str, epilogue: Epilogue, iterator: str = "call", count: int = 1, *,
    even: bool = False, states: Mapping[str, str] | None = None, shared: bool = False,
    first_columns: bool = False,
) -> Block:  # fmt: skip
    """A block whose tile ends outside, in all calls of a leaf, and the first agent of the first.

    Args:
        plan: the kernel.
        place: whose threads.
        epilogue: what they finish.
        iterator: of the calls.
        count: of the calls.
        even: whether the tile ends behind a pair.
        states: of a chain: sums that are states of rows, and the registers that hold them.
        first_columns: whether the block is the first along n, and ends outside along m alone.
        shared: whether all calls of a block are in its own shared memory, those of the first too.
    """
    work = pointwork(plan, epilogue)
    extents = {role: extent for role, extent in plan.extents}
    ends = {str(extents[role]): end(plan, role) - even for role in "mn"}
    if plan.match.groups:
        ends[str(extents["m"])] = 1 << 14
    names = of_kernel(plan, ends) | {ROWS_BEFORE: IN_FRONT, ROWS_OF_GROUP: end(plan, "m")}
    own, threads = of_place(plan, place)
    names |= own | {"rank": plan.tiles.split - 1, "share": plan.tiles.split - 1}
    kept = {one.tensor for one in (*work.reads, *work.writes)} - set(plan.program.tensors.values())
    lay_out(names, sorted(kept, key=lambda one: one.name), _KEPT)  # in the workspace
    last = [(size(names, extents[role]) - 1) // plan.tiles.cta["mn".index(role)] for role in "mn"]
    if plan.match.groups:
        last[0] = 1
    if first_columns:
        last[1] = 0
    # Agents that have a tile each have different ones.
    apart = own["group"] if whole_place(plan).agents > math.prod(plan.tiles.warps) else 0
    copies = [(tuple(last), at) for at in range(count)]
    if tuple(last) != (0, 0):
        copies += [((0, 0), at) for at in range(count if shared else 1)]
    own_memory: dict[Any, int] = {}  # of a copy, or of a block
    each: dict[str, list[Any]] = {name: [] for name in ("b_m", "b_n", "shared", iterator)}
    for (b_m, b_n), at in copies:
        whose = (b_m, b_n, 0 if shared else at)
        memory = own_memory.setdefault(whose, SHARED + len(own_memory) * APART)
        values = (np.maximum(b_m - apart, 0), b_n, memory, at)
        for name, value in zip(each, values, strict=True):
            each[name].append(np.broadcast_to(value, (threads,)))
    names = times(names, len(copies))
    names |= {name: np.concatenate(values) for name, values in each.items()}
    first = plan.device.group_threads if plan.atom.scope == "warpgroup" else plan.device.warp_size
    number = np.arange(threads * len(copies))
    kept_threads = (number < threads * count) | (number % threads < first)
    names = {
        name: one[kept_threads] if isinstance(one, np.ndarray) else one
        for name, one in names.items()
    }
    for fold in plan.of(Tally):  # where results of rows begin that folds of rings leave
        buffer = plan.buffer(fold.norms)
        agent = names[plan.place(place).agent if place else whole_place(plan).agent]
        names[f"{fold.norms}_at"] = names["shared"] + buffer.offset + agent * buffer.owner_bytes
    return Block(
        plan,
        epilogue,
        work,
        names,
        int(kept_threads.sum()),
        Arrays(plan, names, *kept),
        (count, threads),
        states=states or {},
    )
