"""Functions whose results use folds of their own rows."""

import numpy as np


def two_levels(x, w):
    """A fold of what was made of a fold of the same row."""
    v = x @ w.T
    u = v - np.max(v, axis=1, keepdims=True)
    return u + np.min(abs(u), axis=1, keepdims=True), np.max(v, axis=1), v
