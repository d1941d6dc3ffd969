"""Rows in groups: that every row is in one tile, whatever the groups; proved a group at a time.

A kernel walks groups in their order. It comes to group e with `t` row tiles and `b` rows behind it;
the group has the rows from b up to the greatest of b and its end, and its tiles are numbered from t
on, each with `tile` rows but the last. Then `t` and `b` go up by its tiles and its rows.

1. A group, of any number of rows r >= 0 and from any t and b: its tiles are the ceil(r / tile) from
   t on, none of them without a row, and each of its rows b to b + r - 1 is in one of them. isl
   decides that with t, b and r as parameters.
2. All groups: the first begins at t = 0, b = 0, each where the one before it ends, both for tiles
   and for rows. So by induction over the groups the numbers of tiles are those from 0 to their sum,
   each of one group, and the rows those from 0 to the greatest end, each in one tile. isl decides
   the step: what was partitioned up to (t, b), and a group from there on, are a partition up to
   (t + ceil(r / tile), b + r).
3. The group of row m is the first e with m < ends[e]: b is the greatest of 0 and the ends before,
   so that e has the rows from b on that lie before its end. That is the step, too.

The code of a walk is written from a `GroupWalk`, whose formulas are text that C and isl read alike.
They are what is proved: that the assignments of a step, one after the other, are the step above;
that a walk goes on as long as the tile that it looks for lies behind a group, and no further; and
that lanes of a warp that look at a group each find the same.

Inside a group rows count from 0, as in a matrix of its own: dependences, tiles and accesses are
proved for every number of rows there (`polygen.poly.refine`, `polygen.poly.raster`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof

_PREFIX = "[t, b, r, c] -> "
_STATE = ("group", "first_tile", "tiles", "before", "rows")
_WHERE = "groups"


@dataclass(frozen=True, slots=True)
class GroupWalk:
    """A walk over groups of rows, from in front of the first group on.

    Attributes:
        lanes: of a warp.
        next: the step to the next group, of which the table says `end`: assignments in their order.
            What is in braces is divided by the rows of a tile, and rounded down.
        beyond: whether tile `wanted` is not of this group, nor of one before it.
        last: whether there is no group behind it.
        own_end: by all lanes together, a group each: where one ends, for all that its lane knows.
        own_tiles: how many tiles it has, from the `start` to the `end` that lanes find together.
        found: whether tile `wanted` is of it or one before it; `last_tile` is behind its tiles.
        together: what the walk then knows, of the first lane that finds it.
        shifts: how far behind each other lanes combine what they have, one after the other.
        carry: the lane whose `last_tile` and `end` are what is before the next lanes' groups.
    """

    lanes: int
    next: tuple[tuple[str, str], ...] = (
        ("first_tile", "first_tile + tiles"),
        ("before", "before + rows"),
        ("group", "group + 1"),
        ("rows", "max(min(end, most) - before, 0)"),
        ("tiles", "{rows + tile - 1}"),
    )
    beyond: str = "wanted >= first_tile + tiles"
    last: str = "group + 1 >= groups"
    own_end: str = "min(end, most)"
    own_tiles: str = "{end - start + tile - 1}"
    found: str = "wanted < last_tile"
    together: tuple[tuple[str, str], ...] = (
        ("tiles", "own_tiles"),
        ("first_tile", "last_tile - own_tiles"),
        ("before", "start"),
        ("rows", "end - start"),
    )
    shifts: tuple[int, ...] = ()
    carry: int = 0


def group_walk(lanes: int) -> GroupWalk:
    """The walk of a kernel whose warps have so many lanes."""
    shifts = tuple(1 << bit for bit in range((lanes - 1).bit_length()))
    return GroupWalk(lanes, shifts=shifts, carry=lanes - 1)


def divided(text: str, form: str) -> str:
    """A formula with its quotient as `form` writes it: ``({}) / tile``."""
    if not text.startswith("{"):
        return text
    return form.format(text[1:-1])


@lru_cache(maxsize=64)
def prove_row_groups(walk: GroupWalk, tile: int) -> tuple[Proof, ...]:
    """Prove that tiles of groups partition rows in groups, and that a walk finds them.

    Args:
        walk: what the kernel's code is written from.
        tile: rows of a tile; of a cluster, of all its tiles below one another.

    Raises:
        VerifyError: a group is left out or met twice, or is another than the definition says; with
            an instance.
    """
    # c is ceil(r / tile), as the walk computes it.
    known = f"t >= 0 and b >= 0 and r >= 0 and c = floor((r + {tile - 1})/{tile})"
    _prove_group(tile, known)
    _prove_step(known)
    _prove_owner()
    _prove_next(walk, tile)
    _prove_search(walk, tile)
    _prove_together(walk, tile)
    _prove_scans(walk)
    each = f"tiles of {tile} rows, any number of rows"
    return (
        Proof("every row of a group is in exactly one of its tiles, none of them empty", each),
        Proof("tiles and rows of all groups are numbered through, one group after another", each),
        Proof("a walk finds the group of every tile, by itself or by all lanes of a warp", each),
    )


def _prove_group(tile: int, known: str) -> None:
    """Row l of tile q of a group is row b + (q - t)*tile + l: all of the group's, each once."""
    inside = f"t <= q < t + c and 0 <= l < {tile} and (q - t)*{tile} + l < r"
    place = isl.Map(f"{_PREFIX}{{ [q, l] -> [b + (q - t)*{tile} + l] : {inside} and {known} }}")
    rows = isl.Set(f"{_PREFIX}{{ [m] : b <= m < b + r and {known} }}")
    tiles = isl.Set(f"{_PREFIX}{{ [q] : t <= q < t + c and {known} }}")
    used = place.domain().project_out(isl.dim_type.set, 1, 1)
    if not (place.is_bijective() and place.range().is_equal(rows) and used.is_equal(tiles)):
        raise VerifyError(f"tiles of {tile} rows do not partition a group", where=_WHERE)


def _prove_step(known: str) -> None:
    """What is behind a group, and the group, are all up to its end, and have nothing in common."""
    for first, count in (("t", "c"), ("b", "r")):
        before, own, together = (
            isl.Set(f"{_PREFIX}{{ [x] : {bounds} and {known} }}")
            for bounds in (
                f"0 <= x < {first}",
                f"{first} <= x < {first} + {count}",
                f"0 <= x < {first} + {count}",
            )
        )
        if not (before.intersect(own).is_empty() and before.union(own).is_equal(together)):
            raise VerifyError("groups do not follow each other", where=_WHERE)


def _prove_owner() -> None:
    """A group that begins behind all ends before it has the rows from there up to its own end."""
    own = isl.Set("[b, e] -> { [m] : b <= m < max(b, e) }")
    wanted = isl.Set("[b, e] -> { [m] : m >= b and m < e }")
    if not own.is_equal(wanted):
        raise VerifyError("a group has rows of another", where=_WHERE)


def _refuse(claim: str, rest: isl.Set | isl.Map) -> None:
    """Refuse what is not empty, with an instance."""
    if not rest.is_empty():
        found = isl.sample_point(rest if isinstance(rest, isl.Set) else rest.wrap())
        raise VerifyError(f"{claim}: {found}", where=_WHERE)


def _in_isl(text: str, tile: int) -> str:
    """A formula for tiles of so many rows; divided by a tile, it is rounded down."""
    return re.sub(r"\btile\b", str(tile), divided(text, f"floor(({{}})/{tile})"))


def _known(tile: int) -> str:
    counts = f"tiles = floor((rows + {tile - 1})/{tile})"
    return f"group >= -1 and first_tile >= 0 and before >= 0 and rows >= 0 and {counts}"


def _prove_next(walk: GroupWalk, tile: int) -> None:
    """The assignments, one after the other, are the step from a group to the next."""
    names, before = "[end, most] -> ", ", ".join(_STATE)
    step = isl.Map(f"{names}{{ [{before}] -> [{before}] : {_known(tile)} }}")
    for name, text in walk.next:
        if text.startswith("{"):  # C rounds to zero: down, where it is not negative
            number = _in_isl(text[1:-1], tile)
            negative = isl.Set(f"{names}{{ [{before}] : {number} < 0 }}")
            _refuse("what is divided is negative", step.range().intersect(negative))
        after = ", ".join(_in_isl(text, tile) if one == name else one for one in _STATE)
        step = step.apply_range(isl.Map(f"{names}{{ [{before}] -> [{after}] }}"))
    begins, ends = "before + rows", "max(before + rows, min(end, most))"
    rows = f"{ends} - ({begins})"
    count = f"floor(({rows} + {tile - 1})/{tile})"
    after = f"group + 1, first_tile + tiles, {count}, {begins}, {rows}"
    wanted = isl.Map(f"{names}{{ [{before}] -> [{after}] : most >= 0 and {_known(tile)} }}")
    step = step.intersect_params(isl.Set("[end, most] -> { : most >= 0 }"))
    _refuse("a step of the walk is not to the next group", wanted.subtract(step))
    _refuse("a step of the walk is to another group", step.subtract(wanted))


def _prove_search(walk: GroupWalk, tile: int) -> None:
    """A walk stops in the group of the tile that it looks for, and ends behind the last one."""
    state = ", ".join(_STATE)
    # What it looks for lies behind all groups before: so it begins, and so it goes on.
    there = f"{_known(tile)} and wanted >= first_tile and group < groups"
    names = "[wanted, groups] -> "
    on = isl.Set(f"{names}{{ [{state}] : {there} and {walk.beyond} }}")
    behind = isl.Set(f"{names}{{ [{state}] : {there} and first_tile + tiles <= wanted }}")
    _refuse("the walk stops before the group of a tile", behind.subtract(on))
    _refuse("the walk passes the group of a tile", on.subtract(behind))
    last = isl.Set(f"{names}{{ [{state}] : {there} and {walk.last} }}")
    none = isl.Set(f"{names}{{ [{state}] : {there} and group = groups - 1 }}")
    _refuse("the walk goes on behind the last group", none.subtract(last))
    _refuse("the walk ends before the last group", last.subtract(none))


def _prove_together(walk: GroupWalk, tile: int) -> None:
    """Of each lane's group, what lanes find together is what the step to it says."""
    # Of a group: where those before it end, its number in the table, and the tiles before it.
    given, order = "[start, number, front]", ("tiles", "first_tile", "before", "rows")
    own = walk.own_end.replace("end", "number")
    names = f"end = max(start, {own}) and own_tiles = {_in_isl(walk.own_tiles, tile)}"
    names += " and last_tile = front + own_tiles"
    known = "start >= 0 and front >= 0 and most >= 0"
    together = dict(walk.together)
    if sorted(together) != sorted(order):
        raise VerifyError(f"lanes together find {', '.join(together)}", where=_WHERE)
    results = " and ".join(f"known_{name} = {together[name]}" for name in order)
    after = ", ".join(f"known_{name}" for name in order)
    made = isl.Map(
        f"[most] -> {{ {given} -> [{after}] : exists (end, own_tiles, last_tile : {names} and "
        f"{results}) and {known} }}"
    )
    rows = "max(start, min(number, most)) - start"
    count = f"floor(({rows} + {tile - 1})/{tile})"
    wanted = isl.Map(f"[most] -> {{ {given} -> [{count}, front, start, {rows}] : {known} }}")
    _refuse("lanes together find another group", made.subtract(wanted))
    _refuse("lanes together do not find a group", wanted.subtract(made))
    state = "[front, own_tiles, last_tile, wanted] : front >= 0 and own_tiles >= 0"
    state += " and last_tile = front + own_tiles and wanted >= front"
    found = isl.Set(f"{{ {state} and {walk.found} }}")
    inside = isl.Set(f"{{ {state} and wanted < last_tile }}")
    _refuse("lanes together do not find a tile", inside.subtract(found))
    _refuse("lanes together find a tile in another group", found.subtract(inside))


def _prove_scans(walk: GroupWalk) -> None:
    """Each lane combines what all lanes up to it have, each once; the last one all of them."""
    held = [[lane] for lane in range(walk.lanes)]
    for shift in walk.shifts:
        held = [
            (held[lane - shift] if lane >= shift else []) + held[lane] for lane in range(walk.lanes)
        ]
    for lane, combined in enumerate(held):
        if sorted(combined) != list(range(lane + 1)):
            raise VerifyError(f"lane {lane} combines what lanes {combined} have", where=_WHERE)
    if walk.carry != walk.lanes - 1:
        raise VerifyError(f"lane {walk.carry} has not all groups", where=_WHERE)
