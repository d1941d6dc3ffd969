"""A fragment's map as a table: which element of an operand each register of each lane has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from polygen import isl
from polygen.errors import HardwareDataError, VerifyError
from polygen.hardware.data_file import Integers


def map_pairs(text: str, where: str) -> list[tuple[int, ...]]:
    """The pairs of a map that is isl text.

    Raises:
        HardwareDataError: it is no map.
    """
    try:
        return isl.points(isl.Map(text))
    except (isl.Error, VerifyError) as error:
        raise HardwareDataError(f"not an isl map: {error}", where=where) from None


def fragment_table(
    pairs: Sequence[tuple[int, ...]],
    lanes: int,
    elements: int,
    shape: tuple[int, int],
    where: str,
    copies: int = 1,
) -> Integers:
    """The table of a map's pairs: per lane and register, an element of the operand.

    Raises:
        HardwareDataError: an element is held by fewer lanes or more than `copies`.
    """
    table = np.zeros((lanes, elements, 2), np.int64)
    found = np.asarray(pairs, np.int64)
    if found.shape == (len(pairs), 4) and (found >= 0).all():
        slots, places = found[:, :2], found[:, 2:]
        held = _counts(places, shape)
        filled = _counts(slots, (lanes, elements))
        whole = held is not None and bool((held == copies).all())
        if whole and filled is not None and bool((filled <= 1).all()):
            table[slots[:, 0], slots[:, 1]] = places
            table.setflags(write=False)
            return table
    _refuse(pairs, lanes, elements, shape, where, copies)


def _counts(found: Integers, shape: tuple[int, int]) -> Integers | None:
    """How often each place of a shape is found; None: some are outside of it."""
    if (found >= shape).any():
        return None
    return np.bincount(found[:, 0] * shape[1] + found[:, 1], minlength=shape[0] * shape[1])


def _refuse(
    pairs: Sequence[tuple[int, ...]],
    lanes: int,
    elements: int,
    shape: tuple[int, int],
    where: str,
    copies: int,
) -> NoReturn:
    """Raise with the first pair of a map that makes it none of a fragment."""
    holders: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    placed: dict[tuple[int, ...], tuple[int, ...]] = {}
    for lane, element, *position in pairs:
        slot = (lane, element)
        at = tuple(position)
        if not (0 <= lane < lanes and 0 <= element < elements):
            raise HardwareDataError(f"slot {slot} is outside {lanes} x {elements}", where=where)
        if slot in placed:
            raise HardwareDataError(
                f"not a function: slot {slot} holds both {placed[slot]} and {at}", where=where
            )
        if not all(0 <= x < size for x, size in zip(at, shape, strict=True)):
            raise HardwareDataError(f"slot {slot} holds {at}, outside {shape}", where=where)
        held = holders.setdefault(at, [])
        if len(held) == copies:
            more = "both" if copies == 1 else f"and {copies - 1} more"
            raise HardwareDataError(
                f"not injective: slots {held[0]} and {slot} {more} hold {at}", where=where
            )
        held.append(slot)
        placed[slot] = at
    missing = set(np.ndindex(*shape)) - {at for at, held in holders.items() if len(held) == copies}
    raise HardwareDataError(
        f"does not cover the operand: no slot holds {min(missing)}", where=where
    )
