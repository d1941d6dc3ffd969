"""Random numbers that depend on where an element is, and on nothing else.

A number is a function of the seed and of the element's coordinates (`polygen.frontend.philox`), so
that every kernel, schedule and run gives the same ones, a backward pass can compute them again, and
no state is kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polygen.errors import ShapeError, TraceError, echo
from polygen.frontend.coordinates import indices
from polygen.frontend.functions import erfinv, where
from polygen.frontend.philox import uniform as numbers
from polygen.frontend.symbolic import Symbolic

_WORDS = 4  # of the counter
_MOST_SEED = 2**24  # f32 holds every whole number up to it


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"polygen.random has no {name!r}: there are uniform and normal, and pg.dropout"
    )


def uniform(value: Any, *, seed: Any) -> Any:
    """A random number for every element of a value, uniform in [0, 1).

    Args:
        value: a traced value or an array, with 1 to 4 axes; only its shape matters.
        seed: a whole number from 0 to 2^24, or an argument of the function that holds one (f32).

    Returns:
        Values of the shape of `value`, f32, multiples of 2^-24: word 0 of Philox 4x32-10, whose
        counter is the element's place (axis by axis, then zeros) and whose key is the seed.

    Raises:
        TraceError: the seed is no whole number in that range.
        ShapeError: the value has no axis, or more than four.
    """
    places = indices(value)
    if len(places) > _WORDS:
        raise ShapeError(
            f"random numbers for a value of {len(places)} axes",
            why=f"the counter has a word for each axis, {_WORDS} in all",
            nearest="Take them of a part with fewer axes, such as v[0]",
        )
    if not isinstance(seed, (Symbolic, np.ndarray)) and not (
        isinstance(seed, (int, np.integer)) and 0 <= seed <= _MOST_SEED
    ):
        raise TraceError(
            f"the seed is {echo(seed)}",
            why="kernels pass it as f32, which holds whole numbers up to 2^24",
            nearest=f"Use a whole number from 0 to {_MOST_SEED}",
        )
    words: list[Any] = [*places, *(0.0,) * (_WORDS - len(places)), seed]
    if isinstance(places[0], Symbolic):
        return places[0].apply("random_uniform", *words)
    return numbers(*words).view(type(places[0]))


def normal(value: Any, *, seed: Any) -> Any:
    """A random number for every element of a value, of the standard normal distribution.

    Args:
        value: a traced value or an array, with 1 to 4 axes; only its shape matters.
        seed: as `uniform` takes it. The number is a function of the one that `uniform` gives for
            the same seed, so that who needs both takes two seeds.

    Returns:
        Values of the shape of `value`, f32: sqrt(2) erfinv(2 u - 1 + 2^-24) for the number u of
        `uniform`. There are 2^24 of them, as many below 0 as above, the largest 5.42.

    Raises:
        TraceError: the seed is no whole number from 0 to 2^24.
        ShapeError: the value has no axis, or more than four.
    """
    middle = uniform(value, seed=seed) * 2.0 - (1.0 - 2.0**-24)  # of its step; exact in f32
    return erfinv(middle) * math.sqrt(2.0)


def dropout(value: Any, p: float, *, seed: Any) -> Any:
    """The value with elements zeroed with probability `p`, and the others scaled by 1 / (1 - p).

    Args:
        value: a traced value or an array, with 1 to 4 axes.
        p: a number, 0 <= p < 1.
        seed: as `uniform` takes it; which elements are dropped depends on it and on their place
            alone, so that a backward pass that asks again gets the same.

    Raises:
        TraceError: p is no number in [0, 1), or the seed no whole number.
        ShapeError: the value has no axis, or more than four.
    """
    if not isinstance(p, (int, float)) or isinstance(p, bool) or not 0 <= p < 1:
        raise TraceError(
            f"dropout with p = {p!r}",
            why="it is the share of elements that are dropped",
            nearest="Use a number from 0, up to but not including 1",
        )
    return where(uniform(value, seed=seed) >= p, value * (1.0 / (1.0 - p)), 0.0)
