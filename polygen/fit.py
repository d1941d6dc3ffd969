"""Whether a schedule is legal for a program on a device, and how it fits.

1. The instruction is the one the schedule names, or the device's first that takes the element types
   and the schedule's roles.
2. Roles ask for tiles that their consumers can share, and for operands that tensor maps describe.
3. Shipped schedules are fitted: k tiles of as many swizzle spans as they have of 16-bit elements,
   as many stages as fit shared memory, panels as wide as registers hold, results line by line where
   tensor maps cannot describe them, and straight from the registers where warps fold, or nothing
   but folds leaves.

Which of the schedules that fit is taken is not decided here (`polygen.decide`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from polygen.errors import PolygenError, ResourceError, ScheduleError, UnsupportedProgram
from polygen.frontend.dtypes import F64, DType
from polygen.hardware.atom import Atom, atom, atom_names, atoms_for
from polygen.hardware.device import Device
from polygen.hardware.fragment_load import atom_load
from polygen.hardware.matrix_layout import spans
from polygen.lower.cover import check_rows, covering
from polygen.lower.legal import (
    check_copies,
    check_folds,
    check_groups,
    check_lanes,
    check_launch,
    check_roles,
    check_sums,
)
from polygen.lower.legal_blocks import block_tile, check_promoting
from polygen.lower.memory import memory, needed, rings, workers
from polygen.lower.pixels import check_pixels
from polygen.lower.registers import doubt, registers_needed, sums_held
from polygen.lower.resources import filling_roles, registers_available, resources
from polygen.lower.rest_legal import check_rest, check_rest_layout
from polygen.poly.fills import held, ring_pieces, rounds
from polygen.poly.match import Match, Operand
from polygen.poly.orientation import oriented, oriented_work
from polygen.poly.pointwise import Pointwork
from polygen.poly.realign import behind_copy
from polygen.poly.results import in_runs, narrower, panel_columns, panels
from polygen.poly.tiling import Tiling, tiling
from polygen.schedule.model import LANES, Schedule
from polygen.schedule.problem import Fitted
from polygen.schedule.structure import check_structure

_FEWEST_STAGES, _MOST_STAGES = 2, 12
_USUAL_BYTES, _USUAL_BITS = 2, 16  # of an element
_WORD_BYTES = 4
_OTHERWISE = {
    "warpgroup": "Use a schedule without roles",
    "lanes": 'Use f16 or bf16 operands with f32 sums, or atom = "auto"',
}
_LONG_TILES, _STAGES_OF_LONG_TILES = (4, 2), 3  # k tiles in spans, and slots that these keep


def instruction_for(matched: Match, device: Device, schedule: Schedule) -> Atom:
    """The instruction: by name, or the device's first for the dtypes, and the roles or lanes."""
    wanted = schedule.atom
    contraction = matched.contraction
    a, b, c = _types(matched)
    fitting = atoms_for(device, a, b, c)
    if wanted not in ("auto", LANES):
        chosen = atom(wanted)
        if chosen in fitting:
            return chosen
        raise UnsupportedProgram(
            f"{wanted} does not run {a} x {b} with {c} sums on {device}",
            where="schedule, atom",
            nearest=f"Fitting: {', '.join(x.name for x in fitting) or 'none'}",
        )
    scope = "lanes" if schedule.by_lanes else "warpgroup" if schedule.specialised else "warp"
    fitting = tuple(x for x in fitting if x.scope == scope)
    if not fitting:
        raise UnsupportedProgram(
            f"{device} has no {scope} instruction for {a} x {b} with {c} sums",
            where=contraction.name,
            nearest=_nearest(device, scope, a),
        )
    return _loadable(fitting, matched) or _unlike(fitting, matched, device)


def _loadable(fitting: tuple[Atom, ...], matched: Match) -> Atom | None:
    """The first instruction whose fragments can be loaded from all operands as they lie."""
    sides = [_side(operand) for _, operand in matched.operands]
    return next(
        (one for one in fitting if one.scope != "warp" or all(atom_load(one, *s) for s in sides)),
        None,
    )


def _side(operand: Operand) -> tuple[str, bool]:
    """Which operand of an instruction it is, and whether k is innermost."""
    return "ab"["mn".index(operand.role)], operand.k_contiguous


def _unlike(fitting: tuple[Atom, ...], matched: Match, device: Device) -> Atom:
    """Some instruction, where an operand that none loads is refused when its load is looked for.

    Raises:
        UnsupportedProgram: each operand has an instruction, and all together have none.
    """
    for role in "mn":
        operands = matched.side(role)
        alone = all(any(atom_load(one, *_side(o)) for one in fitting) for o in operands)
        if alone and len({operand.k_contiguous for operand in operands}) > 1:
            names = ", ".join(operand.tensor.name for operand in operands)
            raise UnsupportedProgram(
                f"{names}: some have k innermost, others not",
                where=f"{matched.contraction.name} on {device}",
                why=f"{fitting[0].ptx} is told how its operands lie, and one instruction runs all "
                "products of a kernel",
                nearest="Store them alike",
            )
    return fitting[0]


def _nearest(device: Device, scope: str, wanted: DType) -> str:
    """What to change where a device has no instruction of a scope for a type of operands."""
    instead = _OTHERWISE.get(scope)
    if instead:
        return instead
    names = atom_names()
    found = [one for one in map(atom, names) if one.scope == scope and one.runs_on(device)]
    alike = [one for one in found if one.a.dtype.kind == wanted.kind] or found
    best = min(alike, key=lambda one: abs(one.a.dtype.bits - min(wanted.bits, _USUAL_BITS)))
    return f"Use {best.a.dtype} operands with {best.c.dtype} sums"


def _types(matched: Match) -> tuple[DType, DType, DType]:
    """The element types of both sides and of the sums, the same for all products.

    Raises:
        UnsupportedProgram: they are not.
    """
    first, *others = [
        (matched.operand(p.left).multiplied, matched.operand(p.right).multiplied, p)
        for p in matched.products
    ]
    for a, b, product in others:
        if (a, b) != first[:2] or product.contraction.dtype != first[2].contraction.dtype:
            raise UnsupportedProgram(
                f"{product.contraction.name} multiplies {a} by {b}, "
                f"{first[2].contraction.name} {first[0]} by {first[1]}",
                where=str(product.contraction),
                why="all products of a kernel run on one instruction",
                nearest=f"Pass operands of {first[0]} and {first[1]}",
            )
    return first[0], first[1], first[2].contraction.dtype


def fitting(
    matched: Match,
    device: Device,
    work: Pointwork,
    *,
    careful: bool,
    row: int = 0,
    clusters: bool = False,
) -> Callable[[Schedule], Fitted | str]:
    """Fits schedules to a program on a device, or says why one does not.

    Args:
        matched: the program's products.
        device: the target.
        work: its epilogue.
        careful: make room for the registers that kernels are thought to need; else only what they
            certainly need counts, as for schedules that were measured, or are going to be.
        row: elements of rows that tiles are to cover; 0: they need not.
        clusters: whether tiles of a cluster may cover them together.
    """

    def fit(candidate: Schedule) -> Fitted | str:
        if row:
            candidate = covering(candidate, row if clusters else 0)
            wide = candidate.tile.cta.n * (candidate.cluster.n if clusters else 1)
            if row > wide:
                return f"rows of {row} elements are wider than tiles of {wide}"
        folded = work.folds and (candidate.epilogue.through == "smem" or not work.writes)
        if folded or matched.contraction.dtype == F64:  # scratch areas are of words
            by_pairs = replace(candidate.epilogue, through="registers", columns=0)
            candidate = replace(candidate, epilogue=by_pairs)
        out = oriented_work(work, matched, candidate)
        try:
            found = oriented(matched, candidate)
            check_launch(candidate, device)
            check_copies(candidate, device)
            check_groups(candidate, matched)
            check_sums(candidate, matched)
            check_folds(candidate, work)
            check_rows(candidate, found, out)
            behind = behind_copy(found, candidate)
            check_pixels(candidate, behind, out)
            check_rest(candidate, behind)
            instruction = instruction_for(found, device, candidate)
            if candidate.specialised:
                fitted = _fit_roles(candidate, behind, device, out, instruction, careful)
                check_pixels(fitted.schedule, behind, out)  # by the way out that is left
                return fitted
            return _fit_warps(candidate, found, device, out, instruction)
        except PolygenError as error:
            return error.what if isinstance(error, ResourceError) else str(error).rstrip(".")

    return fit


def _fit_warps(
    candidate: Schedule, matched: Match, device: Device, work: Pointwork, instruction: Atom
) -> Fitted | str:
    candidate = _with_short_tile(candidate, matched, instruction)
    candidate = _with_blocks(candidate, matched, instruction)
    cta, warp = candidate.tile.cta, candidate.tile.warp
    if candidate.by_lanes:
        check_lanes(candidate, matched)
        check_structure(candidate, instruction, f"schedule {candidate.name}")
    if cta.k % instruction.k or warp.m % instruction.m or warp.n % instruction.n:
        return f"tiles are no multiples of {instruction}"
    if cta.k // instruction.k % candidate.pipeline.fragments:
        return "the register ring would need an index that is known only at run time"
    alone = replace(candidate, min_blocks=1)
    tiles = tiling(alone, instruction)
    while True:
        size = needed(memory(alone, matched, work, tiles))
        try:
            taken = resources(alone, matched, tiles, instruction, device, size)
        except ResourceError:
            fewer = _with_fewer_stages(alone)
            # Schedules ship with the stages that two operands leave room for.
            if len(matched.operands) == 2 or fewer is None:
                raise
            alone = fewer
        else:
            resident = taken.blocks_per_multiprocessor
            fitted = replace(alone, min_blocks=min(candidate.min_blocks, resident))
            threads = tiles.warp_count * device.warp_size
            available = registers_available(fitted, device, threads)
            return Fitted(fitted, resident, available - taken.registers)


def _with_short_tile(candidate: Schedule, matched: Match, instruction: Atom) -> Schedule:
    """The schedule with k tiles as long in bytes as it has them, of elements of several registers:
    those wider than words, and those that are split; and no longer than channels are many.
    """
    size, cta, depth = matched.a.multiplied.bytes, candidate.tile.cta, _innermost(matched)
    k = cta.k
    if size > _WORD_BYTES or instruction.pieces > 1:
        k = max(cta.k * _USUAL_BYTES // size, instruction.k)
    if depth:  # few channels
        k = min(k, -(-depth // instruction.k) * instruction.k)
    if k == cta.k:
        return candidate
    return _with_steps(candidate, k, instruction)


def _with_steps(candidate: Schedule, k: int, instruction: Atom) -> Schedule:
    """The schedule with other k tiles, and no more fragments ahead than these have steps."""
    pipeline = candidate.pipeline
    steps = max(k // instruction.k, 1)
    fragments = math.gcd(steps, pipeline.fragments)
    return replace(
        candidate,
        tile=replace(candidate.tile, cta=replace(candidate.tile.cta, k=k)),
        pipeline=replace(
            pipeline, fragments=fragments, lookahead=min(pipeline.lookahead, fragments - 1)
        ),
    )


def _with_fewer_stages(schedule: Schedule) -> Schedule | None:
    """One slot less in every ring; None where there are too few."""
    pipeline, stages = schedule.pipeline, schedule.pipeline.stages - 1
    if stages < _FEWEST_STAGES:
        return None
    distance = pipeline.distance if schedule.specialised else min(pipeline.distance, stages - 1)
    return replace(schedule, pipeline=replace(pipeline, stages=stages, distance=distance))


def _fit_roles(
    candidate: Schedule,
    matched: Match,
    device: Device,
    work: Pointwork,
    instruction: Atom,
    careful: bool,
) -> Fitted:
    """The schedule with the program's k tile, stages and way out.

    Raises:
        PolygenError: it does not fit.
    """
    schedule = _with_k_tile(candidate, matched, device, instruction)
    schedule = _with_blocks(schedule, matched, instruction)
    tiles = tiling(schedule, instruction)
    check_structure(schedule, instruction, f"schedule {schedule.name}")
    check_rest_layout(schedule, matched, instruction)
    filled = ring_pieces(schedule, matched, tiles)
    if filled:
        roles = filling_roles(schedule, device, workers(schedule, tiles))
        schedule = replace(schedule, roles=roles)
    # By threads: in panels, or straight from the registers where a tile is narrower than any panel.
    by_hand = replace(schedule.epilogue, through="lines")
    if not panel_columns(schedule):
        by_hand = replace(schedule.epilogue, through="registers", columns=0)
    if filled and work.matrices and schedule.epilogue.through == "tma":
        schedule = replace(schedule, epilogue=by_hand)
    check_roles(schedule, matched, instruction, work)
    by_registers = replace(by_hand, through="registers", columns=0)
    for way in (schedule.epilogue, by_hand, by_registers):
        schedule = in_runs(replace(schedule, epilogue=way), work)
        try:
            panels(schedule, work)
            break
        except ScheduleError:
            if way is by_registers:
                raise
    schedule, spare = _with_registers(schedule, matched, work, tiles, instruction, careful)
    while True:
        size = needed(memory(schedule, matched, work, tiles))
        try:
            resources(schedule, matched, tiles, instruction, device, size)
        except ResourceError:
            fewer = _with_narrower_panels(schedule, matched, work) or _with_fewer_stages(schedule)
            if fewer is None:
                raise
            schedule = fewer
        else:
            return Fitted(schedule, schedule.min_blocks, spare)


def _innermost(matched: Match) -> int:
    """Of sums over several axes the length of the innermost one; 0: of one, or of any length."""
    (depth, *_) = matched.depths
    return depth if matched.sums and isinstance(depth, int) else 0


def _with_short_rows(candidate: Schedule, k: int, times: int) -> Schedule:
    """The schedule with so short k tiles, and so many times the stages, which hold as much."""
    cta, pipeline = replace(candidate.tile.cta, k=k), candidate.pipeline
    return replace(
        candidate,
        tile=replace(candidate.tile, cta=cta),
        pipeline=replace(pipeline, stages=times * pipeline.stages),
    )


def _with_narrower_panels(schedule: Schedule, matched: Match, work: Pointwork) -> Schedule | None:
    """What goes on with sums takes memory that panels need not have, and rings had; else None."""
    if matched.rest is None or schedule.epilogue.through != "tma":
        return None
    columns = next(iter(narrower(schedule, work)), None)
    if columns is None:
        return None
    return replace(schedule, epilogue=replace(schedule.epilogue, columns=columns))


def _with_k_tile(candidate: Schedule, matched: Match, device: Device, atom: Atom) -> Schedule:
    """The schedule with k tiles of whole swizzle spans; of several where operands are computed.

    Schedules are written for elements of two bytes, or of one; wider ones make shorter k tiles.
    Threads that compute read one round of pieces ahead. Where a tile is less than they hold, as of
    narrow weights, longer k tiles have more on its way, and cost fewer waits.
    """
    size = matched.a.multiplied.bytes
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
        roles = filling_roles(schedule, device, workers(schedule, tiles))
        pieces = sum(ring_pieces(schedule, matched, tiles).values())
        stage = sum(ring.slot_bytes for ring in rings(schedule, matched, tiles))
        room = (
            stage * _STAGES_OF_LONG_TILES <= device.shared_per_block_optin // candidate.min_blocks
        )
        if room and rounds(pieces, roles.producer_registers, threads)[0] == 1:
            return schedule
    return longer(own)


def _with_blocks(schedule: Schedule, matched: Match, atom: Atom) -> Schedule:
    """The schedule with k tiles that blocks of sums are made of, and as many bytes on their way.

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
    return schedule


def _with_registers(
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
