"""Promotions, as they are written: elements of sums, and the factors that their blocks are times.

Factors are read by every thread of the first block, of one in the middle and of the last, whose
tile ends inside, for the first blocks of a sum and the last one: every number that an element
inside takes is that of its own row or column. Then each element is added to, once, its own inner
sum times the numbers that are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polygen.emit.c_text import read
from polygen.emit.leaf.table import proof
from polygen.emit.proofs.blocks import end
from polygen.emit.proofs.threads import (
    IN_FRONT,
    Arrays,
    Integers,
    evaluated,
    of_kernel,
    of_place,
    size,
)
from polygen.emit.run_text import Called
from polygen.emit.text_functions import run
from polygen.emit.text_values import Register, mixed
from polygen.errors import VerifyError
from polygen.lower.accesses import ROWS_BEFORE, ROWS_OF_GROUP
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.promoting import Promote
from polygen.lower.verify_promotions import promoted
from polygen.poly.elements import Element

_SIDES = {"m": "row", "n": "column"}
_FIRST = 2  # blocks


@proof("read_scales", "threads", Promote)
def _(plan: KernelPlan, leaf: Leaf, work: Promote, texts: tuple[str, ...]) -> None:
    extents = dict(plan.extents)
    ends = {str(extents[role]): end(plan, role) for role in "mn"}
    if plan.match.groups:
        ends[str(extents["m"])] = 1 << 14
    names = of_kernel(plan, ends) | {ROWS_BEFORE: IN_FRONT, ROWS_OF_GROUP: end(plan, "m")}
    own, threads = of_place(plan, leaf.place)
    names |= own
    arrays = Arrays(plan, names)
    lengths = {role: size(names, extents[role]) for role in "mn"}
    if plan.match.groups:
        lengths["m"] = names[ROWS_OF_GROUP]
    last = [(lengths[role] - 1) // plan.tiles.cta["mn".index(role)] for role in "mn"]
    for block in dict.fromkeys(zip(*((0, one // 2, one) for one in last), strict=True)):
        names |= dict(zip(("b_m", "b_n"), block, strict=True))
        sides = [one for one in _SIDES if _factors(plan, work, one)]
        numbers = {side: _numbers(plan, work, side, names) for side in sides}
        for k in _blocks(plan, work, names):
            left = run(read(texts[0]), names | {"k": k}, threads, arrays.handlers()).names
            at = {"k": k * work.tile[2]}
            if work.of_side(""):
                _compare(arrays, names, _factors(plan, work, ""), at, left[_of_all(work)], "all")
            for side, (number, place) in numbers.items():
                found = left[f"{work.scales}_{_SIDES[side]}"].base[number]
                where, what = at | {side: np.minimum(place, lengths[side] - 1)}, f"{_SIDES[side]}s"
                inside = place < lengths[side]
                _compare(arrays, names, _factors(plan, work, side), where, found, what, inside)


def _blocks(plan: KernelPlan, work: Promote, names: Mapping[str, Any]) -> list[int]:
    """The k tiles with which some blocks of a sum begin: the first ones and the last one."""
    every = -(-size(names, plan.match.depths[0]) // work.tile[2]) // work.tiles
    return [work.tiles * at for at in sorted({*range(min(every, _FIRST)), max(every - 1, 0)})]


def _compare(
    arrays: Arrays, names: Mapping[str, Any], factors: tuple[Element, ...], at: Mapping[str, Any],
    found: Any, what: str, who: Any = True,
) -> None:  # fmt: skip
    """A number is the product of factors, where dims are at their places.

    Args:
        arrays: of which they are elements.
        names: that threads know.
        factors: of the program.
        at: where dims are.
        found: the number, of all threads.
        what: it is called.
        who: has it.

    Raises:
        VerifyError: it is another one.
    """
    wanted: Any = np.ones((), np.int64)
    for one in factors:
        wanted = wanted * np.asarray(arrays.number(names, one, at))
    wrong = np.atleast_1d((found != wanted) & who)
    if wrong.any():
        thread = int(np.nonzero(wrong)[-1][0])
        raise VerifyError(
            f"a number of {what} is not of its own factors in thread {thread}, at k = {at['k']}"
        )


def _factors(plan: KernelPlan, work: Promote, side: str) -> tuple[Element, ...]:
    """The program's factors that go with rows, columns, or neither."""
    _, product = promoted(plan, work)
    other = {one for one in "mn" if one != side}
    alone = [f for f in product.factors if all(f.axis(one) is None for one in other)]
    return tuple(f for f in alone if not side or f.axis(side) is not None)


def _numbers(
    plan: KernelPlan, work: Promote, side: str, names: Mapping[str, Any]
) -> tuple[Integers, Integers]:
    """The numbers that elements take, and rows or columns of theirs in all threads."""
    axis, tiles, atom = "mn".index(side), plan.tiles, plan.atom
    first = names[f"b_{side}"] * tiles.cta[axis] + names[f"w_{side}"] * tiles.warp[axis]
    own = atom.c.table[names["thread"] % atom.lanes][..., axis]
    text = (work.row_number, work.column_number)[axis]
    every = list(np.ndindex((work.instructions, work.groups)[axis], atom.c.elements))
    numbers = [int(evaluated(text(element), {"m": at, "j": at})) for at, element in every]
    places = [first + at * (atom.m, atom.n)[axis] + own[:, element] for at, element in every]
    return np.array(numbers), np.stack(places)


@proof("promote", "threads", Promote)
def _(plan: KernelPlan, leaf: Leaf, work: Promote, texts: tuple[str, ...]) -> None:
    dims = (work.instructions, work.groups, plan.atom.c.elements)
    first = evaluated("-0.0f", {})
    numbers = {name: _held(name, (count,)) for name, count in _counts(work).items()}
    numbers |= {_of_all(work): mixed("all")} if work.of_side("") else {}
    for k in sorted({0, work.tiles - 1, work.tiles, work.tiles + 1}):
        total, inner = _held("total", dims), _held("inner", (work.sets, *dims))
        before, own = total.base.reshape(dims).copy(), inner.base.reshape(-1, *dims)[k % work.sets]
        wanted = np.where(k < work.tiles, first, before) + own * _of_elements(work, numbers, dims)
        inner = inner if work.sets > 1 else Register(inner.base, 0, dims)
        names = numbers | {work.total: total, work.inner: inner, "k": k}
        for m in range(dims[0]) if "m" in leaf.loops else (0,):
            run(read(texts[0]), names | {"m": m}, 1, {"fmaf": _added})
        wrong = total.base.reshape(dims) != wanted
        if wrong.any():
            of = "][".join(str(one[0]) for one in np.nonzero(wrong))
            raise VerifyError(f"{work.total}[{of}] is not of its own numbers, at k = {k}")


def _counts(work: Promote) -> dict[str, int]:
    """The registers of numbers of rows and of columns, and how many there are."""
    counts = {"row": work.row_numbers, "column": work.column_numbers}
    return {f"{work.scales}_{side}": count for side, count in counts.items() if count}


def _of_all(work: Promote) -> str:
    """The number of all elements."""
    return f"{work.scales}_all"


def _held(name: str, dims: tuple[int, ...]) -> Register:
    """Registers whose elements are numbers of their own."""
    return Register(mixed(name, np.arange(np.prod(dims))[:, None]), 0, dims)


def _of_elements(work: Promote, numbers: Mapping[str, Any], dims: tuple[int, ...]) -> Any:
    """What elements are multiplied by, of the numbers that `read_scales` was proved to leave."""
    found: Any = np.ones(dims, np.int64)
    for side, number in (("row", work.row_number), ("column", work.column_number)):
        name = f"{work.scales}_{side}"
        if name in numbers:
            places = [evaluated(number(e), {"m": m, "j": j}) for m, j, e in np.ndindex(*dims)]
            found = found * numbers[name].base[np.array(places, int), 0].reshape(dims)
    return found * numbers.get(_of_all(work), 1)


def _added(called: Called) -> Any:
    factor, number, before = called.values
    return factor * number + before
