"""What a plan takes of a multiprocessor, checked against the device before any code exists."""

from __future__ import annotations

from polygen.errors import ResourceError
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.lower.plan import Resources
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

# Addresses, loop counters and predicates of the main loop, as compiled kernels show: between 30 and
# 60.
_ADDRESS_REGISTERS = 30


def resources(
    schedule: Schedule, tiles: Tiling, atom: Atom, device: Device, shared_bytes: int, where: str
) -> Resources:
    """Count threads, shared memory and registers, and refuse what cannot fit.

    Raises:
        ResourceError: with the figure, the limit and what to reduce.
    """
    threads = tiles.warp_count * device.warp_size
    if threads > device.max_threads_per_block:
        raise ResourceError(
            f"{threads} threads per block, {device} has at most {device.max_threads_per_block}",
            where=where,
            nearest="Use larger warp tiles",
        )
    if shared_bytes > device.shared_per_block_optin:
        stages = schedule.pipeline.stages
        raise ResourceError(
            f"{shared_bytes} bytes of shared memory, {device} has at most "
            f"{device.shared_per_block_optin} per block",
            where=where,
            why=f"{stages} stages of {tiles.cta[0]}x{tiles.cta[2]} and "
            f"{tiles.cta[1]}x{tiles.cta[2]} tiles",
            nearest="Reduce pipeline.stages or tile.cta",
        )
    sums = tiles.atoms[0] * tiles.atoms[1] * atom.c.registers
    fragments = schedule.pipeline.fragments * (
        tiles.atoms[0] * atom.a.registers + tiles.atoms[1] * atom.b.registers
    )
    registers = sums + fragments + _ADDRESS_REGISTERS
    available = registers_available(schedule, device, threads)
    if registers > available:
        raise ResourceError(
            f"about {registers} registers per thread, at most {available} are available",
            where=where,
            why=f"{sums} for sums, {fragments} for fragments, "
            f"about {_ADDRESS_REGISTERS} for addresses, "
            f"with {schedule.min_blocks} block(s) of {threads} threads per multiprocessor",
            nearest="Reduce tile.warp, pipeline.fragments or min_blocks",
        )
    blocks = min(
        device.shared_per_multiprocessor // (shared_bytes + device.shared_reserved_per_block),
        device.warps_per_multiprocessor // tiles.warp_count,
        device.blocks_per_multiprocessor,
        device.registers_per_multiprocessor // (threads * registers),
    )
    if schedule.min_blocks > max(1, blocks):
        raise ResourceError(
            f"min_blocks = {schedule.min_blocks}, but only {blocks} block(s) fit a multiprocessor "
            f"of {device}",
            where=where,
            why=f"{shared_bytes} bytes of shared memory and "
            f"about {registers} x {threads} registers each",
            nearest=f"min_blocks = {max(1, blocks)}",
        )
    return Resources(
        threads, shared_bytes, device.shared_per_block_optin, registers, max(1, blocks)
    )


def registers_available(schedule: Schedule, device: Device, threads: int) -> int:
    """Registers per thread that leave room for `min_blocks` blocks."""
    share = device.registers_per_multiprocessor // (schedule.min_blocks * threads)
    unit = device.register_allocation_unit // device.warp_size
    return min(device.max_registers_per_thread, share - share % unit)
