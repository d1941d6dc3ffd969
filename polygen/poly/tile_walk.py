"""The walk by which a persistent block finds its tiles, those with products before the others.

A place is a group of tiles along one dim, and a column across. The walk remembers where it is, and
how many tiles there are in front of that: it passes over columns as long as the number that it
looks for lies behind all of their tiles, goes on to the next group behind the last column, and
stops in the column that has the tile. It goes twice through all places: first for the tiles inside
of the domain, then for the others.

All that the kernel's code has of it are the formulas of a `TileWalk`, as text that C and isl read
alike. They are what is proved, for all numbers of tiles:

    columns     in a column of a group, the tiles inside are those from `begin` up to `end`
    numbers     the tiles of a column, of either kind, have the numbers from 0 on, each one
    groups      groups have every tile along, each in one
    steps       from one place to the next, nothing is passed over but what is counted, all of that
                is, and the walk goes forward: so that what it remembers are the tiles in front
    begins      it begins in front of all places, for each kind and each matrix anew
    lanes       where tiles are counted by all lanes of a warp, each column is one lane's

Numbers go up, those of a kind by kind and of a matrix by matrix, so that by induction over the
steps each number has one tile, and each tile one number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.half_planes import linear
from polygen.poly.legality import Proof
from polygen.poly.tile_domain import TileDomain

Quotient = Callable[[str, int], str]
Floor = tuple[str, int]  # a number, and what it is divided by: rounded down

_TOGETHER = 8  # columns that a walk passes over at once
_WHERE = "tile domain"


def in_isl(text: str, by: int) -> str:
    """A quotient of whole numbers, rounded down, as isl text."""
    return text if by == 1 else f"floor(({text})/{by})"


@dataclass(frozen=True, slots=True)
class Pass:
    """Columns that a walk passes over at once.

    Attributes:
        columns: how many, from where the walk is on.
        within: whether there are as many.
        to: the column behind them.
    """

    columns: int
    within: str
    to: str


@dataclass(frozen=True, slots=True)
class TileWalk:
    """A walk.

    Attributes:
        domain: the tiles that have products.
        dim: "m" or "n", along which tiles are in groups.
        group: tiles of a group.
        high: where the group ends that begins at `low`.
        first: quotients of which none of a column's tiles inside is before any.
        last: quotients of which none of them is behind any.
        crossed: what is negative in columns that have no tile inside.
        inside: how many tiles inside a column has.
        others: how many others.
        tile_inside: where tile `place` of those inside is.
        tile_other: likewise of the others, below those inside where the first holds, else above.
        passes: the steps inside of a group, of which the last is by one column: it finds tiles.
        next_low: the group behind a group.
        next_column: where the walk begins in it.
        again: whether it starts anew, at `low` = `column` = 0: `before` tiles are in front of where
            it is, and `first` in front of those of the kind and the matrix that it looks for.
        lower: a quotient that is rounded down, of a division that rounds to zero: where the first
            holds, sign and numerator of the next, else of the last.
        lanes: of a warp: from a column that a lane counts to its next.
    """

    domain: TileDomain
    dim: str
    group: int
    high: str
    first: tuple[Floor, ...]
    last: tuple[Floor, ...]
    crossed: tuple[str, ...]
    passes: tuple[Pass, ...]
    inside: str = "end - begin"
    others: str = "high - low - (end - begin)"
    tile_inside: str = "begin + place"
    tile_other: tuple[str, str, str] = (
        "low + place < begin",
        "low + place",
        "low + place + end - begin",
    )
    next_low: str = "low + group"
    next_column: str = "0"
    again: str = "before < first"
    lower: tuple[str, tuple[tuple[str, str], tuple[str, str]]] = (
        "number >= 0",
        (("", "number"), ("-", "by - 1 - number")),
    )
    lanes: int = 32

    def begin(self, quotient: Quotient) -> str:
        """The first tile inside of a column.

        Args:
            quotient: how a quotient that is rounded down is written.
        """
        texts = ["low", *(quotient(*one) for one in self.first)]
        return f"min({_folded('max', texts)}, high)"

    def end(self, quotient: Quotient) -> str:
        """The tile behind the last one inside, where any is; `begin` is known."""
        texts = ["high", *(f"{quotient(*one)} + 1" for one in self.last)]
        return f"max({_folded('min', texts)}, begin)"

    def __str__(self) -> str:
        return f"groups of {self.group} along {self.dim}, of {self.domain}"


def _folded(function: str, texts: list[str]) -> str:
    """The least or the greatest of several, two at a time."""
    text, *others = texts
    for one in others:
        text = f"{function}({text}, {one})"
    return text


def tile_walk(domain: TileDomain, dim: str, group: int, lanes: int) -> TileWalk:
    """The walk over the tiles of a domain.

    Args:
        domain: the tiles that have products.
        dim: "m" or "n", along which tiles are in groups.
        group: tiles of a group.
        lanes: of a warp.
    """
    planes = domain.along(dim)
    return TileWalk(
        domain,
        dim,
        group,
        "min(low + group, along)",
        tuple((linear(0, "", -b, "column", -c + a - 1), a) for a, b, c in planes if a > 0),
        tuple((linear(0, "", b, "column", c), -a) for a, b, c in planes if a < 0),
        tuple(linear(0, "", b, "column", c) for a, b, c in planes if a == 0),
        (
            Pass(_TOGETHER, f"column + {_TOGETHER} <= across", f"column + {_TOGETHER}"),
            Pass(1, "column < across", "column + 1"),
        ),
        lanes=lanes,
    )


@lru_cache(maxsize=64)
def prove_walk(walk: TileWalk) -> tuple[Proof, ...]:
    """Prove that every tile is one work item, those that have products first.

    Args:
        walk: what the kernel's code is written from.

    Raises:
        VerifyError: a tile is skipped, met twice or counted where it is not, or the order is
            another; with an instance.
    """
    _prove_quotients(walk)
    _prove_columns(walk)
    _prove_numbers(walk)
    _prove_groups(walk)
    _prove_steps(walk)
    _prove_begins(walk)
    claim = "every output tile is exactly one work item, those with products before the others"
    return (Proof(claim, str(walk)),)


def _refuse(claim: str, rest: isl.Set | isl.Map) -> None:
    """Refuse what is not empty, with an instance."""
    if not rest.is_empty():
        found = isl.sample_point(rest if isinstance(rest, isl.Set) else rest.wrap())
        raise VerifyError(f"{claim}: {found}", where=_WHERE)


def _prove_quotients(walk: TileWalk) -> None:
    """What C writes with a division that rounds to zero rounds down."""
    known, divided = walk.lower
    for by in sorted({by for _, by in (*walk.first, *walk.last)}):
        made = isl.Map("{ [number] -> [q] : 1 = 0 }")
        for (sign, number), there in zip(divided, (known, f"not ({known})"), strict=True):
            own = number.replace("by", str(by))  # C rounds to zero: down, where it is not negative
            text = f"q = {sign}floor(({own})/{by}) and {own} >= 0 and {there}"
            made = made.union(isl.Map(f"{{ [number] -> [q] : {text} }}"))
        wanted = isl.Map(f"{{ [number] -> [q] : q = floor(number/{by}) }}")
        _refuse("a quotient is not rounded down", wanted.subtract(made).domain())
        _refuse("a quotient is not rounded down", made.subtract(wanted).domain())


def _prove_columns(walk: TileWalk) -> None:
    """In a column, the tiles inside are those from `begin` up to `end`, in the group."""
    known = "0 <= low <= high and column >= 0"
    crossed = " or ".join(f"{one} < 0" for one in walk.crossed) or "1 = 0"
    bounds = (
        f"begin = {walk.begin(in_isl)} and "
        f"(({crossed}) and end = begin or not ({crossed}) and end = {walk.end(in_isl)})"
    )
    names = "[low, high, column, begin, end]"
    whole = isl.Set(f"{{ {names} : {known} and {bounds} }}")
    outside = whole.intersect(isl.Set(f"{{ {names} : not (low <= begin <= end <= high) }}"))
    _refuse("the tiles inside of a column are not among its own", outside)
    planes = " and ".join(
        f"{linear(a, 'tile', b, 'column', c)} >= 0" for a, b, c in walk.domain.along(walk.dim)
    )
    found = isl.Set(
        f"{{ [low, high, column, tile] : exists (begin, end : {known} and {bounds} and "
        "begin <= tile < end) }"
    )
    wanted = isl.Set(
        f"{{ [low, high, column, tile] : {known} and low <= tile < high and {planes} }}"
    )
    claim = "columns of tiles do not begin and end where their tiles do"
    _refuse(claim, wanted.subtract(found))
    _refuse(claim, found.subtract(wanted))


def _prove_numbers(walk: TileWalk) -> None:
    """In a column, both kinds are numbered through: those inside, and the others."""
    names, known = "[low, high, begin, end] -> ", "0 <= low <= begin <= end <= high"
    condition, below, above = walk.tile_other
    inner = isl.Map(
        f"{names}{{ [place] -> [{walk.tile_inside}] : 0 <= place < {walk.inside} and {known} }}"
    )
    outer = isl.Map(
        f"{names}{{ [place] -> [{below}] : {condition} and 0 <= place < {walk.others} and {known};"
        f" [place] -> [{above}] : not ({condition}) and 0 <= place < {walk.others} and {known} }}"
    )
    for one, tiles in (
        (inner, "begin <= tile < end"),
        (outer, "(low <= tile < begin or end <= tile < high)"),
    ):
        every = isl.Set(f"{names}{{ [tile] : {tiles} and {known} }}")
        claim = "tiles of a column are not numbered through"
        if not one.is_injective():
            raise VerifyError(f"{claim}: two numbers have one", where=_WHERE)
        _refuse(claim, every.subtract(one.range()))
        _refuse(claim, one.range().subtract(every))


def _prove_groups(walk: TileWalk) -> None:
    """Groups have every tile along, each in one; where the walk has no more there is none."""
    names, group = "[along, group] -> ", f"group = {walk.group}"
    own = isl.Map(
        f"{names}{{ [low] -> [tile] : {_at_group(walk, 'low')} and low <= tile < {walk.high} "
        f"and {group} }}"
    )
    if not own.is_injective():
        raise VerifyError("a tile is in two groups", where=_WHERE)
    every = isl.Set(f"{names}{{ [tile] : 0 <= tile < along and {group} }}")
    _refuse("groups do not have every tile", every.subtract(own.range()))
    _refuse("groups have tiles that are not there", own.range().subtract(every))


def _at_group(walk: TileWalk, low: str) -> str:
    return f"0 <= {low} < along and {low} mod {walk.group} = 0"


def _prove_steps(walk: TileWalk) -> None:
    """Each step goes forward, to behind what was counted, and one can be made wherever it is."""
    *_, last = walk.passes
    if last.columns != 1:
        raise VerifyError("no step looks at one column alone", where=_WHERE)
    state = f"{_at_group(walk, 'low')} and 0 <= column <= across"
    for one in walk.passes:
        counted = f"l = low and column <= c < column + {one.columns}"
        _prove_step(walk, f"{state} and {one.within}", ("low", one.to), counted)
    to = (walk.next_low, walk.next_column)
    _prove_step(walk, f"{state} and not ({last.within})", to, "1 = 0")


def _prove_step(walk: TileWalk, there: str, to: tuple[str, str], counted: str) -> None:
    """One step: what lies from a place up to where the step leads is what is counted."""
    names, group = "[along, across, group] -> ", f"group = {walk.group}"
    low, column = to
    states = isl.Set(f"{names}{{ [low, column] : {there} and {group} }}")
    forward = isl.Set(
        f"{names}{{ [low, column] : ({low} > low or {low} = low and {column} > column) and "
        f"0 <= {column} <= across and ({low}) mod {walk.group} = 0 and {group} }}"
    )
    _refuse("a step of the walk does not go on to a place", states.subtract(forward))
    place = f"{_at_group(walk, 'l')} and 0 <= c < across"
    from_here = "(l > low or l = low and c >= column)"
    up_to = f"(l < {low} or l = {low} and c < {column})"
    every = isl.Map(
        f"{names}{{ [low, column] -> [l, c] : {place} and {from_here} and {up_to} and {group} }}"
    ).intersect_domain(states)
    own = isl.Map(f"{names}{{ [low, column] -> [l, c] : {counted} and {group} }}")
    own = own.intersect_domain(states)
    _refuse("a step of the walk skips a column that it does not count", every.subtract(own))
    _refuse("a step of the walk counts a column that it does not pass", own.subtract(every))


def _prove_begins(walk: TileWalk) -> None:
    """The walk starts anew where it comes to a kind or a matrix, and only there."""
    names = "[first, before, number, next]"
    # Of the tiles from `first` up to `next` it has looked for `number`, and `before` are in front.
    known = isl.Set(f"{{ {names} : 0 <= first <= before <= number < next }}")
    again = isl.Set(f"{{ {names} : {walk.again} }}")
    at_next = walk.again.replace("first", "next")
    _refuse("the walk starts anew among its tiles", known.intersect(again).intersect(
        isl.Set(f"{{ {names} : before > first }}")
    ))  # fmt: skip
    _refuse(
        "the walk does not start anew with other tiles",
        known.subtract(isl.Set(f"{{ {names} : {at_next} }}")),
    )
    lanes = isl.Map(
        f"[across] -> {{ [lane, round] -> [lane + {walk.lanes} * round] : 0 <= lane < {walk.lanes} "
        f"and 0 <= round and lane + {walk.lanes} * round < across }}"
    )
    every = isl.Set("[across] -> { [column] : 0 <= column < across }")
    if not (lanes.is_injective() and lanes.range().is_equal(every)):
        raise VerifyError("columns are not counted by one lane each", where=_WHERE)
