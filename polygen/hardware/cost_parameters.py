"""The parameters of the cost model, per device, read from ``data/cost.toml``.

Every parameter stands under the source it comes from, as the facts of devices do. A device's own
tables win over ``common``, which holds what was fitted on one device and is taken for all: cycles
and bytes per cycle of one multiprocessor carry over better than times do.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Any

from polygen.errors import HardwareDataError
from polygen.hardware.data_file import read, take
from polygen.hardware.device import Device

FILE = "cost.toml"


@dataclass(frozen=True, slots=True)
class CostParameters:
    """What one device does in which time. Cycles and rates are those of one multiprocessor.

    Attributes:
        clock: GHz when the tensor cores rest.
        droop: share by which a kernel takes longer when they never do, for lack of power.
        memory: nominal bandwidth of device memory, GB/s.
        memory_share: of it that kernels reach.
        l2_bytes: size of the L2 cache, bytes.
        l2_share: of the L2 cache that keeps operands for later tiles.
        written_share: of the bytes written that device memory takes before the kernel ends.
        memory_sharpness: exponent of the norm that joins device memory and multiprocessors.
        start: microseconds before the first product and after the last tile, with roles.
        product_rate: 16-bit multiply-adds per cycle of warpgroup instructions.
        instruction: cycles that each warpgroup instruction takes besides.
        shared_rate: bytes per cycle that warpgroup instructions read from shared memory.
        step: cycles that a k tile takes at least, however small it is.
        box_rate: rows of boxes per cycle that one block's copies bring from the L2 cache, however
            narrow these are.
        fetch_rate_astride: bytes per cycle where rows lie astride the lines of the cache.
        thread_passes: through the pipe of shared memory, of what a producer's threads shift into
            place.
        thread_rate: bytes per cycle that the threads of one producer shift into place, besides
            what goes through that pipe.
        thread_crowding: share by which that grows where rings take all of `l1_bytes`.
        l1_bytes: shared memory and L1 cache of a multiprocessor together, bytes.
        thread_latency: cycles from such a thread's read to its arrival.
        chain_alone: times as long for a tile of keys of a chain whose block shares with none.
        thread_start: microseconds, besides start, until threads have filled a ring's first slot.
        producer_rate: bytes per cycle of computed operands that threads of a producer write.
        compute_rate: bytes per cycle of operands that threads compute and write to shared memory.
        compute_function_rate: functions beyond arithmetic that they evaluate for them per cycle.
        fragment_rate: elements of fragments that consumers of a multiprocessor compute per cycle.
        fragment_latency: cycles from shared memory to the product of a fragment that one computes.
        fragment_start: more for each group of them that is multiplied together.
        vector_latency: cycles more for each vector along k of which one reads numbers for it.
        paired_latency: likewise, where pairs of elements are computed at once.
        promote_rate: sums of blocks per cycle that consumers add to whole ones.
        few_rows_library: times as long as a schedule for few rows that a library's product takes.
        early_most: microseconds up to which kernels begin while those before them end.
        ahead_most: likewise, kernels that bring an operand then.
        early_rows: rows, or columns, of a result up to which they let the next begin at once.
        shared_round: times as long as predicted where blocks share the sums of the last round.
        row_pass: microseconds of a multiprocessor for a block on a short row that is made.
        row_copy: likewise for a short row that is copied.
        promote_beside: likewise, while the next block is multiplied.
        function_crowding: share by which functions on the way out of a tile take longer for each
            consumer of a multiprocessor beyond two.
        promote_turn: cycles between two blocks' products of a consumer whose turn it is.
        outside_rate: bytes per cycle that the copy engine fills with zeros outside an array.
        l2_rate: bytes per cycle that the L2 cache gives all multiprocessors together.
        latency: cycles from a copy's issue to its arrival.
        crowding: share by which latency grows when all multiprocessors copy.
        cluster_loss: share of a k tile that two blocks of a cluster lose by going in step.
        wide_cluster_loss: likewise, more than two blocks.
        group_share: of the L2 cache that holds the operand which tiles of a group of the raster
            share, beside what else comes and goes.
        group_loss: share of a k tile that products lose each time that this operand doubles.
        block_step: cycles that a k tile takes at least for each block of a cluster that shares
            its operands, however small it is.
        tile: cycles per tile to begin: its place, the first wait.
        exchange: cycles in which the parts of a sum meet that the blocks of a cluster share, or
            what they have folded of rows.
        exchange_rate: bytes per cycle that a block sends to the others.
        panel: cycles in which a warpgroup finishes 64 x 64 results, through panels.
        panel_turn: cycles of each panel besides, whatever its width.
        line: of these 64 x 64 results besides, where threads store the panels line by line.
        across: of these besides, where operands are exchanged: a lane holds parts of many rows.
        across_panels: of a warpgroup's panels that it costs so much; lines of these leave while
            others are written.
        registers: likewise, straight from the registers.
        matrix_rate: bytes per cycle of the epilogue's matrices that a warpgroup reads.
        line_matrix_rate: likewise, of matrices that its threads fetch in lines.
        function_rate: functions beyond arithmetic that a warpgroup evaluates per cycle.
        unstored: of `registers`, what is left where nothing but folds leaves.
        fold: instructions by which a lane folds a term into a sum and the like.
        fold_index: into the place of the largest or the smallest.
        fold_exponential: into a sum of exponentials.
        fold_rate: of these instructions, lanes' per cycle.
        tally: such instructions for one of an operand that is folded beside the product.
        tally_alone: share of them that one consumer alone does not hide.
        tally_shown: share of them that several do not, where they have more than they hide.
        tally_hidden: share of the products' cycles that they hide of this.
        tally_memory: times as many where no ring has what is folded, and it comes from memory.
        tally_turn: times as many of them are shown where consumers take turns.
        tally_made: share of them that keeps consumers from computing operands.
        lane_rate: multiply-adds per cycle where lanes multiply.
        lane_load_rate: elements per cycle that they read and convert for them.
        stream_rate: bytes per cycle of elements that are only folded.
        stream_latency: cycles of a warp from one set of rows of these to the next.
        warp_memory: share of what kernels with roles reach of device memory, without them.
        launch_start: microseconds that a launch takes before or behind the kernel, however small.
        copy_start: microseconds that a copy of operands takes before the kernel, however small.
        rows_share: of the nominal bandwidth of device memory that the launch reaches which follows
            a kernel and finishes its rows.
        warp_start: as `start`, without roles.
        warp_rate: 16-bit multiply-adds per cycle of warp instructions.
        split_share: of `warp_rate` where operands are split in registers.
        double_rate: f64 multiply-adds per cycle of warp instructions.
        warp_shared_rate: bytes per cycle to and from shared memory, without roles.
        warp_sharpness: exponent of the norm that joins the limits of a k tile, without roles.
        warp_fetch_rate: bytes per cycle that asynchronous copies bring.
        warp_narrow_rate: copies of less than 16 bytes per cycle, without roles.
        warp_narrow_turn: cycles that each of these takes the thread that makes it.
        warp_latency: cycles from such a copy's issue to its arrival.
        warp_crowding: as `crowding`, without roles.
        full_rate_warps: resident warps that keep the tensor cores busy.
        barrier: cycles lost at the barrier of each k tile.
        round: cycles lost while a round of blocks starts and drains.
        way_out_rate: bytes per cycle of results and matrices, without roles.
        warp_function_rate: functions per cycle of all warps, without roles.
    """

    clock: float
    droop: float
    memory: float
    memory_share: float
    l2_bytes: float
    l2_share: float
    written_share: float
    memory_sharpness: float
    start: float
    product_rate: float
    instruction: float
    shared_rate: float
    step: float
    box_rate: float
    fetch_rate_astride: float
    thread_passes: float
    thread_rate: float
    thread_crowding: float
    l1_bytes: float
    thread_latency: float
    thread_start: float
    chain_alone: float
    producer_rate: float
    compute_rate: float
    fragment_rate: float
    fragment_latency: float
    fragment_start: float
    vector_latency: float
    paired_latency: float
    compute_function_rate: float
    promote_rate: float
    promote_beside: float
    function_crowding: float
    promote_turn: float
    few_rows_library: float
    early_most: float
    ahead_most: float
    early_rows: float
    shared_round: float
    row_pass: float
    row_copy: float
    outside_rate: float
    l2_rate: float
    latency: float
    crowding: float
    cluster_loss: float
    wide_cluster_loss: float
    group_share: float
    group_loss: float
    block_step: float
    tile: float
    exchange: float
    exchange_rate: float
    panel: float
    panel_turn: float
    line: float
    across: float
    across_panels: float
    registers: float
    matrix_rate: float
    line_matrix_rate: float
    function_rate: float
    unstored: float
    fold: float
    fold_index: float
    fold_exponential: float
    fold_rate: float
    tally: float
    tally_alone: float
    tally_shown: float
    tally_hidden: float
    tally_memory: float
    tally_turn: float
    tally_made: float
    lane_rate: float
    lane_load_rate: float
    stream_rate: float
    stream_latency: float
    warp_memory: float
    launch_start: float
    copy_start: float
    rows_share: float
    warp_start: float
    warp_rate: float
    split_share: float
    double_rate: float
    warp_shared_rate: float
    warp_sharpness: float
    warp_fetch_rate: float
    warp_narrow_rate: float
    warp_narrow_turn: float
    warp_latency: float
    warp_crowding: float
    full_rate_warps: float
    barrier: float
    round: float
    way_out_rate: float
    warp_function_rate: float


NAMES = tuple(field.name for field in fields(CostParameters))


@functools.cache
def cost_parameters(device: Device) -> CostParameters:
    """The parameters of a device.

    Raises:
        HardwareDataError: one is missing, unknown, or not a positive number.
    """
    data = read(FILE)
    return build(device.name, data, f"hardware/data/{FILE}, {device.name}")


def build(name: str, data: dict[str, Any], where: str) -> CostParameters:
    """The parameters of a device from the data.

    Args:
        name: of the device.
        data: tables by device, and "common"; each a table of parameters by source.
        where: for errors.

    Raises:
        HardwareDataError: a parameter is missing, unknown, or not a positive number.
    """
    found: dict[str, float] = {}
    for table in (take(data, "common", where), take(data, name, where)):
        for numbers in table.values():
            for parameter, number in numbers.items():
                found[parameter] = _positive(parameter, number, where)
    unknown = sorted(set(found) - set(NAMES))
    missing = sorted(set(NAMES) - set(found))
    if unknown:
        raise HardwareDataError(
            f"unknown parameters {unknown}", where=where, nearest=f"Known: {', '.join(NAMES)}"
        )
    if missing:
        raise HardwareDataError(f"missing parameters {missing}", where=where)
    return CostParameters(**found)


def search_ranges() -> dict[str, tuple[float, float, float]]:
    """The parameters that are fitted, each with its least, nominal and largest value.

    Raises:
        HardwareDataError: a range is none, or is of no parameter.
    """
    where = f"hardware/data/{FILE}, search"
    ranges: dict[str, tuple[float, float, float]] = {}
    for name, entry in take(read(FILE), "search", where).items():
        if name not in NAMES:
            raise HardwareDataError(f"unknown parameter {name!r}", where=where)
        if not isinstance(entry, list) or len(entry) != 3:
            raise HardwareDataError(
                f"{name} = {entry!r} is not [least, nominal, most]", where=where
            )
        low, middle, high = (_positive(name, value, where) for value in entry)
        if not low <= middle <= high:
            raise HardwareDataError(f"{name} = {entry!r} is not in order", where=where)
        ranges[name] = (low, middle, high)
    return ranges


def _positive(parameter: str, number: object, where: str) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise HardwareDataError(f"{parameter} = {number!r} is not a number", where=where)
    if not (math.isfinite(number) and number > 0):
        raise HardwareDataError(f"{parameter} = {number!r} is not positive", where=where)
    return float(number)
