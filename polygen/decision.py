"""What an automatic choice is, and which of two programs it runs.

Products of f32 have two ways:

1. Without roles warps split fragments of f32 operands in registers, and run three instructions of
   tf32 for one (`split` in the data of atoms): the program is generated as it is.
2. Warpgroups read operands from shared memory. With roles the program is the one whose products
   multiply parts (`polygen.rewrite.tf32_parts`), which are operands that are computed.

Norms leave products as factors and terms (`polygen.rewrite.norms`), or a launch before the kernel
makes whole rows with them (`polygen.rewrite.rows_first`).

So the schedule says which. "auto" decides for both, and takes the one predicted to be faster.
"""

from __future__ import annotations

from pathlib import Path

from polygen import knobs
from polygen.analysis import ISL_LOCK, come_alike, prospect
from polygen.chained import is_chain
from polygen.decide import candidates, decide
from polygen.errors import PolygenError
from polygen.fit_chain import decide_chain
from polygen.frontend.program import Program
from polygen.hardware.device import Device
from polygen.poly.sections import sections
from polygen.rewrite.programs import made_first, rewritten
from polygen.rewrite.tf32_parts import in_parts
from polygen.schedule.load import load_schedule
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted
from polygen.tune import lookup
from polygen.tune.cost import predict


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
    program = rewritten(placed(program, device, sizes, "auto", sums=sums))
    program = multiplied(program, device, sizes, "auto", sums=sums)
    program = come_alike(program)
    _, schedule, origin = decide(program, prospect(program), device, sizes, "auto", sums=sums)
    return schedule, origin


def multiplied(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> Program:
    """The program whose products instructions multiply: as it is, or of parts of its operands.

    Args:
        program: no chain.
        device: the target.
        sizes: of the symbolic dims.
        schedule: a record, a file, or "auto".
        skip: names of shipped schedules not to choose.
        sums: as for `decision`.

    Raises:
        ScheduleError: the schedule cannot be read.
    """
    with ISL_LOCK:
        parts = in_parts(program) if len(sections(program)) == 1 else None
    if parts is None:
        return program
    schedule = _given(schedule)
    if schedule != "auto":
        return as_run(program, schedule) if isinstance(schedule, Schedule) else program
    if program.invariant or not device.has("wgmma"):  # one way for all sizes of invariant dims
        return program
    measured = lookup.best(program, device, sizes)
    if measured is not None:
        return as_run(program, measured.schedule)
    whole, in_two = (predicted(one, device, sizes, skip, sums) for one in (program, parts))
    return parts if in_two is not None and (whole is None or in_two < whole) else program


def placed(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    schedule: Schedule | Path | str,
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> Program:
    """The program with its norms where they are: behind a product, or in a launch before it.

    Args:
        program: no chain, as it was written.
        device: the target.
        sizes: of the symbolic dims.
        schedule: a record, a file, or "auto".
        skip: names of shipped schedules not to choose.
        sums: as for `decision`.

    Raises:
        ScheduleError: the schedule cannot be read.
    """
    with ISL_LOCK:
        first = made_first(program)
    if first is None or rewritten(program).first:  # there is one way
        return program
    schedule = _given(schedule)
    if schedule != "auto":
        makes = isinstance(schedule, Schedule) and schedule.makes_first
        return first if makes else program
    for one in (program, first):
        measured = lookup.best(one, device, sizes)
        if measured is not None:
            return first if measured.schedule.makes_first else program
    behind = predicted(program, device, sizes, skip, sums)
    if behind is not None and not device.has("wgmma"):  # where nothing was measured of the launch
        return program
    as_multiplied = multiplied(first, device, sizes, "auto", skip, sums)
    before = predicted(as_multiplied, device, sizes, skip, sums)
    return first if before is not None and (behind is None or before < behind) else program


def _given(schedule: Schedule | Path | str) -> Schedule | Path | str:
    """A schedule that was asked for, read where it is a file; "auto": none was."""
    forced = knobs.current().schedule
    if schedule == "auto" and forced is not None:
        schedule = forced
    if isinstance(schedule, str | Path) and schedule != "auto":
        return load_schedule(Path(schedule))
    return schedule


def as_run(program: Program, schedule: Schedule) -> Program:
    """The program as a schedule has it multiplied."""
    return (in_parts(program) or program) if schedule.specialised else program


def predicted(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    skip: frozenset[str] = frozenset(),
    sums: str = "",
) -> float | None:
    """Predicted microseconds of the automatic choice for a program as it is multiplied.

    Args:
        program: no chain.
        device: the target.
        sizes: of the symbolic dims.
        skip: names of shipped schedules not to choose.
        sums: as for `decision`.

    Returns:
        None: there is none.
    """
    try:
        _, chosen, _ = decide(program, prospect(program), device, sizes, "auto", skip, sums)
        problem, fit = candidates(program, device, sizes)
    except PolygenError:
        return None
    fitted = fit(chosen)
    return predict(device, fitted, problem) if isinstance(fitted, Fitted) else None
