"""Plans whose mistakes checks have to refuse: of chains, and of launches beside kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from chain_samples import few_rows
from matrix import roles, small
from paged_samples import decoding, signature

import polygen as pg
from polygen.lower.plan import KernelPlan
from polygen.schedule.model import PAIRS, Epilogue, Launches, Schedule

_LAYERS = (
    "bf16[M,24]", "bf16[24,40]", "bf16[40,24]", "bf16[40,24]", "bf16[24,N]", "bf16[N,16]",
    "f32[M,40]", "bf16[M,24]", "bf16[M,N]",
)  # fmt: skip
_RESIDUAL = ("bf16[M,24]", "bf16[24,40]", "bf16[40,40]", "bf16[40,40]", "bf16[40,16]")
_LEFT = ("bf16[M,24]", "bf16[24,40]", *("bf16[40,40]",) * 3, "f32[40]")
_ERRORS = ("bf16[M,24]", "bf16[24,40]", "bf16[40,N]", "bf16[N,24]", "f32[M,24]")
_ALIKE = ("bf16[M,128]", *("bf16[128,128]",) * 5, "bf16[M,128]")
HEADS = ("bf16[B,M,64]", "bf16[B,N,64]", "bf16[B,N,64]")


def layered(x, a, g, u, c, d, e, r, s):
    h = pg.relu(x @ a + e)
    return pg.relu((pg.silu(h @ g) * (h @ u) + r) @ c * s) @ d


def alike(x, a, b, c, d, e, r):
    for one in (a, b, c, d):
        x = pg.relu(x @ one + r)
    return x @ e


def attention(q, k, v):
    return pg.softmax(q @ k.mT, axis=-1) @ v


def causal(q, k, v):
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(j <= i, s, -np.inf)) @ v


def padded(q, k, v, length, bias):
    """Keys end where an array says; scores have an element of a matrix each."""
    s = (q @ k.mT) * 0.125 + bias
    return pg.softmax(pg.where(pg.indices(s)[-1] < length[:, None, None], s, -np.inf)) @ v


def logged(q, k, v):
    """A result of every row beside the matrix."""
    s = (q @ k.mT) * 0.125
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def folded(q, k, v):
    """Rows of results that use results of their own, and folds of rows and columns."""
    y = pg.softmax((q @ k.mT) * 0.125) @ v
    return pg.softmax(y), np.max(y, axis=1), np.argmin(y, axis=2) + 1


def errors(x, a, b, c, t):
    """Folds alone leave."""
    y = pg.relu(pg.relu(x @ a) @ b) @ c
    return ((y - t) ** 2).mean(), y.max(axis=1)


def residuals(x, a, b, c, d):
    """What layers make is read again behind later sums."""
    h = pg.relu(x @ a)
    g = pg.relu(h @ b) + h
    return (pg.relu(g @ c) + g - h) @ d


def left(x, a, g, u, d, e):
    """Results are made of layers' sums, and of the last product's with what layers have left."""
    h = pg.relu(x @ a + e)
    p = h @ g
    k = pg.silu(p) * (h @ u)
    return (k @ d) * k + h, h, p, (k * 2).astype("f32")


def rows(x, w):
    return pg.softmax(x @ w.T, axis=-1)


def results(x, w):
    """Rows that use results of their own, folds of columns, and what is computed of folds."""
    v = x @ w.T
    return pg.softmax(v), np.max(v, axis=0), np.sum(v, axis=0), np.max(v, axis=1) + 1


def product(x, w):
    return x @ w.T


def across(x, w):
    return x @ w


def gathered(x, r, g, w):
    return (x[r] * g) @ w.T


def normed(x, w, r, g):
    """A pass over sums reads a matrix, and the last one values per column."""
    v = x @ w.T + r
    return v / np.sqrt(np.mean(v * v, axis=1, keepdims=True)) * g


def turned_heads(q, k, v, g, c, s):
    """Norms of heads, of which neighbouring halves are turned; values in chunks."""

    def turned(x):
        x = pg.rms_norm(x, g)
        a, b = x[..., :32], x[..., 32:]
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    return pg.softmax(turned(q) @ turned(k).mT) @ (v * g)


def _first() -> Schedule:
    """Operands are made by a launch before the kernel."""
    found = roles("one", 64, 64)
    before = replace(found.roles, computes="before")
    return replace(found, roles=before, launch=Launches(dependent=True))


def _in_pairs() -> Schedule:
    """Persistent blocks take the last and the first rows of a matrix by turns."""
    found = few_rows()
    raster, ahead = replace(found.raster, order=PAIRS), replace(found.epilogue, prefetch=2)
    return replace(found, raster=raster, epilogue=ahead)


def _in_panels() -> Schedule:
    """Results leave in panels, which the copy engine stores."""
    return replace(few_rows(), epilogue=Epilogue("tma", prefetch=1))


_IN_PARTS = ("bf16[B,16,64]", *HEADS[1:])
_MATRICES, _ODD = ("bf16[M,K]", "bf16[N,K]"), ("bf16[67,131]", "bf16[45,131]")
_GATHERED = ("bf16[S,K]", "s32[T]", "f32[K]", "bf16[N,K]")
_COPIES = replace(roles("one", 64, 64, through="lines"), launch=Launches(realign=True))
_COVERING = replace(roles("two"), epilogue=Epilogue(through="tma", rows="tile"))
_PAIRS = small(epilogue=Epilogue(through="registers"))
_HELD = small(epilogue=Epilogue(through="registers", row_words=2))

# What is computed, of what, and how.
_SAMPLES: dict[str, tuple[Callable[..., Any], tuple[str, ...], dict[str, Any]]] = {
    "chain": (attention, HEADS, {}),
    "masked chain": (causal, HEADS, {}),
    "padded chain": (padded, (*HEADS, "s32[B]", "bf16[M,N]"), {}),
    "paged chain": (decoding(), signature(64, "J"), {}),
    "chain in parts": (attention, _IN_PARTS, {"schedule": few_rows(256)}),
    "chain in pairs": (causal, HEADS, {"schedule": _in_pairs()}),
    "chain by warps": (causal, HEADS, {"arch": "sm_80"}),
    "tf32 chain": (causal, tuple(one.replace("bf16", "tf32") for one in HEADS), {"arch": "sm_80"}),
    "chain of what is made": (
        turned_heads,
        (*["bf16[B,S,64]"] * 3, "f32[64]", "f32[S,32]", "f32[S,32]"),
        {"arch": "sm_80"},
    ),
    "layers": (layered, _LAYERS, {"arch": "sm_80"}),
    "layers in one ring": (alike, _ALIKE, {"arch": "sm_86"}),
    "chain in panels": (logged, HEADS, {"schedule": _in_panels()}),
    "folded chain": (folded, HEADS, {}),
    "followed chain": (folded, HEADS, {"schedule": few_rows()}),
    "folded layers": (errors, _ERRORS, {"arch": "sm_80"}),
    "residuals": (residuals, _RESIDUAL, {"arch": "sm_80"}),
    "left layers": (left, _LEFT, {"arch": "sm_80"}),
    "rows": (rows, ("bf16[M,K]", "bf16[256,K]"), {}),
    "held rows": (rows, _MATRICES, {"arch": "sm_80", "schedule": _HELD}),
    "followed": (results, _MATRICES, {"arch": "sm_80", "schedule": _PAIRS}),
    "covered rows": (
        normed,
        ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]", "bf16[N]"),
        {"schedule": _COVERING},
    ),
    "staged": (product, ("f16[M,K]", "f16[N,K]"), {"arch": "sm_75", "schedule": small()}),
    "by words": (product, ("bf16[M,K]@2", "bf16[N,K]@2"), {"arch": "sm_80", "schedule": small()}),
    "copied": (product, _ODD, {"schedule": _COPIES}),
    "made": (gathered, _GATHERED, {"schedule": _first()}),
    "turned": (across, ("s8[M,K]", "s8[K,N]"), {"arch": "sm_80", "schedule": small()}),
}


def sample(name: str) -> KernelPlan:
    """The plan of one of them."""
    function, types, options = _SAMPLES[name]
    kernel = pg.fuse(function, name=name.replace(" ", "_"))
    return kernel.compile(*types, **{"arch": "sm_90a", **options}).passes.plan
