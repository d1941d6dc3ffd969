"""The automatic choice among schedules that cover rows: elements use results of their own row.

1. Where rows are no wider than a tile, one is taken, or a cluster of narrower ones: what the launch
   that follows would read and write again stays in registers.
2. Where the blocks of a cluster cover them together, they keep in step, and a row takes all of
   them. So it is taken if it is predicted to take less than the kernel without, and the launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from polygen.analysis import Prospect, all_analysed, in_tiles
from polygen.emit.functions import is_costly
from polygen.errors import ScheduleError, UnsupportedProgram
from polygen.fit import fitting
from polygen.fit_sections import fitting_all
from polygen.fit_sizes import in_few_columns
from polygen.frontend.arguments import Access, Constant
from polygen.frontend.indices import known_size, size_value
from polygen.frontend.program import Pointwise, Program, Tensor
from polygen.hardware.device import Device, common_facts
from polygen.lower.follow_work import kept_of, row_width
from polygen.lower.make_rows import held_reads, width
from polygen.poly.folds import Split, split_folds
from polygen.poly.match import Match
from polygen.poly.row_operands import row_operands
from polygen.poly.sections import sections
from polygen.poly.whole_rows import Rows, iterator
from polygen.problems import size_of, whole_problem
from polygen.rewrite.programs import rewritten
from polygen.schedule.load import shipped
from polygen.schedule.model import HELD_ROWS, ROW_WARPS, ROW_WORDS, Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.choose import choose
from polygen.tune.cost import following, predict, predict_all

Fit = Callable[[Schedule], Fitted | str]


def by_tiles(
    program: Program, device: Device, sizes: dict[str, int], found: Prospect, skip: frozenset[str]
) -> tuple[Schedule, str] | None:
    """The choice among schedules whose tiles cover rows; None where none does or need do.

    Args:
        program: what to compute.
        device: the target.
        sizes: of the symbolic dims.
        found: what is known of it.
        skip: names of schedules that turned out to need more registers than they have.
    """
    rows = _rows(program, found, sizes)
    if program.invariant or not rows or not 0 < min(rows) <= max(rows) <= _widest(device):
        return None
    row, clusters = max(rows), device.has("cluster") and not found.others
    chosen = _chosen(program, device, sizes, row, skip, clusters=clusters)
    if chosen is None:
        return None
    what = "clusters" if row > chosen[0].tile.cta.n else "tiles"
    return chosen[0], f"{chosen[1]}; its {what} cover rows of {_either(rows)} elements"


def _either(rows: list[int]) -> str:
    return " and ".join(map(str, dict.fromkeys(rows)))


def _rows(program: Program, found: Prospect, sizes: dict[str, int]) -> list[int]:
    """Elements of rows of whose results elements use some, of every section that has such."""
    each = zip(sections(rewritten(program)), found.each, strict=True) if found.others else (
        (program, found),
    )  # fmt: skip
    return [_row(one.matched, sizes) for of, one in each if split_folds(of).rows]


def by_clusters(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    matched: Match,
    skip: frozenset[str],
    behind: tuple[Schedule, Fit, Problem],
) -> tuple[Schedule, str] | None:
    """The choice among schedules whose clusters cover rows that no tile covers.

    Args:
        program: what to compute.
        device: the target.
        sizes: of the symbolic dims.
        matched: its products.
        skip: names of schedules that turned out to need more registers than they have.
        behind: the schedule of the kernel that leaves rows to a launch, how it fits, and for what.

    Returns:
        The schedule and its origin; None where none is predicted to take less.
    """
    split = split_folds(program)
    if program.invariant or not split.rows:
        return None
    row, widest = _row(matched, sizes), _widest(device)
    most = widest * common_facts()["cluster_blocks_most"] if device.has("cluster") else widest
    if not widest < row <= most:
        return None
    found = _chosen(program, device, sizes, row, skip, clusters=True)
    kernel = _predicted(device, *behind)
    if found is None or kernel is None:
        return None
    decided, origin, time = found
    otherwise = kernel + _finishing(program, split, device, sizes)
    if time >= otherwise:
        return None
    return decided, (
        f"{origin}; its clusters cover rows of {row} elements: {time:.0f} us predicted, "
        f"{otherwise:.0f} with a launch for the rows"
    )


def in_blocks(
    schedule: Schedule,
    program: Program,
    device: Device,
    sizes: dict[str, int],
    skip: frozenset[str] = frozenset(),
) -> Schedule:
    """The choice with as few warps to a row as fill the card, where a launch has rows.

    Every warp of a block has a share of work that does not depend on how long rows are. There are
    more where a lane would hold many words of a row: code for each of them is fetched once a row.

    Args:
        schedule: that was chosen.
        program: what to compute.
        device: the target.
        sizes: of the symbolic dims.
        skip: with `HELD_ROWS` in it lanes hold no words: with these the launch spills.
    """
    if schedule.covers_rows or program.invariant or len(sections(rewritten(program))) > 1:
        return schedule
    extents = [[one.axes[at] for at in one.own] for one, _, _ in _rows_of_launches(program)]
    if not extents or not all(isinstance(d, int) or d in sizes for own in extents for d in own):
        return schedule
    rows = min(math.prod(size_value(d, sizes) for d in own) for own in extents)
    wanted = device.multiprocessors * device.warps_per_multiprocessor / 2
    enough = [one for one in ROW_WARPS if one * rows >= wanted] or [ROW_WARPS[-1]]
    few = (one for one in enough if _words(program, one, sizes) <= _FEW_WORDS)
    warps = next(few, enough[-1])
    words = 0 if HELD_ROWS in skip else _words(program, warps, sizes)
    return replace(schedule, epilogue=replace(schedule.epilogue, row_warps=warps, row_words=words))


_FEW_WORDS = 4  # whose code a row is worth


def _words(program: Program, warps: int, sizes: dict[str, int]) -> int:
    """How many words of a row a lane holds: all of the longest row's, where registers suffice."""
    found = [0]
    for rows, kept, wide in _rows_of_launches(program):
        inner = [rows.axes[at] for at in rows.inner]
        if not kept or wide == 1 or not all(isinstance(d, int) or d in sizes for d in inner):
            return 0
        elements = math.prod(size_value(d, sizes) for d in inner)
        visit = common_facts()["warp_size"] * wide * warps
        found.append(min(-(-elements // visit), ROW_WORDS // kept))
    return max(found)


def _rows_of_launches(program: Program) -> list[tuple[Rows, int, int]]:
    """Rows of launches behind a kernel and before it: how many words of one place lanes hold, and
    of how many elements.
    """
    split = split_folds(program)
    found = [
        (rows, len(kept_of(rows, split)), row_width(rows, split, program)) for rows in split.rows
    ]
    for made in row_operands(program).values():
        found.append((made.rows, len(held_reads(made, program)), width(made, program)))
    return found


def _chosen(
    program: Program,
    device: Device,
    sizes: dict[str, int],
    row: int,
    skip: frozenset[str],
    *,
    clusters: bool = False,
) -> tuple[Schedule, str, float] | None:
    """The fastest schedule whose tiles cover rows, its origin, and its predicted microseconds."""
    try:
        problem, fit = _fitting(program, device, sizes, row, clusters=clusters)
        decided, origin = choose(device, problem, _with_fewer_panels(fit, problem, device), skip)
    except (ScheduleError, UnsupportedProgram):
        return None
    time = _predicted(device, decided, fit, problem)
    return None if time is None else (decided, origin, time)


def candidates(
    program: Program, device: Device, sizes: dict[str, int]
) -> tuple[Problem, Fit] | None:
    """What there is to measure of schedules whose tiles, or clusters, cover rows.

    Args:
        program: what to compute.
        device: the target.
        sizes: of the symbolic dims.

    Returns:
        The problem, and how a schedule fits it; None where no rows can be covered.
    """
    found = all_analysed(program)
    rows, widest = _rows(program, found, sizes), _widest(device)
    clusters = device.has("cluster") and not found.others
    most = widest * common_facts()["cluster_blocks_most"] if clusters else widest
    if program.invariant or not rows or not 0 < min(rows) <= max(rows) <= most:
        return None
    try:
        return _fitting(program, device, sizes, max(rows), clusters=clusters)
    except (ScheduleError, UnsupportedProgram):
        return None


def _fitting(
    program: Program, device: Device, sizes: dict[str, int], row: int, *, clusters: bool
) -> tuple[Problem, Fit]:
    """The problem of rows in tiles, and how schedules fit it that cover them."""
    found = in_tiles(program)
    problem = whole_problem(program, found, sizes)
    if found.others:
        every = [(one.matched, one.work) for one in found.each]
        return problem, fitting_all(every, device, careful=True, row=row)
    fit = fitting(found.matched, device, found.work, careful=True, row=row, clusters=clusters)
    return problem, in_few_columns(fit, problem)


def _with_fewer_panels(fit: Fit, problem: Problem, device: Device) -> Fit:
    """Fits schedules with one panel at a time where rings have more of their stages then, and that
    is predicted to be faster: elements of several products need panels for each.
    """

    def fitted(candidate: Schedule) -> Fitted | str:
        found, way = fit(candidate), candidate.epilogue
        whole = isinstance(found, Fitted) and (
            found.schedule.pipeline.stages == candidate.pipeline.stages
        )
        if whole or way.through != "tma" or not candidate.specialised:
            return found
        fewer = fit(replace(candidate, epilogue=replace(way, slots=1, prefetch=1)))
        if isinstance(fewer, str) or isinstance(found, str):
            return found if isinstance(fewer, str) else fewer
        own, other = predict_all(device, [found, fewer], problem)
        return fewer if other < own else found

    return fitted


def _predicted(device: Device, decided: Schedule, fit: Fit, problem: Problem) -> float | None:
    """Predicted microseconds of a schedule that was chosen."""
    fitted = fit(decided)
    return predict(device, fitted, problem) if isinstance(fitted, Fitted) else None


def _finishing(program: Program, split: Split, device: Device, sizes: dict[str, int]) -> float:
    """Predicted microseconds of the launch that finishes rows."""
    written = {name for rows in split.rows for name in rows.outputs}
    outputs = sum(_bytes(one, sizes) for one in program.outputs if one.name in written)
    kept = sum(_bytes(one.tensor, sizes) for one in split.kept)
    functions = sum(_functions(rows, sizes) for rows in split.rows)
    return following(device, kept, outputs, functions)


def _functions(rows: Rows, sizes: dict[str, int]) -> int:
    """Functions beyond arithmetic of a row's elements, in every walk that evaluates them.

    What is the same for all elements of a row is evaluated once.
    """
    made = {one.write.name: one for one in rows.statements if isinstance(one, Pointwise)}
    inner = {iterator(axis) for axis in rows.inner}

    def behind(names: Iterable[str]) -> set[str]:
        """What a walk computes that ends with these values."""
        found: set[str] = set()
        left = [name for name in names if name in made]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [a.name for a in made[name].reads if a.name in made]
        return found

    @cache
    def varies(name: str) -> bool:
        """Whether a value depends on where in a row it is."""
        own = (one for one in made[name].args if not isinstance(one, Constant))
        return any(
            varies(one.name)
            if isinstance(one, Access) and one.name in made
            else not inner.isdisjoint(one.iterators)
            for one in own
        )

    walks = [behind(a.name for a in fold.reads) for fold in rows.folds]
    every = (name for names in (*walks, behind(rows.outputs)) for name in names if varies(name))
    costly = (made[name] for name in every if is_costly(made[name].function, made[name].args))
    return sum(math.prod(size_of(size, sizes) for _, size in one.domain) for one in costly)


def _row(matched: Match, sizes: dict[str, int]) -> int:
    """Elements of a row of results; 0: unknown."""
    return known_size(matched.n, sizes) or 0


def _widest(device: Device) -> int:
    """Columns of the widest tile."""
    return max(one.tile.cta.n for one in shipped(device))


def _bytes(tensor: Tensor, sizes: dict[str, int]) -> int:
    """Of an array, at the sizes to optimise for."""
    return math.prod(size_of(d, sizes) for d in tensor.dims) * tensor.dtype.bytes
