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
from polygen.frontend.dtypes import DType
from polygen.hardware.atom import Atom, atom, atoms_for
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import spans
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.memory import memory, needed, rings, workers
from polygen.lower.operands import major, operand_layout
from polygen.lower.registers import doubt, registers_needed, sums_held
from polygen.lower.resources import filling_roles, registers_available, resources
from polygen.poly.fills import by_threads, held, ring_pieces, rounds
from polygen.poly.match import Match
from polygen.poly.orientation import oriented, oriented_work
from polygen.poly.partial_sums import require_reassociable
from polygen.poly.pointwise import Pointwork
from polygen.poly.realign import behind_copy
from polygen.poly.results import narrower, panel_columns, panels
from polygen.poly.tiling import Tiling, tiling
from polygen.schedule.load import check_structure
from polygen.schedule.model import LANES, Cluster, Schedule
from polygen.schedule.problem import Fitted

_FEWEST_STAGES = 2
_USUAL_BYTES = 2  # of an element
_OTHERWISE = {
    "warp": "Use f16, bf16 or tf32 operands with f32 sums",
    "warpgroup": "Use a schedule without roles",
    "lanes": 'Use f16 or bf16 operands with f32 sums, or atom = "auto"',
}
_LONG_TILES, _STAGES_OF_LONG_TILES = (4, 2), 3  # k tiles in spans, and slots that these keep
_MOST_CONSUMERS = 3  # with the producer's, four warpgroups share the registers


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
            nearest=_OTHERWISE[scope],
        )
    return fitting[0]


def _types(matched: Match) -> tuple[DType, DType, DType]:
    """The element types of both sides and of the sums, the same for all products.

    Raises:
        UnsupportedProgram: they are not.
    """
    first, *others = [
        (matched.operand(p.left).tensor.dtype, matched.operand(p.right).tensor.dtype, p)
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


def check_launch(schedule: Schedule, device: Device) -> None:
    """Refuse a dependent launch on a device without.

    Raises:
        ScheduleError: with the field to change.
    """
    if schedule.launch.dependent and not device.has("griddepcontrol"):
        raise ScheduleError(
            f"launch.dependent on {device}",
            where=f"schedule {schedule.name}",
            why="its kernels cannot wait for the grids before them",
            nearest="Use launch.dependent = false, or a target from sm_90 on",
        )


def check_groups(schedule: Schedule, match: Match) -> None:
    """Refuse what kernels on groups of rows do not do.

    Raises:
        ScheduleError: with the field to change.
    """
    if match.groups is None:
        return
    others = {
        "exchange": (schedule.exchange, "false"),
        "launch.dependent": (schedule.launch.dependent, "false"),
        "launch.realign": (schedule.launch.realign, "false"),
        'atom = "dot"': (schedule.by_lanes, '"auto"'),
    }
    for field, (asked, instead) in others.items():
        if asked:
            raise ScheduleError(
                f"{field} with rows in groups",
                where=f"schedule {schedule.name}",
                why="every block reads where groups end before anything else, and finds its rows",
                nearest=f"Use {field.partition(' ')[0]} = {instead}",
            )


def check_roles(schedule: Schedule, match: Match, atom: Atom, work: Pointwork) -> None:
    """Refuse what no specialised kernel does, before anything is built; nothing without roles.

    Raises:
        IllegalSchedule: sums that blocks of a cluster cannot share.
        ScheduleError: tiles that do not fit the roles.
        UnsupportedProgram: an operand that neither tensor maps nor threads of a producer take.
    """
    if schedule.by_lanes:
        check_lanes(schedule, match)
    if not schedule.specialised:
        return
    tiles, where = tiling(schedule, atom), f"schedule {schedule.name}"
    if atom.scope != "warpgroup":
        raise ScheduleError(
            f"{atom.name} is an instruction of one {atom.scope}",
            where=where,
            why="roles feed warpgroup instructions",
            nearest='Use atom = "auto"',
        )
    require_reassociable((one.contraction for one in match.products), schedule.cluster.k)
    cta, warp = schedule.tile.cta, schedule.tile.warp
    pingpong = schedule.roles.form == "pingpong"
    whole_rows, whole_columns = warp.m == cta.m, warp.n == cta.n
    if not (whole_rows and whole_columns if pingpong else whole_rows or whole_columns):
        between = "," if pingpong else " or"
        raise ScheduleError(
            f"tile.warp {warp.m} x {warp.n} of tile.cta {cta.m} x {cta.n}",
            where=where,
            why="consumers that cooperate share a tile's rows or its columns; consumers that take "
            "turns neither",
            nearest=f"tile.warp.n = {cta.n}{between} tile.warp.m = {cta.m}",
        )
    if tiles.warp_count > _MOST_CONSUMERS:
        raise ScheduleError(
            f"{tiles.warp_count} consumer warpgroups",
            where=where,
            why="with the producer's, four warpgroups share the registers",
            nearest=f"tile.warp.m = {_least_part(cta.m, atom.m)}"
            if whole_columns
            else f"tile.warp.n = {_least_part(cta.n, atom.n)}",
        )
    if warp.n > atom.n_most:
        raise ScheduleError(
            f"tile.warp.n = {warp.n}",
            where=where,
            why=f"one {atom.name} covers {atom.n_most} columns",
            nearest=_fewer_columns(schedule, atom),
        )
    for _, operand in match.operands:
        tensor = operand.tensor
        if not operand.in_boxes:
            raise UnsupportedProgram(
                f"{operand}: its elements are not adjacent",
                where=f"{where}, {tensor.name}",
                why="the copy engine moves rows without gaps, forwards",
                nearest="Use a schedule without roles",
            )
        if by_threads(operand) and schedule.cluster != Cluster():
            raise ScheduleError(
                f"a cluster of {schedule.cluster.m} x {schedule.cluster.n} with {tensor}",
                where=f"{where}, {tensor.name}",
                why="it is computed by the threads of each block, for it alone"
                if operand.computed is not None
                else f"rows start at multiples of {operand.alignment} bytes: threads of each block "
                "shift them into place for it alone",
                nearest="Use a cluster of 1",
            )
        if major(operand) not in atom.majors:
            raise UnsupportedProgram(
                f"{tensor.name}: {tensor.dtype} with {tensor.dims[tensor.order[-1]]} innermost",
                where=f"{where}, {atom.name}",
                why="this instruction reads operands with k innermost",
                nearest="Use a schedule without roles",
            )
        along = cta.m if operand.role == "m" else cta.n
        operand_layout(operand, (along, cta.k), schedule, atom)
    if schedule.epilogue.through == "tma" and work.matrices and ring_pieces(schedule, match, tiles):
        raise ScheduleError(
            f"{work.matrices[0].tensor.name} in panels that the copy engine brings",
            where=f"{where}, epilogue.through",
            why="the producer's threads fill rings, and none is left to fetch panels",
            nearest='Use epilogue.through = "lines"',
        )


def check_folds(schedule: Schedule, work: Pointwork) -> None:
    """Refuse folds that the way out of a schedule makes no parts of.

    Raises:
        ScheduleError: operands are exchanged, multiplied by lanes or copied first, the launch is
            dependent, or results leave through a scratch area or in panels of which there are none.
        UnsupportedProgram: a fold leaves the rows and columns of a tile as they are.
    """
    others = {
        "exchange": (schedule.exchange, "false"),
        "launch.dependent": (schedule.launch.dependent, "false"),
        "launch.realign": (schedule.launch.realign, "false"),
        'atom = "dot"': (schedule.by_lanes, '"auto"'),
    }
    for fold in work.folds:
        for field, (asked, instead) in others.items():
            if asked:
                raise ScheduleError(
                    f"{field} with {fold.value}, a fold",
                    where=f"schedule {schedule.name}",
                    why="parts of folds are made of tiles with the result's own rows and columns, "
                    "and one launch follows the kernel's alone",
                    nearest=f"Use {field.partition(' ')[0]} = {instead}",
                )
        through = schedule.epilogue.through
        if through == "smem" or (through != "registers" and not work.writes):
            raise ScheduleError(
                f"epilogue.through = {through!r} with {fold.value}, a fold",
                where=f"schedule {schedule.name}",
                why="parts of folds are made of terms that are in registers where the instruction "
                "left them"
                if through == "smem"
                else "panels are of matrices that are stored, and only folds leave",
                nearest='Use epilogue.through = "registers"',
            )
        if not {"m", "n"} & set(fold.folded):
            raise UnsupportedProgram(
                f"{fold.value}, a {fold.monoid}, folds no axis of a tile",
                where=f"{schedule.name}: it folds {', '.join(fold.folded)} and keeps m and n",
                why="its parts would be as many as the product has elements",
                nearest="Fold rows or columns as well, or fold outside",
            )


def check_lanes(schedule: Schedule, match: Match) -> None:
    """Refuse operands that lanes cannot read in whole chunks along k.

    Raises:
        UnsupportedProgram: rows run along another dim, or begin or end inside a chunk.
    """
    for _, operand in match.operands:
        tensor, wanted = operand.tensor, chunk_bytes()
        if operand.computed is not None:
            raise UnsupportedProgram(
                f"{tensor.name} is computed",
                where=f"schedule {schedule.name}, {tensor.name}",
                why="lanes multiply what they read, and nothing computes on the way",
                nearest='Use atom = "auto"',
            )
        if not operand.k_contiguous or not operand.in_rows:
            raise UnsupportedProgram(
                f"{operand}: k is not innermost",
                where=f"schedule {schedule.name}, {tensor.name}",
                why="lanes multiply chunks of rows along k",
                nearest='Use atom = "auto"',
            )
        if operand.alignment < wanted or operand.ragged:
            raise UnsupportedProgram(
                f"{tensor}: rows begin or end inside chunks of {wanted} bytes",
                where=f"schedule {schedule.name}, {tensor.name}",
                why="a lane reads whole chunks",
                nearest='Use atom = "auto", or rows of whole chunks',
            )


def _fewer_columns(schedule: Schedule, atom: Atom) -> str:
    """What to change where one instruction does not cover the columns of a consumer."""
    cta = schedule.tile.cta
    if schedule.roles.form == "cooperative" and schedule.tile.warp.m == cta.m:
        part = _least_part(cta.n, atom.n)
        if part <= atom.n_most:
            return f"tile.warp.n = {part}"
    return f"tile.cta.n = tile.warp.n = {atom.n_most}"


def _least_part(extent: int, step: int) -> int:
    """The smallest part of which at most three make `extent`."""
    fitting = (own for own in range(step, extent + 1, step) if extent % own == 0)
    return next((own for own in fitting if extent // own <= _MOST_CONSUMERS), extent)


def fitting(
    matched: Match, device: Device, work: Pointwork, *, careful: bool
) -> Callable[[Schedule], Fitted | str]:
    """Fits schedules to a program on a device, or says why one does not.

    Args:
        matched: the program's products.
        device: the target.
        work: its epilogue.
        careful: make room for the registers that kernels are thought to need; else only what they
            certainly need counts, as for schedules that were measured, or are going to be.
    """

    def fit(candidate: Schedule) -> Fitted | str:
        if work.folds and (candidate.epilogue.through == "smem" or not work.writes):
            by_pairs = replace(candidate.epilogue, through="registers", columns=0)
            candidate = replace(candidate, epilogue=by_pairs)
        found, out = oriented(matched, candidate), oriented_work(work, candidate)
        try:
            check_launch(candidate, device)
            check_groups(candidate, matched)
            check_folds(candidate, work)
            instruction = instruction_for(found, device, candidate)
            behind = behind_copy(found, candidate)
            if candidate.specialised:
                return _fit_roles(candidate, behind, device, out, instruction, careful)
            return _fit_warps(candidate, found, device, out, instruction)
        except PolygenError as error:
            return error.what if isinstance(error, ResourceError) else str(error).rstrip(".")

    return fit


def _fit_warps(
    candidate: Schedule, matched: Match, device: Device, work: Pointwork, instruction: Atom
) -> Fitted | str:
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
    tiles = tiling(schedule, instruction)
    check_structure(schedule, instruction, f"schedule {schedule.name}")
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
    try:
        panels(schedule, work)
    except ScheduleError:
        schedule = replace(schedule, epilogue=by_hand)
    schedule, spare = _with_registers(schedule, matched, work, tiles, instruction, careful)
    while True:
        size = needed(memory(schedule, matched, work, tiles))
        try:
            resources(schedule, matched, tiles, instruction, device, size)
        except ResourceError:
            fewer = _with_fewer_stages(schedule)
            if fewer is None:
                raise
            schedule = fewer
        else:
            return Fitted(schedule, schedule.min_blocks, spare)


def _with_k_tile(candidate: Schedule, matched: Match, device: Device, atom: Atom) -> Schedule:
    """The schedule with k tiles of whole swizzle spans; of several where operands are computed.

    Schedules are written for elements of two bytes, or of one; wider ones make shorter k tiles.
    Threads that compute read one round of pieces ahead. Where a tile is less than they hold, as of
    narrow weights, longer k tiles have more on its way, and cost fewer waits.
    """
    size = matched.a.tensor.dtype.bytes
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
    for columns in (schedule.epilogue.columns, *(narrower(schedule) if tma and careful else ())):
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
