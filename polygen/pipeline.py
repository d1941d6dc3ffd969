"""The passes in order: `Program` -> `Scop` -> `ScheduleTree` -> `KernelPlan` -> `KernelSource`."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from polygen import knobs
from polygen.emit.cuda import emit
from polygen.emit.source import KernelSource
from polygen.errors import PolygenError, ResourceError, ScheduleError, UnsupportedProgram
from polygen.frontend.program import Program, Tensor
from polygen.hardware.atom import Atom, atom, atoms_for
from polygen.hardware.device import Device
from polygen.lower.build import copy_is_asynchronous, lower, shared_bytes
from polygen.lower.epilogue import row_vectors
from polygen.lower.plan import KernelPlan
from polygen.lower.resources import resources
from polygen.lower.verify import verify
from polygen.poly.fusion import fuse
from polygen.poly.mapping import ScheduleTree, map_program
from polygen.poly.match import Match, match
from polygen.poly.scop import Scop, scop
from polygen.poly.tiling import tiling
from polygen.schedule.default import Problem, choose
from polygen.schedule.load import check_structure, load_schedule
from polygen.schedule.model import Schedule

# isl has one context per process, and its operation budget with it: one generation at a time.
_GENERATING = threading.RLock()

# The size taken along a dim for which a call gives none.
TYPICAL_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Passes:
    """The result of every pass, for people to look at."""

    program: Program
    scop: Scop
    tree: ScheduleTree
    plan: KernelPlan
    source: KernelSource
    origin: str  # where the schedule comes from


def generate(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str = "",
    skip: frozenset[str] = frozenset(),
) -> Passes:
    """Run all passes up to the CUDA text.

    Args:
        program: what to compute; its tensors carry layouts and alignments.
        device: the target.
        sizes: what to optimise for; sizes stay run-time arguments.
        schedule: a record, a file, or "auto".
        command: what to name in the header as the maker.
        skip: names of shipped schedules not to choose.

    Raises:
        PolygenError: the program, the schedule or their combination is refused.
    """
    with _GENERATING:
        return _generate(program, device, sizes, schedule, command, skip)


def _generate(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    command: str,
    skip: frozenset[str],
) -> Passes:
    model = scop(program)
    fusion = fuse(program, model)
    matched = match(program, fusion)
    instruction, decided, origin = decide(matched, device, sizes, schedule, skip)
    tree = map_program(
        model,
        fusion,
        matched,
        decided,
        instruction,
        asynchronous=copy_is_asynchronous(program, device),
        rows=row_vectors(program, decided),
    )
    plan = verify(lower(program, tree, decided, instruction, device))
    return Passes(program, model, tree, plan, emit(plan, command), origin)


def decide(
    matched: Match,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
) -> tuple[Atom, Schedule, str]:
    """The instruction, the schedule and where it comes from."""
    forced = knobs.current().schedule
    if schedule == "auto" and forced is not None:
        schedule = forced
    if isinstance(schedule, Schedule):
        instruction = _instruction(matched, device, schedule.atom)
        origin, decided = f"given: {schedule.name}", schedule
    elif not isinstance(schedule, str | Path):
        raise ScheduleError(
            f"{schedule!r} is no schedule",
            where="schedule",
            nearest='Pass "auto", a Schedule, or the path of a schedule file',
        )
    elif schedule != "auto":
        decided = load_schedule(Path(schedule))
        instruction = _instruction(matched, device, decided.atom)
        origin = f"file {schedule}"
    else:
        instruction = _instruction(matched, device, "auto")
        extents = (matched.extent(role) for role in "mnk")
        problem = Problem(
            *(d if isinstance(d, int) else sizes.get(d, TYPICAL_SIZE) for d in extents)
        )

        def blocks(candidate: Schedule) -> int:
            candidate = replace(candidate, min_blocks=1)
            tiles = tiling(candidate, instruction)
            try:
                needed = shared_bytes(matched, candidate)
                return resources(
                    candidate, tiles, instruction, device, needed, candidate.name
                ).blocks_per_multiprocessor
            except ResourceError:
                return 0

        decided, origin = choose(device, instruction, problem, blocks, skip)
    check_structure(decided, instruction, f"schedule {decided.name}")
    return instruction, decided, origin


def _instruction(matched: Match, device: Device, wanted: str) -> Atom:
    """The MMA instruction: by name, or the device's first for the operands' dtypes."""
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
    if not fitting:
        raise UnsupportedProgram(
            f"{device} has no instruction for {a} x {b} with {c} sums",
            where=contraction.name,
            nearest="Use f16, bf16 or tf32 operands with f32 sums",
        )
    return fitting[0]


def with_sizes(program: Program, sizes: dict[str, int]) -> Program:
    """The program with alignments reduced to what contiguous arrays of these sizes have.

    Args:
        program: alignments as declared.
        sizes: known sizes; unknown ones are taken as multiples of any alignment.
    """

    def aligned(tensor: Tensor) -> Tensor:
        if len(tensor.dims) < 2:
            return tensor
        extent = tensor.dims[tensor.order[-1]]
        size = sizes.get(extent, 0) if isinstance(extent, str) else extent
        stride = 0 if tensor.dims[tensor.order[0]] == 1 else size * tensor.dtype.bytes
        return replace(tensor, alignment=math.gcd(tensor.alignment, stride))

    return replace(
        program,
        inputs=tuple(map(aligned, program.inputs)),
        outputs=tuple(map(aligned, program.outputs)),
    )


def check_sizes(program: Program, sizes: dict[str, int]) -> None:
    """Refuse sizes that name no dim or are not positive.

    Raises:
        PolygenError: with the dims there are.
    """
    for name, value in sizes.items():
        if name not in program.sizes:
            known = ", ".join(program.sizes) or "none"
            raise PolygenError(
                f"no dim is called {name!r}", where="sizes", nearest=f"Dims: {known}"
            )
        if not isinstance(value, int) or isinstance(value, bool):
            raise PolygenError(
                f"{name} = {value!r}",
                where="sizes",
                why="sizes are whole numbers",
                nearest=f"Write {name} = 4096",
            )
        if value < 1:
            raise PolygenError(
                f"{name} = {value}",
                where="sizes",
                why="sizes are at least 1",
                nearest=f"Use {name} = 1",
            )
