"""(Problem, Schedule) -> what the kernel does: closed forms of cardinalities of its sets.

Per k tile, per output tile and in all: products, instructions, bytes by memory, waits, rounds. They
are what isl would count in the kernel's trees, footprints and raster, written down as arithmetic so
that thousands of schedules can be compared; `tests/unit/tune_cost/test_counts.py` counts the sets
of every kind of kernel and finds the same numbers.

1. The grid: output tiles, clusters of them, and how many a multiprocessor gets.
2. A k tile: multiply-adds; bytes that a block receives, and that it asks the L2 cache for (blocks
   of a cluster share); bytes that products or fragment loads read from shared memory.
3. The way out of a tile: results, panels, matrices read, functions evaluated, waits.
4. Device memory: every operand once, the one across the raster once per group of tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polygen.hardware.device import Device
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.last_round import LastRound
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost.tile_counts import (
    box_rows,
    cluster_count,
    conflicts_of,
    copies_ahead,
    fill_rounds,
    meetings,
    own_k_tiles,
    rows_there,
    way_out,
    with_products,
)

_BYTE = 8  # bits
_SUM_BYTES = 4  # of sums that blocks share
_READ_TOGETHER = 2 * chunk_bytes()  # of computed operands, by a thread that multiplies as well


class Counts(NamedTuple):
    """What one kernel does. "Block" is a thread block; sizes in bytes.

    One is made for every schedule that is compared, and with so many numbers a tuple is made in a
    third of the time of a record of another kind.

    Attributes:
        roles: 1 with roles, 0 without.
        pingpong: 1 if consumers take turns at whole tiles.
        blocks: of a cluster.
        split: of these, blocks that share the sums of a tile.
        clusters: of output tiles, the last ones perhaps partly outside the result; those that have
            products.
        slots: clusters that run at once; without roles, multiprocessors.
        rounds: clusters that the busiest slot works through.
        resident: blocks of a multiprocessor.
        k_tiles: of the sums; of those that blocks share, one block's.
        element_bytes: of the operands.
        ahead: k tiles by which copies run ahead.
        workers: warps of a block that multiply; with roles, warpgroups.
        own: sums of one worker's tile.
        products: multiply-adds of a block per k tile.
        instructions: warpgroup instructions of a block per k tile; 0 without roles.
        filled: bytes copied into a block's shared memory per k tile.
        fetched: of these, bytes that the block itself asks the L2 cache for.
        box_rows: rows of the boxes in which it asks.
        threaded: bytes of tiles that threads shift into place per k tile, those outside the
            operands included.
        made: bytes of tiles that threads compute per k tile, likewise.
        made_functions: evaluated for them per k tile.
        made_waits: for what they are computed from, per k tile, without roles.
        thread_rounds: of them per k tile: what is on its way at once is written before the next.
        access_bytes: the widest access that the rows of all operands allow, a whole chunk at most.
        outside: bytes outside the operands that the copy engine has filled with zeros.
        in_flight: k tiles whose products may still run when the next are issued.
        operand_reads: bytes that products or fragment loads read from shared memory per k tile,
            times the wavefronts that bank conflicts make of one.
        passes: over the sums of a tile before its results, where blocks of a cluster cover rows.
        reading: of these, those that read matrices.
        sent: bytes of sums that a block sends to those that share them, per tile.
        panels: steps in which one worker finishes its share of a tile.
        waits: that one worker passes per tile.
        matrix_bytes: of the epilogue's matrices, read per tile.
        result_bytes: written per tile.
        functions: evaluated per tile.
        from_registers: 1 if results are stored straight from the registers.
        in_lines: 1 if threads move the panels of the epilogue.
        read_bytes: read from device memory at least: operands and matrices once.
        written_bytes: written there.
        along_bytes: of the operands that tiles of a group share while the group advances, per
            group.
        batches: matrices of results.
        across_bytes: of the other operands, of one matrix of results.
        groups: of the raster: how often the other operands are swept.
        astride: 1 if rows of an operand lie astride the lines of the cache.
        copied: of the operands that are copied first, to rows that start at lines.
        made_from: read where computed operands are made first.
        made_first: of these operands, written.
        first_functions: evaluated for them.
        others: clusters of output tiles without products.
        exchanged: 1 if operands are exchanged.
        lanes: 1 if lanes multiply, without tensor cores.
        loaded: elements that they read into registers, per k tile.
        folded: terms that are folded into sums and the like, per tile.
        indexed: into the place of the largest or the smallest.
        exponentials: into sums of exponentials.
        unstored: 1 if nothing but folds leaves.
        converted: elements of fragments that consumers compute, per k tile.
        converted_functions: functions beyond arithmetic in them.
        making_steps: fragments that one consumer computes after each other, per k tile.
        meetings: times that blocks send each other sums of a tile.
        last_split: blocks that share the sums of a tile of the last round; 1: none do. The other
            counts are of tiles that a block has for itself.
        last_rounds: of these tiles, how many the busiest block has a part of.
        last_tiles: how many there are.
        promoted: sums of blocks that are added to whole ones, per k tile.
        terms: products of tensor cores for one of the program's, of operands that warps split.
        making_vectors: vectors along k that it reads numbers of for them, over all of them.
    """

    roles: int
    pingpong: int
    blocks: int
    split: int
    clusters: int
    slots: int
    rounds: int
    resident: int
    k_tiles: int
    element_bytes: int
    ahead: int
    workers: int
    own: int
    products: int
    instructions: int
    filled: int
    fetched: int
    box_rows: int
    threaded: int
    made: int
    made_functions: int
    made_waits: int
    thread_rounds: int
    access_bytes: int
    outside: int
    in_flight: int
    operand_reads: int
    passes: int
    reading: int
    sent: int
    panels: int
    waits: int
    matrix_bytes: int
    result_bytes: int
    functions: int
    from_registers: int
    in_lines: int
    read_bytes: int
    written_bytes: int
    along_bytes: int
    batches: int
    across_bytes: int
    groups: int
    astride: int
    copied: int
    made_from: int = 0
    made_first: int = 0
    first_functions: int = 0
    others: int = 0
    exchanged: int = 0
    lanes: int = 0
    loaded: int = 0
    folded: int = 0
    indexed: int = 0
    exponentials: int = 0
    unstored: int = 0
    converted: int = 0
    converted_functions: int = 0
    making_steps: int = 0
    meetings: int = 1
    last_split: int = 1
    last_rounds: int = 0
    last_tiles: int = 0
    promoted: int = 0
    terms: int = 1
    making_vectors: int = 0

    @property
    def tiles(self) -> int:
        """Output tiles, those of partly filled clusters included."""
        return self.clusters * self.blocks // self.split

    @property
    def idle(self) -> int:
        """Slots without a cluster in the last round, or without a part of its tiles."""
        if self.last_rounds:
            return -self.last_tiles % (self.slots // self.last_split) * self.last_split
        return -self.clusters % self.slots

    @property
    def busiest(self) -> float:
        """Tiles that the busiest slot works through, parts of the last ones counted as such."""
        return self.rounds + self.last_rounds / self.last_split


@dataclass(frozen=True, slots=True)
class _Terms:
    """A problem as schedules of one kind see it: what of the counts is the same for all of them.

    Attributes:
        asked: the problem, behind what is made first.
        problem: the same in the terms of the schedules.
        first: what is made first takes.
        operand_bytes: of one matrix of results, in these terms.
        read_bytes: of all operands, once.
    """

    asked: Problem
    problem: Problem
    first: dict[str, int]
    operand_bytes: tuple[int, int]
    read_bytes: int


def _terms(problem: Problem, schedule: Schedule) -> _Terms:
    first = _made_first(problem) if schedule.makes_first else {}
    asked = problem.behind_making if schedule.makes_first else problem
    left, right = asked.operand_bytes
    # What all matrices of results share is read once.
    every, (own_left, own_right) = asked.batches, asked.own
    read = (left * every if own_left else left) + (right * every if own_right else right)
    seen = asked.under(schedule)
    return _Terms(asked, seen, first, seen.operand_bytes, read)


def counts(device: Device, fitted: Fitted, problem: Problem) -> Counts:
    """Count what a schedule makes of a problem.

    Args:
        device: the target.
        fitted: the schedule as it fits the program, and its blocks per multiprocessor.
        problem: sizes, and the weight of the epilogue.
    """
    return _counts(device, fitted, _terms(problem, fitted.schedule))


def all_counts(device: Device, fitted: Sequence[Fitted], problem: Problem) -> Iterator[Counts]:
    """`counts` of many schedules; what only the problem says is worked out once.

    Args:
        device: the target.
        fitted: schedules as they fit the program.
        problem: sizes, and the weight of the epilogue.
    """
    known: dict[tuple[object, ...], _Terms] = {}
    for one in fitted:
        schedule = one.schedule
        tile, roles = schedule.tile, schedule.roles
        # What `Problem.under` and `_made_first` read of a schedule.
        kind = (roles.form, roles.computes, schedule.exchange, tile.pixels, tile.joined)
        terms = known.get(kind)
        if terms is None:
            terms = known[kind] = _terms(problem, schedule)
        yield _counts(device, one, terms)


def _counts(device: Device, fitted: Fitted, terms: _Terms) -> Counts:
    schedule, asked, problem = fitted.schedule, terms.asked, terms.problem
    cta, warp, cluster = schedule.tile.cta, schedule.tile.warp, schedule.cluster
    size = problem.element_bytes
    roles, pingpong = schedule.specialised, schedule.roles.form == "pingpong"
    by_lanes = schedule.by_lanes
    blocks, split, last_split = cluster.blocks, cluster.k, 1
    if cluster.last:  # blocks have tiles for themselves
        blocks, split, last_split = cluster.tiles, 1, cluster.k
    tall, wide = -(-problem.m // (cta.m * cluster.m)), -(-problem.n // (cta.n * cluster.n))
    every = cluster_count(problem, cta.m * cluster.m, cta.n * cluster.n)
    clusters = with_products(schedule, problem, every)
    usable = device.multiprocessors
    if cluster.blocks > 2:
        usable = device.wide_cluster_multiprocessors
    slots = usable // cluster.blocks * (fitted.resident if roles else 1)
    slots *= last_split
    rounds, last_rounds, last_tiles = -(-clusters // slots), 0, 0
    if cluster.last:
        of, together = LastRound(last_split), min(clusters, slots // last_split)
        rounds, last_rounds = of.rounds(clusters, together)
        last_tiles = clusters - last_split * of.choose(clusters, together)
    workers = (cta.m // warp.m) * (cta.n // warp.n)
    # What workers sum besides they sum again for every run of tiles.
    run = schedule.raster.run
    wide_of_tile = cta.n + -(-cta.n // warp.n * problem.beside // run)
    lefts, rights = problem.operands
    left, right = lefts * cta.m * cta.k * size, rights * cta.n * cta.k * size
    makes = schedule.from_registers
    if makes:  # the copy engine brings what consumers compute the left operand from
        given = lefts - problem.computed[0]
        left = (given * size * _BYTE + problem.stored_bits[0]) * cta.m * cta.k // _BYTE
    # A tile that is larger than the whole operand is filled up with zeros.
    # Of groups below one another it goes on into the next.
    rows, columns = min(cta.m, rows_there(problem)), min(cta.n, problem.n)
    copied = roles and schedule.launch.realign and any(problem.copied)
    by_hand = (problem.uncopied if copied else problem.threaded) if roles else (0, 0)
    if makes:
        by_hand = (by_hand[0] - problem.computed[0], by_hand[1])
    all_copied = copied and problem.copied == problem.operands
    moved = (lefts - by_hand[0], rights - by_hand[1])
    fetched = (moved[0] * rows // cluster.n + moved[1] * columns // cluster.m) * cta.k * size
    if makes:
        fetched += (left - moved[0] * size * cta.m * cta.k) * rows // cta.m
    tile = (cta.m * cta.k, cta.n * cta.k)
    own_elements = workers * warp.m * cta.k if makes else 0
    if makes:
        tile = (0, tile[1])
    made = (problem.computed[0] * tile[0] + problem.computed[1] * tile[1]) * size
    threaded = (by_hand[0] * tile[0] + by_hand[1] * tile[1]) * size
    by_roles = made if roles else 0
    threaded -= by_roles
    if roles:
        tall_blocks = warp.m // device.warpgroup_rows  # instructions along m of one worker
        steps = cta.k * size // device.warpgroup_depth_bytes
        instructions = problem.products * workers * tall_blocks * steps
        instructions += -(-bool(problem.beside) * workers * tall_blocks * steps // run)
        operand_reads = workers * tall_blocks * (device.warpgroup_rows + warp.n) * cta.k * size
        operand_reads *= problem.products
        if problem.beside:
            rows_and_columns = device.warpgroup_rows + problem.beside
            operand_reads += workers * tall_blocks * rows_and_columns * cta.k * size // run
        if makes:  # fragments are read once for all products, as they are stored
            operand_reads -= problem.products * workers * warp.m * cta.k * size
            operand_reads += problem.stored_bits[0] * workers * warp.m * cta.k // _BYTE
        panels, waits = way_out(device, schedule, problem, by_hand)
        making = problem.computed[0] * tall_blocks * steps if makes else 0
    else:
        instructions = making = 0
        ways = [
            conflicts_of(schedule, inner, extent, cta.k, size)
            for inner, extent in zip(problem.k_inner, (cta.m, cta.n), strict=True)
        ]
        loaded = lefts * warp.m * ways[0] + rights * warp.n * ways[1]
        operand_reads = 0 if by_lanes else workers * loaded * cta.k * size
        panels, waits = 1, 0
    if schedule.raster.along == "m":
        groups, across = -(-tall // schedule.raster.group), terms.operand_bytes[1]
        share = lefts * min(problem.m, schedule.raster.group * cluster.m * cta.m)
        side = 0
    else:
        groups, across = -(-wide // schedule.raster.group), terms.operand_bytes[0]
        share = rights * min(problem.n, schedule.raster.group * cluster.n * cta.n)
        side = 1
    # Tiles of pixels may go on outside of the result, where nothing is read or written.
    results = asked.m * asked.n * asked.batches
    return Counts(
        roles=roles,
        pingpong=pingpong,
        blocks=blocks,
        split=split,
        clusters=clusters,
        slots=slots,
        rounds=rounds,
        last_split=last_split,
        last_rounds=last_rounds,
        last_tiles=last_tiles,
        meetings=meetings(schedule),
        others=every - clusters,
        resident=fitted.resident,
        k_tiles=own_k_tiles(schedule, problem),
        element_bytes=size,
        ahead=copies_ahead(schedule),
        workers=workers,
        own=problem.products * warp.m * warp.n,
        products=problem.products * problem.terms * cta.m * wide_of_tile * cta.k,
        instructions=instructions,
        filled=left + right,
        fetched=fetched,
        box_rows=box_rows(schedule, problem, moved) if roles else 0,
        threaded=threaded,
        made=made,
        made_functions=(
            problem.operand_functions[0] * tile[0] + problem.operand_functions[1] * tile[1]
        ),
        made_waits=0 if roles else -(-made // (workers * device.warp_size * _READ_TOGETHER)),
        thread_rounds=fill_rounds(schedule, by_hand, size, problem.held),
        access_bytes=problem.access_bytes,
        outside=left // cluster.n + right // cluster.m - threaded - by_roles - fetched,
        in_flight=schedule.pipeline.in_flight if roles else 0,
        operand_reads=operand_reads,
        passes=problem.passes if cluster.n > 1 else 0,
        reading=problem.reading if cluster.n > 1 else 0,
        sent=problem.products * cta.m * cta.n * _SUM_BYTES if cluster.k > 1 else 0,
        panels=panels,
        waits=waits,
        matrix_bytes=cta.m * cta.n * problem.matrix_bytes,
        result_bytes=cta.m * cta.n * problem.result_bytes,
        functions=cta.m * cta.n * problem.functions,
        from_registers=schedule.epilogue.through == "registers",
        in_lines=schedule.epilogue.through == "lines",
        read_bytes=terms.read_bytes + results * problem.matrix_bytes,
        written_bytes=results * problem.result_bytes,
        along_bytes=problem.once(side, share * problem.k * size),
        batches=problem.batches,
        across_bytes=across,
        groups=groups,
        astride=problem.astride and not all_copied,
        copied=problem.copied_bytes if copied else 0,
        **terms.first,
        exchanged=schedule.exchange,
        lanes=by_lanes,
        converted=problem.computed[0] * own_elements,
        converted_functions=problem.operand_functions[0] * own_elements,
        making_steps=making,
        making_vectors=problem.vectors[0] * making // max(problem.computed[0], 1),
        loaded=workers * (lefts * warp.m + rights * warp.n) * cta.k if by_lanes else 0,
        folded=cta.m * cta.n * problem.folds[0],
        indexed=cta.m * cta.n * problem.folds[1],
        exponentials=cta.m * cta.n * problem.folds[2],
        unstored=problem.result_bytes == 0,
        promoted=problem.products * cta.m * cta.n * cta.k // problem.block if problem.block else 0,
        terms=problem.terms,
    )


def _made_first(problem: Problem) -> dict[str, int]:
    """What is read, written and evaluated where the operands that are computed are made first."""
    read, written = problem.made_bytes
    elements = written // problem.element_bytes
    count = max(sum(problem.computed), 1)
    functions = elements * sum(problem.operand_functions) // count
    return {"made_from": read, "made_first": written, "first_functions": functions}
