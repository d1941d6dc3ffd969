"""Programs with few results of long sums, which are split among blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from sequence_samples import Sample


def gradient(x: Any, w: Any, y: Any) -> Any:
    """Of the mean square of a linear regression."""
    return x.T @ (x @ w - y)


def correlation(x: Any) -> Any:
    """Of the columns."""
    c = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    return c.T @ c


SPLIT = {
    "squares of columns": Sample(lambda x: x.T @ x, ("f32[M,24]",), {"M": 16000}),
    "in double": Sample(lambda x, y: x.T @ y, ("f64[M,16]", "f64[M,8]"), {"M": 16000}),
    "with a rest, and work behind": Sample(
        lambda x, y, b: np.maximum(x.T @ y + b, 0), ("f32[M,24]", "f32[M,16]", "f32[16]"),
        {"M": 15991}, 3,
    ),
    "weighted": Sample(lambda x, g: (x * g[:, None]).T @ x, ("f32[M,16]", "f32[M]"), {"M": 16000}),
    "k innermost": Sample(
        lambda x, w: x @ w.T, ("f32[M,K]", "f32[N,K]"), {"M": 16, "N": 24, "K": 16384},
    ),
    "matrices": Sample(
        lambda x, y: x.mT @ y, ("f32[2,K,16]", "f32[2,K,8]"), {"K": 16384},
    ),
    "a linear regression": Sample(
        gradient, ("f32[M,16]", "f32[16]", "f32[M]"), {"M": 16000}, 3,
    ),
    "correlations": Sample(correlation, ("f32[M,16]",), {"M": 16000}, 3, exact=False),
    "folded again": Sample(
        lambda x, y: np.sum(x.T @ y, axis=0), ("f32[K,16]", "f32[K,24]"), {"K": 16384}, 3,
    ),
}  # fmt: skip
VECTORS = Sample(lambda a, b: a @ b, ("f32[K]", "f32[K]"), {"K": 100000}, 1)
