"""Numbers of tuples, and the tuples of numbers: sums of digits, as text of C.

Matrices, elements of rows, results of folds and k tiles of several axes are numbered through, the
last place fastest. A kernel finds the places of a number (`digits`, or `peeled` where one place
after the other is taken off), or the number of places (`numbered`). All texts are made here, for
any names of counts; that they are each other's inverses, in the order of tuples, is tried for all
tuples of a few small counts before the first text of a form is given to anybody.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula

_TRIED = (1, 2, 3)
_MOST = 4  # places for which all of these are tried, with more of them the two largest
Digits = Callable[[str, Sequence[str]], list[str]]


def digits(number: str, counts: Sequence[str]) -> list[str]:
    """The places of a number over several radices, each by itself: the first has no bound.

    Args:
        number: of a tuple.
        counts: per place how many it counts, the last one fastest.

    Raises:
        VerifyError: never for positive counts; the check guards the formulas.
    """
    check_digits(_digits, len(counts))
    return _digits(number, counts)


def peeled(number: str, counts: Sequence[str]) -> list[str]:
    """The same by quotients of quotients, which need no product of counts.

    Raises:
        VerifyError: never for positive counts; the check guards the formulas.
    """
    check_digits(_peeled, len(counts))
    return _peeled(number, counts)


def numbered(first: str, others: Sequence[tuple[str, str]]) -> str:
    """The number of a tuple.

    Args:
        first: its first place, in the type in which is counted.
        others: of every other place how many it counts, and where the tuple is.

    Raises:
        VerifyError: never for positive counts; the check guards the formulas.
    """
    check_digits(_digits, len(others) + 1)
    return _numbered(first, others)


def _digits(number: str, counts: Sequence[str]) -> list[str]:
    found = []
    for place in range(len(counts)):
        faster = counts[place + 1 :]
        over = " * ".join(faster)
        over = f" / ({over})" if len(faster) > 1 else f" / {over}" if faster else ""
        inside = f" % {counts[place]}" if place else ""
        found.append(f"{number}{over}{inside}")
    return found


def _peeled(number: str, counts: Sequence[str]) -> list[str]:
    found = []
    for place in reversed(range(len(counts))):
        inside = f" % {counts[place]}" if place else ""
        found.append(f"{number}{inside}")
        number = f"{number} / {counts[place]}"
    return found[::-1]


def _numbered(first: str, others: Sequence[tuple[str, str]]) -> str:
    text = first
    for count, own in others:
        text = f"({text} * ({count}) + {own})"
    return text


@lru_cache(maxsize=32)
def check_digits(form: Digits, places: int) -> None:
    """The places of all numbers are all tuples in their order, and these have these numbers.

    Args:
        form: writes the places of a number.
        places: of a tuple.

    Raises:
        VerifyError: a number has other places, or a tuple another number.
    """
    if not places:
        return
    counts, own = ([f"{what}{place}" for place in range(places)] for what in "na")
    texts = form("number", counts)
    number = _numbered(own[0], list(zip(counts[1:], own[1:], strict=True)))
    for sizes in itertools.product(_TRIED if places <= _MOST else _TRIED[1:], repeat=places):
        every = np.indices(sizes).reshape(places, -1)
        names, order = dict(zip(counts, sizes, strict=True)), np.arange(every.shape[1])
        at = names | {"number": order}
        found = [np.broadcast_to(formula.value(text, at), order.shape) for text in texts]
        back = formula.value(number, names | dict(zip(own, every, strict=True)))
        if not np.array_equal(found, every) or not np.array_equal(back, order):
            raise VerifyError(f"places of numbers up to {sizes} are others", where=", ".join(texts))
