"""Schedules as programs need them: k tiles, stages, panels, all as short or narrow as they must be.

K tiles have as many swizzle spans as their schedules have of 16-bit elements, and whole blocks of
sums; rings have as many slots as fit; panels are as wide as registers and memory hold.
"""

from __future__ import annotations

import math
from dataclasses import replace

from polygen.errors import ResourceError
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import spans
from polygen.lower.legal_blocks import block_tile, check_promoting
from polygen.lower.memory import rings
from polygen.lower.registers import doubt, overlapped, registers_needed, sums_held
from polygen.lower.resources import filling_roles
from polygen.poly.fills import held, ring_pieces, rounds
from polygen.poly.match import Match
from polygen.poly.pointwise import Pointwork
from polygen.poly.promoted_by import MOST_OVERLAP
from polygen.poly.results import narrower
from polygen.poly.tiling import Tiling, tiling
from polygen.schedule.model import Schedule

_FEWEST_STAGES, _MOST_STAGES = 2, 12
_USUAL_BYTES = 2  # of an element
_WORD_BYTES = 4
_LONG_TILES, _STAGES_OF_LONG_TILES = (4, 2), 3  # k tiles in spans, and slots that these keep


def with_short_tile(candidate: Schedule, matched: Match, instruction: Atom) -> Schedule:
    """The schedule with k tiles as long in bytes as it has them, of elements of several registers:
    those wider than words, those that are split and words of chunks that lanes have; and no longer
    than channels are many.
    """
    size, cta, depth = matched.a.multiplied.bytes, candidate.tile.cta, _innermost(matched)
    k = cta.k
    if size > _WORD_BYTES or instruction.pieces > 1 or candidate.by_lanes:
        k = max(cta.k * _USUAL_BYTES // size, instruction.k)
    if depth:  # few channels
        k = min(k, -(-depth // instruction.k) * instruction.k)
    if matched.joined is not None:
        k = _fullest(matched, k, instruction.k, instruction)
    if k == cta.k:
        return candidate
    return _with_steps(candidate, k, instruction)


def _with_steps(candidate: Schedule, k: int, instruction: Atom) -> Schedule:
    """The schedule with other k tiles, and no more fragments ahead than these have steps."""
    pipeline = candidate.pipeline
    fragments = math.gcd(max(k // instruction.k, 1), pipeline.fragments)
    if candidate.from_registers:
        together = math.gcd(fragments, pipeline.together)
        pipeline = replace(pipeline, fragments=fragments, together=together)
    elif not candidate.specialised:
        lookahead = min(pipeline.lookahead, fragments - 1)
        pipeline = replace(pipeline, fragments=fragments, lookahead=lookahead)
    tile = replace(candidate.tile, cta=replace(candidate.tile.cta, k=k))
    return replace(candidate, tile=tile, pipeline=pipeline)


def with_fewer_stages(schedule: Schedule) -> Schedule | None:
    """One slot less in every ring; None where there are too few."""
    pipeline, stages = schedule.pipeline, schedule.pipeline.stages - 1
    if stages < _FEWEST_STAGES:
        return None
    idle = schedule.specialised or schedule.without_rings
    distance = pipeline.distance if idle else min(pipeline.distance, stages - 1)
    return replace(schedule, pipeline=replace(pipeline, stages=stages, distance=distance))


def _innermost(matched: Match) -> int:
    """Of sums over several axes the length of the innermost one; 0: of one, or of any length."""
    (depth, *_) = matched.depths
    return depth if matched.sums and isinstance(depth, int) else 0


def _fullest(matched: Match, most: int, step: int, instruction: Atom) -> int:
    """The k tile, of multiples of a step, that leaves little of the last one empty; the longest.

    A tile is taken to cost half an instruction besides, for its waits and addresses.
    """
    (length,) = matched.depths
    assert isinstance(length, int)  # as digits have it
    tiles, beside = range(step, max(most, step) + 1, step), instruction.k // 2
    return min(tiles, key=lambda k: (-(-length // k) * (k + beside), -k))


def _with_taps(candidate: Schedule, matched: Match, size: int, atom: Atom) -> Schedule:
    """The schedule with k tiles of several taps, of boxes that are of one, and as much on its way.

    Sums that one tile of twice the length has are in one.
    """
    run = math.gcd(matched.joined.run * size if matched.joined else 0, spans()[0])
    step = max(run, spans()[-1]) // size  # an instruction reads as much as the narrowest span has
    own = candidate.tile.cta.k * min(size, _USUAL_BYTES) // size
    (length,) = matched.depths
    most = 2 * own if isinstance(length, int) and length <= 2 * own else own
    k = _fullest(matched, most, step, atom)
    return _with_short_rows(candidate, k, max(1, own // k))


def _with_short_rows(candidate: Schedule, k: int, times: int) -> Schedule:
    """The schedule with so short k tiles, and so many times the stages, which hold as much."""
    cta, pipeline = replace(candidate.tile.cta, k=k), candidate.pipeline
    return replace(
        candidate,
        tile=replace(candidate.tile, cta=cta),
        pipeline=replace(pipeline, stages=times * pipeline.stages),
    )


def with_narrower_panels(schedule: Schedule, matched: Match, work: Pointwork) -> Schedule | None:
    """What goes on with sums takes memory that panels need not have, and rings had; else None."""
    if matched.rest is None or schedule.epilogue.through != "tma":
        return None
    columns = next(iter(narrower(schedule, work)), None)
    if columns is None:
        return None
    return replace(schedule, epilogue=replace(schedule.epilogue, columns=columns))


def with_k_tile(candidate: Schedule, matched: Match, device: Device, atom: Atom) -> Schedule:
    """The schedule with k tiles of whole swizzle spans; of several where operands are computed.

    Schedules are written for elements of two bytes, or of one; wider ones make shorter k tiles.
    Threads that compute read one round of pieces ahead. Where a tile is less than they hold, as of
    narrow weights, longer k tiles have more on its way, and cost fewer waits.
    """
    size = matched.a.multiplied.bytes
    if matched.joined is not None:
        return _with_taps(candidate, matched, size, atom)
    few = _innermost(matched) * size  # of channels, whose tiles are no longer than they are many
    if 0 < few <= spans()[1]:
        least = min(one for one in spans() if one >= few)
        return _with_short_rows(candidate, least // size, spans()[0] // least)
    span = spans()[0] // size
    own = max(1, candidate.tile.cta.k * min(size, _USUAL_BYTES) // spans()[0])

    def longer(count: int) -> Schedule:
        cta = replace(candidate.tile.cta, k=count * span)
        pipeline = candidate.pipeline
        if count > own:
            stages = max(_STAGES_OF_LONG_TILES, pipeline.stages // count)
            pipeline = replace(pipeline, stages=min(stages, pipeline.stages))
        return replace(candidate, tile=replace(candidate.tile, cta=cta), pipeline=pipeline)

    if len(matched.copied) == len(matched.operands):
        return longer(own)
    threads = held(operand for _, operand in matched.operands)
    for count in _LONG_TILES:
        schedule = longer(count)
        tiles = tiling(schedule, atom)
        roles = filling_roles(schedule, device, schedule.consumers)
        pieces = sum(ring_pieces(schedule, matched, tiles).values())
        stage = sum(ring.slot_bytes for ring in rings(schedule, matched, tiles))
        room = (
            stage * _STAGES_OF_LONG_TILES <= device.shared_per_block_optin // candidate.min_blocks
        )
        if room and rounds(pieces, roles.producer_registers, threads)[0] == 1:
            return schedule
    return longer(own)


def with_blocks(schedule: Schedule, matched: Match, atom: Atom) -> Schedule:
    """The schedule with k tiles that blocks of sums are made of, and as many bytes on their way;
    where registers hold it, a block is promoted beside the products of the next one.

    Raises:
        ScheduleError: it promotes nothing.
    """
    cta, pipeline = schedule.tile.cta, schedule.pipeline
    if matched.block and matched.block % cta.k:
        k = block_tile(matched.block, cta.k)
        stages = min(_MOST_STAGES, pipeline.stages * cta.k // k)
        schedule = _with_steps(
            replace(schedule, pipeline=replace(pipeline, stages=stages)), k, atom
        )
    check_promoting(schedule, matched)
    own = schedule.pipeline.overlap > 1 or schedule.from_registers or not schedule.specialised
    # Parts of f32 are multiplied for longer than they are promoted: on an H200 runs take 1.05 times
    # as long as blocks one by one.
    if own or matched.in_parts or matched.block != schedule.tile.cta.k:
        return schedule
    beside = replace(schedule, pipeline=replace(schedule.pipeline, overlap=MOST_OVERLAP))
    held = overlapped(beside, matched, tiling(schedule, atom), atom)
    return beside if held <= schedule.roles.consumer_registers else schedule


def with_registers(
    schedule: Schedule,
    matched: Match,
    work: Pointwork,
    tiles: Tiling,
    instruction: Atom,
    careful: bool,
) -> tuple[Schedule, int]:
    """The schedule with the widest panels that its registers hold, and how many are left over.

    Raises:
        ResourceError: they hold not even the narrowest.
    """
    given, tma = schedule.roles.consumer_registers, schedule.epilogue.through == "tma"
    allowed = given if careful else given + doubt()
    others = narrower(schedule, work) if tma and careful else ()
    for columns in (schedule.epilogue.columns, *others):
        changed = replace(schedule, epilogue=replace(schedule.epilogue, columns=columns))
        needed = registers_needed(changed, matched, tiles, instruction, work)
        if needed <= allowed:
            return changed, given - needed
    raise ResourceError(
        f"about {needed} registers per consumer thread, roles.consumer_registers = {given}",
        where=f"schedule {schedule.name}",
        why=f"{sums_held(matched, tiles, instruction)} for sums, and what is held of a panel "
        "beside them",
        nearest="Reduce tile.warp",
    )
