"""Counts -> microseconds: how long each resource needs, and how they overlap.

1. Products: every instruction takes its multiply-adds at the tensor cores' rate, or the bytes it
   reads from shared memory at that memory's, whichever is longer.
2. Copies: rows of boxes at the rate of a multiprocessor's copy engine, or what all blocks ask for
   at the L2 cache's; a slot of the ring comes round no faster than a copy's latency allows.
3. A k tile takes as long as the slowest of these, and never less than its own bookkeeping.
4. The way out of a tile: parts of sums that blocks share meet, and its panels are finished.
   Cooperative consumers do it while nobody multiplies; the ring fills meanwhile. In ping-pong it
   runs beside the other consumer's products.
5. Rounds add up; in the last one only some multiprocessors are busy, so that copies are faster; or
   blocks share the sums of its tiles, each in a fraction of a round, after which their parts meet.
   Tiles without products are stored alone, behind those that have some.
6. Without roles, the resident blocks of a multiprocessor run side by side.
7. Device memory limits the whole kernel: its bytes, at its bandwidth, beside everything else. Where
   limits that overlap are close to each other, they cost more than the slower alone: they are
   joined by a norm whose exponent says how well they overlap, not by a maximum.
8. Operands that are copied first are read and written at the bandwidth of device memory, in a
   launch of its own; a row takes its warp a while, however short it is.

All of it is arithmetic on columns, one row per schedule: one call prices thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from polygen.hardware.cost_parameters import CostParameters
from polygen.hardware.device import common_facts
from polygen.tune.cost.counted import Counts

Column = npt.NDArray[np.float64]

# What a kernel's time is made of, in the order of the explanation.
PARTS = (
    "products",
    "shared memory",
    "copies",
    "latency",
    "way out",
    "device memory",
    "start",
)

BEFORE = "launch before"  # a part of those kernels alone that have one

_PANEL = 64 * 64  # results: the unit in which the way out is counted
_WORD = 2  # bytes of the elements for which rates of products are given
_DOUBLE = 8  # bytes of elements that have a rate of their own


class Columns:
    """Counts of many schedules: every attribute of `Counts`, as a column."""

    def __init__(self, rows: Sequence[Counts]) -> None:
        table = np.array(rows, np.float64).reshape(-1, len(Counts._fields)).T
        vars(self).update(zip(Counts._fields, table, strict=True))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Column: ...


def times(p: CostParameters, c: Columns) -> dict[str, Column]:
    """Microseconds of each schedule.

    Args:
        p: the device's parameters.
        c: what the schedules do, a row each.

    Returns:
        "total", and for each of `PARTS` and `BEFORE` the time of that resource if nothing else took
        any.
    """
    with_roles, without = _roles(p, c), _warps(p, c)
    cycles = {name: np.where(c.roles > 0, with_roles[name], without[name]) for name in with_roles}
    # Power is limited: the busier the tensor cores of the whole device are, the slower the clock.
    busiest = c.rounds + c.last_rounds / c.last_split
    used = cycles["products"] * c.clusters / (busiest * c.slots) / np.maximum(cycles["busy"], 1)
    cycle = 1e-3 / p.clock * (1 + p.droop * used)
    found = {name: value * cycle for name, value in cycles.items()}
    found["device memory"] = memory = _memory(p, c)
    filling = np.where(c.threaded > 0, p.thread_start, 0.0)
    found["start"] = np.where(c.roles > 0, p.start + filling, p.warp_start)
    found[BEFORE] = before = _before(p, c)
    found["start"] = found["start"] + c.combined * p.stream_latency * cycle
    found["total"] = _norm(p.memory_sharpness, found.pop("busy"), memory) + found["start"] + before
    return found


def _before(p: CostParameters, c: Columns) -> Column:
    """Microseconds of the launch before the kernel; 0 where there is none."""
    read, written = c.copied + c.made_from, c.copied + c.made_first
    moved = (read + p.written_share * written) / (p.memory_share * p.memory) * 1e-3
    multiprocessors = c.slots * c.blocks / np.maximum(c.resident, 1)
    cycles = c.first_functions / (p.compute_function_rate * multiprocessors)
    # However short a row, its block waits for what it reads, and for its warps.
    passes = (c.first_passes * p.row_pass + c.copied_rows * p.row_copy) / multiprocessors
    busy = np.maximum(np.maximum(moved, cycles / p.clock * 1e-3), passes)
    start = np.where(c.copied > 0, p.copy_start, p.launch_start)
    return np.where(written > 0, start + busy, 0.0)


def _norm(sharpness: float, *parts: Column) -> Column:
    """The longest of several times that overlap, and a little more if others are as long."""
    longest = np.maximum.reduce(parts)
    scale = np.where(longest > 0, longest, 1.0)
    total: Column = np.add.reduce([(part / scale) ** sharpness for part in parts])
    return total ** (1 / sharpness) * scale


def _memory(p: CostParameters, c: Columns) -> Column:
    """Microseconds of device memory: what is read and written, at its bandwidth.

    The operand across the raster is swept once per group of tiles. What the cache still holds of it
    is not read again.
    """
    lost = np.clip((c.across_bytes + c.along_bytes) / (p.l2_share * p.l2_bytes) - 1, 0.0, 1.0)
    again = c.across_bytes * (c.groups - 1) * c.batches * lost
    moved = c.read_bytes + again + p.written_share * c.written_bytes + c.parts
    share = p.memory_share * np.where(c.roles + c.lanes > 0, 1.0, p.warp_memory)
    return np.asarray(moved / (share * p.memory) * 1e-3)


def fetching(p: CostParameters, c: Columns | Counts) -> Column:
    """Cycles of a block's own copies of a k tile, by the copy engine."""
    boxes = c.box_rows / p.box_rate
    whole_line = boxes / np.maximum(c.fetched, 1)
    return np.asarray(boxes + c.astride * np.maximum(1 / p.fetch_rate_astride - whole_line, 0))


def _roles(p: CostParameters, c: Columns) -> dict[str, Column]:
    """Cycles of a multiprocessor whose warps have roles.

    Blocks side by side share its tensor cores, its shared memory and its copies; the ways out of
    their tiles go on beside each other.
    """
    # Of few tiles a multiprocessor gets fewer than it has room for.
    beside = np.clip(np.ceil(c.clusters * c.resident / c.slots), 1, c.resident)
    multiply = beside * c.products * c.element_bytes / _WORD / p.product_rate
    # What threads shift into place goes through the same pipe: reads of both chunks around a piece,
    # and its write.
    # Around a piece are those of other threads, which the L1 cache has where rings leave it room.
    crowded = 1 + p.thread_crowding * beside * c.ahead * c.filled / p.l1_bytes
    passed = beside * p.thread_passes * crowded * c.threaded / p.shared_rate
    shared = beside * c.operand_reads / p.shared_rate + passed
    convert = beside * _converting(p, c)
    tally = beside * (c.tallied + p.tally_memory * c.unringed) * p.tally / p.fold_rate
    product = np.maximum.reduce([multiply, shared, convert])
    alone = np.where((c.workers == 1) & (c.turns == 0), p.tally_alone, 0.0)
    # Products that are on their way hide terms, as long as there are any.
    shown = p.tally_shown * np.where(c.turns > 0, p.tally_turn, 1.0)
    folding = np.maximum(shown * tally - p.tally_hidden * product, alone * tally)
    # Results that leave are of one in many tiles: of one that a block has, as it is then the last.
    product = product + np.where(c.seldom > 0, folding / np.maximum(c.rounds, 1), folding)
    product = product + c.instructions * p.instruction
    rate = np.where(c.beside > 0, p.promote_beside, p.promote_rate)
    product = product + beside * c.promoted / rate
    # Whose turn it is multiplies alone, and nobody does while sums of blocks are promoted.
    product = product + np.where((c.turns > 0) & (c.promoted > 0), p.promote_turn, 0.0)
    in_step = np.where(c.blocks > 2, p.wide_cluster_loss, p.cluster_loss)
    product = product * (1 + np.where(c.blocks > c.split, in_step, 0.0))
    # What tiles of a group share is fetched again, if the cache does not hold it beside the rest.
    outgrown = np.log2(np.clip(c.along_bytes / (p.group_share * p.l2_bytes), 1.0, None))
    product = product * (1 + p.group_loss * np.where(c.groups > 1, outgrown, 0.0))
    own = beside * fetching(p, c)
    finish, zeros = _finish(p, c, c.split, c.panels), c.outside / p.outside_rate
    # Functions of consumers on their way out beside each other take turns at the same schedulers.
    more = np.maximum(np.where(c.turns > 0, c.turns, c.workers) * beside - 2, 0)
    finish = finish + p.function_crowding * more * c.functions / c.workers / p.function_rate
    making = c.making_steps * p.fragment_latency + c.making_groups * p.fragment_start
    making += c.making_vectors * p.vector_latency + c.paired_vectors * p.paired_latency
    # Who computes an operand folds its terms between two fragments.
    making += np.where(c.making_steps > 0, p.tally_made * tally, 0.0)
    sharing = np.where(c.blocks > c.split, c.blocks * p.block_step, 0.0)
    least = np.maximum.reduce([np.full_like(making, p.step), making, sharing]) + zeros
    # A thread shifts one chunk after the other, whatever other blocks do.
    shifting = c.threaded / p.thread_rate + passed
    waiting_for = np.maximum(c.thread_rounds * p.thread_latency, shifting)
    by_hand = np.maximum(waiting_for, beside * _making(p, c))

    def waiting(busy: Column) -> tuple[Column, Column]:
        """Cycles of a k tile's copies, and of a slot's way round the ring over its slots."""
        asked = (c.fetched + c.threaded + c.made) * busy
        copy = np.maximum.reduce([own, asked / p.l2_rate, by_hand])
        latency = p.latency * (1 + p.crowding * busy / (c.slots * c.blocks))
        return copy, (latency + (1 + c.in_flight) * product) / c.ahead

    def tile(busy: Column) -> tuple[Column, Column]:
        """Cycles of a tile's main loop, and of it and the way out if another tile follows."""
        copy, waited = waiting(busy)
        step = np.maximum.reduce([product, copy, waited, least])
        main = c.k_tiles * step + p.tile
        # While nobody multiplies the ring fills: so many k tiles need not be waited for.
        saved = np.minimum(c.ahead, c.k_tiles) * (step - product)
        return main, main + finish - np.minimum(saved, finish)

    whole = np.minimum(c.clusters, c.slots) * c.blocks
    last = (c.clusters - (c.rounds - 1) * c.slots) * c.blocks
    main, alone = tile(whole)
    last_main, _ = tile(last)
    cooperative = (c.rounds - 1) * alone + last_main + finish
    # Where blocks share the sums of the last round, all of them have tiles of their own until then.
    part = np.ceil(c.k_tiles / c.last_split)
    parted = c.last_rounds * (
        part * np.maximum.reduce([product, *waiting(whole), least])
        + p.tile
        + _finish(p, c, c.last_split, c.panels / c.last_split)
    )
    cooperative = np.where(c.last_rounds > 0, c.rounds * alone + parted, cooperative)
    one_by_one = (c.rounds - 1) * main + last_main + finish
    each = np.ceil(c.rounds / np.maximum(c.turns, 1))
    in_turns = each * (main + finish)
    turns = np.maximum(one_by_one, in_turns)
    k_tiles = c.rounds * c.k_tiles + c.last_rounds * part
    copy, waited = waiting(whole)
    return {
        "busy": np.where(c.turns > 0, turns, cooperative) + _others(c) * finish,
        "products": k_tiles * multiply,
        "shared memory": k_tiles * shared,
        "copies": k_tiles * copy,
        "latency": k_tiles * waited,
        "way out": np.where(c.turns > 0, each, c.rounds) * finish
        + c.last_rounds * _finish(p, c, c.last_split, c.panels / c.last_split),
    }


def _converting(p: CostParameters, c: Columns) -> Column:
    """Cycles in which the consumers of a block compute the fragments of a k tile."""
    functions = c.converted_functions / p.compute_function_rate
    return np.asarray(c.converted / p.fragment_rate + functions)


def _making(p: CostParameters, c: Columns) -> Column:
    """Cycles in which the threads of a block compute their part of a k tile.

    Those of a producer are few: one chunk follows another.
    """
    rate = np.where(c.roles > 0, p.producer_rate, p.compute_rate)
    return np.asarray(c.made / rate + c.made_functions / p.compute_function_rate)


def _finish(p: CostParameters, c: Columns, split: Column, panels: Column) -> Column:
    """Cycles in which the workers of a block finish their share of a tile.

    Args:
        p: the device's parameters.
        c: what the schedules do.
        split: blocks that share the sums of the tile.
        panels: in which each of a block's workers finishes its share.

    Where blocks share the sums, their parts have to meet before. Where they cover rows together,
    each pass over the sums makes terms that nobody stores, some of them from matrices that it reads
    straight, and ends by meeting.
    """
    workers = np.maximum(c.workers, 1) * split
    direct = c.from_registers > 0
    meet = np.where(split > 1, c.meetings * p.exchange + c.sent / p.exchange_rate, 0.0)
    terms = c.reading * p.registers + (c.passes - c.reading) * p.unstored
    meet = meet + c.passes * p.exchange + c.own / _PANEL * terms
    own = c.own / split / _PANEL
    # Behind the first panels, lines of one leave while the next one is written the other way.
    turned = np.where(direct, own, np.minimum(own, p.across_panels))
    return np.asarray(
        meet
        + own
        * np.where(
            direct,
            np.where(c.unstored > 0, p.unstored, p.registers),
            p.panel + c.in_lines * p.line,
        )
        + c.exchanged * turned * p.across
        + _folding(p, c)
        + np.where(direct, 0.0, panels * p.panel_turn)
        + c.matrix_bytes / workers / np.where(c.in_lines > 0, p.line_matrix_rate, p.matrix_rate)
        + c.functions / workers / p.function_rate
    )


def _folding(p: CostParameters, c: Columns) -> Column:
    """Cycles in which the threads of a block fold the terms of a tile.

    Whoever they belong to, they take turns at the same schedulers.
    """
    instructions = (
        c.folded * p.fold + c.indexed * p.fold_index + c.exponentials * p.fold_exponential
    )
    return np.asarray(instructions / p.fold_rate)


def _warps(p: CostParameters, c: Columns) -> dict[str, Column]:
    """Cycles of a multiprocessor whose warps all do the same."""
    rounds = np.floor(c.rounds / c.resident)
    rest = c.rounds - rounds * c.resident
    out = (c.result_bytes + c.matrix_bytes) / p.way_out_rate + c.functions / p.warp_function_rate
    out = out + _folding(p, c)
    # Where elements are only folded, they come as threads ask for them.
    work = _folding(p, c) + c.functions / p.warp_function_rate
    streamed = np.maximum(c.lines / p.stream_rate, work)

    # Narrow copies are limited by their number, wide ones by their bytes.
    narrow = np.maximum(c.narrow_copies / p.warp_narrow_rate, c.narrow / p.warp_fetch_rate)
    fetched = (c.filled - c.made - c.narrow) / p.warp_fetch_rate + narrow
    # Each thread makes its narrow copies one after the other, whatever other blocks do. Those that
    # run ahead of short sums it makes, too.
    threads = np.maximum(c.workers, 1) * common_facts()["warp_size"]
    own = c.narrow_copies / threads * np.maximum(c.ahead / c.k_tiles, 1.0)
    busy = np.minimum(c.clusters / c.slots, 1.0)
    crowded = p.warp_latency * (1 + p.warp_crowding * busy)

    def side_by_side(blocks: Column) -> dict[str, Column]:
        """Cycles of `blocks` blocks on one multiprocessor, in all and by part."""
        warps = np.maximum(blocks * c.workers, 1)
        rate = p.warp_rate * np.minimum(1.0, np.sqrt(warps / p.full_rate_warps))
        by_lanes = blocks * (c.products / p.lane_rate + c.loaded / p.lane_load_rate)
        multiply = blocks * c.products * c.element_bytes / _WORD / rate
        doubles = blocks * c.products / np.minimum(p.double_rate, rate)
        multiply = np.where(c.element_bytes == _DOUBLE, doubles, multiply)
        multiply = np.where(c.terms > 1, multiply / p.split_share, multiply)
        multiply = np.where(c.lanes > 0, by_lanes, multiply)
        # Terms of folds of operands are made by the warps that multiply, beside the products.
        multiply = np.maximum(multiply, blocks * c.tallied * p.tally / p.fold_rate)
        shared = blocks * (c.operand_reads + c.filled) / p.warp_shared_rate
        shared = np.where(c.lanes > 0, 0.0, shared)
        # What is computed is computed by the warps that multiply.
        copies = blocks * fetched
        turns = np.where(blocks > 0, own * p.warp_narrow_turn, 0.0)
        copy = np.maximum(copies, turns) + blocks * _making(p, c)
        # What is computed is waited for where it is read, by blocks side by side alike.
        alone = c.made_waits * p.warp_latency
        waited = np.where(blocks > 0, crowded / c.ahead + alone, 0.0)
        # Blocks of warps that read for themselves begin when others end.
        waited = np.where((blocks > 0) & (c.lanes > 0), p.stream_latency, waited)
        sets = np.where(blocks > 0, c.streamed * p.stream_latency, 0.0)
        waited = np.where(c.streamed > 0, sets, waited)
        work = _norm(p.warp_sharpness, multiply, shared, copy)
        work = work + np.where(c.lanes > 0, 0.0, blocks * p.barrier)
        step = _norm(p.warp_sharpness, work, waited)
        busy = c.k_tiles * step + blocks * out
        out_of_all = np.where(c.streamed > 0, blocks * streamed, blocks * out)
        busy = np.where(c.streamed > 0, _norm(p.warp_sharpness, waited, out_of_all), busy)
        return {
            "busy": busy + np.where((blocks > 0) & (c.lanes == 0), p.round, 0.0),
            "products": c.k_tiles * multiply,
            "shared memory": c.k_tiles * shared,
            "copies": c.k_tiles * copy,
            "latency": c.k_tiles * waited,
            "way out": out_of_all,
        }

    full, part = side_by_side(c.resident), side_by_side(rest)
    found = {name: rounds * full[name] + part[name] for name in full}
    return found | {"busy": found["busy"] + _others(c) * out}


def _others(c: Columns) -> Column:
    """Rounds that are left when no tile with products is."""
    return np.asarray(np.ceil((c.clusters + c.others) / c.slots) - c.rounds)
