"""What a chain keeps in shared memory and takes of a multiprocessor.

A ring for the rows, one for the keys and one for the values, each slot in the layout that matrix
descriptors tell, proved as for any product; panels of results, where these leave in some; barriers
behind them. Without roles slots are rows, under the swizzle with the fewest bank conflicts, and
there are no barriers in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polygen.errors import ResourceError
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.hardware.fragment_load import atom_load
from polygen.hardware.matrix_layout import MatrixLayout, matrix_layout, pattern_bytes
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.buffers import Buffer, Rows
from polygen.lower.carried import order_of
from polygen.lower.layout import ring
from polygen.lower.memory import barrier_buffers, panel_slots, placed
from polygen.lower.operands import major
from polygen.lower.plan import Resources
from polygen.lower.resources import registers_available
from polygen.lower.ring_tiles import ring_extents
from polygen.poly.chain_match import VALUES, ChainMatch
from polygen.poly.chain_shape import ChainShape
from polygen.poly.pointwise import Pointwork
from polygen.schedule.model import Pipeline, Schedule

_BESIDE = 32  # registers of a consumer beside scores, weights and sums
# Of one that computes tangents of scores, in both forms, besides: where 160 are just enough without
# them, 21 and 51 are spilled with 48 and 64 columns.
_TANGENTS = 16


Layouts = Mapping[str, MatrixLayout | Rows]


def layouts(matched: ChainMatch, shape: ChainShape, atom: Atom, schedule: Schedule) -> Layouts:
    """The layouts of the three tiles in shared memory, by ring.

    Raises:
        ScheduleError: a tile has none.
    """
    made = _by_rows if shape.pipeline is not None else _of_descriptors
    return {
        name: made(matched, name, ring_extents(matched, name, shape.tiles), atom, schedule)
        for name, _ in matched.operands
    }


def _of_descriptors(
    matched: ChainMatch, name: str, extents: tuple[int, int], atom: Atom, schedule: Schedule
) -> MatrixLayout:
    operand = dict(matched.operands)[name]
    where = f"schedule {schedule.name}, {operand.tensor.name}"
    own = atom.m if name == "a" else extents[0]
    return matrix_layout(major(operand), *extents, operand.tensor.dtype.bytes, atom.k, own, where)


def _by_rows(
    matched: ChainMatch, name: str, extents: tuple[int, int], atom: Atom, schedule: Schedule
) -> Rows:
    """Stored rows, which threads copy and fragments are loaded from."""
    operand = dict(matched.operands)[name]
    side, k_contiguous = "ab"["mn".index(operand.role)], operand.k_contiguous
    order = order_of(matched, name, atom)
    own = schedule.tile.warp.m // atom.m if name == "a" else extents[0] // atom.n
    loaded = atom_load(atom, side, k_contiguous, own, order)
    assert loaded is not None  # of 16 and 32 bits there is one for each storage order
    rows, columns = extents if k_contiguous else extents[::-1]
    size = operand.tensor.dtype.bytes
    width = min(chunk_bytes(), operand.alignment)
    return ring(f"ring_{name}", rows, columns * size, width, loaded, schedule.smem.swizzle)


def chain_memory(
    matched: ChainMatch,
    shape: ChainShape,
    made: Layouts,
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
    unit = pattern_bytes() if shape.roles else chunk_bytes()
    others = {one.right: one for one in shape.layer_tiles if one.number >= 0}
    for name, operand in matched.operands:
        if name in others and others[name].number > 0:
            continue  # in the ring of the first one
        slots = shape.stages if name in (*shape.key_rings, VALUES) else shape.row_slots
        slots = shape.layer_slots if name in others else slots
        each = -(-made[name].bytes // unit) * unit
        found.append(
            Buffer(
                f"ring_{name}", "ring", 0, slots, each, unit, layout=made[name],
                note=operand.tensor.name,
            )
        )  # fmt: skip
    rows, written = shape.tiles.atom[0], matched.in_panels.writes
    found += [
        panel_slots(name, element, (rows, shape.panels.columns), shape.slots, shape.consumers)
        for name, element in zip(shape.panels.outputs, written, strict=False)
    ]
    return placed([*found, *(barrier_buffers(barriers) if shape.roles else ())])


def chain_resources(
    shape: ChainShape, atom: Atom, schedule: Schedule, device: Device, shared: int, folded: int,
    before: Pointwork,
) -> Resources:  # fmt: skip
    """Count what a block takes.

    Args:
        shape: its tiles.
        atom: the instruction.
        schedule: that has them.
        device: the target.
        shared: bytes of shared memory.
        folded: registers of a thread in which results are folded, when scores are gone.
        before: what is computed of scores.

    Raises:
        ResourceError: with the figure, the limit and what to reduce.
    """
    if shape.pipeline is not None:
        return _of_warps(shape, shape.pipeline, atom, schedule, device, shared, folded)
    where, tiles = f"schedule {schedule.name}", shape.tiles
    threads = (shape.consumers + 1) * device.group_threads
    sums = tiles.atoms[0] * tiles.warp[1] // 2
    scores = tiles.atoms[0] * tiles.cta[2] // 2
    tangents = _TANGENTS * any(one.function == "tanh" for one in before.statements)
    registers = sums + max(scores + scores // 2 + tangents, folded) + _BESIDE
    given, blocks = schedule.roles, schedule.min_blocks
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
            why=f"{sums} for sums, {scores} for scores and {scores // 2} for what is multiplied"
            + (f", {tangents} for tangents" if tangents else ""),
            nearest="Reduce tile.cta.k, the keys of a tile",
        )
    _check_shared(shape, schedule, device, shared)
    return Resources(threads, shared, device.shared_per_block_optin, registers, blocks)


def _of_warps(
    shape: ChainShape,
    pipeline: Pipeline,
    atom: Atom,
    schedule: Schedule,
    device: Device,
    shared: int,
    folded: int,
) -> Resources:
    """The same where warps do everything: the compiler divides registers among all threads."""
    where, tiles, blocks = f"schedule {schedule.name}", shape.tiles, schedule.min_blocks
    threads = shape.consumers * device.warp_size
    if threads > device.max_threads_per_block:
        raise ResourceError(
            f"{threads} threads per block, {device} has at most {device.max_threads_per_block}",
            where=where,
            nearest="Use larger warp tiles",
        )
    sums, scores = (tiles.warp[0] * n // device.warp_size for n in (tiles.warp[1], tiles.cta[2]))
    beside = shape.products
    # Fragments of a step; and what is made of scores, which are no more when values are loaded.
    slots = atom.pieces * pipeline.fragments
    of_rows, of_columns = (one.registers * slots for one in (atom.a, atom.b))
    rows = tiles.warp[0] // atom.m * of_rows
    keys, columns = (n // atom.n * of_columns for n in (tiles.cta[2], tiles.cta[1]))
    weights = scores * atom.pieces // atom.a.elements_per_register
    made, layers = 0, 0
    read = {*shape.again, *shape.behind, *(name for one in shape.layers for name in one.again)}
    left = sum(one.columns * tiles.warp[0] for one in shape.layers if one.name in read)
    left //= device.warp_size
    kept = scores if "" in read else 0
    for one in shape.layers:  # their sums, and what they multiply: fragments, or what was made
        own = one.columns * tiles.warp[0] // device.warp_size
        inside = one.products * (own + one.columns // atom.n * of_columns)
        layers = max(layers, inside + (made or rows))
        made = own * atom.pieces // atom.a.elements_per_register
    later = max(weights + columns + made, folded) + kept
    held = max(beside * (scores + keys) + (made or rows), later)
    registers = max(sums + held, layers) + left + _BESIDE
    available = registers_available(schedule, device, threads)
    if registers > available:
        raise ResourceError(
            f"about {registers} registers per thread, at most {available} are available",
            where=where,
            why=f"{sums} for sums, {beside * scores} for scores"
            + (f", {layers} for a layer with what it multiplies" if layers else "")
            + f", with {blocks} block(s) of {threads} threads per multiprocessor",
            nearest=_two_functions("tile.warp.m or min_blocks")
            if layers
            else "Reduce tile.cta.k, the keys of a tile, tile.warp.m or min_blocks",
        )
    _check_shared(shape, schedule, device, shared)
    return Resources(threads, shared, device.shared_per_block_optin, registers, blocks)


def _two_functions(fields: str) -> str:
    """What would do where layers do not fit; `fields`: of a schedule, where tiles are large."""
    return (
        "Make two functions: return what is made half way from the first, and go on with it in the "
        f"second; or reduce {fields} of a schedule that has more than 16 rows and keys"
    )


def _check_shared(shape: ChainShape, schedule: Schedule, device: Device, shared: int) -> None:
    """Refuse what has no room in shared memory, once or so many times as blocks are to share it."""
    where, tiles, blocks = f"schedule {schedule.name}", shape.tiles, schedule.min_blocks
    in_panels = bool(shape.panels.columns)
    if shared > device.shared_per_block_optin:
        raise ResourceError(
            f"{shared} bytes of shared memory, {device} has at most "
            f"{device.shared_per_block_optin} per block",
            where=where,
            why=f"{shape.row_slots} tile(s) of {tiles.cta[0]} rows, {shape.stages} of "
            f"{tiles.cta[2]} keys and values"
            + (f", what {len(shape.layers)} layers multiply" if shape.layers else "")
            + (f", and {shape.slots} panels of results a consumer" if in_panels else ""),
            nearest=_two_functions("pipeline.stages, tile.cta.m or tile.cta.k")
            if shape.layers
            else "Reduce pipeline.stages, tile.cta.k or epilogue.prefetch, the tiles of rows"
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
