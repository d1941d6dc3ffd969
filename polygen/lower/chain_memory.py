"""What a chain keeps in shared memory and takes of a multiprocessor.

A ring for the rows, one for the keys and one for the values, each slot in the layout that matrix
descriptors tell, proved as for any product; panels of results, where these leave in some; barriers
behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.errors import ResourceError
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import MatrixLayout, matrix_layout, pattern_bytes
from polygen.lower.buffers import Buffer
from polygen.lower.memory import barrier_buffers, panel_slots, placed
from polygen.lower.operands import major
from polygen.lower.plan import Resources
from polygen.poly.by_chain import ChainShape
from polygen.poly.chain_match import VALUES, ChainMatch
from polygen.schedule.model import Schedule

_BESIDE = 32  # registers of a consumer beside scores, weights and sums


def layouts(
    matched: ChainMatch, shape: ChainShape, atom: Atom, where: str
) -> dict[str, MatrixLayout]:
    """The layouts of the three tiles in shared memory, by ring.

    Raises:
        ScheduleError: a tile has none.
    """
    rows, columns, keys = shape.tiles.cta
    sizes = {
        "a": (rows, shape.depth, atom.m),
        "b": (keys, shape.depth, keys),
        VALUES: (columns, keys, columns),
    }
    return {
        name: matrix_layout(
            major(operand), *sizes[name][:2], operand.tensor.dtype.bytes, atom.k, sizes[name][2],
            f"{where}, {operand.tensor.name}",
        )
        for name, operand in matched.operands
    }  # fmt: skip


def chain_memory(
    matched: ChainMatch,
    shape: ChainShape,
    made: dict[str, MatrixLayout],
    barriers: Sequence[tuple[str, int, int]] | None = None,
) -> tuple[Buffer, ...]:
    """The buffers of a chain with their offsets.

    Args:
        matched: the operands.
        shape: slots of the rings.
        made: layouts of a slot, by ring.
        barriers: name, slots and owners of those in shared memory; None before they are derived.
    """
    found = []
    for name, operand in matched.operands:
        slots = shape.row_slots if name == "a" else shape.stages
        each = -(-made[name].bytes // pattern_bytes()) * pattern_bytes()
        found.append(
            Buffer(
                f"ring_{name}", "ring", 0, slots, each, pattern_bytes(), layout=made[name],
                note=operand.tensor.name,
            )
        )  # fmt: skip
    rows, written = shape.tiles.atom[0], matched.in_panels.writes
    found += [
        panel_slots(name, element, (rows, shape.panels.columns), shape.slots, shape.consumers)
        for name, element in zip(shape.panels.outputs, written, strict=False)
    ]
    return placed([*found, *barrier_buffers(barriers)])


def chain_resources(
    matched: ChainMatch, shape: ChainShape, schedule: Schedule, device: Device, shared: int
) -> Resources:
    """Count what a block takes.

    Raises:
        ResourceError: with the figure, the limit and what to reduce.
    """
    where, tiles = f"schedule {schedule.name}", shape.tiles
    threads = (shape.consumers + 1) * device.group_threads
    sums = tiles.atoms[0] * tiles.warp[1] // 2
    scores = tiles.atoms[0] * tiles.cta[2] // 2
    registers = sums + scores + scores // 2 + _BESIDE
    given, in_panels = schedule.roles, bool(shape.panels.columns)
    blocks = schedule.min_blocks
    block = device.registers_per_multiprocessor // (threads * blocks) // 8 * 8 * threads
    total = device.group_threads * (
        given.producer_registers + shape.consumers * given.consumer_registers
    )
    if threads > device.max_threads_per_block or total > block:
        raise ResourceError(
            f"{shape.consumers} consumers with {given.consumer_registers} registers a thread",
            where=where,
            why=f"a block has {block} registers",
            nearest="Use fewer consumers: a smaller tile.cta.m"
            + (", or a smaller min_blocks" if blocks > 1 else ""),
        )
    if registers > given.consumer_registers:
        raise ResourceError(
            f"about {registers} registers per consumer thread, it has {given.consumer_registers}",
            where=where,
            why=f"{sums} for sums, {scores} for scores and {scores // 2} for what is multiplied",
            nearest="Reduce tile.cta.k, the keys of a tile",
        )
    if shared > device.shared_per_block_optin:
        raise ResourceError(
            f"{shared} bytes of shared memory, {device} has at most "
            f"{device.shared_per_block_optin} per block",
            where=where,
            why=f"{shape.row_slots} tile(s) of {tiles.cta[0]} rows, {shape.stages} of "
            f"{tiles.cta[2]} keys and values"
            + (f", and {shape.slots} panels of results a consumer" if in_panels else ""),
            nearest="Reduce pipeline.stages, tile.cta.k or epilogue.prefetch, the tiles of rows"
            + (", or epilogue.slots" if in_panels else ""),
        )
    whole = blocks * (shared + device.shared_reserved_per_block)
    if whole > device.shared_per_multiprocessor:
        raise ResourceError(
            f"min_blocks = {blocks} of {shared} bytes of shared memory",
            where=where,
            why=f"a multiprocessor has {device.shared_per_multiprocessor}, and each block takes "
            f"{device.shared_reserved_per_block} besides",
            nearest="Reduce min_blocks, pipeline.stages or tile.cta.k",
        )
    return Resources(threads, shared, device.shared_per_block_optin, registers, blocks)
