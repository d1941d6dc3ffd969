"""Programs with few results of long sums, which are split among blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from sequence_samples import Sample

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program


def check_same(whole: Program, made: Program, sizes: dict[str, int]) -> None:
    """Two programs have the same results, of small whole numbers."""
    generator = np.random.default_rng(1)
    given = {
        one.name: generator.integers(-4, 5, [sizes.get(dim, dim) for dim in one.dims]) * 1.0
        for one in whole.inputs
    }
    for found, wanted in zip(evaluate(made, given), evaluate(whole, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def gradient(x: Any, w: Any, y: Any) -> Any:
    """Of the mean square of a linear regression."""
    return x.T @ (x @ w - y)


def logistic(x: Any, w: Any, y: Any) -> Any:
    """The mean loss of a logistic regression."""
    z = x @ w
    return (pg.softplus(z) - y * z).mean()


def power(a: Any, v: Any) -> Any:
    """A step of the power method."""
    u = a @ v
    return u / np.sqrt((u * u).sum())


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
        gradient, ("f32[M,16]", "f32[16]", "f32[M]"), {"M": 16000}, 2,
    ),
    "columns by a vector, and work behind": Sample(
        lambda a, u, b: np.maximum(u @ a + b, 0), ("f32[M,N]", "f32[M]", "f32[N]"),
        {"M": 4096, "N": 4096}, run={"M": 1100, "N": 72},
    ),
    "a logistic regression": Sample(
        logistic, ("f32[M,N]", "f32[N]", "f32[M]"), {"M": 262144, "N": 128},
        run={"M": 300, "N": 132}, exact=False,
    ),
    "a step of the power method": Sample(
        power, ("f32[M,M]", "f32[M]"), {"M": 8192}, run={"M": 264}, exact=False,
    ),
    "correlations": Sample(correlation, ("f32[M,16]",), {"M": 16000}, 3, exact=False),
    "folded again": Sample(
        lambda x, y: np.sum(x.T @ y, axis=0), ("f32[K,16]", "f32[K,24]"), {"K": 16384}, 3,
    ),
}  # fmt: skip
VECTORS = Sample(lambda a, b: a @ b, ("f32[K]", "f32[K]"), {"K": 100000}, 1)
