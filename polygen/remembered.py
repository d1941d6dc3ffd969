"""Relations that are read or computed again and again: kept, and looked up by what they are."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from polygen.isl import Map, Schedule, Set, UnionMap, Val, dim_type, points

# How many results of the operations below are kept; those of one kernel are some hundreds. Two
# relations are one key only if they are equal: what is read back from emitted text finds what was
# computed of the same relations before. isl may rewrite in place what it computes with, into what
# is equal and reads differently: neither arguments nor results of these are to be printed.
_KEPT = 2048
_FEW_TABLES = 64  # of instructions, kept as points; orders of vectors; trees of places
_FEW_PIECES = 2  # of a lexicographic order: no two of them are one
# The text of one set or relation between named tuples. Leaves of one shape differ by names alone.
_TUPLE = r"(\w+)(\[[^][]*\])"
_SAID = re.compile(rf"([^{{}}]*\{{ ?){_TUPLE}( -> ?)?(?:{_TUPLE}|(\[[^][]*\]))?([^][;{{}}]*\}})")
# A time vector: numbers between coordinates, and nothing is said about either.
_VECTOR = re.compile(r"([^{}]*\{ \[[^][]*\] -> )\[([^][]*)\] \}")
_forgetting: list[Callable[[], None]] = []
_same_first: dict[tuple[str, int], Map] = {}  # by space: isl's spaces have no hash of content


class _Content:
    """A relation as a key: by what it is, not by which object holds it.

    isl's hash takes as long as a small composition, and leaves out the names of tuples, where
    leaves of one shape are many: it is asked for once, and the names stand beside it.
    """

    __slots__ = ("hashed", "names", "relation")

    def __init__(self, relation: Map) -> None:
        self.relation, self.names = relation, _named(relation)
        self.hashed = hash((self.names, relation))

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return NotImplemented
        if self.relation is other.relation:
            return True
        return self.names == other.names and operator.eq(self.relation, other.relation) is True


_contents: dict[int, _Content] = {}  # by the object that holds the relation


def _content(relation: Map) -> _Content:
    found = _contents.get(id(relation))
    if found is None:
        if len(_contents) >= _KEPT:
            _contents.clear()
        found = _contents[id(relation)] = _Content(relation)
    return found


def by_content(compute: Callable[..., Map]) -> Callable[..., Map]:
    """Keep what is computed of relations, and of numbers."""

    @lru_cache(maxsize=_KEPT)
    def kept(*arguments: Any) -> Map:
        return compute(*[one.relation if isinstance(one, _Content) else one for one in arguments])

    # The very same arguments are told apart in less time than equal ones; they are kept, so that
    # no others take their places.
    known: dict[tuple[int, ...], tuple[tuple[Any, ...], Map]] = {}

    @functools.wraps(compute)
    def looked_up(*arguments: Any) -> Map:
        very = tuple([id(one) if isinstance(one, Map) else one for one in arguments])
        again = known.get(very)
        if again is not None:
            return again[1]
        found = kept(*[_content(one) if isinstance(one, Map) else one for one in arguments])
        if len(known) >= _KEPT:
            known.clear()
        known[very] = arguments, found
        return found

    _forgetting.extend((kept.cache_clear, known.clear))
    return looked_up


def _named(relation: Map) -> tuple[str | None, str | None]:
    """The names of a relation's tuples; None where a tuple has none."""
    return relation.get_tuple_name(dim_type.in_), relation.get_tuple_name(dim_type.out)


@lru_cache(maxsize=_KEPT)
def read_set(text: str) -> Set:
    """The set that a text says; reading is slow, and programs say the same again and again."""
    said = _SAID.fullmatch(text)
    if said is None or said[4] is not None:
        return Set(text)
    before, name, own, *_, rest = said.groups()
    return _nameless_set(f"{before}{own}{rest}").set_tuple_name(name)


@lru_cache(maxsize=_KEPT)
def read_map(text: str) -> Map:
    """The relation that a text says."""
    said = _SAID.fullmatch(text)
    if said is None or said[4] is None:
        return Map(text)
    before, name, own, _, onto, its, bare, rest = said.groups()
    found = _nameless_map(f"{before}{own} -> {its or bare}{rest}").set_tuple_name(
        dim_type.in_, name
    )
    return found.set_tuple_name(dim_type.out, onto) if onto else found


@lru_cache(maxsize=_KEPT)
def _nameless_set(text: str) -> Set:
    return Set(text)


@lru_cache(maxsize=_KEPT)
def _nameless_map(text: str) -> Map:
    said = _VECTOR.fullmatch(text)
    items = [] if said is None else [one.strip() for one in said[2].split(",")]
    numbers = {n: int(one) for n, one in enumerate(items) if one.isdigit()}
    if not numbers or any(one.count("(") != one.count(")") for one in items):
        return Map(text)
    # Reading takes isl longer than to put numbers in, and vectors differ by their numbers.
    others = [one for n, one in enumerate(items) if n not in numbers]
    found = _nameless_map(f"{text[: text.rindex('[')]}[{','.join(others)}] }}")
    for n, value in numbers.items():
        found = found.insert_dims(dim_type.out, n, 1).fix_val(dim_type.out, n, _number(value))
    return found


@lru_cache(maxsize=_FEW_TABLES)
def _number(value: int) -> Val:
    return Val(value)


@lru_cache(maxsize=_FEW_TABLES)
def read_schedule(text: str) -> Schedule:
    """The schedule tree that a text says: loops and proofs are both made from emitted text."""
    return Schedule(text)


@lru_cache(maxsize=_FEW_TABLES)
def schedule_times(text: str) -> tuple[UnionMap, str]:
    """When the instances of a tree run, and the same as isl's text of vectors of quotients.

    The text is made here, before anybody computes with the relation.
    """
    timed = read_schedule(text).get_map()
    return timed, str(timed.as_union_pw_multi_aff())


@by_content
def composed(first: Map, second: Map) -> Map:
    """`first`, and `second` after it."""
    found = first.apply_range(second)
    # Coalescing takes longer than composing. Pieces of one side stay apart after a single one of
    # the other; those of both meet.
    several = first.n_basic_map() > 1 and second.n_basic_map() > 1
    return found.coalesce() if several else found


@by_content
def without(relation: Map, other: Map) -> Map:
    """The pairs of one relation that another does not have."""
    return relation.subtract(other).coalesce()


@by_content
def moved(relation: Map, onto: Map) -> Map:
    """The inputs of a relation replaced by what another leads them to."""
    return relation.apply_domain(onto).coalesce()


@by_content
def unmoved(relation: Map, onto: Map) -> Map:
    """The pairs of a relation whose inputs another does not lead anywhere."""
    return relation.subtract_domain(onto.domain())


@by_content
def least(relation: Map) -> Map:
    """The lexicographically smallest image of every input."""
    return relation.lexmin().coalesce()


@by_content
def last_source(relation: Map) -> Map:
    """Every output with the lexicographically largest input that it is an image of."""
    return relation.reverse().lexmax().reverse().coalesce()


@by_content
def smaller(first: Map, second: Map, shared: int, equal: bool) -> Map:
    """Pairs of inputs of two relations, the image of the first lexicographically smaller.

    Args:
        first: input -> image.
        second: likewise, with images in the same space.
        shared: how many first coordinates of the images have to be the same; the others are
            compared.
        equal: whether images may be equal.
    """
    order = _less(shared, first.dim(dim_type.out) - shared, equal)
    found = first.apply_range(order).apply_range(second.reverse())
    return found.coalesce() if found.n_basic_map() > _FEW_PIECES else found


@lru_cache(maxsize=_FEW_TABLES)
def _less(shared: int, compared: int, equal: bool) -> Map:
    """Pairs of vectors that begin alike, and go on lexicographically smaller or larger."""
    alike = [f"a{n}" for n in range(shared)]
    left, right = ([f"{letter}{n}" for n in range(compared)] for letter in "tu")
    same = [f"{a} = {b}" for a, b in zip(left, right, strict=True)]
    cases = [[*same[:n], f"{left[n]} < {right[n]}"] for n in range(compared)]
    if equal:
        cases.append([*same, "1 = 1"])
    said = " or ".join(" and ".join(case) for case in cases) or "1 = 0"
    return Map(f"{{ [{','.join(alike + left)}] -> [{','.join(alike + right)}] : {said} }}")


def same_first(relation: Map, count: int) -> Map:
    """The pairs whose first coordinates are equal."""
    if not count:
        return relation
    space = relation.get_space()
    same = _same_first.get((str(space), count))
    if same is None:
        same = Map.universe(space)
        for n in range(count):
            same = same.equate(dim_type.in_, n, dim_type.out, n)
        if len(_same_first) == _KEPT:
            _same_first.clear()
        _same_first[str(space), count] = same
    return relation.intersect(same)


def forget() -> None:
    """Forget all results that are kept: what comes next is computed as in a new process."""
    reading = (read_set, read_map, read_schedule, schedule_times, _nameless_set, _nameless_map)
    clearing = [kept.cache_clear for kept in reading]
    for clear in (*_forgetting, *clearing, _same_first.clear, _contents.clear):
        clear()


@lru_cache(maxsize=_FEW_TABLES)
def points_said(text: str) -> tuple[tuple[int, ...], ...]:
    """`points` of the relation that a text says: tables of instructions are asked for again."""
    return tuple(points(Map(text)))
