"""What indexes an axis: an iterator, an affine form of one, a row of a group, a gathered one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polygen.frontend.forms import Form

# A size: a name (run-time argument), a number, or a multiple of a named one, ``16*J``, which axes
# have that a reshape merges.
Dim = str | int


def multiple(dim: Dim, count: int) -> Dim:
    """So many times a size."""
    if isinstance(dim, int):
        return count * dim
    times, name = _apart(dim)
    return name if count * times == 1 else f"{count * times}*{name}"


def divided(dim: Dim, count: int) -> Dim:
    """A size that is so many times what it gives."""
    if isinstance(dim, int):
        return dim // count
    times, name = _apart(dim)
    return multiple(name, times // count)


def named_in(dim: Dim) -> tuple[str, ...]:
    """The name that a size is, or is a multiple of; none of a number."""
    return () if isinstance(dim, int) else (_apart(dim)[1],)


def times_in(dim: Dim) -> int:
    """How many times its name a size is; 1 of a number."""
    return 1 if isinstance(dim, int) else _apart(dim)[0]


def size_value(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A size as a number.

    Args:
        dim: the size.
        sizes: of names.
    """
    if isinstance(dim, int):
        return dim
    times, name = _apart(dim)
    return times * sizes[name]


def known_size(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """The same; None: its name has no size."""
    known = all(name in sizes for name in named_in(dim))
    return size_value(dim, sizes) if known else None


def _apart(dim: str) -> tuple[int, str]:
    times, _, name = dim.rpartition("*")
    return int(times or 1), name


@dataclass(frozen=True, slots=True)
class Affine:
    """``scale * floor(iterator / per) + offset``: so an axis is indexed by a slice with constant
    bounds and step, and by elements that are repeated `per` times.

    Made by `polygen.frontend.indexing.affine`, which gives the iterator's name where this would say
    nothing more.
    """

    iterator: str
    scale: int
    offset: int
    per: int = 1

    def __str__(self) -> str:
        factor = {1: "", -1: "-"}.get(self.scale, f"{self.scale}*")
        place = self.iterator if self.per == 1 else f"floor({self.iterator}/{self.per})"
        return f"{factor}{place}{self.offset:+d}" if self.offset else factor + place

    def at(self, place: Any) -> Any:
        """The index where the iterator is `place`: a number, or an array of them."""
        return self.scale * (place // self.per) + self.offset


@dataclass(frozen=True, slots=True)
class Within:
    """Row ``iterator`` of group ``group``, of rows in groups that follow each other.

    Group e has the rows from the greatest of 0 and of all ``ends`` before its own up to its own
    end: those rows t of which it is the first group with ``t < ends[e]``, whatever `ends` holds.
    """

    iterator: str
    group: str  # the iterator over groups
    ends: str  # the s32 vector that says where they end

    def __str__(self) -> str:
        return f"{self.group}.{self.iterator}"


# In an array of numbers that names elements of others.
Place = str | int | Affine | Form | Within


@dataclass(frozen=True, slots=True)
class Gathered:
    """The element of an axis that an array of numbers names: ``rows[place]``, ``table[b, j]``.

    Which one that is only the numbers say. What stands in them may be anything: they are kept
    inside of the axis, so that an access reaches one of its elements, any of them.
    """

    places: tuple[Place, ...]  # along each axis of the array
    rows: str  # the s32 array
    extent: Dim  # of the axis

    @property
    def place(self) -> Place:
        """The place in a vector."""
        (place,) = self.places
        return place

    def __str__(self) -> str:
        return f"{self.rows}[{','.join(map(str, self.places))}]"


# An iterator's name, a constant (0 on an axis of size 1), a slice, what a reshape or a window makes
# of several, a row of a group, or one that an array of numbers names.
Index = str | int | Affine | Form | Within | Gathered


def places_of(index: Index) -> tuple[Place, ...]:
    """The places in an array of numbers that names an element; of another index that itself."""
    return index.places if isinstance(index, Gathered) else (index,)


def by_group(index: Index) -> tuple[str | int | Affine | Form | Gathered, ...]:
    """An index with rows of groups by group and row: two that say the same."""
    if isinstance(index, Gathered):
        places = tuple(one for place in index.places for one in _by_group(place))
        return (replace(index, places=places),)
    return _by_group(index)


def _by_group(place: Place) -> tuple[str | int | Affine | Form, ...]:
    return (place.group, place.iterator) if isinstance(place, Within) else (place,)
