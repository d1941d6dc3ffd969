"""What indexes an axis, in its simplest form: scaled and moved, or as a sum of digits and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.forms import Digit, Extents, Form, composed
from polygen.frontend.indices import Place
from polygen.frontend.program import Access, Affine, Gathered, Index, Within


def affine(index: Index, scale: int, offset: int, per: int = 1) -> Index:
    """``scale * floor(index / per) + offset`` in its simplest form; `scale` is not 0.

    Raises:
        UnsupportedProgram: parts of an index of several terms are counted.
    """
    if isinstance(index, int):
        return scale * (index // per) + offset
    assert not isinstance(index, (Within, Form))  # made when views are resolved; see `index_of`
    if isinstance(index, Gathered):
        if (scale, offset, per) == (1, 0, 1):
            return index
        raise UnsupportedProgram(
            f"{index} counts elements of a part of an axis, or of repeated ones",
            nearest="Take x[rows] of the whole array first, and the part of the other axis of that",
        )
    if isinstance(index, Affine):
        if per > 1 and index.scale % per == 0:  # whole steps of it, from any place on
            step, first = index.scale // per, index.offset // per
            return affine_of(index.iterator, scale * step, scale * first + offset, index.per)
        if per > 1 and index.scale == 1 and index.offset % per == 0:
            first = index.offset // per
            return affine_of(index.iterator, scale, scale * first + offset, index.per * per)
        if per > 1 and (index.scale, index.offset) != (1, 0):
            raise UnsupportedProgram(
                f"elements of a slice, {index}, are repeated {per} times",
                nearest="Slice before repeating",
            )
        inner = index.per * per
        return affine_of(index.iterator, scale * index.scale, scale * index.offset + offset, inner)
    return affine_of(index, scale, offset, per)


def repeats(index: Index) -> set[str]:
    """The iterator some of whose neighbours have one element, if there is one."""
    return {index.iterator} if isinstance(index, Affine) and index.per > 1 else set()


def affine_of(iterator: str, scale: int, offset: int, per: int) -> str | Affine:
    """The same of an iterator."""
    plain = (scale, offset, per) == (1, 0, 1)
    return iterator if plain else Affine(iterator, scale, offset, per)


def form_of(index: str | int | Affine | Form | Within) -> Form:
    """An index as a sum of digits; of rows in groups only where they are those of one group."""
    assert not isinstance(index, Within)
    if isinstance(index, Form):
        return index
    if isinstance(index, int):
        return Form((), index)
    if isinstance(index, Affine):
        return Form((Digit(index.iterator, index.scale, index.per),), index.offset)
    return Form((Digit(index),))


def index_of(form: Form) -> str | int | Affine | Form:
    """A sum of digits as what it is in its simplest form."""
    if not form.terms:
        return form.offset
    only = form.only
    return form if only is None else affine_of(str(only.of), only.scale, form.offset, only.per)


def moved(index: Index, first: int) -> Index:
    """Where something lies in an array that begins so much before it."""
    assert not isinstance(index, Within | Gathered)  # results are stored in places of their own
    form = form_of(index)
    return index_of(replace(form, offset=form.offset + first)) if first else index


def iterators_in(index: Index) -> set[str]:
    """What an index depends on."""
    return set(Access("", (index,)).iterators)


def at_places(index: Index, at: Mapping[str, Index], extents: Extents) -> Index | None:
    """An index whose iterators are at other places; None: it is none that there is.

    Args:
        index: over iterators.
        at: what some of these are there; the others stay what they are.
        extents: of the iterators that `at` is over.
    """
    if isinstance(index, str):
        return at.get(index, index)
    if isinstance(index, int):
        return index
    if isinstance(index, Gathered):
        places = list[Place]()
        for place in index.places:
            there = at_places(place, at, extents)
            if there is None or isinstance(there, Gathered):
                return None
            places.append(there)
        return replace(index, places=tuple(places))
    if isinstance(index, Within):
        row, group = at.get(index.iterator, index.iterator), at.get(index.group, index.group)
        if not isinstance(row, str) or not isinstance(group, str):
            return None
        return replace(index, iterator=row, group=group)
    form, inner = form_of(index), dict[str, Form]()
    for iterator in form.iterators:
        other = at.get(iterator, iterator)
        if isinstance(other, Gathered | Within):
            return None
        inner[iterator] = form_of(other)
    found = composed(form, inner, extents)
    return None if found is None else index_of(found)
