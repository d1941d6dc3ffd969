"""Which sums a kernel has, known from its schedule; and the one class that all sizes share.

1. `sums_of` says what the trees of a schedule will be proved to do (`polygen.poly.sum_order`):
   the kind of instruction, the order of k, and how many groups enter a sum.
2. With invariant dims every size takes a schedule of one class. `shared` picks it without looking
   at those sizes: of the classes of all schedules that fit, the one whose best schedule loses least
   to the best of all, by the cost model, over a ladder of sizes. What was measured has no part in
   it, so that tuning never changes bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from polygen.errors import InvarianceError
from polygen.fit import instruction_for
from polygen.frontend.program import Program
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device
from polygen.poly.match import Match
from polygen.poly.orientation import oriented
from polygen.poly.sum_order import group_count
from polygen.poly.tiling import tiling
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.sums import (
    ASCENDING,
    FROM_FIRST,
    FROM_ZERO,
    IN_TURN,
    SumOrder,
    Sums,
    in_blocks,
    ranges,
    sum_order,
    turned,
)
from polygen.tune.cost import predict_all

# Sizes along the invariant dims at which classes are compared.
LADDER = (1, 16, 64, 256, 1024, 4096)
K_TILE_BYTES = (64, 128, 256)  # of a row of an operand, that shipped schedules copy at once
MOST_STAGES = 12

Fit = Callable[[Schedule], Fitted | str]


def sums_of(schedule: Schedule, atom: Atom, matched: Match, invariant: Sequence[str] = ()) -> Sums:
    """The sums that a schedule makes, as they will be proved.

    Args:
        schedule: as fitted.
        atom: its instruction.
        matched: the products.
        invariant: the program's.
    """
    tiles, over = tiling(schedule, atom), [n for _, n in matched.sums]
    each = [
        (
            group_count(one, matched.depths, one.split, over),
            *((ranges(one.split), IN_TURN) if one.split > 1 else ("", "")),
        )
        for one in tiles.kinds
    ]
    if matched.block:
        each = [(group_count(tiles, (matched.block,)), in_blocks(matched.block), IN_TURN)]
    begins = FROM_FIRST if schedule.specialised else FROM_ZERO
    instruction = turned(atom.name, schedule.exchange, atom.exchangeable)

    def order(product: str) -> SumOrder:
        first, *others = (
            sum_order(
                product, instruction, atom.c.dtype, atom.k, ASCENDING, count=count, begins=begins,
                parts=parts, combine=combine,
            )
            for count, parts, combine in each
        )  # fmt: skip
        return functools.reduce(SumOrder.beside, others, first)

    orders = tuple(order(one.contraction.name) for one in matched.products)
    return Sums(orders, tuple(invariant))


def shared(
    device: Device, matched: Match, fitted: Sequence[Fitted], ladder: Sequence[Problem]
) -> str:
    """The class of sums that loses least over a ladder of sizes.

    Args:
        device: the target.
        matched: the products.
        fitted: all schedules that fit, for every size.
        ladder: the problem at each size.

    Returns:
        Its text; "" where nothing fits.
    """
    classes: dict[str, list[int]] = {}
    for at, one in enumerate(fitted):
        if one.schedule.cluster.last:
            continue  # which tiles have which sums depends on the sizes
        classes.setdefault(_text(one.schedule, matched, device), []).append(at)
    if len(classes) < 2:
        return next(iter(classes), "")
    worst = dict.fromkeys(classes, 1.0)
    for problem in ladder:
        times = predict_all(device, fitted, problem)
        best = min(times)
        for name, members in classes.items():
            worst[name] = max(worst[name], min(times[at] for at in members) / best)
    return min(worst, key=lambda name: (worst[name], name))


def of_class(
    fit: Fit, text: str, matched: Match, device: Device, *, in_other_k_tiles: bool = True
) -> Fit:
    """A fit to one class of sums: what is of another is fitted with other k tiles, or refused.

    Args:
        fit: to the program, whatever the class.
        text: of the class.
        matched: the products.
        device: the target.
        in_other_k_tiles: false for what was measured, and is taken as it was.
    """

    def fits(candidate: Schedule) -> Fitted | str:
        refused = ""
        for one in in_k_tiles(candidate, matched) if in_other_k_tiles else (candidate,):
            found = fit(one)
            if isinstance(found, str):
                refused = refused or found
                continue
            own = _text(found.schedule, matched, device)
            if found.schedule.cluster.last:
                refused = refused or f"blocks share the sums of some tiles: {own}"
                continue
            if own == text:
                return found
            refused = refused or f"its sums are of another class: {own}"
        return refused

    return fits


def in_k_tiles(schedule: Schedule, matched: Match) -> tuple[Schedule, ...]:
    """A schedule with its own k tiles, then with others and as much in flight.

    Groups of zeros behind the end of a sum are part of its class, and k tiles say how many there
    are. With roles k tiles are given by the swizzle's span.
    """
    if schedule.specialised:
        return (schedule,)
    cta, pipeline = schedule.tile.cta, schedule.pipeline
    others = [size // matched.a.tensor.dtype.bytes for size in K_TILE_BYTES]
    found = [schedule]
    for k in others:
        stages = max(2, pipeline.stages * cta.k // k)
        if k == cta.k or stages > MOST_STAGES:
            continue
        behind = pipeline.stages - pipeline.distance
        timed = replace(pipeline, stages=stages, distance=max(1, stages - behind))
        if schedule.by_lanes:  # without a ring
            timed = pipeline
        tile = replace(schedule.tile, cta=replace(cta, k=k))
        found.append(replace(schedule, name=f"{schedule.name}_k{k}", tile=tile, pipeline=timed))
    return tuple(found)


def _text(schedule: Schedule, matched: Match, device: Device) -> str:
    as_run = oriented(matched, schedule)
    return sums_of(schedule, instruction_for(as_run, device, schedule), as_run).text


def check_class(found: Sums, program: Program, wanted: str) -> None:
    """Refuse a kernel whose sums are not those that all sizes share.

    Args:
        found: what was proved of its trees.
        program: what it computes.
        wanted: the class of the kernels for other sizes, or of the choice.

    Raises:
        InvarianceError: it has another.
    """
    if found.text != wanted:
        raise InvarianceError(
            f"the sums are of another class: {found.text}",
            where=f"{program.name}, invariant in {', '.join(program.invariant)}",
            why=f"kernels for other sizes have {wanted}",
            nearest="Pass arrays whose rows are aligned as those the kernel was compiled for, or "
            "compile for the least alignment there is: x:bf16[M,K]@2",
        )
