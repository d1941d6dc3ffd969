"""What a schedule takes of a multiprocessor, checked against the device before any code exists."""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import ResourceError
from polygen.hardware.atom import Atom
from polygen.hardware.data_file import read
from polygen.hardware.device import Device
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.memory import SUM_BYTES, rings
from polygen.lower.plan import Resources
from polygen.lower.registers import fragments_held, overlapped, sums_held
from polygen.poly.by_lanes import held as held_by_lanes
from polygen.poly.fills import figures, held, piece_registers, ring_pieces
from polygen.poly.match import Match
from polygen.poly.results import copies_staged
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Roles, Schedule

_WORD_BYTES = 4
_FEWEST_STAGES = 2  # that let a copy run beside products


def thread_count(schedule: Schedule, tiles: Tiling, device: Device) -> int:
    """Threads of a block; with roles, the producer's warpgroup and the consumers."""
    if schedule.specialised:
        return (schedule.consumers + 1) * device.group_threads
    return tiles.warp_count * device.warp_size


def _fewer_stages(schedule: Schedule, matched: Match, tiles: Tiling, over: int) -> str:
    """The most stages that fit, and what they allow beside them; "": fewer do not help."""
    each = sum(ring.slot_bytes for ring in rings(schedule, matched, tiles))
    stages = schedule.pipeline.stages - -(-over // each)
    sums = tiles.warp[0] * tiles.warp[1] * SUM_BYTES * tiles.warp_count * len(matched.products)
    staged = schedule.epilogue.through == "smem"  # over the rings, which have less room then
    if stages < _FEWEST_STAGES or (staged and sums > schedule.pipeline.stages * each):
        return ""
    found, pipeline = f"pipeline.stages = {stages}", schedule.pipeline
    if schedule.specialised:
        if pipeline.in_flight >= stages:
            found += f" and pipeline.in_flight = {stages - 1}"
        return found
    mma_first = pipeline.order[0] == "mma" and pipeline.copies == "whole"
    most = stages if mma_first else stages - 1
    return found + (f" and pipeline.distance = {most}" if pipeline.distance > most else "")


def resources(
    schedule: Schedule,
    matched: Match,
    tiles: Tiling,
    atom: Atom,
    device: Device,
    shared_bytes: int,
) -> Resources:
    """Count threads, shared memory and registers, and refuse what cannot fit.

    Raises:
        ResourceError: with the figure, the limit and what to reduce.
    """
    where = f"schedule {schedule.name}"
    threads = thread_count(schedule, tiles, device)
    if threads > device.max_threads_per_block:
        raise ResourceError(
            f"{threads} threads per block, {device} has at most {device.max_threads_per_block}",
            where=where,
            nearest="Use larger warp tiles",
        )
    if shared_bytes > device.shared_per_block_optin:
        panels = schedule.specialised
        over = shared_bytes - device.shared_per_block_optin
        fewer = _fewer_stages(schedule, matched, tiles, over)
        raise ResourceError(
            f"{shared_bytes} bytes of shared memory, {device} has at most "
            f"{device.shared_per_block_optin} per block",
            where=where,
            why=f"{schedule.pipeline.stages} stages of {_tiles_of_a_stage(matched, tiles)} tiles"
            + (", and the panels of the epilogue" if panels else "")
            + (f", and the parts of {schedule.cluster.k} blocks' sums" if tiles.split > 1 else ""),
            nearest=((fewer and f"Use {fewer}, or reduce ") or "Reduce ")
            + ("epilogue.prefetch, epilogue.slots or tile.cta" if panels else "tile.cta"),
        )
    sums = sums_held(matched, tiles, atom)
    # Warpgroup instructions read operands from shared memory, but for those that are computed.
    left = len(matched.side("m")) * tiles.atoms[0] * atom.a.registers * atom.pieces
    right = len(matched.side("n")) * tiles.atoms[1] * atom.b.registers * atom.pieces
    fragments = sum(
        slots * part
        for slots, part in zip(_fragment_slots(schedule, atom, tiles), (left, right), strict=True)
    )
    fragments += fragments_held(schedule, matched, tiles, atom)
    fragments += _staged(schedule, matched, tiles, device)
    registers = sums + fragments + int(read("registers.toml")["addresses"][atom.scope])
    registers = max(registers, overlapped(schedule, matched, tiles, atom))
    if schedule.specialised:
        one = tiles.atoms[1] * atom.c.registers
        _check_given(schedule, device, schedule.consumers, registers, sums, one)
        if ring_pieces(schedule, matched, tiles):
            _check_filling(schedule, matched, device, schedule.consumers)
        _check_side_by_side(schedule, device, shared_bytes)
        blocks = schedule.min_blocks  # persistent: as many as were asked for
    else:
        _check_shared(schedule, device, threads, registers, (sums, fragments))
        blocks = _resident(schedule, tiles, device, shared_bytes, threads, registers)
    return Resources(threads, shared_bytes, device.shared_per_block_optin, registers, blocks)


def _fragment_slots(schedule: Schedule, atom: Atom, tiles: Tiling) -> tuple[int, int]:
    """Steps of the left and of the right operands that registers hold."""
    if atom.majors:
        return 0, 0
    if schedule.by_lanes:
        return held_by_lanes(schedule, tiles, "m"), held_by_lanes(schedule, tiles, "n")
    return schedule.pipeline.fragments, schedule.pipeline.fragments


def _tiles_of_a_stage(matched: Match, tiles: Tiling) -> str:
    """``128x64 and 256x64``, with how many of each where there are several."""
    found = []
    for role, extent in (("m", tiles.cta[0]), ("n", tiles.cta[1])):
        count = len(matched.side(role))
        found.append(
            f"{count} {extent}x{tiles.cta[2]}" if count > 1 else f"{extent}x{tiles.cta[2]}"
        )
    return " and ".join(found)


def _check_shared(
    schedule: Schedule, device: Device, threads: int, registers: int, parts: tuple[int, int]
) -> None:
    """Registers that the compiler divides among the threads of all resident blocks."""
    available = registers_available(schedule, device, threads)
    on_the_way = " and tiles on their way" if copies_staged(device) else ""
    if registers > available:
        raise ResourceError(
            f"about {registers} registers per thread, at most {available} are available",
            where=f"schedule {schedule.name}",
            why=f"{parts[0]} for sums, {parts[1]} for fragments{on_the_way}, "
            f"about {registers - sum(parts)} for addresses, "
            f"with {schedule.min_blocks} block(s) of {threads} threads per multiprocessor",
            nearest="Reduce tile.warp, pipeline.fragments or min_blocks",
        )


def _staged(schedule: Schedule, matched: Match, tiles: Tiling, device: Device) -> int:
    """Registers in which threads hold tiles on their way to shared memory, where they do."""
    if schedule.specialised or schedule.without_rings or not copies_staged(device):
        return 0
    threads = thread_count(schedule, tiles, device)
    return sum(
        -(
            -(
                tiles.cta[0 if operand.role == "m" else 1]
                * tiles.cta[2]
                * operand.tensor.dtype.bytes
            )
            // (chunk_bytes() * threads)
        )
        * (chunk_bytes() // _WORD_BYTES)
        for _, operand in matched.copied
    )


def _resident(
    schedule: Schedule,
    tiles: Tiling,
    device: Device,
    shared_bytes: int,
    threads: int,
    registers: int,
) -> int:
    """Blocks of one multiprocessor."""
    shared = max(1, shared_bytes + device.shared_reserved_per_block)  # lanes need none
    unit = device.register_allocation_unit // device.warp_size
    given = -(-registers // unit) * unit
    blocks = min(
        device.shared_per_multiprocessor // shared,
        device.warps_per_multiprocessor // tiles.warp_count,
        device.blocks_per_multiprocessor,
        device.registers_per_multiprocessor // (threads * given),
    )
    if schedule.min_blocks > max(1, blocks):
        raise ResourceError(
            f"min_blocks = {schedule.min_blocks}, but only {blocks} block(s) fit a multiprocessor "
            f"of {device}",
            where=f"schedule {schedule.name}",
            why=f"{shared_bytes} bytes of shared memory and "
            f"about {registers} x {threads} registers each",
            nearest=f"min_blocks = {max(1, blocks)}",
        )
    return max(1, blocks)


def _check_given(
    schedule: Schedule, device: Device, consumers: int, registers: int, sums: int, one: int
) -> None:
    """Registers that the schedule gives to each role; `one`: of one instruction's sums."""
    where, roles = f"schedule {schedule.name}", schedule.roles
    group, step = device.group_threads, device.role_registers_step
    for field, value in (
        ("roles.producer_registers", roles.producer_registers),
        ("roles.consumer_registers", roles.consumer_registers),
    ):
        least = device.role_registers_least
        if value % step or not least <= value <= device.role_registers_most:
            raise ResourceError(
                f"{field} = {value}",
                where=where,
                nearest=f"Multiples of {step} from {least} to {device.role_registers_most}",
            )
    if roles.producer_registers > roles.consumer_registers:
        raise ResourceError(
            f"roles.producer_registers = {roles.producer_registers}",
            where=where,
            why=f"the producer gives registers to the consumers, which have "
            f"{roles.consumer_registers}",
            nearest=f"roles.producer_registers = {roles.consumer_registers}",
        )
    total = group * (roles.producer_registers + consumers * roles.consumer_registers)
    available = _registers_of_block(schedule, device, (consumers + 1) * group)
    if total > available:
        most = (available // group - roles.producer_registers) // consumers
        raise ResourceError(
            f"{total} registers for all roles, a block has {available}",
            where=where,
            why=f"{roles.producer_registers} per producer thread, "
            f"{roles.consumer_registers} for {consumers} consumer warpgroup(s)",
            nearest=f"roles.consumer_registers = {most // step * step}",
        )
    started = registers_available(schedule, device, (consumers + 1) * group)
    if one + device.product_registers > started:
        raise ResourceError(
            f"{one} registers for the sums of an instruction, {started} per thread when the block "
            "starts",
            where=where,
            why=f"{schedule.min_blocks} blocks of {(consumers + 1) * group} threads share a "
            "multiprocessor, and the compiler wants to hold an instruction's registers in these",
            nearest="Reduce tile.warp or min_blocks",
        )
    if registers > roles.consumer_registers:
        raise ResourceError(
            f"about {registers} registers per consumer thread, "
            f"roles.consumer_registers = {roles.consumer_registers}",
            where=where,
            why=f"{sums} for sums",
            nearest="Reduce tile.warp",
        )


def _check_filling(schedule: Schedule, matched: Match, device: Device, consumers: int) -> None:
    """Registers of a producer whose threads hold what they fill rings with."""
    given, step = schedule.roles.producer_registers, device.role_registers_step
    of = held(operand for _, operand in matched.operands)
    least = -(-(of.beside + piece_registers(of)) // step) * step
    threads = (consumers + 1) * device.group_threads
    most = registers_available(schedule, device, threads) // step * step
    if not least <= given <= most:
        raise ResourceError(
            f"roles.producer_registers = {given} for a producer whose threads fill rings",
            where=f"schedule {schedule.name}",
            why="an operand is computed, or its rows are none that tensor maps describe, so "
            f"threads write it: {piece_registers(of)} registers for every piece that is on its "
            f"way, and about {of.beside} besides; each starts with {most}",
            nearest=f"roles.producer_registers = {min(max(given, least), most)}"
            if least <= most
            else "Reduce min_blocks",
        )


def filling_roles(schedule: Schedule, device: Device, consumers: int) -> Roles:
    """The registers of roles divided for a producer whose threads fill rings.

    It gets as many as it needs to have enough on its way, consumers what is left.
    """
    threads, step = (consumers + 1) * device.group_threads, device.role_registers_step
    started = registers_available(schedule, device, threads)
    wanted = figures()["many" if started >= figures()["roomy"] else "few"]
    few = min(started // step * step, wanted)
    left = _registers_of_block(schedule, device, threads) // device.group_threads - few
    own = min(left // consumers, figures()["consumers"]) // step * step
    return replace(schedule.roles, producer_registers=few, consumer_registers=own)


def _registers_of_block(schedule: Schedule, device: Device, threads: int) -> int:
    """Registers that roles divide among them: what the block's threads are started with."""
    return registers_available(schedule, device, threads) * threads


def _check_side_by_side(schedule: Schedule, device: Device, shared_bytes: int) -> None:
    """Persistent blocks that share a multiprocessor have to fit it together."""
    each = shared_bytes + device.shared_reserved_per_block
    fit = min(device.shared_per_multiprocessor // each, device.blocks_per_multiprocessor)
    if schedule.min_blocks > max(1, fit):
        raise ResourceError(
            f"min_blocks = {schedule.min_blocks}, but only {fit} block(s) fit a multiprocessor "
            f"of {device}",
            where=f"schedule {schedule.name}",
            why=f"{shared_bytes} bytes of shared memory each",
            nearest=f"min_blocks = {max(1, fit)}, or fewer pipeline.stages",
        )


def registers_available(schedule: Schedule, device: Device, threads: int) -> int:
    """Registers per thread that leave room for `min_blocks` blocks."""
    share = device.registers_per_multiprocessor // (schedule.min_blocks * threads)
    unit = device.register_allocation_unit // device.warp_size
    return min(device.max_registers_per_thread, share - share % unit)
