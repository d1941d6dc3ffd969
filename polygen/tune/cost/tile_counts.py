"""How many tiles a schedule makes of a problem, and what moving one takes, in closed form."""

from __future__ import annotations

import math

from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import span_of, spans
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.fills import Held, piece_bytes, rounds, shifted
from polygen.poly.results import own_columns, panel_columns
from polygen.poly.tile_domain import TileDomain, tile_planes
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Problem


def box_rows(schedule: Schedule, problem: Problem, moved: tuple[int, int]) -> int:
    """Rows of the boxes that a block has the copy engine move per k tile.

    Where k is innermost, boxes are as wide as the widest swizzle, or as what a tap has; else they
    divide what one instruction reads of a row of the tile.
    """
    cta, cluster, size = schedule.tile.cta, schedule.cluster, problem.element_bytes
    parts = (spans()[0], schedule.tile.warp.n * size)  # of a row, where k is not innermost
    tap = math.gcd(problem.run * size, cta.k * size)
    wide = (span_of(tap, plain=True) if tap else None) or spans()[0]
    extents = (
        min(cta.m, rows_there(problem)),
        min(cta.n, problem.n),
    )  # what lies outside is no copy
    found = 0
    for count, inner, extent, part, shared in zip(
        moved, problem.k_inner, extents, parts, (cluster.n, cluster.m), strict=True
    ):
        if not count:
            continue
        if inner:
            rows = extent * -(-cta.k * size // wide)
        else:
            rows = cta.k * extent * size // (span_of(part) or spans()[-1])
        found += count * rows // shared
    return found


def copies_ahead(schedule: Schedule) -> int:
    """K tiles by which copies run ahead; lanes hold about one in registers."""
    if schedule.specialised:
        return schedule.pipeline.stages
    return 1 if schedule.without_rings else max(1, schedule.pipeline.distance)


def rows_there(problem: Problem) -> int:
    """Rows that a tile may bring: of groups, those of the next ones too."""
    return problem.m * problem.batches if problem.uneven else problem.m


def cluster_count(problem: Problem, rows: int, columns: int) -> int:
    """Clusters of output tiles, of so many rows and columns; every section has its own."""
    if problem.sections:
        return sum(-(-m // rows) * -(-n // columns) * count for m, n, count in problem.sections)
    return _tall(problem, rows) * -(-problem.n // columns)


def with_products(schedule: Schedule, problem: Problem, every: int) -> int:
    """Of all clusters of tiles those that have products; one is the least."""
    cluster, cta = schedule.cluster, schedule.tile.cta
    if not problem.domain or problem.uneven or cluster.k > 1 or schedule.by_lanes:
        return every
    tile = (cta.m * cluster.m, cta.n * cluster.n)
    domain = TileDomain(problem.domain, tile, tile_planes(problem.domain, tile))
    return max(1, problem.batches * domain.count(problem.m, problem.n))


def _tall(problem: Problem, rows: int) -> int:
    """Tiles of so many rows below one another, of all matrices.

    Of groups with any numbers of rows the last tile is half full in the mean, and one is the least.
    """
    if not problem.uneven:
        return -(-problem.m // rows) * problem.batches
    whole = problem.m * problem.batches + problem.batches * (rows - 1) // 2
    return max(problem.batches, -(-whole // rows))


def fill_rounds(
    schedule: Schedule, by_hand: tuple[int, int], size: int, of: tuple[int, int]
) -> int:
    """Rounds in which threads fill a k tile; 0 where the copy engine does."""
    if not any(by_hand):
        return 0
    cta, each = schedule.tile.cta, piece_bytes()
    pieces = sum(
        count * -(-extent * cta.k * size // each)
        for count, extent in zip(by_hand, (cta.m, cta.n), strict=True)
    )
    threads = Held(*of) if any(of) else shifted()
    return rounds(pieces, schedule.roles.producer_registers, threads)[0]


def own_k_tiles(schedule: Schedule, problem: Problem) -> int:
    """How many k tiles one block adds up, of a tile of its own where it has some."""
    depth = problem.depth or problem.k
    every = problem.k // depth * -(-depth // schedule.tile.cta.k)
    return every if schedule.cluster.last else -(-every // schedule.cluster.k)


def meetings(schedule: Schedule) -> int:
    """How often blocks that share the sums of a tile send each other some of them."""
    columns = schedule.cluster.columns
    return schedule.tile.warp.n // schedule.cluster.k // columns if columns else 1


def way_out(
    device: Device, schedule: Schedule, problem: Problem, by_hand: tuple[int, int]
) -> tuple[int, int]:
    """Panels of one consumer's tile, and the waits that it passes per tile."""
    warp = schedule.tile.warp
    moved = 1 + (0 < sum(by_hand) < sum(problem.operands))  # by engine, and by threads
    k_tiles = own_k_tiles(schedule, problem) * moved
    rows = warp.m // device.warpgroup_rows
    shared = schedule.cluster.k > 1 and not schedule.cluster.last
    turn = int(schedule.in_turns) + int(shared)  # or the parts of shared sums
    if schedule.epilogue.through == "registers":
        return rows, k_tiles + turn
    own = schedule.tile.warp.n if schedule.cluster.last else own_columns(schedule)
    panels = rows * (own // panel_columns(schedule))
    # Per panel: one wait for each matrix, and the barrier before the copy engine takes the results.
    return panels, k_tiles + turn + panels * (problem.matrices + 1)


def conflicts_of(schedule: Schedule, k_inner: bool, extent: int, depth: int, size: int) -> int:
    """Wavefronts that bank conflicts make of one wavefront of fragment loads.

    A swizzle that is chosen automatically leaves none. Without one, the eight 16-byte rows that a
    load reads together start at multiples of the stored row: those that are congruent modulo the
    banks' 128 bytes come one after the other.
    """
    if schedule.smem.swizzle != "none":
        return 1
    return math.gcd((depth if k_inner else extent) * size // chunk_bytes(), 8)
