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

from collections.abc import Callable
from dataclasses import replace

from polygen.errors import PolygenError, ResourceError, ScheduleError, UnsupportedProgram
from polygen.fit_tiles import (
    with_blocks,
    with_fewer_stages,
    with_k_tile,
    with_narrower_panels,
    with_registers,
    with_short_tile,
)
from polygen.frontend.dtypes import F64, DType
from polygen.hardware.atom import Atom, atom, atom_names, scopes_for
from polygen.hardware.device import Device
from polygen.hardware.fragment_load import atom_load
from polygen.lower.cover import check_rows, covering
from polygen.lower.legal import (
    check_copies,
    check_groups,
    check_lanes,
    check_launch,
    check_roles,
    check_sums,
)
from polygen.lower.legal_blocks import check_blocks
from polygen.lower.legal_elements import check_elements
from polygen.lower.legal_first import check_first
from polygen.lower.legal_folds import check_folds
from polygen.lower.legal_joined import check_joined
from polygen.lower.legal_last_round import check_last_round
from polygen.lower.legal_rest import check_rest, check_rest_layout
from polygen.lower.memory import memory, needed
from polygen.lower.pixels import check_pixels
from polygen.lower.registers import streamed_registers
from polygen.lower.resources import filling_roles, registers_available, resources
from polygen.poly.fills import ring_pieces
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.orientation import oriented, oriented_work
from polygen.poly.pointwise import Pointwork
from polygen.poly.realign import behind_copy
from polygen.poly.results import in_runs, panel_columns, panels
from polygen.poly.tiling import tiling
from polygen.schedule.model import LANES, Schedule
from polygen.schedule.problem import Fitted
from polygen.schedule.structure import check_structure

_USUAL_BITS = 16  # of an element
_OTHERWISE = {
    "warpgroup": "Use a schedule without roles",
    "lanes": 'Use f16 or bf16 operands with f32 sums, or atom = "auto"',
}


def instruction_for(matched: Match, device: Device, schedule: Schedule) -> Atom:
    """The instruction: by name, or the device's first for the dtypes, and the roles or lanes."""
    wanted = schedule.atom
    a, b, c = _types(matched)
    if schedule.of_elements:
        return atom(f"{wanted}_{c}")
    if wanted not in ("auto", LANES):
        named = dict(scopes_for(device, a, b, c))
        chosen = atom(wanted)
        if chosen.name in named:
            return chosen
        raise UnsupportedProgram(
            f"{wanted} does not run {a} x {b} with {c} sums on {device}",
            where="schedule, atom",
            nearest=f"Fitting: {', '.join(named) or 'none'}",
        )
    scope = "lanes" if schedule.by_lanes else "warpgroup" if schedule.specialised else "warp"
    fitting = tuple(map(atom, _of_scope(matched, device, scope)))
    return _loadable(fitting, matched) or _unlike(fitting, matched, device)


def check_instructions(matched: Match, device: Device) -> None:
    """Refuse products that no instruction of a warp takes, and blocks that it does not promote.

    An instruction's fragments are proved when it is looked at, which takes longer than to say that
    there is one: where that is all that is asked, it is not looked at.

    Raises:
        UnsupportedProgram: with what one would take.
    """
    sides = [{o.k_contiguous for o in matched.side(role)} for role in "mn"]
    if any(product.block for product in matched.products) or any(len(s) > 1 for s in sides):
        check_blocks(matched, instruction_for(matched, device, Schedule()))
    else:
        _of_scope(matched, device, "warp")


def _of_scope(matched: Match, device: Device, scope: str) -> tuple[str, ...]:
    """The names of the device's instructions of a scope that take the operands.

    Raises:
        UnsupportedProgram: there is none.
    """
    a, b, c = _types(matched)
    found = tuple(name for name, its in scopes_for(device, a, b, c) if its == scope)
    if not found:
        raise UnsupportedProgram(
            f"{device} has no {scope} instruction for {a} x {b} with {c} sums",
            where=matched.contraction.name,
            nearest=_nearest(device, scope, a),
        )
    return found


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
            check_first(matched, candidate)
            found = oriented(matched, candidate)
            check_launch(candidate, device)
            check_copies(candidate, device)
            check_groups(candidate, matched)
            check_sums(candidate, matched)
            check_folds(candidate, work)
            check_elements(candidate, found, work)
            check_rows(candidate, found, out)
            behind = behind_copy(found, candidate)
            check_last_round(candidate, behind, work)
            check_pixels(candidate, behind, out)
            check_joined(candidate, behind, out, device)
            check_rest(candidate, behind)
            instruction = instruction_for(found, device, candidate)
            if candidate.specialised:
                fitted = _fit_roles(candidate, behind, device, out, instruction, careful)
                check_pixels(fitted.schedule, behind, out)  # by the way out that is left
                return fitted
            return _fit_warps(candidate, behind, device, out, instruction)
        except PolygenError as error:
            return error.what if isinstance(error, ResourceError) else str(error).rstrip(".")

    return fit


def _fit_warps(
    candidate: Schedule, matched: Match, device: Device, work: Pointwork, instruction: Atom
) -> Fitted | str:
    candidate = with_short_tile(candidate, matched, instruction)
    candidate = with_blocks(candidate, matched, instruction)
    cta, warp = candidate.tile.cta, candidate.tile.warp
    if candidate.by_lanes:
        check_lanes(candidate, matched)
    if candidate.without_rings:
        check_structure(candidate, instruction, f"schedule {candidate.name}")
    if cta.k % instruction.k or warp.m % instruction.m or warp.n % instruction.n:
        return f"tiles are no multiples of {instruction}"
    held = 1 if candidate.of_elements else candidate.pipeline.fragments
    if cta.k // instruction.k % held:
        return "the register ring would need an index that is known only at run time"
    alone = replace(candidate, min_blocks=1)
    tiles = tiling(alone, instruction)
    while True:
        size = needed(memory(alone, matched, work, tiles))
        try:
            taken = resources(alone, matched, tiles, instruction, device, size)
        except ResourceError:
            fewer = with_fewer_stages(alone)
            # Schedules ship with the stages that two operands leave room for.
            if len(matched.operands) == 2 or fewer is None:
                raise
            alone = fewer
        else:
            resident = taken.blocks_per_multiprocessor
            if candidate.of_elements:
                each = taken.threads * streamed_registers(work, instruction)
                resident = min(resident, max(1, device.registers_per_multiprocessor // each))
            fitted = replace(alone, min_blocks=min(candidate.min_blocks, resident))
            threads = tiles.warp_count * device.warp_size
            available = registers_available(fitted, device, threads)
            return Fitted(fitted, resident, available - taken.registers)


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
    schedule = with_k_tile(candidate, matched, device, instruction)
    schedule = with_blocks(schedule, matched, instruction)
    tiles = tiling(schedule, instruction)
    check_structure(schedule, instruction, f"schedule {schedule.name}")
    check_rest_layout(schedule, matched, instruction)
    filled = ring_pieces(schedule, matched, tiles)
    if filled:
        roles = filling_roles(schedule, device, schedule.consumers)
        schedule = replace(schedule, roles=roles)
    # By threads: in panels, or straight from the registers where a tile is narrower than any panel.
    by_hand = replace(schedule.epilogue, through="lines")
    if not panel_columns(schedule):
        by_hand = replace(schedule.epilogue, through="registers", columns=0)
    if filled and work.matrices and schedule.epilogue.through == "tma":
        schedule = replace(schedule, epilogue=by_hand)
    check_roles(schedule, matched, instruction, work)
    by_registers = replace(by_hand, through="registers", columns=0)
    ways = [schedule.epilogue, by_hand]
    if not schedule.cluster.last:  # whose shares of tiles are whole panels
        ways.append(by_registers)
    for way in ways:
        schedule = in_runs(replace(schedule, epilogue=way), work)
        try:
            panels(schedule, work)
            break
        except ScheduleError:
            if way is ways[-1]:
                raise
    schedule, spare = with_registers(schedule, matched, work, tiles, instruction, careful)
    while True:
        size = needed(memory(schedule, matched, work, tiles))
        try:
            resources(schedule, matched, tiles, instruction, device, size)
        except ResourceError:
            fewer = with_narrower_panels(schedule, matched, work) or with_fewer_stages(schedule)
            if fewer is None:
                raise
            schedule = fewer
        else:
            return Fitted(schedule, schedule.min_blocks, spare)
