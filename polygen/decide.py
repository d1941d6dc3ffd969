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
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from polygen import knobs
from polygen.chained import decide_chain, is_chain
from polygen.emit.functions import is_costly
from polygen.errors import InvarianceError, ScheduleError, UnsupportedProgram
from polygen.fit import fitting, instruction_for
from polygen.frontend.invariant import for_every_size
from polygen.frontend.monoids import INDEX, MONOIDS
from polygen.frontend.pitches import row_step
from polygen.frontend.program import Dim, Program, Tensor
from polygen.generated import kept
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device, common_facts
from polygen.hardware.swizzle import chunk_bytes
from polygen.invariance import LADDER, in_k_tiles, of_class, shared
from polygen.lower.cover import check_rows, is_covering
from polygen.lower.legal import (
    check_copies,
    check_folds,
    check_groups,
    check_launch,
    check_roles,
    check_types,
)
from polygen.poly.fills import by_threads, held
from polygen.poly.folds import split_folds
from polygen.poly.fusion import fuse
from polygen.poly.match import Match, Operand, match
from polygen.poly.orientation import oriented, oriented_work
from polygen.poly.pointwise import Pointwork, pointwork
from polygen.poly.prologue import Prologue, prologues, without_prologues
from polygen.poly.realign import behind_copy, copied
from polygen.poly.register_operands import stored_bits
from polygen.poly.row_passes import split_for
from polygen.poly.rows import with_rows
from polygen.poly.scop import scop
from polygen.schedule.load import check_structure, load_schedule, shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.sums import SumClass
from polygen.schedule.tuned import tuned
from polygen.tune import lookup
from polygen.tune.choose import Offer, choose

# The size taken along a dim for which a call gives none.
TYPICAL_SIZE = 4096
_TYPICAL_BATCHES = 16  # along a batch dim

# isl has one context per process, and its operation budget with it: one user of it at a time.
ISL_LOCK = threading.RLock()
_MOST_PROSPECTS = 256  # programs whose prospects are kept, and programs with fitted schedules


@dataclass(frozen=True, slots=True)
class Prospect:
    """All that an automatic choice needs of a program, and that sizes do not change."""

    matched: Match
    work: Pointwork

    def under(self, schedule: Schedule) -> Prospect:
        """The same as a schedule has it run: as it is, or with operands exchanged."""
        return Prospect(oriented(self.matched, schedule), oriented_work(self.work, schedule))


@functools.lru_cache(maxsize=_MOST_PROSPECTS)
def prospect(program: Program) -> Prospect:
    """The prospect of a program; from memory, from disk, or analysed with isl."""

    def analyse() -> Prospect:
        with ISL_LOCK:
            return _analysed(program)

    return kept(Prospect, (program,), analyse)


@functools.lru_cache(maxsize=_MOST_PROSPECTS)
def _in_tiles(program: Program) -> Prospect:
    """The prospect of a program whose rows are in tiles; from memory, or analysed with isl.

    Raises:
        UnsupportedProgram: tiles do not cover what its elements use results of.
    """
    with ISL_LOCK:
        return _analysed(program, in_tile=True)


def decision(
    program: Program, device: Device, sizes: dict[str, int], sums: str = ""
) -> tuple[Schedule, str]:
    """The automatic choice for sizes, and where it comes from; a matter of milliseconds.

    Args:
        program: what to compute, with the alignments that the sizes leave.
        device: the target.
        sizes: of the symbolic dims.
        sums: with invariant dims, the class that sums must have; "": the one that all sizes share.

    Raises:
        PolygenError: no kernel can be made of the program.
    """
    if is_chain(program):
        chosen = decide_chain(program, device, "auto", sizes=sizes)
        return chosen.schedule, chosen.origin
    _, schedule, origin = decide(program, prospect(program), device, sizes, "auto", sums=sums)
    return schedule, origin


def decide(
    program: Program,
    prospect: Prospect,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> tuple[Atom, Schedule, str]:
    """The instruction, the schedule and where it comes from; arguments as for `decision`."""
    behind = prospect
    matched, work = prospect.matched, prospect.work
    forced = knobs.current().schedule
    if schedule == "auto" and forced is not None:
        schedule = forced
    if isinstance(schedule, Schedule):
        origin, decided = f"given: {schedule.name}", schedule
    elif not isinstance(schedule, str | Path):
        raise ScheduleError(
            f"{schedule!r} is no schedule",
            where="schedule",
            nearest='Pass "auto", a Schedule, or the path of a schedule file',
        )
    elif schedule != "auto":
        decided = load_schedule(Path(schedule))
        origin = f"file {schedule}"
    else:
        instruction_for(matched, device, Schedule())  # refuses what no instruction takes at all
        check_types(program, device)
        problem = _problem(program, matched, work, sizes)
        offers = _offers(program, device, sizes, problem)
        careful = fitting(matched, device, work, careful=True)
        fit = _remembering(careful, _fitted(program, device))
        measured = fitting(matched, device, work, careful=False)
        if program.invariant:
            wanted = sums or sum_class(program, device, sizes)
            own = of_class(fit, wanted, matched, device, in_other_k_tiles=False)
            offers = tuple(one for one in offers if isinstance(own(one.schedule), Fitted))
            fit = of_class(fit, wanted, matched, device)
            measured = of_class(measured, wanted, matched, device, in_other_k_tiles=False)
        covered = _covered(program, device, sizes, matched, skip)
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
    prospect = _in_tiles(program) if is_covering(decided) else behind
    matched, work = prospect.matched, prospect.work
    as_run = prospect.under(decided)
    instruction = instruction_for(as_run.matched, device, decided)
    check_types(program, device)
    check_structure(decided, instruction, f"schedule {decided.name}")
    check_launch(decided, device)
    check_copies(decided, device)
    check_groups(decided, matched)
    check_folds(decided, work)
    check_rows(decided, matched, work)
    if instruction.scope == "warpgroup" and not decided.specialised:
        raise ScheduleError(
            f"{instruction} is an instruction of one warpgroup",
            where=f"schedule {decided.name}, atom",
            why="without roles every warp multiplies by itself",
            nearest='roles.form = "cooperative"',
        )
    check_roles(decided, behind_copy(as_run.matched, decided), instruction, as_run.work)
    return instruction, decided, origin


def _covered(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    matched: Match,
    skip: frozenset[str],
) -> tuple[Schedule, str] | None:
    """The choice among schedules whose tiles cover rows; None where none does or need do.

    What the launch that follows would read and write again stays in registers, so that it is
    taken wherever rows are no wider than a tile.
    """
    row = matched.n if isinstance(matched.n, int) else sizes.get(matched.n, 0)
    widest = max(one.tile.cta.n for one in shipped(device))
    if program.invariant or not split_folds(program).rows or not 0 < row <= widest:
        return None
    try:
        found = _in_tiles(program)
        problem = _problem(program, found.matched, found.work, sizes)
        fit = fitting(found.matched, device, found.work, careful=True, row=row)
        decided, origin = choose(device, problem, fit, skip)
    except (ScheduleError, UnsupportedProgram):
        return None
    return decided, f"{origin}; its tiles cover rows of {row} elements"


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


@functools.lru_cache(maxsize=_MOST_PROSPECTS)
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
    fitted = [one for one in map(fit, weighed) if isinstance(one, Fitted)]
    ladder = [
        _problem(
            program,
            found.matched,
            found.work,
            dict(others) | dict.fromkeys(program.invariant, size),
        )
        for size in LADDER
    ]
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
    found = _analysed(program)
    problem = _problem(program, found.matched, found.work, sizes)
    fit = fitting(found.matched, device, found.work, careful=False)
    if program.invariant:
        fit = of_class(fit, sum_class(program, device, sizes), found.matched, device)
    return problem, fit


def _analysed(program: Program, *, in_tile: bool = False) -> Prospect:
    split = split_for(program, in_tile=in_tile)
    times = dict(split.passes.statements) if split.passes else {}
    computed = prologues(split.main)
    statements = with_rows(without_prologues(split.main, computed))
    fusion = fuse(statements, scop(statements, passes=times), times)
    matched = match(statements, fusion, computed, program.inputs)
    return Prospect(matched, pointwork(statements, fusion, matched, split))


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


def _problem(program: Program, matched: Match, work: Pointwork, sizes: dict[str, int]) -> Problem:
    """The sizes to optimise for, and the weight of the epilogue."""

    def size(dim: Dim) -> int:
        return dim if isinstance(dim, int) else sizes.get(dim, TYPICAL_SIZE)

    batches = {dim for dim, _ in matched.batches}
    count = math.prod(
        extent if isinstance(extent, int) else sizes.get(extent, _TYPICAL_BATCHES)
        for _, extent in matched.batches
    )
    lefts, rights = matched.side("m"), matched.side("n")
    whole, threads = work.matrices, held((*lefts, *rights))
    return Problem(
        # Groups of rows are matrices below one another, of so many rows in the mean.
        m=-(-size(matched.m) // count) if matched.groups else size(matched.m),
        n=size(matched.n),
        k=max(map(size, matched.depths)),
        element_bytes=matched.a.tensor.dtype.bytes,
        matrices=len(whole),
        functions=sum(
            is_costly(s.function, s.args) for one in (*work.before, work) for s in one.statements
        ),
        pointwise=any(s.function != "cast" for s in work.statements),
        astride=any(_is_astride(operand.tensor, sizes) for _, operand in matched.copied),
        matrix_bytes=sum(read.tensor.dtype.bytes for read in whole),
        result_bytes=sum(write.tensor.dtype.bytes for write in work.writes),
        k_inner=(matched.a.k_contiguous, matched.b.k_contiguous),
        sum_bytes=matched.contraction.dtype.bytes,
        access_bytes=min(chunk_bytes(), *(o.alignment for _, o in matched.operands)),
        products=len(matched.products),
        operands=(len(lefts), len(rights)),
        batches=count,
        threaded=(sum(map(by_threads, lefts)), sum(map(by_threads, rights))),
        own=(_has_any(lefts, batches), _has_any(rights, batches)),
        uncopied=(_uncopied(matched, lefts), _uncopied(matched, rights)),
        computed=(len(_made(lefts)), len(_made(rights))),
        source_bytes=(_source_bytes(lefts, size), _source_bytes(rights, size)),
        operand_functions=(_functions(lefts), _functions(rights)),
        stored_bits=(_stored_bits(lefts), _stored_bits(rights)),
        held=(threads.words, threads.beside) if _made((*lefts, *rights)) else (0, 0),
        uneven=matched.groups is not None,
        folds=_folds(work),
    )


def _folds(work: Pointwork) -> tuple[int, int, int]:
    """Terms of an element that are folded: into sums and the like, with indices, exponentials."""
    made = [MONOIDS[f.monoid] for one in (*work.before, work) for f in one.folds]
    indexed, exponentials = sum(INDEX in m.terms for m in made), sum(m.short for m in made)
    return len(made) - indexed - exponentials, indexed, exponentials


def _uncopied(matched: Match, operands: tuple[Operand, ...]) -> int:
    """How many operands threads move that no copy helps."""
    copies = {tensor.name for tensor in copied(matched)}
    return sum(by_threads(one) and one.tensor.name not in copies for one in operands)


def _stored_bits(operands: tuple[Operand, ...]) -> int:
    """Bits of an element of all operands that are computed, as rings have them for consumers."""
    each = [stored_bits(operand) for operand in operands if operand.computed is not None]
    return sum(each) if all(each) else 0


def _made(operands: tuple[Operand, ...]) -> list[Prologue]:
    """How those operands are computed that are."""
    return [operand.computed for operand in operands if operand.computed is not None]


def _source_bytes(operands: tuple[Operand, ...], size: Callable[[Dim], int]) -> int:
    """Bytes of the arguments that operands are computed from, of one matrix."""
    reads = {
        (one.tensor, one.index): math.prod(
            -(-size(operand.extent(along.dim)) // along.per)
            for along in one.index
            if along.dim in ("m", "n", "k")
        )
        * one.tensor.dtype.bytes
        for operand in operands
        if operand.computed is not None
        for one in operand.computed.reads
        if one.tensor.dims
    }
    return sum(reads.values())


def _functions(operands: tuple[Operand, ...]) -> int:
    """Functions beyond arithmetic in an element of all operands that are computed."""
    return sum(is_costly(s.function, s.args) for made in _made(operands) for s in made.statements)


def _has_any(operands: tuple[Operand, ...], dims: set[str]) -> bool:
    """Whether an operand has an axis along one of the dims; true where there are none."""
    return not dims or any(one.dim in dims for operand in operands for one in operand.index)


def _is_astride(tensor: Tensor, sizes: dict[str, int]) -> bool:
    """Whether rows of an array of these sizes and pitches begin inside lines of the cache."""
    step = (row_step(tensor, sizes) or 0) * tensor.dtype.bytes
    return step % common_facts()["cache_line_bytes"] != 0
