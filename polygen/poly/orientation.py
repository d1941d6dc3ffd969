"""Which way round the operands are: a result's columns along the instruction's n, or its m.

An instruction's m is 64 rows, its n any multiple of 8. The products of a program with few rows fill
little of a tile whose m they are, so a schedule may exchange the operands: D^T = W X^T instead of
D = X W^T. The program stays as it is. What changes is the name of two of its dims: the operand that
carries the columns of the result is the left one, and every access that runs along m runs along n.

All passes behind this one read names, so none of them asks which way round the operands are.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.poly.joined import joined
from polygen.poly.match import Along, Match
from polygen.poly.operand import Operand
from polygen.poly.pixel_axes import in_boxes, work_in_boxes
from polygen.poly.pointwise import Element, Pointwork
from polygen.poly.prologue import Prologue
from polygen.poly.register_operands import in_registers
from polygen.schedule.model import Schedule

_OTHER = {"m": "n", "n": "m"}
_SIDE = {"m": "a", "n": "b"}


def oriented(match: Match, schedule: Schedule) -> Match:
    """The products as a schedule has them run: as they are matched, with rows that are pixels of
    boxes (`polygen.poly.pixel_axes`), or with operands exchanged, and with sums over axes that are
    one (`polygen.poly.joined`).

    Raises:
        ScheduleError: consumers cannot compute the left operand as the schedule says, rows have
            fewer axes than boxes, or there are no axes to join.
    """
    found = exchanged(match) if schedule.exchange else in_boxes(match, schedule)
    found = joined(found, schedule)
    return in_registers(found, schedule) if schedule.from_registers else found


def oriented_work(work: Pointwork, match: Match, schedule: Schedule) -> Pointwork:
    """The epilogue of products that are oriented so; `match`: as they are matched."""
    if schedule.exchange:
        return exchanged_work(work)
    return work_in_boxes(work, match, schedule)


def exchanged(match: Match) -> Match:
    """The same products with m and n exchanged; twice, they are as before."""
    names, made = {}, []
    for name, operand in match.operands:
        side = _SIDE[operand.role]
        names[name] = _SIDE[_OTHER[operand.role]] + name.removeprefix(side)
        made.append((names[name], _operand(operand)))
    return replace(
        match,
        products=tuple(
            replace(
                one,
                left=names[one.right],
                right=names[one.left],
                factors=tuple(map(_element, one.factors)),
            )
            for one in match.products
        ),
        operands=tuple(sorted(made, key=lambda item: item[1].role)),
        axes=tuple(_OTHER.get(dim, dim) for dim in match.axes),
        m=match.n,
        n=match.m,
        domain=tuple((b, a, c) for a, b, c in match.domain),
    )


def exchanged_work(work: Pointwork) -> Pointwork:
    """The same epilogue with m and n exchanged."""
    return replace(
        work,
        reads=tuple(map(_element, work.reads)),
        writes=tuple(map(_element, work.writes)),
        coordinates=tuple((name, _along(one)) for name, one in work.coordinates),
    )


def _operand(operand: Operand) -> Operand:
    return replace(
        operand,
        role=_OTHER[operand.role],
        index=tuple(map(_along, operand.index)),
        extents=tuple((_OTHER.get(dim, dim), extent) for dim, extent in operand.extents),
        computed=None if operand.computed is None else _computed(operand.computed),
    )


def _computed(prologue: Prologue) -> Prologue:
    return replace(
        prologue,
        reads=tuple(map(_element, prologue.reads)),
        coordinates=tuple((name, _along(one)) for name, one in prologue.coordinates),
    )


def _element(element: Element) -> Element:
    return replace(element, index=tuple(map(_along, element.index)))


def _along(one: Along) -> Along:
    return one.renamed(_OTHER)
