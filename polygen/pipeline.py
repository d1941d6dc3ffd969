"""The passes in order: `Program` -> `Scop` -> `ScheduleTree` -> `KernelPlan` -> `KernelSource`."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from polygen.brief import Brief
from polygen.decide import decide, panels_of
from polygen.emit.cuda import emit
from polygen.emit.source import KernelSource
from polygen.errors import PolygenError, ScheduleError
from polygen.frontend.program import Program, Tensor
from polygen.hardware.device import Device
from polygen.lower.build import copy_is_asynchronous, lower
from polygen.lower.epilogue import row_vectors
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.poly.fusion import fuse
from polygen.poly.mapping import ScheduleTree, map_program
from polygen.poly.match import match
from polygen.poly.scop import Scop, scop
from polygen.schedule.model import Schedule
from polygen.tune import lookup

# isl has one context per process, and its operation budget with it: one generation at a time.
_GENERATING = threading.RLock()


@dataclass(frozen=True, slots=True, repr=False)
class Passes(Brief):
    """The result of every pass, for people to look at."""

    program: Program
    scop: Scop
    tree: ScheduleTree
    plan: KernelPlan
    source: KernelSource
    origin: str  # where the schedule comes from

    def __str__(self) -> str:
        return f"{self.plan.entry} for {self.plan.device.name}, {self.origin}"


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
        try:
            return _generate(program, device, sizes, schedule, command, skip)
        except ScheduleError:  # a schedule tuned with another version may be refused by the proofs
            found = lookup.best(program, device, sizes) if schedule == "auto" else None
            if found is None or found.schedule.name in skip:
                raise
            skip |= {found.schedule.name}
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
    instruction, decided, origin = decide(program, fusion, matched, device, sizes, schedule, skip)
    tree = map_program(
        model,
        fusion,
        matched,
        decided,
        instruction,
        asynchronous=copy_is_asynchronous(program, device),
        rows=row_vectors(program, decided),
        panels=panels_of(program, fusion, matched, decided, instruction),
    )
    plan = verify(lower(program, tree, decided, instruction, device))
    return Passes(program, model, tree, plan, emit(plan, command), origin)


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
