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

from polygen.hardware.device import Device
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.last_round import LastRound
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost.counted import Counts
from polygen.tune.cost.streams import stream_counts
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
    first = _made_first(problem, schedule)
    asked = problem.behind_making if problem.makes_first(schedule) else problem
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
    roles, turns = schedule.specialised, schedule.roles.turns * schedule.in_turns
    by_lanes = schedule.by_lanes
    streams = stream_counts(schedule, asked)
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
    # Lanes multiply numbers as they are, and read what lies inside.
    pieces = 1 if by_lanes else problem.terms
    # What workers sum besides they sum again for every run of tiles.
    run = schedule.raster.run
    wide_of_tile = cta.n + -(-cta.n // warp.n * problem.beside // run)
    lefts, rights = problem.operands
    left, right = lefts * cta.m * cta.k * size, rights * cta.n * cta.k * size
    if by_lanes and problem.k < cta.k:
        left, right = left * problem.k // cta.k, right * problem.k // cta.k
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
    apart = (problem.astride[0] * rows / cluster.n, problem.astride[1] * columns / cluster.m)
    astride = (moved[0] * apart[0] + moved[1] * apart[1]) * cta.k * size
    if makes:
        fetched += (left - moved[0] * size * cta.m * cta.k) * rows // cta.m
    tile = (cta.m * cta.k, cta.n * cta.k)
    own_elements = workers * warp.m * cta.k if makes else 0
    if makes:
        tile = (0, tile[1])
    made = (problem.computed[0] * tile[0] + problem.computed[1] * tile[1]) * size
    threaded = (by_hand[0] * tile[0] + by_hand[1] * tile[1]) * size
    by_roles = made if roles else 0
    narrow = [
        (every - computed) * elements * size if access < chunk_bytes() else 0
        for every, computed, elements, access in zip(
            problem.operands, problem.computed, tile, problem.access_bytes, strict=True
        )
    ]
    threaded -= by_roles
    if roles:
        tall_blocks = warp.m // device.warpgroup_rows  # instructions along m of one worker
        steps = cta.k * size // device.warpgroup_depth_bytes
        instructions = problem.products * workers * tall_blocks * steps
        instructions += -(-bool(problem.beside) * workers * tall_blocks * steps // run)
        # Rows that products have in common are read once, columns for each 64 of the rows.
        read_rows = lefts * workers * warp.m * cta.k * size
        read_columns = problem.products * workers * tall_blocks * warp.n * cta.k * size
        operand_reads = read_rows + read_columns
        if problem.beside:
            rows_and_columns = device.warpgroup_rows + problem.beside
            operand_reads += workers * tall_blocks * rows_and_columns * cta.k * size // run
        if makes:  # fragments are read once for all products, as they are stored
            operand_reads -= read_rows
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
        operand_reads = 0 if schedule.without_rings else workers * loaded * cta.k * size
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
        turns=turns,
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
        products=0 if streams else problem.products * pieces * cta.m * wide_of_tile * cta.k,
        instructions=instructions,
        filled=0 if streams else left + right,
        fetched=fetched,
        box_rows=box_rows(schedule, problem, moved) if roles else 0,
        threaded=threaded,
        made=0 if streams else made,
        made_functions=(
            problem.operand_functions[0] * tile[0] + problem.operand_functions[1] * tile[1]
        ),
        made_waits=0 if roles else -(-made // (workers * device.warp_size * _READ_TOGETHER)),
        thread_rounds=fill_rounds(schedule, by_hand, size, problem.held),
        narrow=sum(narrow),
        narrow_copies=sum(n // a for n, a in zip(narrow, problem.access_bytes, strict=True)),
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
        astride=0 if all_copied else int(astride),
        copied=problem.copied_bytes if copied else 0,
        copied_rows=problem.copied_rows if copied else 0,
        **terms.first,
        exchanged=schedule.exchange,
        lanes=by_lanes,
        converted=problem.computed[0] * own_elements,
        converted_functions=problem.operand_functions[0] * own_elements,
        making_steps=making,
        making_groups=making // schedule.pipeline.together,
        making_vectors=problem.vectors[0] * making // max(problem.computed[0], 1),
        paired_vectors=problem.paired_vectors[0] * making // max(problem.computed[0], 1),
        loaded=workers * (lefts * warp.m + rights * warp.n) * cta.k if by_lanes else 0,
        folded=cta.m * cta.n * problem.folds[0],
        indexed=cta.m * cta.n * problem.folds[1],
        exponentials=cta.m * cta.n * problem.folds[2],
        unstored=problem.result_bytes == 0,
        promoted=problem.products * cta.m * cta.n * cta.k // problem.block if problem.block else 0,
        beside=schedule.pipeline.overlap > 1,
        terms=problem.terms,
        **_tallied(problem, schedule),
        seldom=problem.leaving and not turns,
        **streams,
    )


def _tallied(problem: Problem, schedule: Schedule) -> dict[str, int]:
    """Instructions of folds of operands for a k tile, of what rings have, and of what none has.

    Who multiplies rows folds them: those of the other operand, everybody beside each other.
    """
    cta, warp = schedule.tile.cta, schedule.tile.warp
    rows = (cta.m * (cta.n // warp.n), cta.n * (cta.m // warp.m))
    left, right = (cta.k * n * count for n, count in zip(problem.tallied, rows, strict=True))
    by_producers = schedule.specialised and not schedule.from_registers
    apart = [n for n, none in zip((left, right), problem.unringed, strict=True) if none]
    unringed = sum(apart) if by_producers else 0
    return {"tallied": left + right - unringed, "unringed": unringed}


def _made_first(problem: Problem, schedule: Schedule) -> dict[str, int]:
    """What is read, written and evaluated where the operands that are computed are made first.

    And what lies otherwise than instructions read it, which is copied whatever the schedule is.
    """
    turned_from, turned = problem.turned
    if not problem.makes_first(schedule):
        return {"made_from": turned_from, "made_first": turned} if turned else {}
    read, written = problem.made_bytes
    elements = written // problem.element_bytes
    count = max(sum(problem.computed), 1)
    functions = elements * sum(problem.operand_functions) // count
    return {
        "made_from": read + turned_from,
        "made_first": written + turned,
        "first_functions": functions,
        "first_passes": problem.row_passes,
    }
