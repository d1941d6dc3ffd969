"""Sums that are moved: what a program makes of the errors that their terms may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Moved:
    """Sums that are moved, a product's or a fold's, to see what a program makes of their errors.

    Attributes:
        shares: by which share of its terms' magnitudes each is moved, by its name.
        outward: whether what a share is above 0 for is farther from 0, not greater.
    """

    shares: Mapping[str, float]
    outward: bool = False

    def sum(self, name: str, value: Array, of_magnitudes: Callable[[], Array]) -> Array:
        """A sum, moved.

        Args:
            name: of it.
            value: what it is.
            of_magnitudes: the same sum of its terms without their signs.
        """
        if name not in self.shares:
            return value
        off = self.shares[name] * of_magnitudes()
        if not self.outward:
            return value + off
        return np.asarray(np.sign(value) * np.maximum(np.abs(value) + off, 0.0))  # 0 is between


NOTHING_MOVED = Moved({})
