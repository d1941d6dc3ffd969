"""Shared memory: what a schedule keeps there, and where. The only place that adds it up.

1. A ring per operand, with `stages` slots; slots that the copy engine writes are whole patterns of
   its swizzles. What goes on with the sums behind the k tiles has one slot.
2. For the way out a scratch area of every warp for each product, over the rings; or panels of every
   warpgroup, as many as may be on their way in or out.
3. Where blocks of a cluster share sums, areas in which their parts meet; where agents or blocks
   share rows that are covered, what each has folded of them; and what is folded of operands.
4. Barriers last. While they are not derived yet, room for them is kept.

`memory` needs nothing but the schedule and the program, so it says whether a schedule fits before
anything is built; the plan's buffers are the same, with their layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import pattern_bytes
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.buffers import Buffer
from polygen.poly.fold_parts import SHARED
from polygen.poly.kernel_parts import main_loop
from polygen.poly.match import REST_RING, Match
from polygen.poly.partial_sums import LANDING_SLOTS
from polygen.poly.pointwise import Element, Pointwork
from polygen.poly.register_operands import tile_extents
from polygen.poly.results import panels
from polygen.poly.ring_tallies import NORMS
from polygen.poly.tiling import Tiling, in_pass
from polygen.schedule.model import Schedule

SUM_BYTES = 4  # sums are staged as f32
_BARRIER_BYTES = common_facts()["mbarrier_bytes"]


def memory(
    schedule: Schedule,
    matched: Match,
    work: Pointwork,
    tiles: Tiling,
    barriers: Sequence[tuple[str, int, int]] | None = None,
) -> tuple[Buffer, ...]:
    """The buffers of a schedule with their offsets.

    Args:
        schedule: stages, panels, the way out.
        matched: the operands.
        work: what the epilogue reads and writes.
        tiles: the tile hierarchy.
        barriers: name, slots and owners of those in shared memory; None before they are derived.

    Raises:
        ScheduleError: a matrix of the epilogue cannot be moved in panels.
    """
    found = [] if schedule.without_rings else rings(schedule, matched, tiles)
    if schedule.epilogue.through == "smem":
        size, each = tiles.warp[0] * tiles.warp[1] * SUM_BYTES, len(matched.products)
        found.append(
            Buffer(
                "scratch", "scratch", 0, each, size, chunk_bytes(), tiles.warp_count, overlay=True
            )
        )
    found += _rest(matched, tiles)
    found += _panels(schedule, work, tiles)
    found += _landings(schedule, matched, tiles)
    found += _given(schedule, matched, work, tiles)
    found += _norms(schedule, matched, work, tiles)
    if barriers is not None or schedule.specialised:
        found += barrier_buffers(barriers)
    return placed(found)


def barrier_buffers(barriers: Sequence[tuple[str, int, int]] | None) -> list[Buffer]:
    """Barriers, not placed yet.

    Args:
        barriers: name, slots and owners of each; None before they are derived: room for them.
    """
    if barriers is None:
        return [Buffer("barriers", "barrier", 0, 1, pattern_bytes(), _BARRIER_BYTES)]
    return [
        Buffer(name, "barrier", 0, slots, _BARRIER_BYTES, _BARRIER_BYTES, own)
        for name, slots, own in barriers
    ]


def needed(buffers: Sequence[Buffer]) -> int:
    """Bytes of shared memory."""
    return max((buffer.end for buffer in buffers), default=0)


def placed(buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """One behind the other, but for those that overlay the ones before them.

    What comes after these lies behind their ends too: they may be larger than what they overlay.
    """
    offset, found = 0, []
    for buffer in buffers:
        found.append(replace(buffer, offset=0 if buffer.overlay else offset))
        offset = max(offset, found[-1].end)
    return tuple(found)


def rings(schedule: Schedule, matched: Match, tiles: Tiling) -> list[Buffer]:
    """A ring for every operand, not placed yet."""
    alignment = pattern_bytes() if schedule.specialised else chunk_bytes()
    found = []
    for name, operand in matched.operands:
        tile = math.prod(tile_extents(operand, tiles)) * operand.tensor.dtype.bytes
        slot = -(-tile // alignment) * alignment
        found.append(Buffer(f"ring_{name}", "ring", 0, schedule.pipeline.stages, slot, alignment))
    return found


def _rest(matched: Match, tiles: Tiling) -> list[Buffer]:
    """The right operand of a product that goes on with the sums: a tile of it, all of its k."""
    rest = matched.rest
    if rest is None:
        return []
    size = tiles.cta[1] * rest.padded * rest.operand.tensor.dtype.bytes
    slot = -(-size // pattern_bytes()) * pattern_bytes()
    return [Buffer(f"ring_{REST_RING}", "ring", 0, 1, slot, pattern_bytes())]


def _panels(schedule: Schedule, work: Pointwork, tiles: Tiling) -> list[Buffer]:
    chosen = panels(schedule, work)
    if chosen is None:
        return []
    owners, tile = schedule.consumers, (tiles.atom[0], chosen.columns)
    ahead, behind = schedule.epilogue.prefetch, schedule.epilogue.slots
    return [
        *(
            panel_slots(name, element, tile, slots, owners, kind)
            for kind, names, moved, slots in (
                ("panel", chosen.operands, work.matrices, ahead),
                ("result", chosen.outputs, work.writes, behind),
            )
            for name, element in zip(names, moved, strict=False)
        ),
    ]


def panel_slots(
    name: str,
    element: Element,
    tile: tuple[int, int],
    slots: int,
    owners: int,
    kind: str = "result",
) -> Buffer:
    """Panels of one matrix, not placed yet.

    Args:
        name: of its panels.
        element: the matrix.
        tile: rows and columns of a panel.
        slots: of each owner.
        owners: agents that have their own.
        kind: "panel" of what comes, "result" of what leaves.
    """
    rows, columns = tile
    size = rows * columns * element.tensor.dtype.bytes
    note = f"{element.tensor.name}, {rows} x {columns} per panel, swizzled"
    return Buffer(f"{kind}_{name}", "panel", 0, slots, size, pattern_bytes(), owners, note=note)


def _landings(schedule: Schedule, matched: Match, tiles: Tiling) -> list[Buffer]:
    """Every block gets a part of its share of the sums from every block: a whole tile of them.

    Or a chunk of its share, a time after the other.
    """
    if tiles.split == 1:
        return []
    size = tiles.warp[0] * tiles.warp[1] // tiles.chunks * SUM_BYTES
    owners = schedule.consumers
    note = f"sums of {tiles.share // tiles.chunks} columns from each of {tiles.split} blocks"
    return [
        Buffer(
            product.called("part"), "landing", 0, LANDING_SLOTS, size, chunk_bytes(), owners,
            note=note,
        )
        for product in main_loop(matched).products
    ]  # fmt: skip


def _given(schedule: Schedule, matched: Match, work: Pointwork, tiles: Tiling) -> list[Buffer]:
    """What agents that share rows have of them, pass by pass: a number for each component.

    Of blocks that share rows every agent gets a part from each.
    """
    if tiles.warps[1] * tiles.beside == 1:
        return []
    rows, agents = tiles.warp[0] * matched.real.bytes * tiles.beside, schedule.consumers
    slots = LANDING_SLOTS if tiles.beside > 1 else 1
    return [
        Buffer(
            in_pass(SHARED, number), "given", 0, slots,
            rows * sum(len(fold.terms) for fold in one.folds), chunk_bytes(), agents,
            note="what is folded of rows",
        )
        for number, one in enumerate(work.before)
    ]  # fmt: skip


def _norms(schedule: Schedule, matched: Match, work: Pointwork, tiles: Tiling) -> list[Buffer]:
    """What an agent folds of the rows of operands: a number for each fold."""
    agents = schedule.consumers
    return [
        Buffer(
            f"{NORMS}_{one.ring}", "norms", 0, 1,
            tiles.warp["mn".index(one.role)] * len(one.results) * matched.real.bytes, chunk_bytes(),
            agents,
            note="what is folded of rows of " + matched.operand(one.ring).tensor.name,
        )
        for one in work.ring_folds(matched)
    ]  # fmt: skip
