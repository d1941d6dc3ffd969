"""Programs with folds that no kernel has beside its products, which have kernels of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from sequence_samples import Sample

import polygen as pg


def centred(x: Any, axis: Any = 0) -> Any:
    """Less the mean along an axis."""
    return x - x.mean(axis)


def standardised(x: Any, axis: Any = 0) -> Any:
    """That over the standard deviation."""
    return centred(x, axis) / np.sqrt(x.var(axis) + 1e-3)


def correlation(x: Any) -> Any:
    """Of the columns."""
    c = centred(x)
    squares = (c * c).sum(0)
    return (c.T @ c) / np.sqrt(squares[:, None] * squares)


def cross_entropy(x: Any, w: Any, t: Any) -> Any:
    """The mean of what targets cost, and the logits."""
    logits = x @ w
    chosen = np.take_along_axis(logits, t[:, None], axis=1)[:, 0]
    return logits, (pg.logsumexp(logits, axis=1) - chosen).mean()


def contrastive(a: Any, b: Any) -> Any:
    """Pairs of texts and pictures: along rows and along columns."""
    s = a @ b.T * 10
    both = pg.logsumexp(s, axis=1).mean() + pg.logsumexp(s, axis=0).mean()
    return both / 2 - np.mean(np.diagonal(s))


def balanced(x: Any, w: Any) -> Any:
    """How evenly rows are shared among experts."""
    p = pg.softmax(x @ w)
    return (p.mean(0) ** 2).sum() * w.shape[1]


_ROWS = ("bf16[M,24]", "bf16[24,16]")
_M = {"M": 50}

ALONE = {
    "centred columns": Sample(
        lambda x, w: centred(x) @ w, ("f32[M,K]", "f32[K,N]"), {"M": 40, "N": 16, "K": 24},
        exact=False,
    ),
    "sums of columns, whole": Sample(
        lambda x, w: (x + x.sum(0)) @ w, ("f32[M,K]", "f32[K,N]"), {"M": 16, "N": 16, "K": 24},
    ),
    "a batch norm over two axes": Sample(
        lambda x, w: standardised(x, (0, 1)) @ w, ("bf16[B,S,24]", "bf16[24,N]"),
        {"B": 3, "S": 20, "N": 16}, exact=False,
    ),
    "rows of a batch centred": Sample(
        lambda x, w: (x - x.mean(1, keepdims=True)) @ w, ("bf16[B,S,24]", "bf16[24,N]"),
        {"B": 3, "S": 20, "N": 16}, exact=False,
    ),
    "correlations": Sample(correlation, ("f32[M,24]",), {"M": 40}, 3, exact=False),
    "scatter about others": Sample(
        lambda x, r: (x - r.mean(0)).T @ (x - r.mean(0)), ("f32[M,24]", "f32[S,24]"),
        {"M": 40, "S": 30}, exact=False,
    ),
    "double centring": Sample(
        lambda d: (d - d.mean(0) - d.mean(1)[:, None] + d.mean()) @ d.T, ("f32[N,N]",),
        {"N": 24}, exact=False,
    ),
    "rows by index, centred": Sample(
        lambda x, r, w: (x[r] - x.mean(0)) @ w, ("bf16[S,24]", "s32[M]", "bf16[24,16]"),
        {"S": 30, "M": 50}, exact=False,
    ),
    "a standardised weight": Sample(
        lambda x, w: x @ ((w - w.mean()) / w.std()), _ROWS, _M, exact=False,
    ),
    "a weight of three values": Sample(
        lambda x, w: (x @ np.clip(np.round(w / (np.abs(w).mean() + 1e-5)), -1, 1)) * 2, _ROWS,
        _M, exact=False,
    ),
    "columns of bytes behind a product": Sample(
        lambda x, w: x @ w - x.sum(0), ("s8[16,24]", "s8[24,24]"), {},
    ),
    "f64": Sample(
        lambda x, w: centred(x) @ w, ("f64[M,24]", "f64[24,16]"), _M, exact=False,
    ),
    "scaled columns": Sample(
        lambda x, w: (x / np.abs(x).max(0)) @ w, _ROWS, _M, exact=False,
    ),
    "shares of columns": Sample(
        lambda x, w: pg.softmax(x, axis=0) @ w, _ROWS, _M, exact=False,
    ),
    "a weight of eight bits": Sample(
        lambda x, w: x @ np.clip(np.round(w / (np.abs(w).max() / 127)), -127, 127), _ROWS, _M,
        exact=False,
    ),
    "the largest sum of a row": Sample(
        lambda x, w: np.max(np.sum(np.abs(x @ w), 1)), _ROWS, _M,
    ),
    "the first of the largest": Sample(
        lambda x, w: np.argmax(np.max(x @ w, 1)), _ROWS, _M,
    ),
    "cross entropy": Sample(
        cross_entropy, (*_ROWS, "s32[M]"), _M, exact=False,
    ),
    "contrastive": Sample(contrastive, ("bf16[M,24]", "bf16[M,24]"), {"M": 48}, exact=False),
    "shares of experts": Sample(balanced, _ROWS, _M, 3, exact=False),
    "how many are right": Sample(
        lambda x, w, t: (np.argmax(x @ w, 1) == t).sum(), (*_ROWS, "s32[M]"), _M,
    ),
    "the variance of maxima": Sample(
        lambda x, w: np.var(np.max(x @ w, 1)), _ROWS, _M, exact=False,
    ),
    "a batch of means": Sample(
        lambda x, w: pg.logsumexp(x @ w, axis=-1).mean(-1), ("bf16[B,M,24]", "bf16[24,16]"),
        {"B": 3, "M": 20}, exact=False,
    ),
}  # fmt: skip
