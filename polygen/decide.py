"""Which schedule and which instruction a program gets on a device.

1. A schedule that is given, or read from a file, is taken as it is; the instruction is the device's
   first that takes the element types and the schedule's roles.
2. "auto" weighs the shipped schedules that fit (`polygen.fit`). `polygen.tune.choose` takes what
   was measured fastest for the problem, on this machine or before polygen was shipped; else the one
   that the cost model predicts fastest.
3. Of a program with invariant dims only schedules of one class of sums are weighed, the same for
   all sizes of these dims (`polygen.invariance`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polygen import knobs
from polygen.analysis import (
    MOST_PROSPECTS,
    Prospect,
    all_analysed,
    come_alike,
    in_tiles,
    prospect,
)
from polygen.chained import is_chain
from polygen.covering import by_clusters, by_tiles, in_blocks
from polygen.errors import InvarianceError, ScheduleError, UnsupportedProgram, echo
from polygen.fit import check_instructions, fitting, instruction_for
from polygen.fit_sections import check_operands, check_sections, fitting_all
from polygen.fit_sizes import in_pixels, in_short, to_sizes
from polygen.frontend.invariant import for_every_size
from polygen.frontend.program import Program
from polygen.generated import kept
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.invariance import LADDER, in_k_tiles, of_class, shared
from polygen.lower.cover import check_rows
from polygen.lower.legal import (
    check_copies,
    check_groups,
    check_launch,
    check_roles,
    check_sums,
    check_types,
    check_wide,
)
from polygen.lower.legal_blocks import check_blocks, check_promoting
from polygen.lower.legal_elements import check_elements
from polygen.lower.legal_first import check_first, check_first_beside
from polygen.lower.legal_folds import check_folded, check_folds, check_parts
from polygen.lower.legal_joined import check_joined
from polygen.lower.legal_last_round import check_last_round
from polygen.lower.legal_rest import check_rest, check_rest_device, check_rest_layout
from polygen.lower.pixels import check_pixels
from polygen.poly.ahead import settled_operands
from polygen.poly.folds import require_rows_alone
from polygen.poly.match import Match
from polygen.poly.realign import behind_copy
from polygen.problems import problem_of, whole_problem
from polygen.schedule.load import load_schedule, shipped, shipped_as
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.structure import check_structure
from polygen.schedule.sums import SumClass
from polygen.schedule.tuned import tuned
from polygen.tune import lookup
from polygen.tune.choose import MADE, TURNED, Offer, behind_making, behind_turning, choose
from polygen.tune.cost.chains import longest_run
from polygen.tune.early import begin_early


def decide(
    program: Program,
    prospect: Prospect,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> tuple[Atom, Schedule, str]:
    """The instruction, the schedule and where it comes from.

    Args:
        program: what to compute, with the alignments that the sizes leave.
        prospect: what is known of it.
        device: the target.
        sizes: of the symbolic dims.
        schedule: a record, a file, or "auto".
        skip: names of shipped schedules not to choose.
        sums: with invariant dims, the class that sums must have; "": the one that all sizes share.
    """
    behind = prospect
    matched = prospect.matched
    check_operands([one.matched for one in prospect.each], device)
    check_rest_device(prospect.matched, device)
    for one in prospect.each:
        check_first_beside(one.matched, one.work)
    for one in prospect.each:
        check_folded(one.work)
    forced = knobs.current().schedule
    if schedule == "auto" and forced is not None:
        schedule = forced
    if isinstance(schedule, Schedule):
        origin, decided = f"given: {schedule.name}", schedule
    elif not isinstance(schedule, str | Path):
        raise ScheduleError(
            f"{echo(schedule)} is no schedule",
            where="schedule",
            nearest='Pass "auto", a Schedule, or the path of a schedule file',
        )
    elif schedule != "auto":
        decided = load_schedule(schedule)
        origin = f"file {schedule}"
    else:
        for one in prospect.each:  # refuses what no instruction takes at all
            check_instructions(one.matched, device)
        check_types(program, device)
        problem = whole_problem(program, prospect, sizes)
        offers = _offers(program, device, sizes, problem)
        careful = _fitting(prospect, device, careful=True)
        fit = in_pixels(_remembering(careful, _fitted(program, device)), problem)
        measured = _fitting(prospect, device, careful=False)
        if not program.invariant:
            fit = to_sizes(fit, problem, device)
            measured = in_short(measured, problem)
        else:
            wanted = sums or sum_class(program, device, sizes)
            own = of_class(fit, wanted, matched, device, in_other_k_tiles=False)
            offers = tuple(one for one in offers if isinstance(own(one.schedule), Fitted))
            fit = of_class(fit, wanted, matched, device)
            measured = of_class(measured, wanted, matched, device, in_other_k_tiles=False)
        covered = by_tiles(program, device, sizes, prospect, skip)
        try:
            decided, origin = covered or choose(device, problem, fit, skip, offers, measured)
        except ScheduleError as reason:
            if not program.invariant:
                raise
            raise InvarianceError(
                f"no schedule makes the sums that kernels for other sizes make: {wanted}",
                where=f"{program.name}, invariant in {', '.join(program.invariant)}",
                why=reason.why,
                nearest="Align rows as those of the other sizes are, or compile all sizes for the "
                "least alignment there is: x:bf16[M,K]@2",
            ) from reason
        if covered is None and not prospect.others:
            otherwise = (decided, measured, problem)
            wider = by_clusters(program, device, sizes, matched, skip, otherwise)
            decided, origin = wider or (decided, origin)
        decided, origin = _in_runs(decided, origin, behind.matched, problem, device, sizes)
        decided = in_blocks(decided, program, device, sizes, skip)
        as_it_runs = in_tiles(program) if decided.covers_rows else prospect
        fitted = _fitting(as_it_runs, device, careful=False)(decided)
        under = prospect.under(decided).matched
        launch, words = begin_early(
            device, decided, problem, fitted if isinstance(fitted, Fitted) else None,
            program.in_order, () if prospect.others else settled_operands(program, under, decided),
        )  # fmt: skip
        decided, origin = replace(decided, launch=launch), origin + words
        if matched.in_parts:
            origin += "; f32 is multiplied in parts of tf32, three products for one"
    for one in prospect.each:
        check_first(one.matched, decided)
    if not decided.covers_rows and not prospect.others:
        require_rows_alone(program)
    prospect = in_tiles(program) if decided.covers_rows else behind
    as_run = prospect.under(decided)
    instruction = instruction_for(as_run.matched, device, decided)
    check_types(program, device)
    check_structure(decided, instruction, f"schedule {decided.name}")
    check_launch(decided, device)
    check_copies(decided, device)
    for one in prospect.each:
        check_wide(decided, one.matched)
        check_blocks(one.matched, instruction)
        check_parts(decided, one.matched, one.work)
        check_promoting(decided, one.matched)
        check_groups(decided, one.matched)
        check_sums(decided, one.matched)
        check_folds(decided, one.work)
        check_elements(decided, one.matched, one.work)
        check_rows(decided, one.matched, one.work, sizes)
    if instruction.scope == "warpgroup" and not decided.specialised:
        raise ScheduleError(
            f"{instruction} is an instruction of one warpgroup",
            where=f"schedule {decided.name}, atom",
            why="without roles every warp multiplies by itself",
            nearest='roles.form = "cooperative"',
        )
    for one in as_run.each:
        behind_it = behind_copy(one.matched, decided)
        check_last_round(decided, behind_it, one.work)
        check_pixels(decided, behind_it, one.work)
        check_joined(decided, behind_it, one.work, device)
        check_rest(decided, behind_it)
        check_roles(decided, behind_it, instruction, one.work)
        check_rest_layout(decided, one.matched, instruction)
    check_sections([(one.matched, one.work) for one in as_run.each], decided, instruction)
    return instruction, decided, origin


def _in_runs(
    schedule: Schedule,
    origin: str,
    matched: Match,
    problem: Problem,
    device: Device,
    sizes: dict[str, int],
) -> tuple[Schedule, str]:
    """The choice with runs of tiles, where something is kept between them and sizes are known."""
    extents = (matched.m, matched.n, *(extent for _, extent in matched.batches))
    known = all(isinstance(extent, int) or extent in sizes for extent in extents)
    if matched.rest is None or not known:
        return schedule, origin
    run = longest_run(device, schedule, problem)
    if run == 1:
        return schedule, origin
    raster = replace(schedule.raster, run=run)
    return replace(schedule, raster=raster), f"{origin}; blocks take {run} tiles of a row in turn"


def sum_class(program: Program, device: Device, sizes: dict[str, int]) -> str:
    """The class of sums that all sizes of a program's invariant dims share.

    Args:
        program: with invariant dims.
        device: the target.
        sizes: of the symbolic dims; those of the invariant ones are not looked at.
    """
    named = (name for name in program.sizes if name in sizes and name not in program.invariant)
    others = tuple((name, sizes[name]) for name in named)
    return _sum_class(for_every_size(program), device, others)


@functools.lru_cache(maxsize=MOST_PROSPECTS)
def _sum_class(program: Program, device: Device, others: tuple[tuple[str, int], ...]) -> str:
    """From memory, from disk, or picked."""

    def pick() -> SumClass:
        return SumClass(_picked(program, device, others))

    return kept(SumClass, (program, device, others), pick).text


def _picked(program: Program, device: Device, others: tuple[tuple[str, int], ...]) -> str:
    found = prospect(program)
    fit = _remembering(
        fitting(found.matched, device, found.work, careful=True), _fitted(program, device)
    )
    weighed = [
        one
        for each in shipped(device)
        if not each.for_few_rows  # of classes that no schedule for many rows has
        for one in in_k_tiles(each, found.matched)
    ]
    ladder = [
        problem_of(
            program,
            found.matched,
            found.work,
            dict(others) | dict.fromkeys(program.invariant, size),
        )
        for size in LADDER
    ]
    fits = dict.fromkeys(in_pixels(fit, problem) for problem in ladder)  # as each size has them
    fitted = [one for way in fits for one in map(way, weighed) if isinstance(one, Fitted)]
    return shared(device, found.matched, fitted, ladder)


def _offers(
    program: Program, device: Device, sizes: dict[str, int], problem: Problem
) -> tuple[Offer, ...]:
    """What was measured for a program and its sizes: here, then where polygen comes from."""
    found = []
    here = lookup.best(program, device, sizes)
    if here is not None:
        found.append(Offer(here.schedule, here.origin))
    before = tuned(device).get(problem)
    if before is None and problem.result_bytes:  # folds beside a matrix take little of its time
        before = tuned(device).get(replace(problem, folds=Problem(1, 1, 1).folds))
    first = before is None and bool(program.first)
    if first:  # behind the launch that makes operands, the product is that of arguments
        before = tuned(device).get(problem.behind_making)
    turned = before is None and bool(problem.turned[0])
    if turned:  # and behind the one that copies them, of arrays that lie as the copies do
        before = tuned(device).get(replace(problem, turned=(0, 0)))
    if before is not None:
        schedule = shipped_as(device, before.schedule)
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
        if first and schedule.specialised:
            schedule = behind_making(schedule, device, problem)
        if first:
            origin += MADE
        if turned:
            schedule = behind_turning(schedule, device, problem)
            origin += TURNED
        found.append(Offer(schedule, origin))
    return tuple(found)


def candidates(
    program: Program, device: Device, sizes: dict[str, int]
) -> tuple[Problem, Callable[[Schedule], Fitted | str]]:
    """What there is to measure: the problem, and how a schedule fits it.

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
    if is_chain(program):
        raise UnsupportedProgram(
            "a chain of products is not tuned",
            where=program.name,
            why="its schedule follows from what registers and shared memory hold",
            nearest="Give a schedule of your own, whose tile.cta.k is the keys of a tile",
        )
    program = come_alike(program)
    found = all_analysed(program)
    problem = whole_problem(program, found, sizes)
    fit = in_pixels(_fitting(found, device, careful=False), problem)
    if program.invariant:
        fit = of_class(fit, sum_class(program, device, sizes), found.matched, device)
        return problem, fit
    return problem, to_sizes(fit, problem, device)


def _fitting(
    found: Prospect, device: Device, *, careful: bool
) -> Callable[[Schedule], Fitted | str]:
    """Fits schedules to a program: to all of its sections alike."""
    if not found.others:
        return fitting(found.matched, device, found.work, careful=careful)
    every = [(one.matched, one.work) for one in found.each]
    return fitting_all(every, device, careful=careful)


@functools.lru_cache(maxsize=MOST_PROSPECTS)
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
