"""What is stored, compared with what has to be: every element once, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.text_values import mixed
from polygen.errors import VerifyError

Writes = list[tuple[Any, Any]]  # addresses, and what goes there


@dataclass(frozen=True, slots=True)
class Wanted:
    """Elements of an array that have to be written.

    Attributes:
        name: of the array.
        place: where each goes.
        value: what goes there.
        index: of each, by axis.
        inside: which of them it matters of, what goes there.
    """

    name: str
    place: Any
    value: Any
    index: tuple[Any, ...]
    inside: Any = True


def check_writes(found: Writes, wanted: Sequence[Wanted]) -> None:
    """Each element is written, of its own numbers, and nothing is written elsewhere.

    Raises:
        VerifyError: with one that is not.
    """
    places, values = (
        np.concatenate([np.zeros(0, np.int64), *(np.ravel(one[at]) for one in found)])
        for at in (0, 1)
    )
    own, right = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(one, what) for one in wanted)])
        for what in ("place", "value")
    )
    if len(places) == len(own) and _sum(places, values) == _sum(own, right):
        return  # the same of each place, in whatever order
    order = np.lexsort((values, places))
    places, values = places[order], values[order]
    sort = np.lexsort((right, own))  # rows that a vector names may be one, of several values
    if not np.array_equal(places, own[sort]):
        raise VerifyError(_elsewhere(places, own, wanted))
    wrong = values != right[sort]
    if wrong.any():
        inside = [np.broadcast_to(one.inside, one.place.shape) for one in wanted]
        wrong &= np.concatenate(inside)[sort]
    if wrong.any():
        at = int(sort[np.flatnonzero(wrong)[0]])
        raise VerifyError(f"{_element(wanted, at)} is not made of its own numbers")


def _sum(places: Any, values: Any) -> int:
    """A number that stands for what goes to which places, in whatever order."""
    return int(mixed("stored", mixed("at", places), values).sum())


def _elsewhere(places: Any, own: Any, wanted: Sequence[Wanted]) -> str:
    """An element that is not written, or more than once, or what is written besides."""
    missing = np.flatnonzero(~np.isin(own, places))
    if len(missing):
        return f"{_element(wanted, int(missing[0]))} is not written, and {len(missing) - 1} more"
    besides = places[~np.isin(places, own)]
    if len(besides):
        return f"{len(besides)} elements are written besides: one at {_near(int(besides[0]), own)}"
    twice = places[1:][places[1:] == places[:-1]]
    at = int(np.flatnonzero(own == twice[0])[0]) if len(twice) else 0
    return f"{_element(wanted, at)} is written more than once"


def _element(wanted: Sequence[Wanted], at: int) -> str:
    """The name of an element by its number."""
    for one in wanted:
        if at < len(one.place):
            return f"{one.name}[{', '.join(str(axis[at]) for axis in one.index)}]"
        at -= len(one.place)
    return "an element"


def _near(place: int, own: Any) -> str:
    """An address, by one where something belongs."""
    nearest = int(own[np.argmin(np.abs(own - place))]) if len(own) else 0
    return f"{place} ({place - nearest:+d} from the nearest that is wanted)"
