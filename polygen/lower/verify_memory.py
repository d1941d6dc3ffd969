"""Checks that shared memory is what the tile program counts on: slots, owners, tiles, barriers.

1. A buffer has the slots that versions share in turn, once for each agent that owns one.
2. A barrier has as many slots, and owners, as were proved.
3. Rings hold tiles of their operands, with the operand's innermost dim innermost; what the copy
   engine writes or reads begins at whole patterns of its swizzles.
4. Buffers share bytes where the tile program overlays them, and nowhere else.
5. The launch has the bytes that buffers end at.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import MatrixLayout, pattern_bytes
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.buffers import Buffer, Rows
from polygen.lower.memory import SUM_BYTES
from polygen.lower.plan import KernelPlan
from polygen.lower.ring_tiles import extents_of, operands_of
from polygen.poly import tile_program
from polygen.poly.operand import Operand

_SCRATCH = "scratch"


def check_memory(plan: KernelPlan) -> None:
    """Check the buffers of a kernel.

    Raises:
        VerifyError: with the buffer, and what it lacks.
    """
    names = [one.name for one in plan.buffers]
    shared = [one for one in plan.tile_program.buffers if one.space == "shared"]
    barriers = {one.buffer: one for one in plan.syncs if one.buffer}
    wanted = {one.name for one in shared} | set(barriers)
    if len(set(names)) != len(names) or set(names) != wanted:
        raise VerifyError(f"buffers are {', '.join(names)}", where=plan.entry,
                          why=f"not {', '.join(sorted(wanted))}")  # fmt: skip
    for one in shared:
        _check_buffer(plan, plan.buffer(one.name), one)
    check_apart(plan)
    for name, placed in barriers.items():
        made, size = plan.buffer(name), common_facts()["mbarrier_bytes"]
        said = (made.slots, made.owners, made.slot_bytes, made.alignment, made.kind, made.overlay)
        if said != (placed.sync.slots, placed.owners, size, size, "barrier", False):
            raise VerifyError(f"{placed.sync.slots} barriers are {made}", where=plan.entry)
        if made.layout is not None:
            raise VerifyError(f"{name} holds no tiles", where=plan.entry)
    end = max((one.end for one in plan.buffers), default=0)
    if (plan.launch.shared_bytes, plan.resources.shared_bytes) != (end, end):
        raise VerifyError(
            f"buffers end at {end}, the launch has {plan.launch.shared_bytes} bytes",
            where=plan.entry,
        )


def check_apart(plan: KernelPlan) -> None:
    """Buffers share bytes only where the tile program says so, and orders what touches them.

    Raises:
        VerifyError: with two that do, and it does not.
    """
    over = {one.name: one.overlays for one in plan.tile_program.buffers}
    for one, other in itertools.combinations(sorted(plan.buffers, key=lambda b: b.offset), 2):
        said = one.name in over.get(other.name, ()) or other.name in over.get(one.name, ())
        if other.offset < one.end and not said:
            raise VerifyError(f"{other.name} overlaps {one.name}", where=plan.entry,
                              why=f"its bytes begin at {other.offset}")  # fmt: skip


def _check_buffer(plan: KernelPlan, made: Buffer, one: tile_program.Buffer) -> None:
    """A buffer of the plan has room for what the tile program keeps in it."""
    where, staged = f"{plan.entry}, {made}", one.name == _SCRATCH
    slots = len(plan.match.products) if staged else one.slots  # an area for each product's sums
    agents = math.prod(_owners(plan, one))
    if (made.slots, made.owners) != (slots, agents):
        raise VerifyError(f"{one.name} has {one.slots} slots for each of {agents}", where=where)
    overlaid = [plan.buffer(name) for name in one.overlays]
    if made.overlay != bool(overlaid) or any(
        plan.buffer(name).offset < made.offset for name in one.overlays
    ):
        raise VerifyError(f"{one.name} lies over {', '.join(one.overlays) or 'nothing'}",
                          where=where)  # fmt: skip
    by_engine = made.kind == "panel" or isinstance(made.layout, MatrixLayout)
    unit = pattern_bytes() if by_engine else chunk_bytes()
    if made.alignment != unit:
        raise VerifyError(f"slots at multiples of {made.alignment} bytes", where=where)
    if staged:
        _check_scratch(plan, made)
        return
    ring = one.name.removeprefix("ring_")
    operand = operands_of(plan).get(ring)
    if operand is not None and one.name.startswith("ring_"):
        _check_ring(plan, made, operand, extents_of(plan, ring), unit)
    elif made.layout is not None and operand is None and not one.name.startswith("ring_"):
        raise VerifyError(f"{one.name} holds no operand's tiles", where=where)


def _check_scratch(plan: KernelPlan, made: Buffer) -> None:
    """An area of the scratch has the rows of a warp's sums."""
    (rows, columns), layout = plan.tiles.warp, made.layout
    said = (layout.rows, layout.row_bytes) if isinstance(layout, Rows) else None
    if isinstance(layout, Rows):
        check_rows(layout, f"{plan.entry}, {made}")
    if said != (rows, columns * SUM_BYTES) or made.slot_bytes != rows * columns * SUM_BYTES:
        raise VerifyError("no room for the sums of a warp", where=f"{plan.entry}, {made}")


@functools.lru_cache(maxsize=64)
def check_rows(layout: Rows, where: str) -> None:
    """Where threads say that a byte of a row lies is where the swizzle has it.

    Args:
        layout: of a tile; rows repeat after a period of its swizzle.
        where: for the message.

    Raises:
        VerifyError: it is elsewhere.
    """
    rows = min(layout.rows, 2 * layout.swizzle.period)
    row, byte = np.indices((rows, layout.row_bytes))
    found = formula.value(layout.place, {"row": row, "byte": byte})
    if not np.array_equal(found, layout.swizzle.address(row, byte, layout.row_bytes)):
        raise VerifyError(f"bytes lie elsewhere than at {layout.place}", where=where)


def _owners(plan: KernelPlan, one: tile_program.Buffer) -> tuple[int, ...]:
    """How many agents of a block have a copy each, along each of their coordinates."""
    for statement in plan.tile_program.statements:
        cells = [text for text in (*statement.reads, *statement.writes)
                 if text.split("[")[0] == one.name]  # fmt: skip
        if cells:
            place = statement.place
            return place.counts[place.blocks :][: max(0, one.owner - place.blocks)]
    return ()


def _check_ring(
    plan: KernelPlan, made: Buffer, operand: Operand, extents: tuple[int, int], unit: int
) -> None:
    """A slot holds a tile of the operand, innermost what is innermost in the array."""
    where, size = f"{plan.entry}, {made}", operand.tensor.dtype.bytes
    tile, depth = extents
    rows, columns = (tile, depth) if operand.k_contiguous else (depth, tile)
    if made.slot_bytes != -(-rows * columns * size // unit) * unit:
        raise VerifyError(f"a tile has {rows * columns * size} bytes", where=where)
    layout = made.layout
    if isinstance(layout, Rows):
        check_rows(layout, where)
    if layout is None or (layout.rows, layout.row_bytes) != (rows, columns * size):
        raise VerifyError(f"tiles are {rows} rows of {columns * size} bytes", where=where)
    major = "k" if operand.k_contiguous else "mn"
    if isinstance(layout, MatrixLayout) and layout.major != major:
        raise VerifyError(f"{major} is innermost", where=where)
    if isinstance(layout, Rows) == plan.schedule.specialised:
        raise VerifyError("no such layout is multiplied from", where=where)
