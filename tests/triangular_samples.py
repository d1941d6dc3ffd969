"""Functions of two matrices whose results masks leave a part of.

Where numbers say how much is left, tests of small and of large matrices give their own.
"""

import numpy as np

import polygen as pg


def lower(x, w):
    return np.tril(x @ w)


def upper(x, w):
    """Work on both sides of the mask, and another value than 0 outside."""
    return np.triu(pg.relu(x @ w) - 2, 40) * 2 + 1


def banded(below: int, above: int):
    """A band of so many diagonals below the main one, and so many above."""

    def band(x, w):
        v = x @ w
        i, j = pg.indices(v)
        return pg.where((i - j < below) & (j - i < above), v, j - i)

    return band


def rising(width: int, columns: int | None = None):
    """A band that rises by two rows a column; columns may end."""

    def steep(x, w):
        v = x @ w
        i, j = pg.indices(v)
        inside = abs(i - 2 * j) <= width
        return pg.where(inside if columns is None else inside & (j < columns), v, -1)

    return steep


def far(diagonal: int):
    """Nothing, where matrices have no element on that diagonal."""

    def beyond(x, w):
        return np.triu(x @ w, diagonal)

    return beyond
