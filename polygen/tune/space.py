"""(device, problem) -> the schedules worth a measurement, as they fit the program.

0. Where rows are few, everything twice: as the program has them, and with operands exchanged.
1. Tiles first: every form of roles with every number of consumers (or, without roles, every
   arrangement of warps), over all widths that the instruction takes in steps of a granule. A tile
   that a smaller one would also cover along a dim of the problem is left out.
2. Each tile is fitted once, which gives it as many stages as fit. What fits no device resource or
   layout ends here; what breaks a dependence is refused by the proofs before it is compiled.
3. Around each fitted tile its other decisions vary: clusters with rasters, fewer stages, slots and
   widths of the epilogue's panels; where tiles are few, blocks that share sums, and where they
   leave half of the last round empty, those of that round. Decisions that
   change nothing for the problem (an order of visiting one row of tiles, prefetched matrices where
   none is read) are not varied.
4. Names say every decision; two schedules that come out equal are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from polygen.hardware.atom import atom, atom_names
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import GROUP_ROWS, spans
from polygen.lower.resources import registers_available
from polygen.poly.results import panel_columns
from polygen.schedule.model import (
    LANES,
    LAST,
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.choose import DOT_ROWS, copied_first
from polygen.tune.schedule_name import schedule_name

Fit = Callable[[Schedule], Fitted | str]

_GRANULE = 16  # of widths: panels of the epilogue are multiples of it
_NARROWEST = 8  # with operands exchanged: one group of columns holds all rows of a result
_FEW_ROWS = 128  # of results, for which operands are exchanged
_DOT_COLUMNS = (1, 2, 4)  # of a warp
_DOT_RINGS = (1, 2, 4, 8)  # steps that registers hold
_EXCHANGED_SPANS = (1, 2)  # of a k tile: longer rows of weights in one go
_MOST_STAGES = 12
_FEWEST_STAGES = 2

# (form, or turns; parts of the tile along m and n, one for each consumer; instructions of each
# along m)
_SHARED = Roles("cooperative")
_FORMS = (
    (_SHARED, (1, 1), 1),
    (_SHARED, (1, 1), 2),
    (_SHARED, (2, 1), 1),
    (_SHARED, (2, 1), 2),
    (_SHARED, (3, 1), 1),
    (_SHARED, (1, 2), 3),
    *((Roles("pingpong", turns=turns), (1, 1), rows) for turns in (2, 3) for rows in (1, 2)),
)
# Registers of the producer and of each consumer, by the number of consumers; wide tiles need more.
_REGISTERS = {1: ((40, 232), (24, 240)), 2: ((40, 232), (24, 240)), 3: ((32, 160), (32, 160))}
_WIDE_SUMS = 160
_SIDE_BY_SIDE = (2, 3, 4)  # blocks of a multiprocessor that finish tiles beside each other
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
_SPLITS = (2, 4, 8)  # blocks that share the sums of a tile
_LEAST_K_TILES = 4  # of each of them
_SENT = (16, 32)  # columns of shares that they send at a time, where they share the last round's
_FEW_ROUNDS = 8  # of which half a one less is worth anything
_RASTERS = (("m", 8), ("m", 16), ("m", 4), ("n", 8), ("n", 16), ("n", 4))
# (slots, prefetch, columns of a panel): narrow panels leave room for stages and for matrices.
_SLOTS = ((3, 2, 0), (4, 2, 0))
_PREFETCH = ((2, 1, 0), (2, 3, 0), (3, 3, 0), (2, 2, 32), (2, 3, 32), (2, 4, 32))
_CROSSED_AREA = 128 * 128  # from this size of a tile, all rasters are tried with small clusters


_WARP_CTA = (16, 32, 64, 128, 256)
_WARP_OWN = ((16, 16), (16, 32), (32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64))
_WARP_MOST = 8  # warps of a block
_WARP_K_BYTES = (64, 128, 256)
_WARP_STAGES = (6, 5, 4, 3, 2)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Output tiles of a schedule along m and n, and whether there are enough to be ordered."""

    m: int
    n: int
    multiprocessors: int

    @property
    def ordered(self) -> bool:
        return self.m * self.n > self.multiprocessors and min(self.m, self.n) > 1

    def raster(self, along: str, group: int) -> tuple[str, int]:
        """A raster by what it does: groups of the whole extent and more are one."""
        return along, min(group, self.m if along == "m" else self.n)


def space(device: Device, problem: Problem, fit: Fit) -> Iterator[Fitted]:
    """The schedules to weigh for a problem, tiles in a fixed order, each followed by its variants.

    Args:
        device: the target.
        problem: sizes along m, n, k, and what the epilogue reads.
        fit: fits a schedule to the program, or says why it does not fit.

    Yields:
        Schedules as fitted, with systematic names; no two are equal.
    """
    found: set[Schedule] = set()
    specialised = 0
    if device.has("wgmma") and device.has("tma"):
        few = problem.m <= _FEW_ROWS and problem.m < problem.n
        for exchange in (False, True) if few else (False,):
            for fitted in _in_place_and_copied(device, problem, fit, exchange=exchange):
                if fitted.schedule not in found:
                    found.add(fitted.schedule)
                    specialised += 1
                    yield fitted
    for fitted in _dots(device, problem, fit):
        if fitted.schedule not in found:
            found.add(fitted.schedule)
            yield fitted
    for fitted in _warps(device, problem, fit, few=specialised > 0):
        if fitted.schedule not in found:
            found.add(fitted.schedule)
            yield fitted


# --- with roles --------------------------------------------------------------------------------
def _in_place_and_copied(
    device: Device, problem: Problem, fit: Fit, *, exchange: bool
) -> Iterator[Fitted]:
    """Where threads would fill rings, all that the copy engine does behind a copy, too."""

    def behind_copy(schedule: Schedule) -> Fitted | str:
        return fit(replace(schedule, launch=copied_first(device)))

    yield from _specialised(device, problem, fit, exchange=exchange)
    if any(problem.copied):
        behind = replace(problem, threaded=problem.uncopied, uncopied=(0, 0))
        yield from _specialised(device, behind, behind_copy, exchange=exchange)


def _specialised(device: Device, problem: Problem, fit: Fit, *, exchange: bool) -> Iterator[Fitted]:
    widest = max(one.n_most for one in map(atom, atom_names()) if one.scope == "warpgroup")
    widths: Sequence[int] = range(_GRANULE, widest + 1, _GRANULE)
    problem = problem if exchange else problem.merged  # rows of tiles are pixels of boxes
    if exchange:
        problem = problem.under(Schedule(exchange=True))
        widths = (_NARROWEST, *widths)
    depths = _EXCHANGED_SPANS if exchange else (1,)
    for (roles, parts, count), width, depth in product(_FORMS, widths, depths):
        warp = WarpTile(count * device.warpgroup_rows, width)
        k = depth * spans()[0] // problem.element_bytes
        cta = CtaTile(parts[0] * warp.m, parts[1] * width, k)
        if cta.m > _up(problem.m, device.warpgroup_rows) and cta.m > device.warpgroup_rows:
            continue
        base = _role_tile(device, roles, cta, warp, exchange)
        if cta.n > _up(problem.n, _GRANULE):
            if exchange and cta.n == width:  # blocks share columns, even those beyond the result's
                yield from _shared_sums(device, problem, base, fit, least=width // _NARROWEST)
            continue
        fitted = fit(base)
        if isinstance(fitted, Fitted):
            yield from _role_variants(device, problem, fitted, fit)
        for blocks in _SIDE_BY_SIDE:
            beside = fit(_shared(device, base, blocks))
            if isinstance(beside, Fitted):
                yield _with(beside, beside.schedule)
        yield from _shared_sums(device, problem, base, fit)
        yield from _last_rounds(device, problem, base, fit)


def _role_tile(
    device: Device, roles: Roles, cta: CtaTile, warp: WarpTile, exchange: bool
) -> Schedule:
    schedule = Schedule(
        name="",
        device=device.name,
        tile=Tile(cta, warp),
        pipeline=Pipeline(stages=_MOST_STAGES),
        roles=roles,
        epilogue=Epilogue(through="tma"),
        exchange=exchange,
    )
    sums = warp.m * warp.n // device.group_threads
    producer, consumer = _REGISTERS[schedule.consumers][sums >= _WIDE_SUMS]
    roles = replace(roles, producer_registers=producer, consumer_registers=consumer)
    return replace(schedule, roles=roles)


def _shared(device: Device, schedule: Schedule, blocks: int) -> Schedule:
    """The schedule for several blocks on a multiprocessor, which divide its registers."""
    groups = schedule.consumers
    shared = replace(schedule, min_blocks=blocks)
    each = registers_available(shared, device, (groups + 1) * device.group_threads)
    few, step = device.role_registers_least, device.role_registers_step
    own = min((each * (groups + 1) - few) // groups // step * step, device.role_registers_most)
    return replace(
        shared, roles=replace(schedule.roles, producer_registers=few, consumer_registers=own)
    )


def _shared_sums(
    device: Device, problem: Problem, base: Schedule, fit: Fit, least: int = 1
) -> Iterator[Fitted]:
    """Clusters whose blocks share the sums of a tile: where there are few tiles and long sums.

    Args:
        device: the target.
        problem: in the terms of the schedule.
        base: the schedule that is not split.
        fit: fits a schedule to the program.
        least: blocks of a cluster.
    """
    cta = base.tile.cta
    tiles = -(-problem.m // cta.m) * -(-problem.n // cta.n) * problem.batches
    # Blocks of exchanged operands read nothing twice: a second one on a multiprocessor is welcome.
    most = device.multiprocessors if base.exchange else device.multiprocessors // 2
    if base.in_turns or tiles > most:
        return
    for split in _SPLITS:
        if split < least:
            continue
        if problem.k < split * _LEAST_K_TILES * cta.k:
            return
        whole = replace(base, cluster=Cluster(k=split))
        for one in (whole, _shared(device, whole, 2)):
            fitted = fit(one)
            if isinstance(fitted, Fitted):
                yield _with(fitted, fitted.schedule)


def _last_rounds(device: Device, problem: Problem, base: Schedule, fit: Fit) -> Iterator[Fitted]:
    """Clusters whose blocks share the last round's tiles: where it is thin, and sums are long.

    Args:
        device: the target.
        problem: in the terms of the schedule.
        base: the schedule that is not split.
        fit: fits a schedule to the program.
    """
    cta = base.tile.cta
    tiles = -(-problem.m // cta.m) * -(-problem.n // cta.n) * problem.batches
    rounds, left = divmod(tiles, device.multiprocessors)
    thin = 0 < left <= device.multiprocessors // 2 and 1 <= rounds <= _FEW_ROUNDS
    split = _SPLITS[0]
    if base.in_turns or not thin or any(problem.threaded):
        return
    if problem.k < split * _LEAST_K_TILES * cta.k:
        return
    for columns in _SENT:
        fitted = fit(replace(base, cluster=Cluster(k=split, share=LAST, columns=columns)))
        if isinstance(fitted, Fitted):
            yield _with(fitted, fitted.schedule)


def _role_variants(device: Device, problem: Problem, fitted: Fitted, fit: Fit) -> Iterator[Fitted]:
    base = fitted.schedule
    cta = base.tile.cta
    grid = _Grid(-(-problem.m // cta.m), -(-problem.n // cta.n), device.multiprocessors)
    # Rasters, clusters and fewer stages take no more of any resource: what fits, fits with them.
    for raster, cluster in _orders(grid, cta):
        if cluster != Cluster() and any(problem.threaded):
            continue  # threads shift rows into place for their own block
        yield _with(fitted, replace(base, raster=raster, cluster=cluster))
    for fewer in (1, 2):
        stages = base.pipeline.stages - fewer
        if stages >= _FEWEST_STAGES:
            pipeline = replace(base.pipeline, stages=stages)
            yield _with(fitted, replace(base, pipeline=pipeline))
    if base.epilogue.through != "tma":
        return
    for slots, prefetch, columns in _SLOTS + (_PREFETCH if problem.matrices else ()):
        if columns >= panel_columns(base):
            continue
        changed = replace(
            base,
            pipeline=replace(base.pipeline, stages=_MOST_STAGES),
            epilogue=replace(base.epilogue, slots=slots, prefetch=prefetch, columns=columns),
        )
        again = fit(changed)
        if isinstance(again, Fitted):
            yield _with(again, again.schedule)


def _orders(grid: _Grid, cta: CtaTile) -> Iterator[tuple[Raster, Cluster]]:
    """Rasters with clusters: all with the small clusters for large tiles, else one at a time."""
    seen = set()
    for (cm, cn), (along, group) in product(_CLUSTERS, _RASTERS):
        usual = (along, group) == _RASTERS[0]
        if not usual and not (
            grid.ordered and cm * cn <= 2 and (cm * cn == 1 or cta.m * cta.n >= _CROSSED_AREA)
        ):
            continue
        # A cluster shares the rows of a tile in whole groups.
        if cm > grid.m or cn > grid.n or cta.n % (GROUP_ROWS * cm) or cta.m % (GROUP_ROWS * cn):
            continue
        key = (cm, cn, *grid.raster(along, group))
        if key not in seen:
            seen.add(key)
            yield Raster(along, group), Cluster(cm, cn)


# --- dot products ------------------------------------------------------------------------------
def _dots(device: Device, problem: Problem, fit: Fit) -> Iterator[Fitted]:
    """Lanes multiply: all rows of a result by a few columns for each warp, where rows are few."""
    sides = [(rows, turn) for rows, turn in ((problem.m, False), (problem.n, True))
             if rows <= DOT_ROWS]  # fmt: skip
    step = next(one.k for one in map(atom, atom_names()) if one.scope == "lanes")
    ways = product(sides, _DOT_COLUMNS, _DOT_RINGS, (4, 8), (1, 2, 3, 4))
    for (rows, turned), own, fragments, warps, blocks in ways:
        base = Schedule(
            name="",
            device="sm_80",
            atom=LANES,
            tile=Tile(CtaTile(rows, warps * own, fragments * step), WarpTile(rows, own)),
            pipeline=Pipeline(fragments=fragments, lookahead=fragments - 1),
            raster=Raster("n", 16),  # there is one row of tiles
            epilogue=Epilogue(through="registers"),
            min_blocks=blocks,
            exchange=turned,
        )
        fitted = fit(base)
        if isinstance(fitted, Fitted):
            yield _with(fitted, fitted.schedule)


# --- without roles -----------------------------------------------------------------------------
def _warps(device: Device, problem: Problem, fit: Fit, *, few: bool) -> Iterator[Fitted]:
    """Every arrangement of warps; `few`: only where schedules with roles are weak, small tiles."""
    rows, columns = _up(problem.m, _WARP_CTA[0]), _up(problem.n, _WARP_CTA[0])
    for m, n, own, k_bytes in product(_WARP_CTA, _WARP_CTA, _WARP_OWN, _WARP_K_BYTES):
        warps = (m // own[0]) * (n // own[1])
        if m % own[0] or n % own[1] or not 1 <= warps <= _WARP_MOST:
            continue
        if (m >= 2 * rows and m > _WARP_CTA[0]) or (n >= 2 * columns and n > _WARP_CTA[0]):
            continue
        # Warps that reuse little, and blocks of fewer than half a multiprocessor's schedulers.
        if warps < 2 or (warps < 4 and m * n >= 64 * 64):
            continue
        if few and (m > 64 or m * n > 64 * 128 or k_bytes == _WARP_K_BYTES[0]):
            continue
        yield from _warp_stages(device, problem, fit, (m, n), own, k_bytes, few=few)


def _warp_stages(
    device: Device,
    problem: Problem,
    fit: Fit,
    cta: tuple[int, int],
    own: tuple[int, int],
    k_bytes: int,
    *,
    few: bool,
) -> Iterator[Fitted]:
    """As many stages as fit, fewer, and other rings of fragments."""
    k = k_bytes // problem.element_bytes
    base = Schedule(
        name="",
        device="sm_80",
        tile=Tile(CtaTile(*cta, k), WarpTile(*own)),
        min_blocks=2 if cta[0] * cta[1] <= _CROSSED_AREA else 1,
    )
    found = 0
    for stages in _WARP_STAGES:
        pipeline = replace(base.pipeline, stages=stages, distance=stages - 1)
        fitted = fit(replace(base, pipeline=pipeline))
        if not isinstance(fitted, Fitted):
            continue
        yield _with(fitted, fitted.schedule)
        found += 1
        if found == 1 and not few:
            for changed in (
                replace(pipeline, fragments=1, lookahead=0, across=False),
                replace(pipeline, copies="spread"),
            ):
                other = fit(replace(base, pipeline=changed))
                if isinstance(other, Fitted):
                    yield _with(other, other.schedule)
        if found == (1 if few else 3):
            return


def _with(fitted: Fitted, schedule: Schedule) -> Fitted:
    return Fitted(replace(schedule, name=schedule_name(schedule)), fitted.resident)


def _up(extent: int, step: int) -> int:
    return -(-extent // step) * step
