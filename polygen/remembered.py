"""Relations that are read or computed again and again: kept, and looked up by what they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from polygen.isl import Map, Set, beyond, dim_type, points

# How many results of the operations below are kept; those of one kernel are some hundreds. Two
# relations are one key only if they are equal: what is read back from emitted text finds what was
# computed of the same relations before. isl may rewrite in place what it computes with, into what
# is equal and reads differently: neither arguments nor results of these are to be printed.
_KEPT = 2048
_FEW_TABLES = 64  # of instructions, kept as points
_forgetting: list[Callable[[], None]] = []
_same_first: dict[tuple[str, int], Map] = {}  # by space: isl's spaces have no hash of content


def _by_content(compute: Callable[..., Map]) -> Callable[..., Map]:
    """Keep what is computed of relations.

    isl's hash of a relation leaves out the names of its tuples, and leaves of one shape are many:
    the names stand in front, so that few relations are compared.
    """

    @lru_cache(maxsize=_KEPT)
    def kept(names: tuple[object, ...], *arguments: Any) -> Map:
        return compute(*arguments)

    @functools.wraps(compute)
    def looked_up(*arguments: Any) -> Map:
        names = [_named(one) for one in arguments if isinstance(one, Map)]
        return kept(tuple(names), *arguments)

    _forgetting.append(kept.cache_clear)
    return looked_up


def _named(relation: Map) -> tuple[str | None, str | None]:
    """The names of a relation's tuples."""
    inner, outer = dim_type.in_, dim_type.out
    return (
        relation.get_tuple_name(inner) if relation.has_tuple_name(inner) else None,
        relation.get_tuple_name(outer) if relation.has_tuple_name(outer) else None,
    )


@lru_cache(maxsize=_KEPT)
def read_set(text: str) -> Set:
    """The set that a text says; reading is slow, and programs say the same again and again."""
    return Set(text)


@lru_cache(maxsize=_KEPT)
def read_map(text: str) -> Map:
    """The relation that a text says."""
    return Map(text)


@_by_content
def composed(first: Map, second: Map) -> Map:
    """`first`, and `second` after it."""
    return first.apply_range(second).coalesce()


@_by_content
def without(relation: Map, other: Map) -> Map:
    """The pairs of one relation that another does not have."""
    rest = beyond(relation, other)
    return Map.empty(relation.get_space()) if rest is None else rest.coalesce()


@_by_content
def least(relation: Map) -> Map:
    """The lexicographically smallest image of every input."""
    return relation.lexmin().coalesce()


@_by_content
def last_source(relation: Map) -> Map:
    """Every output with the lexicographically largest input that it is an image of."""
    return relation.reverse().lexmax().reverse().coalesce()


@_by_content
def smaller(first: Map, second: Map, shared: int, equal: bool) -> Map:
    """Pairs of inputs of two relations, the image of the first lexicographically smaller.

    Args:
        first: input -> image.
        second: likewise, with images in the same space.
        shared: how many first coordinates of the inputs have to be the same.
        equal: whether images may be equal.
    """
    found = first.lex_le_map(second) if equal else first.lex_lt_map(second)
    return same_first(found, shared).coalesce()


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
    for clear in (*_forgetting, read_set.cache_clear, read_map.cache_clear, _same_first.clear):
        clear()


@lru_cache(maxsize=_FEW_TABLES)
def points_said(text: str) -> tuple[tuple[int, ...], ...]:
    """`points` of the relation that a text says: tables of instructions are asked for again."""
    return tuple(points(Map(text)))
