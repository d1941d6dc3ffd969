"""Attention as array code: what libraries have a function of many arguments for.

    softmax(q @ k.mT * scale + bias, where no mask forbids a key) @ v

Only products, masks and a softmax are written here; that they are one loop over the keys is for
the rewrites to find out, as of every other program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.frontend import functions as f
from polygen.frontend.coordinates import indices
from polygen.frontend.folds import softmax

Weights = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Softmax:
    """The weights that scores have, as a function of the scores and of arrays beside them.

    Attributes:
        scale: by which scores are multiplied first.
        causal: whether row i has the keys up to i alone, counted from the first.
        masks: of each array beside the scores, whether it says which keys a row has (where it is
            not 0) rather than being added.
    """

    scale: float
    causal: bool = False
    masks: tuple[bool, ...] = ()

    def __call__(self, scores: Any, *arrays: Any) -> Any:
        """The weights."""
        scores = scores * self.scale
        for array, is_mask in zip(arrays, self.masks, strict=True):
            scores = f.where(array != 0, scores, -np.inf) if is_mask else scores + array
        if self.causal:
            row, key = indices(scores)[-2:]
            scores = f.where(row >= key, scores, -np.inf)
        return softmax(scores)


@dataclass(frozen=True, slots=True)
class Attention:
    """Two products with weights between them, of q, k, v and arrays beside the scores.

    Attributes:
        weights: of the scores, ``q @ k``.
        swapped: of q, k and v, whether the last two axes are exchanged first: k is ``[..., D, T]``
            in the product.
        factor: by which the scores are multiplied before anything else.
        order: of the result's axes, as it is stored; (): as they are.
    """

    weights: Weights
    swapped: tuple[bool, bool, bool] = (False, True, False)
    factor: float = 1.0
    order: tuple[int, ...] = ()

    def __call__(self, q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        """The result."""
        pairs = zip((q, k, v), self.swapped, strict=True)
        q, k, v = (one.mT if swapped else one for one, swapped in pairs)
        scores = q @ k
        if self.factor != 1.0:
            scores = scores * self.factor
        result = self.weights(scores, *arrays) @ v
        return result.transpose(*self.order) if self.order else result


def in_groups(shape: Sequence[Any], group: int) -> tuple[Any, ...]:
    """A shape of heads, ``[..., H, S, T]``, with the heads in groups: ``[..., K, G, S, T]``.

    Args:
        shape: its axes; without heads, or with one that is broadcast, it stays broadcast.
        group: how many heads have one of the keys'.
    """
    if group == 1 or len(shape) < 3:
        return tuple(shape)
    heads = shape[-3]
    both = (1, 1) if str(heads) == "1" else (heads // group, group)
    return (*shape[:-3], *both, *shape[-2:])
