"""The passes in order: `Program` -> `Scop` -> `ScheduleTree` -> `KernelPlan` -> `KernelSource`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path

from polygen.analysis import (
    ISL_LOCK,
    Analysed,
    analysed,
    come_alike,
    prospect,
    sections_analysed,
)
from polygen.brief import Brief
from polygen.chained import as_made, is_chain
from polygen.decide import decide
from polygen.decision import multiplied, placed
from polygen.emit.cuda import emit
from polygen.emit.forms import with_reciprocals
from polygen.emit.functions import is_costly
from polygen.emit.source import KernelSource
from polygen.errors import PolygenError, ScheduleError, UnsupportedProgram, echo
from polygen.fit_chain import decide_chain, map_and_lower
from polygen.frontend.given import require_size
from polygen.frontend.pitches import check_pitch, pitches, row_step
from polygen.frontend.program import Dim, Program, Tensor
from polygen.generated import Generated, kept
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.invariance import check_class, sums_of
from polygen.lower.build import lower
from polygen.lower.follow import follow
from polygen.lower.memory import memory, needed
from polygen.lower.plan import CopyPlan, GroupPlan, KernelPlan, MakePlan, MakeRowsPlan
from polygen.lower.realign import precede
from polygen.lower.resources import resources
from polygen.lower.sections import alone, join
from polygen.lower.verify import verify
from polygen.lower.verify_follow import check_following
from polygen.lower.verify_parameters import check_parameters
from polygen.poly.ahead import check_order, operands_ahead
from polygen.poly.depth import prove_walk
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.joined import prove_joined
from polygen.poly.mapping import ScheduleTree, map_program
from polygen.poly.prologue_proofs import prove_prologues
from polygen.poly.realign import make_operands, program_behind, realign, realign_all
from polygen.poly.results import copies_in_background, copies_staged, panels, row_vectors
from polygen.poly.scop import Scop, scop
from polygen.poly.sections import alike, require_alike, sections
from polygen.poly.supported import require_sizes
from polygen.poly.tile_domain import all_tiles_because, tile_domain
from polygen.poly.tile_program import TileProgram
from polygen.poly.tiling import tiling
from polygen.rewrite.programs import rewritten
from polygen.runtime.templates import templates_kept
from polygen.schedule.load import check_record
from polygen.schedule.model import Schedule
from polygen.tune import lookup

# What NVRTC compiles in seconds, and in a minute or two: its time grows with the square of the
# number of functions that are more than arithmetic (gelu: 25 of them 7 s, 50 of them 36 s).
MOST_OPERATIONS, MOST_FUNCTIONS = 512, 128
_MOST_DERIVED = 64  # tile programs


@dataclass(frozen=True, slots=True, repr=False)
class Passes(Brief):
    """The result of every pass, for people to look at."""

    program: Program
    scop: Scop
    tree: ScheduleTree
    plan: KernelPlan
    source: KernelSource
    origin: str  # where the schedule comes from
    command: str  # the maker, for the header

    @property
    def generated(self) -> Generated:
        """The kernel as plain data."""
        plan = self.plan
        return Generated(
            self.program,
            plan.device.name,
            plan.schedule,
            self.origin,
            self.source,
            tuple(map(str, plan.proofs)),
            str(self.tree),
            plan.sums,
            self.command,
        )

    def __str__(self) -> str:
        return f"{self.plan.entry} for {self.plan.device.name}, {self.origin}"


def generate(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str = "",
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> Passes:
    """Run all passes up to the CUDA text.

    Args:
        program: what to compute; its tensors carry layouts and alignments.
        device: the target.
        sizes: what to optimise for; sizes stay run-time arguments.
        schedule: a record, a file, or "auto".
        command: what to name in the header as the maker.
        skip: names of shipped schedules not to choose.
        sums: with invariant dims, the class that sums must have, as kernels for other sizes have
            it; "": the one that all sizes share, or the one of the schedule that is given.

    Raises:
        InvarianceError: sums depend on what they must not, or would be of another class.
        PolygenError: the program, the schedule or their combination is refused.
    """
    check_length(program)
    if isinstance(schedule, Schedule):
        check_record(schedule)
    with ISL_LOCK:
        try:
            return _generate(program, device, sizes, schedule, command, skip, sums)
        except ScheduleError:  # a schedule tuned with another version may be refused by the proofs
            found = lookup.best(program, device, sizes) if schedule == "auto" else None
            if found is None or found.schedule.name in skip:
                raise
            skip |= {found.schedule.name}
            return _generate(program, device, sizes, schedule, command, skip, sums)


def _generate(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str,
    skip: frozenset[str],
    sums: str,
) -> Passes:
    if is_chain(program):
        return _chain(program, device, sizes, schedule, command, skip)
    require_sizes(program)
    asked = program
    program = rewritten(placed(program, device, sizes, schedule, skip, sums))
    program = multiplied(program, device, sizes, schedule, skip, sums)
    require_alike(program)
    if len(sections(program)) > 1:
        program = come_alike(program)
        joined = _of_sections(program, device, sizes, schedule, command, skip)
        return replace(joined, program=asked)
    found = analysed(program)
    instruction, decided, origin = decide(
        program, found.prospect, device, sizes, schedule, skip, sums
    )
    copy = realign(program, found.prospect.matched, decided)
    whole, program = program, program_behind(program, copy)
    in_tile = decided.covers_rows
    if copy is not None or in_tile:
        found = analysed(program, in_tile=in_tile)
    found = replace(found, prospect=found.prospect.under(decided))
    check_order(program, decided, behind=copy is not None)
    tree = _mapped(program, found, decided, instruction, device)
    if program.invariant:
        own = sums_of(decided, instruction, found.prospect.matched)
        check_class(tree.sums, program, sums or own.text)
    plan = follow(verify(lower(program, tree, decided, instruction, device)), synchronised)
    plan = with_reciprocals(precede(plan, copy, synchronised, whole))
    tree = _with_others(tree, plan)
    return Passes(asked, found.model, tree, plan, _emitted(plan, command), origin, command)


def _with_others(tree: ScheduleTree, plan: KernelPlan) -> ScheduleTree:
    """The trees of launches beside the kernel's next to its own, for people to look at."""
    others: tuple[CopyPlan | MakePlan | MakeRowsPlan | GroupPlan, ...] = (
        *plan.copies,
        *plan.groups,
    )
    return replace(tree, beside=tuple((other.title, other.tree) for other in others))


def _mapped(
    program: Program,
    found: Analysed,
    decided: Schedule,
    instruction: Atom,
    device: Device,
    depths: tuple[Dim, ...] = (),
) -> ScheduleTree:
    """Refuse what does not fit, before anything is proved of it; then the tree, with its proofs.

    Args:
        program: a program, or a section of one.
        found: what is known of it, as the schedule has it run.
        decided: the schedule.
        instruction: that multiplies.
        device: the target.
        depths: lengths of the sums of the kernel's other sections.
    """
    matched, work = found.prospect.matched, found.prospect.work
    tiles = tiling(decided, instruction)
    least = needed(memory(decided, matched, work, tiles, ()))
    resources(decided, matched, tiles, instruction, device, least)
    tallies = work.ring_folds(matched)
    in_all = all_tiles_because(
        matched,
        decided,
        folded=bool(tallies),
        covered=bool(found.passes and found.passes.results),
        several=bool(depths),
    )
    tree = map_program(
        found.model,
        found.fusion,
        matched,
        decided,
        instruction,
        asynchronous=copies_in_background(matched, device),
        staged=copies_staged(device),
        rows=row_vectors(found.products, decided),
        panels=panels(decided, work),
        derived=synchronised,
        invariant=program.invariant,
        folds=bool(work.folds) or work.folding,
        passes=found.passes,
        longer=any(depth not in matched.depths for depth in depths),
        tallies=tallies,
        domain=None if in_all else tile_domain(matched, decided, tiles),
        ahead=operands_ahead(program, matched, decided),
    )
    walks = (prove_walk(len(matched.sums) + 1),) if matched.sums else prove_joined(matched)
    return replace(tree, proofs=(*prove_prologues(program), *walks, *tree.proofs))


def _of_sections(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str,
    skip: frozenset[str],
) -> Passes:
    """All passes of a program of several sections: each on its way, then joined."""
    whole = prospect(program)
    instruction, decided, origin = decide(program, whole, device, sizes, schedule, skip)
    copy = realign_all(program, [one.matched for one in whole.each], decided)
    check_order(program, decided, behind=copy is not None)
    asked, program = program, program_behind(program, copy)
    in_tile = decided.covers_rows
    every = sections_analysed(program, in_tile=in_tile)
    all_do = alike(sections(program), in_tile=in_tile)
    depths = tuple(depth for one in every for depth in one.prospect.matched.depths)
    trees, plans = [], []
    for section, own in zip(sections(program), every, strict=True):
        own = replace(own, prospect=own.prospect.under(decided))
        trees.append(_mapped(section, own, decided, instruction, device, depths))
        plans.append(lower(section, trees[-1], decided, instruction, device, all_do))
    plan = join(program, [follow(one, synchronised) for one in plans])
    check_parameters(plan)
    for one in alone(plan):
        check_following(one)
    found = (proof for one in alone(plan) for proof in verify(one).proofs)
    plan = replace(plan, proofs=tuple(dict.fromkeys((*plan.proofs, *found))))
    plan = with_reciprocals(precede(plan, copy, synchronised, asked))
    tree = replace(
        trees[0],
        elements="{ " + "; ".join(one.elements.strip("{ }") for one in trees) + " }",
        proofs=plan.proofs,
        sums=plan.sums,
    )
    tree = _with_others(tree, plan)
    return Passes(asked, scop(program), tree, plan, _emitted(plan, command), origin, command)


def _chain(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str,
    skip: frozenset[str],
) -> Passes:
    """All passes of a chain of products."""
    decided = decide_chain(program, device, schedule, skip, sizes)
    whole = as_made(program)
    copy = make_operands(whole, decided.schedule.epilogue.row_warps)
    behind = program_behind(whole, copy)
    model, tree, plan = map_and_lower(behind, device, decided, synchronised)
    plan = precede(follow(verify(plan), synchronised), copy, synchronised, whole)
    tree = _with_others(tree, plan)
    return Passes(program, model, tree, plan, _emitted(plan, command), decided.origin, command)


def _emitted(plan: KernelPlan, command: str) -> KernelSource:
    """The CUDA text, by templates that are compiled once on a machine."""
    with templates_kept():
        return emit(plan, command)


@functools.lru_cache(maxsize=_MOST_DERIVED)
def synchronised(program: TileProgram) -> Synchronised:
    """What synchronises a tile program: from memory, from disk, or derived. All of it is proved."""
    return kept(Synchronised, (program,), lambda: derive(program))


def with_sizes(program: Program, sizes: dict[str, int]) -> Program:
    """The program with alignments reduced to what arrays of these sizes have.

    Args:
        program: alignments as declared.
        sizes: known sizes and pitches; unknown ones are taken as multiples of any alignment.
    """

    def aligned(tensor: Tensor) -> Tensor:
        if len(tensor.dims) < 2:
            return tensor
        rows = any(tensor.dims[axis] != 1 for axis in tensor.order[:-1])
        stride = (row_step(tensor, sizes) or 0) * tensor.dtype.bytes if rows else 0
        return replace(tensor, alignment=math.gcd(tensor.alignment, stride))

    return replace(
        program,
        inputs=tuple(map(aligned, program.inputs)),
        outputs=tuple(map(aligned, program.outputs)),
    )


def check_length(program: Program) -> None:
    """Refuse more pointwise operations than one kernel compiles in reasonable time.

    Raises:
        UnsupportedProgram: with the number of operations, and the most.
    """
    mapped = [statement for statement in program.pointwise if statement.function != "cast"]
    functions = [s.function for s in mapped if is_costly(s.function, s.args)]
    for found, most, what in (
        (len(mapped), MOST_OPERATIONS, "pointwise operations"),
        (len(functions), MOST_FUNCTIONS, f"calls of {', '.join(sorted(set(functions)))}"),
    ):
        if found > most:
            raise UnsupportedProgram(
                f"{found} {what}",
                where=program.name,
                why=f"one kernel takes at most {most}: the compiler's time grows with their square",
                nearest="Split the function: return what is computed half way from a first one",
            )


def check_sizes(program: Program, sizes: dict[str, int]) -> None:
    """Refuse sizes that name no dim, are not positive, or are more than a kernel counts.

    Raises:
        PolygenError: with the dims there are, or the pitches; or with the least pitch.
    """
    rows = pitches(program)
    for name, value in sizes.items():
        if "." in str(name) and name not in rows:
            raise PolygenError(
                f"no array with rows has the pitch {echo(name)}",
                where="sizes",
                nearest=f"Pitches: {', '.join(rows) or 'none'}",
            )
        if name not in program.sizes and name not in rows:
            known = ", ".join(program.sizes) or "none"
            raise PolygenError(
                f"no dim is called {echo(name)}", where="sizes", nearest=f"Dims: {known}"
            )
        require_size(name, value)
    for name, tensor in rows.items():
        if name in sizes:
            check_pitch(tensor, sizes)
