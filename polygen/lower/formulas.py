"""Formulas of a plan, evaluated, and where: enough places to tell one formula from another.

What is linear in every name is known from its values where all are 0 and where one of them is 1;
with digits, also from where these end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polygen.hardware import formula
from polygen.lower.accesses import ROWS_BEFORE
from polygen.poly.elements import Along


def position(one: Along, at: Mapping[str, int]) -> int:
    """The element of an axis where dims are at their places."""
    before = at.get(ROWS_BEFORE, 0) if one.group else 0
    return one.at(at) + one.scale * before


def ends(names: Iterable[str], index: tuple[Along, ...]) -> Iterable[dict[str, int]]:
    """Where digits end: the last index before, the first behind, and where the third ends."""
    terms = [term for one in index for term in one.terms]
    counts = {(one.dim, one.per) for one in terms if one.per > 1}
    counts |= {(one.dim, one.per * one.modulo) for one in terms if one.modulo}
    for name, count in sorted(counts):
        for place in (count - 1, count, count + 1, 3 * count - 1):
            yield dict.fromkeys(names, 0) | {name: place}


def units(names: Iterable[str]) -> Iterable[dict[str, int]]:
    """All zero, then one of each."""
    listed = list(names)
    yield dict.fromkeys(listed, 0)
    for name in listed:
        yield dict.fromkeys(listed, 0) | {name: 1}


def value(text: str, names: Mapping[str, Any]) -> int:
    """A formula of the plan, of numbers."""
    return int(formula.value(text, names))
