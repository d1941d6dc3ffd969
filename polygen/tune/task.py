"""What to tune: a traced program with its sizes, and the schedules that fit it.

Candidates are the automatic choice, the anchor; then shipped schedules and the space around all of
them. Of programs with rows that elements use results of, those whose tiles or clusters cover rows
go beside those that leave rows to a launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polygen import covering, knobs
from polygen.analysis import come_alike
from polygen.api import Fused, target
from polygen.chained import is_chain
from polygen.decide import candidates
from polygen.errors import PolygenError, UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.indices import size_value
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Fold, Program
from polygen.hardware.device import Device
from polygen.lower.plan import KernelPlan
from polygen.pipeline import check_sizes, generate, with_sizes
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.small_problem import trial_sizes
from polygen.tune.reference import by_rows
from polygen.tune.space import space

_MOST_WORK = 1 << 31  # multiply-adds of a small problem, which NumPy does in some seconds


@dataclass(frozen=True, slots=True)
class Task:
    """What to tune, traced, with the schedules that fit it.

    Attributes:
        program: with the alignments that the sizes leave.
        device: the target.
        sizes: of the symbolic dims.
        problem: what the model knows of it.
        candidates: the anchor first, then shipped schedules and the space.
        small: sizes of a problem that the anchor is compared on whole; None: rows of this one.
    """

    program: Program
    device: Device
    sizes: dict[str, int]
    problem: Problem
    candidates: tuple[Fitted, ...]
    small: dict[str, int] | None = None


def describe(
    fused: Fused,
    signature: Sequence[str],
    *,
    sizes: Mapping[str, int],
    arch: str | None = None,
    static: Sequence[str] = (),
    out_dtype: Any = None,
    acc_dtype: str = "f32",
    invariant: Sequence[str] = (),
) -> Task:
    """Trace a program and enumerate its schedules; needs no GPU if `arch` is given.

    Raises:
        PolygenError: the program or a size is refused, or a dim has none.
    """
    given = dict(sizes)
    program = fused.program(
        *signature, out_dtype=out_dtype, acc_dtype=acc_dtype, static=static, sizes=given,
        invariant=invariant,
    )  # fmt: skip
    known = fused.sizes_left(program, signature, given)
    check_sizes(program, known)
    missing = [name for name in program.sizes if name not in known]
    if missing:
        raise PolygenError(
            f"no size for {', '.join(missing)}",
            where="sizes",
            why="a schedule is tuned for given sizes",
            nearest=f"Add {', '.join(f'{name}=1024' for name in missing)}",
        )
    _check_folds(program)
    if program.in_place:
        raise UnsupportedProgram(
            f"{program.in_place[0][0]} is stored into, at rows that a vector names",
            where=program.name,
            why="what is measured is checked on rows of new arrays",
            nearest="Tune the function that returns these rows, and pass the schedule",
        )
    device = target(arch)
    program = with_sizes(program, known)
    _check_monoids(program)
    problem, fit = candidates(program, device, known)
    program = come_alike(program)  # results are looked up for what is multiplied
    anchor, plan = automatic(program, device, known, frozenset())
    found = [anchor]
    for each in (problem, fit), covering.candidates(program, device, known):
        if each is not None:
            fitted = [one for one in map(each[1], shipped(device)) if isinstance(one, Fitted)]
            usable = [one for one in fitted if _makes_sense(device, one)]
            found += _rows_in_blocks([*usable, *space(device, *each)], program, device, known)
    small = None if by_rows(program) else _small(program, plan)
    return Task(program, device, known, problem, tuple(found), small)


def _rows_in_blocks(
    found: list[Fitted], program: Program, device: Device, sizes: dict[str, int]
) -> list[Fitted]:
    """Schedules with as many warps and words to a row of another launch as a choice has."""
    if not found:
        return []
    own = covering.in_blocks(found[0].schedule, program, device, sizes).epilogue

    def in_blocks(schedule: Schedule) -> Schedule:
        if schedule.covers_rows:
            return schedule
        way = replace(schedule.epilogue, row_warps=own.row_warps, row_words=own.row_words)
        return replace(schedule, epilogue=way)

    return [replace(one, schedule=in_blocks(one.schedule)) for one in found]


def _check_monoids(program: Program) -> None:
    """Refuse folds that processes which build kernels do not know.

    Raises:
        UnsupportedProgram: there is one; with the way to tune the product.
    """
    for one in program.folds:
        if MONOIDS[one.function].in_order is not None:
            raise UnsupportedProgram(
                f"{one.write.name}, a fold by {one.function}: {one}",
                where=program.name,
                why="kernels are built in processes of their own, which do not know the monoid",
                nearest="Tune the function with pg.max in its place, and pass the schedule",
            )


def _check_folds(program: Program) -> None:
    """Refuse folds in front of products.

    Raises:
        UnsupportedProgram: there is one; with the way to tune the product.
    """
    if is_chain(program):  # which is refused as such
        return
    multiplied = [access.name for one in program.contractions for access in one.reads]
    for one in needed(program.statements, multiplied):
        if isinstance(one, Fold):
            raise UnsupportedProgram(
                f"{one.write.name}, a fold in front of a product: {one}",
                where=program.name,
                why="schedules differ in where they round what is multiplied, so that results of "
                "one are not those of another",
                nearest="Tune the product alone, and pass the schedule",
            )


def _small(program: Program, plan: KernelPlan) -> dict[str, int]:
    """Sizes of a problem that is computed whole beside the anchor.

    Raises:
        UnsupportedProgram: sizes that are numbers leave no small one.
    """
    sizes = trial_sizes(plan)
    work = max(
        math.prod(size_value(extent, sizes) for _, extent in one.domain)
        for one in program.contractions
    )
    if work > _MOST_WORK:
        raise UnsupportedProgram(
            f"{work:.2g} multiplications of {program.contractions[0].write.name}",
            where=program.name,
            why="what depends on more than its row is compared on a small problem, all of it",
            nearest="Name dims that are numbers, as B in x:bf16[B,56,56,256], and give their sizes",
        )
    return sizes


def _makes_sense(device: Device, fitted: Fitted) -> bool:
    return not fitted.schedule.specialised or (device.has("wgmma") and device.has("tma"))


def automatic(
    program: Program, device: Device, sizes: dict[str, int], skip: frozenset[str]
) -> tuple[Fitted, KernelPlan]:
    """The automatic choice, made without looking anything up."""
    with knobs.scope(cache=False, schedule=None):
        plan = generate(program, device, sizes, "auto", skip=skip).plan
    _, fit = candidates(program, device, sizes)
    fitted = fit(plan.schedule)
    return fitted if isinstance(fitted, Fitted) else Fitted(plan.schedule, 1), plan
