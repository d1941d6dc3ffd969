"""Which schedule and which instruction a program gets on a device.

1. A schedule that is given, or read from a file, is taken as it is; the instruction is the device's
   first that takes the element types and the schedule's roles.
2. "auto" fits every shipped schedule to the program: k tiles of whole swizzle spans, as many
   stages as fit shared memory, results from the registers where tensor maps cannot describe them.
   `polygen.tune.choose` takes what was measured fastest for the problem, on this machine or before
   polygen was shipped; else the one that the cost model predicts fastest.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from polygen import knobs
from polygen.emit.functions import is_costly
from polygen.errors import PolygenError, ResourceError, ScheduleError, UnsupportedProgram
from polygen.frontend.program import Program, Tensor
from polygen.generated import kept
from polygen.hardware.atom import Atom, atom, atoms_for
from polygen.hardware.device import Device, common_facts
from polygen.hardware.matrix_layout import spans
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.build import shared_bytes
from polygen.lower.epilogue import Pointwork, pointwork
from polygen.lower.resources import resources
from polygen.lower.roles import check_roles, estimated_bytes, matrices, panels, role_resources
from polygen.poly.fusion import Fusion, fuse
from polygen.poly.match import Match, match
from polygen.poly.role_mapping import Panels
from polygen.poly.scop import scop
from polygen.poly.tiling import tiling
from polygen.schedule.load import check_structure, load_schedule, shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.tuned import tuned
from polygen.tune import lookup
from polygen.tune.choose import Offer, choose

# The size taken along a dim for which a call gives none.
TYPICAL_SIZE = 4096

# isl has one context per process, and its operation budget with it: one user of it at a time.
ISL_LOCK = threading.RLock()
_MOST_PROSPECTS = 256  # programs whose prospects are kept, and programs with fitted schedules

_FEWEST_STAGES = 2


@dataclass(frozen=True, slots=True)
class Prospect:
    """All that an automatic choice needs of a program, and that sizes do not change."""

    matched: Match
    work: Pointwork


@functools.lru_cache(maxsize=_MOST_PROSPECTS)
def prospect(program: Program) -> Prospect:
    """The prospect of a program; from memory, from disk, or analysed with isl."""

    def analyse() -> Prospect:
        with ISL_LOCK:
            fusion = fuse(program, scop(program))
            matched = match(program, fusion)
            return Prospect(matched, pointwork(program, fusion, matched, 2))

    return kept(Prospect, (program,), analyse)


def decision(program: Program, device: Device, sizes: dict[str, int]) -> tuple[Schedule, str]:
    """The automatic choice for sizes, and where it comes from; a matter of milliseconds.

    Args:
        program: what to compute, with the alignments that the sizes leave.
        device: the target.
        sizes: of the symbolic dims.

    Raises:
        PolygenError: no kernel can be made of the program.
    """
    _, schedule, origin = decide(program, prospect(program), device, sizes, "auto")
    return schedule, origin


def panels_of(
    program: Program, fusion: Fusion, matched: Match, schedule: Schedule, instruction: Atom
) -> Panels | None:
    """What the epilogue of a schedule with roles moves by the copy engine; None without roles."""
    if not schedule.specialised:
        return None
    check_roles(schedule, matched, instruction, tiling(schedule, instruction))
    return panels(schedule, pointwork(program, fusion, matched, 2))


def decide(
    program: Program,
    prospect: Prospect,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
) -> tuple[Atom, Schedule, str]:
    """The instruction, the schedule and where it comes from."""
    matched, work = prospect.matched, prospect.work
    forced = knobs.current().schedule
    if schedule == "auto" and forced is not None:
        schedule = forced
    if isinstance(schedule, Schedule):
        instruction = _instruction(matched, device, schedule)
        origin, decided = f"given: {schedule.name}", schedule
    elif not isinstance(schedule, str | Path):
        raise ScheduleError(
            f"{schedule!r} is no schedule",
            where="schedule",
            nearest='Pass "auto", a Schedule, or the path of a schedule file',
        )
    elif schedule != "auto":
        decided = load_schedule(Path(schedule))
        instruction = _instruction(matched, device, decided)
        origin = f"file {schedule}"
    else:
        _instruction(matched, device, Schedule())  # refuses what no instruction takes at all
        problem = _problem(program, matched, work, sizes)
        offers = _offers(program, device, sizes, problem)
        fit = _remembering(_fitting(matched, device, work), _fitted(program, device))
        decided, origin = choose(device, problem, fit, skip, offers)
        instruction = _instruction(matched, device, decided)
    check_structure(decided, instruction, f"schedule {decided.name}")
    if instruction.scope == "warpgroup" and not decided.specialised:
        raise ScheduleError(
            f"{instruction} is an instruction of one warpgroup",
            where=f"schedule {decided.name}, atom",
            why="without roles every warp multiplies by itself",
            nearest='roles.form = "cooperative"',
        )
    return instruction, decided, origin


def _offers(
    program: Program, device: Device, sizes: dict[str, int], problem: Problem
) -> tuple[Offer, ...]:
    """What was measured for a program and its sizes: here, then where polygen comes from."""
    found = []
    here = lookup.best(program, device, sizes)
    if here is not None:
        found.append(Offer(here.schedule, here.origin))
    before = tuned(device).get(problem)
    if before is not None:
        schedule = next((s for s in shipped(device) if s.name == before.schedule), None)
        if schedule is None:
            raise ScheduleError(
                f"no shipped schedule is called {before.schedule}",
                where=f"tuned schedules of {before.gpu}",
                nearest="`python -m polygen.tune.ship` writes both",
            )
        origin = (
            f"shipped {schedule.name}, measured fastest for {problem.m}x{problem.n}x{problem.k} "
            f"with such an epilogue: {before.microseconds:g} us on {before.gpu}"
        )
        found.append(Offer(schedule, origin))
    return tuple(found)


def candidates(
    program: Program, device: Device, sizes: dict[str, int]
) -> tuple[Problem, Callable[[Schedule], Fitted | str]]:
    """What "auto" weighs: the problem, and how a schedule fits it.

    Args:
        program: what to compute.
        device: the target.
        sizes: what to optimise for.

    Returns:
        The problem, and a function that fits a schedule to program and device, or says why it
        does not fit.

    Raises:
        PolygenError: no kernel can be made of the program.
    """
    fusion = fuse(program, scop(program))
    matched = match(program, fusion)
    work = pointwork(program, fusion, matched, 2)
    return _problem(program, matched, work, sizes), _fitting(matched, device, work)


@functools.lru_cache(maxsize=_MOST_PROSPECTS)
def _fitted(program: Program, device: Device) -> dict[Schedule, Fitted | str]:
    """What fitting schedules to a program has given so far; sizes have no part in it."""
    return {}


def _remembering(
    fit: Callable[[Schedule], Fitted | str], known: dict[Schedule, Fitted | str]
) -> Callable[[Schedule], Fitted | str]:
    def remembered(candidate: Schedule) -> Fitted | str:
        found = known.get(candidate)
        if found is None:
            found = known[candidate] = fit(candidate)
        return found

    return remembered


def _instruction(matched: Match, device: Device, schedule: Schedule) -> Atom:
    """The MMA instruction: by name, or the device's first for the dtypes and the roles."""
    wanted = schedule.atom
    contraction = matched.contraction
    a, b, c = matched.a.tensor.dtype, matched.b.tensor.dtype, contraction.dtype
    fitting = atoms_for(device, a, b, c)
    if wanted != "auto":
        chosen = atom(wanted)
        if chosen in fitting:
            return chosen
        raise UnsupportedProgram(
            f"{wanted} does not run {a} x {b} with {c} sums on {device}",
            where="schedule, atom",
            nearest=f"Fitting: {', '.join(x.name for x in fitting) or 'none'}",
        )
    scope = "warpgroup" if schedule.specialised else "warp"
    fitting = tuple(x for x in fitting if x.scope == scope)
    if not fitting:
        raise UnsupportedProgram(
            f"{device} has no {scope} instruction for {a} x {b} with {c} sums",
            where=contraction.name,
            nearest="Use a schedule without roles"
            if schedule.specialised
            else "Use f16, bf16 or tf32 operands with f32 sums",
        )
    return fitting[0]


def _problem(program: Program, matched: Match, work: Pointwork, sizes: dict[str, int]) -> Problem:
    """The sizes to optimise for, and the weight of the epilogue."""
    extents = [matched.extent(role) for role in "mnk"]
    m, n, k = (d if isinstance(d, int) else sizes.get(d, TYPICAL_SIZE) for d in extents)
    whole = matrices(work)
    return Problem(
        m=m,
        n=n,
        k=k,
        element_bytes=matched.a.tensor.dtype.bytes,
        matrices=len(whole),
        functions=sum(is_costly(s.function, s.args) for s in program.pointwise),
        pointwise=any(s.function != "cast" for s in program.pointwise),
        astride=any(_is_astride(operand.tensor, sizes) for _, operand in matched.operands),
        matrix_bytes=sum(read.tensor.dtype.bytes for read in whole),
        result_bytes=sum(write.tensor.dtype.bytes for write in work.writes),
        k_inner=(matched.a.k_contiguous, matched.b.k_contiguous),
        sum_bytes=matched.contraction.dtype.bytes,
        access_bytes=min(chunk_bytes(), *(o.tensor.alignment for _, o in matched.operands)),
    )


def _is_astride(tensor: Tensor, sizes: dict[str, int]) -> bool:
    """Whether rows of a contiguous array of these sizes begin inside lines of the cache."""
    extent = tensor.dims[tensor.order[-1]]
    row = sizes.get(extent, 0) if isinstance(extent, str) else extent
    return row * tensor.dtype.bytes % common_facts()["cache_line_bytes"] != 0


def _fitting(matched: Match, device: Device, work: Pointwork) -> Callable[[Schedule], Fitted | str]:
    """Fits shipped schedules to a program on a device, or says why one does not."""

    def fit(candidate: Schedule) -> Fitted | str:
        try:
            instruction = _instruction(matched, device, candidate)
            if candidate.specialised:
                return _fit_roles(candidate, matched, device, work, instruction)
            return _fit_warps(candidate, matched, device, instruction)
        except PolygenError as error:
            return error.what if isinstance(error, ResourceError) else str(error).rstrip(".")

    return fit


def _fit_warps(
    candidate: Schedule, matched: Match, device: Device, instruction: Atom
) -> Fitted | str:
    cta, warp = candidate.tile.cta, candidate.tile.warp
    if cta.k % instruction.k or warp.m % instruction.m or warp.n % instruction.n:
        return f"tiles are no multiples of {instruction}"
    if cta.k // instruction.k % candidate.pipeline.fragments:
        return "the register ring would need an index that is known only at run time"
    alone = replace(candidate, min_blocks=1)
    tiles = tiling(alone, instruction)
    needed = shared_bytes(matched, alone)
    taken = resources(alone, tiles, instruction, device, needed, alone.name)
    resident = taken.blocks_per_multiprocessor
    return Fitted(replace(candidate, min_blocks=min(candidate.min_blocks, resident)), resident)


def _fit_roles(
    candidate: Schedule, matched: Match, device: Device, work: Pointwork, instruction: Atom
) -> Fitted:
    """The schedule with the program's k tile, stages and way out.

    Raises:
        PolygenError: it does not fit.
    """
    size = matched.a.tensor.dtype.bytes
    cta = replace(candidate.tile.cta, k=spans()[0] // size)
    schedule = replace(candidate, tile=replace(candidate.tile, cta=cta))
    tiles = tiling(schedule, instruction)
    check_structure(schedule, instruction, f"schedule {schedule.name}")
    check_roles(schedule, matched, instruction, tiles)
    try:
        panels(schedule, work)
    except ScheduleError:
        direct = replace(schedule.epilogue, through="registers", columns=0)
        schedule = replace(schedule, epilogue=direct)
    while True:
        needed, consumers = estimated_bytes(schedule, matched, work, tiles)
        try:
            role_resources(schedule, tiles, instruction, device, needed, consumers)
        except ResourceError:
            stages = schedule.pipeline.stages - 1
            if stages < _FEWEST_STAGES:
                raise
            schedule = replace(schedule, pipeline=replace(schedule.pipeline, stages=stages))
        else:
            return Fitted(schedule, 1)
