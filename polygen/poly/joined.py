"""Sums over several axes as sums over one: k tiles that go through channels and taps of windows.

    S0[p,q,j,r,s,c]   x[p + r, q + s, c] * w[r,s,c,j]     r < R, s < S, c < C
    one axis k        x[p + floor(k/(S*C)), q + floor(k/C) mod S, k mod C]

1. A k tile lies within one index of the outer axes, so that few channels leave most of it empty.
   The places of a number over all of their radices are all of their tuples, in the same order:
   operands are read at digits of one k, and a k tile goes on with the next tap (`joined`).
2. With roles a box has neighbours of one tap. Where channels are no whole chunks, a run of
   neighbours is as many as chunks hold: what lies behind the last channel is outside of every
   operand's axis of channels, where zeros are read.
3. That the digits walk the tuples in their order, each once, and that operands are read at the same
   elements, is proved (`prove_joined`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from polygen import isl
from polygen.errors import ScheduleError, VerifyError
from polygen.frontend.program import Dim
from polygen.poly.elements import Along
from polygen.poly.legality import Proof
from polygen.poly.match import Joined, Match
from polygen.poly.operand import Operand
from polygen.schedule.joined import run_of
from polygen.schedule.model import Schedule

K = "k"


def axis_of_run(index: tuple[Along, ...]) -> int:
    """The axis along which an operand has the elements of one tap."""
    return next(
        axis
        for axis, one in enumerate(index)
        if any(term.dim == K and term.per == 1 for term in one.terms)
    )


def joinable(match: Match) -> bool:
    """Whether the sums go over several axes that could be one."""
    return _reason(match) is None


def joined(match: Match, schedule: Schedule) -> Match:
    """The products with sums over one axis, where a schedule has them so.

    Args:
        match: in the order and with the boxes of the schedule.
        schedule: any.

    Raises:
        ScheduleError: the sums are of one axis already, or have no digits.
    """
    if not schedule.tile.joined:
        return match
    reason = _reason(match)
    if reason is not None:
        what, why = reason
        raise ScheduleError(
            f"tile.joined with {what}",
            where=f"schedule {schedule.name}",
            why=why,
            nearest="Leave tile.joined out",
        )
    dims = tuple((dim, _number(extent)) for dim, extent in match.sums)
    (depth,) = map(_number, match.depths)
    run = run_of(depth, match.a.tensor.dtype.bytes, schedule)
    length = math.prod(extent for _, extent in dims) * run
    places = _places(dims, run)
    operands = tuple((name, _operand(one, places, length)) for name, one in match.operands)
    made = Joined(
        (*dims, (K, depth)), run, tuple((name, one.index) for name, one in match.operands)
    )
    return replace(match, operands=operands, sums=(), depths=(length,), joined=made)


def _number(extent: Dim) -> int:
    assert isinstance(extent, int)
    return extent


def _reason(match: Match) -> tuple[str, str] | None:
    """Why the sums are not joined: what there is, and why it is none; None: they can be."""
    if not match.sums:
        return ("sums over one axis", "there are no taps, or the like, to go on with")
    extents = [*match.sums, (K, match.depths[0])]
    named = next((extent for _, extent in extents if isinstance(extent, str)), None)
    if named is not None:
        return (f"sums over {named}", "elements are found by digits, whose radices are numbers")
    for _, one in match.operands:
        if one.computed is not None or one.fragment is not None:
            return (f"{one.tensor.name}, which is computed", "its runs of elements are computed")
        terms = [term for at in one.index for term in at.terms if _summed(term.dim, match)]
        if any((term.per, term.modulo, term.rows) != (1, 0, "") for term in terms):
            return (str(one), "what is summed is read at digits, or at numbers, already")
    if match.rest is not None or match.block or match.groups is not None:
        return ("sums that go on, or are of blocks, or of groups", "their k tiles are counted")
    return None


def _summed(dim: str, match: Match) -> bool:
    return dim == K or dim in dict(match.sums)


def _places(dims: tuple[tuple[str, int], ...], run: int) -> dict[str, tuple[int, int]]:
    """Per dim the indices of k of one of its own, and its radix; 0: of the first, which has none.

    The innermost is the last.
    """
    found, per = {K: (1, run)}, run
    for number, (dim, extent) in reversed(list(enumerate(dims))):
        found[dim] = (per, extent if number else 0)
        per *= extent
    return found


def _operand(operand: Operand, places: Mapping[str, tuple[int, int]], length: int) -> Operand:
    extents = tuple(item for item in operand.extents if item[0] not in places)
    return replace(
        operand,
        index=tuple(_index(one, places) for one in operand.index),
        extents=(*extents, (K, length)),
    )


def _index(one: Along, places: Mapping[str, tuple[int, int]]) -> Along:
    more = tuple(_index(term, places) for term in one.more)
    if one.dim not in places:
        return replace(one, more=more)
    per, modulo = places[one.dim]
    return replace(one, dim=K, per=per, modulo=modulo, more=more)


# --- proofs --------------------------------------------------------------------------------------
def prove_joined(match: Match) -> tuple[Proof, ...]:
    """Prove that digits of k are the tuples that are summed, and operands are read at the same.

    Args:
        match: joined; nothing is proved of others.

    Raises:
        VerifyError: never for positive extents; the check guards the formulas.
    """
    made = match.joined
    if made is None:
        return ()
    (length,) = match.depths
    names = [f"o{number}" for number, _ in enumerate(made.dims)]
    of = dict(zip((dim for dim, _ in made.dims), names, strict=True))
    bounds = [f"0 <= {of[dim]} < {extent}" for dim, extent in made.dims]
    every = isl.Set(f"{{ [{','.join(names)}] : {' and '.join(bounds)} }}")
    places = _places(made.dims[:-1], made.run)
    digits = ",".join(_text(_index(Along(dim), places), {}) for dim, _ in made.dims)
    walk = isl.Map(f"{{ [k] -> [{digits}] : 0 <= k < {length} }}")
    ks = walk.domain()
    before, after = ks.lex_lt_set(ks), walk.range().lex_lt_set(walk.range())
    if not (
        every.is_subset(walk.range())
        and walk.is_injective()
        and before.apply_domain(walk).apply_range(walk).is_subset(after)
    ):
        raise VerifyError(f"digits of k are not the {made.dims} that are summed", where="joined")
    others = sorted({dim for _, one in match.operands for dim, _ in one.extents} - {K})
    outside = walk.range().subtract(every)
    for name, index in made.indices:
        operand = match.operand(name)
        space = ",".join([*others, *names])
        was = isl.Map(f"{{ [{space}] -> [{','.join(_text(one, of) for one in index)}] }}")
        now = ",".join(_text(one, {}) for one in operand.index)
        reads = isl.Map(f"{{ [{','.join([*others, K])}] -> [{now}] : 0 <= k < {length} }}")
        along = ",".join([*others, K])
        tuples = isl.Map(f"{{ [{along}] -> [{','.join([*others, digits])}] : 0 <= k < {length} }}")
        if not tuples.apply_range(was).is_equal(reads):
            raise VerifyError(f"joined sums read {operand} elsewhere", where=operand.tensor.name)
        _prove_outside(operand, was, outside, (others, names))
    return (
        Proof(
            "one axis of k has every tuple that is summed once, in their order, read where it was",
            " x ".join(str(extent) for _, extent in made.dims),
        ),
    )


def _prove_outside(
    operand: Operand, was: isl.Map, outside: isl.Set, names: tuple[list[str], list[str]]
) -> None:
    """What a run has behind its last element lies outside of the operand, where zeros are read.

    Args:
        operand: over digits.
        was: what it read over the dims that were summed.
        outside: of these dims, what no sum has.
        names: of the other dims, and of these.
    """
    axis = axis_of_run(operand.index)
    extent = operand.tensor.dims[axis]
    if outside.is_empty():
        return
    others, own = names
    tuples = isl.Map(f"{{ [{','.join(own)}] -> [{','.join([*others, *own])}] }}")
    places = tuples.intersect_domain(outside).range()
    image = places.apply(was)
    count = len(operand.index)
    at = ",".join(f"a{number}" for number in range(count))
    inside = isl.Set(f"{{ [{at}] : 0 <= a{axis} < {extent} }}")
    if not isinstance(extent, int) or not image.intersect(inside).is_empty():
        raise VerifyError(f"{operand.tensor.name} has elements behind a run's", where="joined")


def _text(one: Along, of: Mapping[str, str]) -> str:
    """An index as isl text, over dims that may have other names."""
    terms = []
    for term in one.terms:
        place = of.get(term.dim, term.dim)
        place = f"floor({place}/{term.per})" if term.per > 1 else place
        place = f"({place} mod {term.modulo})" if term.modulo else place
        terms.append(f"{term.scale}*{place}")
    return " + ".join([*terms, str(one.offset)])
