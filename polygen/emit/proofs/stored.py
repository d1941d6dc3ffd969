"""What is stored, compared with what has to be: every element once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.emit.run_text import Called, Handler
from polygen.emit.text_values import mixed, of_each
from polygen.errors import VerifyError
from polygen.frontend.dtypes import NAMED

Writes = list[tuple[Any, Any]]  # addresses, and what goes there
WIDTHS = (4, 8, 16)  # bytes of an access


def keep(writes: Writes, place: Any, value: Any, who: Any) -> None:
    """Remember what some threads store."""
    places, values = (of_each(one, len(who))[who] for one in (place, value))
    writes.append((places, values))


def storing(writes: Writes, kinds: Iterable[str]) -> dict[str, Handler]:
    """What functions do that store.

    Args:
        writes: where they are remembered.
        kinds: of elements, as texts call them.
    """

    def store(called: Called) -> None:
        place, value = called.values
        keep(writes, place, value, called.state.who())

    def write(called: Called) -> None:
        """Adjacent elements."""
        kind, (count, width) = called.name.removeprefix("write_"), map(int, called.template)
        if width not in WIDTHS or count * NAMED[kind].bytes % width:
            raise VerifyError(f"{count} elements are written by {width} bytes")
        for at, value in enumerate(called.arguments[1].held(count)):
            place = called.arguments[0].value + at
            keep(writes, place, mixed(f"to_{kind}", value), called.state.who())

    found: dict[str, Handler] = {"store": store}
    return found | {f"write_{kind}": write for kind in kinds}


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
