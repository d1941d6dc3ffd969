"""Programs as people write them, from models, statistics and physics; with sizes that are quick.

`sizes` are those that a kernel is made for, and so its schedule; `small` those that it is run on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import polygen as pg


@dataclass(frozen=True)
class Everyday:
    """One program: its function and operands, and what it is made for and run on."""

    function: Callable[..., Any]
    signature: tuple[str, ...]
    sizes: dict[str, int]
    small: dict[str, int]
    archs: tuple[str, ...] = ("sm_80", "sm_90a")


def corrected_int8(x: Any, w: Any, of_x: Any, of_w: Any) -> Any:
    """Zero points of rows and columns, with sums of either operand beside the product."""
    sums = of_x[:, None] * np.sum(w, axis=1) + of_w * np.sum(x, axis=1)[:, None]
    return x @ w.T - sums


def responsibilities(x: Any, mean: Any, precision: Any, weight: Any) -> Any:
    squares = np.sum(x * x, axis=1)[:, None] * precision + np.sum(mean * mean, axis=1) * precision
    z = weight - 0.5 * (squares - 2 * (x @ mean.T) * precision)
    return np.exp(z - pg.logsumexp(z, axis=1, keepdims=True))


def simclr(z: Any) -> Any:
    unit = z / np.sqrt(np.sum(z * z, axis=-1, keepdims=True))
    scores = unit @ unit.T / 0.07
    i, j = pg.indices(scores)
    return pg.logsumexp(pg.where(i == j, -pg.inf, scores), axis=1)


def rotary(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    q = (x @ w.T).reshape(-1, 4, 64)
    a, b = q[..., :32], q[..., 32:]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def normed_rotary(x: Any, w: Any, g: Any, cos: Any, sin: Any) -> Any:
    """Heads with a norm each, whose halves are turned: queries of today's language models."""
    q = pg.rms_norm((x @ w.T).reshape(-1, 4, 64), g)
    a, b, cos, sin = q[..., :32], q[..., 32:], cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).swapaxes(0, 1)


def interleaved_rotary(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    q = (x @ w.T).reshape(-1, 8, 16, 2)
    a, b = q[..., 0], q[..., 1]
    c, s = cos[:, None], sin[:, None]
    return np.stack([a * c - b * s, a * s + b * c], axis=-1)


def attention(q: Any, k: Any, v: Any) -> Any:
    """As frameworks write it: heads inside, and results stored as they came."""
    scores = pg.einsum("bqhd,bkhd->bhqk", q, k) * 0.125
    i, j = pg.indices(scores)[-2:]
    weights = pg.softmax(pg.where(i >= j, scores, -pg.inf), axis=-1)
    return pg.einsum("bhqk,bkhd->bqhd", weights, v)


def values_first(q: Any, k: Any, v: Any) -> Any:
    weights = pg.softmax(pg.einsum("bkgsd,bktd->bkgst", q, k) * 0.125, axis=-1)
    return pg.einsum("bktd,bkgst->bksgd", v, weights)


def depth_to_space(x: Any, w: Any, b: Any) -> Any:
    y = (x @ w.T + b).reshape(-1, 8, 8, 2, 2, 32)
    return y.transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16, 32)


def cross_entropy_gradient(x: Any, w: Any, target: Any, total: Any, scale: Any) -> Any:
    z = x @ w.T
    chosen = pg.indices(z)[1] == target[:, None]
    return ((np.exp(z - total[:, None]) - chosen) * scale).astype("bf16")


def layer_norm_backward(dz: Any, w: Any, x: Any, mean: Any, inverse: Any, g: Any) -> Any:
    dy = dz @ w.T
    normed = (x - mean[:, None]) * inverse[:, None]
    one, other = (np.mean(dy * g * v, axis=-1, keepdims=True) for v in (normed, 1.0))
    dx = (dy * g - normed * one - other) * inverse[:, None]
    return dx, np.sum(dy * normed, axis=0)


def gated_backward(x: Any, g: Any, u: Any, dy: Any, wd: Any) -> Any:
    a, b, dh = x @ g.T, x @ u.T, dy @ wd.T
    s = pg.sigmoid(a)
    return dh * b * s * (1 + a * (1 - s)), dh * a * s, a * s * b


def lstm(x: Any, h: Any, wx: Any, wh: Any, b: Any, c: Any) -> Any:
    i, f, g, o = np.split(x @ wx.T + h @ wh.T + b, 4, axis=-1)
    after = pg.sigmoid(f) * c + pg.sigmoid(i) * np.tanh(g)
    return pg.sigmoid(o) * np.tanh(after), after


def spectra(re: Any, im: Any, c: Any, s: Any) -> Any:
    return re @ c - im @ s, re @ s + im @ c


def state_space_chunk(c: Any, b: Any, x: Any, a: Any) -> Any:
    scores = c @ b.mT
    _, i, j = pg.indices(scores)
    decay = np.exp(a[:, :, None] - a[:, None, :])
    return pg.where(j <= i, scores * decay, 0.0).astype("bf16") @ x


def sigmoid_contrast(x: Any, y: Any, t: Any, b: Any, n: Any) -> Any:
    z = (x @ y.T) * t + b
    i, j = pg.indices(z)
    return -np.sum(pg.logsigmoid(pg.where(i == j, z, -z))) / n


def cosine_then_norm(x: Any, w: Any) -> Any:
    inverse = pg.rsqrt(np.sum(x * x, axis=1) + 1)[:, None]
    return pg.layer_norm((x @ w.T) * inverse)


def gated_layer(x: Any, g: Any, w: Any, b: Any) -> Any:
    return pg.gelu(pg.rms_norm(x, g) @ w.T + b)


def cross_entropy(x: Any, w: Any, target: Any) -> Any:
    z = x @ w.T
    return pg.logsumexp(z, axis=1) - np.take_along_axis(z, target[:, None], axis=1)[:, 0]


def contrastive(x: Any, y: Any) -> Any:
    """CLIP's loss of either side: the right partner of a row is the one of its own number."""
    z = (x @ y.T) * 0.25
    right = np.diagonal(z)
    return pg.logsumexp(z, axis=1) - right, pg.logsumexp(z, axis=0) - right


def standardised(x: Any, w: Any, g: Any, b: Any) -> Any:
    """Batch norm of a layer in training, with what is kept of it."""
    v = x @ w.T
    normed = (v - np.mean(v, axis=0)) / np.sqrt(np.var(v, axis=0) + 1e-3)
    return normed * g + b, np.mean(v, axis=0), np.var(v, axis=0, ddof=1)


def score(x: Any, w: Any, b: Any, v: Any) -> Any:
    return pg.gelu(x @ w.T + b) @ v


TOKENS = {"M": 72, "N": 136, "K": 208}
LARGE = {"M": 4096, "N": 4096, "K": 1024}
HEADS = ("bf16[B,S,H,64]",) * 3
PROGRAMS: dict[str, Everyday] = {
    "int8 with zero points": Everyday(
        corrected_int8, ("s8[M,K]", "s8[N,K]", "s32[M]", "s32[N]"), LARGE, TOKENS
    ),
    "Gaussian mixture": Everyday(
        responsibilities, ("f32[M,K]", "f32[N,K]", "f32[N]", "f32[N]"),
        {"M": 8192, "N": 128, "K": 64}, {"M": 40, "N": 24, "K": 16},
    ),
    "SimCLR": Everyday(simclr, ("bf16[M,K]",), LARGE, {"M": 40, "K": 64}),
    "rotary": Everyday(
        rotary, ("bf16[M,K]", "bf16[256,K]", "f32[M,32]", "f32[M,32]"), LARGE, TOKENS
    ),
    "rotary of normed heads": Everyday(
        normed_rotary, ("bf16[M,K]", "bf16[256,K]", "bf16[64]", "f32[M,32]", "f32[M,32]"),
        LARGE, TOKENS,
    ),
    "interleaved rotary": Everyday(
        interleaved_rotary, ("bf16[M,K]", "bf16[256,K]", "f32[M,16]", "f32[M,16]"), LARGE, TOKENS
    ),
    "attention": Everyday(
        attention, HEADS, {"B": 1, "S": 2048, "H": 16}, {"B": 2, "S": 40, "H": 2}
    ),
    "values first": Everyday(
        values_first, ("bf16[B,K,2,S,64]", "bf16[B,K,T,64]", "bf16[B,K,T,64]"),
        {"B": 1, "K": 4, "S": 1024, "T": 1024}, {"B": 1, "K": 2, "S": 24, "T": 72},
    ),
    "depth to space": Everyday(
        depth_to_space, ("bf16[B,8,8,C]", "bf16[128,C]", "bf16[128]"),
        {"B": 64, "C": 256}, {"B": 2, "C": 32},
    ),
    "gradient of the cross entropy": Everyday(
        cross_entropy_gradient, ("bf16[M,K]", "bf16[N,K]", "s32[M]", "f32[M]", "f32"),
        LARGE | {"N": 50304}, TOKENS,
    ),
    "layer norm, backward": Everyday(
        layer_norm_backward,
        ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]", "f32[M]", "f32[M]", "bf16[N]"), LARGE, TOKENS,
    ),
    "gated, backward": Everyday(
        gated_backward, ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]", "bf16[M,L]", "bf16[N,L]"),
        LARGE | {"L": 1024}, TOKENS | {"L": 64},
    ),
    "LSTM": Everyday(
        lstm,
        ("bf16[M,K]", "bf16[M,L]", "bf16[256,K]", "bf16[256,L]", "f32[256]", "f32[M,64]"),
        LARGE | {"L": 1024}, TOKENS | {"L": 64},
    ),
    "Fourier transform": Everyday(
        spectra, ("f16[M,K]", "f16[M,K]", "f16[K,N]", "f16[K,N]"), LARGE, TOKENS
    ),
    "state space, a chunk": Everyday(
        state_space_chunk, ("bf16[B,L,64]", "bf16[B,L,64]", "bf16[B,L,64]", "f32[B,L]"),
        {"B": 512, "L": 128}, {"B": 2, "L": 40},
    ),
    "SigLIP": Everyday(
        sigmoid_contrast, ("bf16[M,K]", "bf16[N,K]", "f32", "f32", "f32"), LARGE, TOKENS
    ),
    "a layer in f32": Everyday(
        gated_layer, ("f32[M,K]", "f32[K]", "f32[N,K]", "f32[N]"), LARGE, TOKENS
    ),
    "cross entropy": Everyday(
        cross_entropy, ("bf16[M,K]", "bf16[N,K]", "s32[M]"), LARGE | {"N": 50304}, TOKENS
    ),
    "CLIP": Everyday(
        contrastive, ("bf16[M,K]", "bf16[M,K]"), {"M": 4096, "K": 512}, {"M": 72, "K": 64}
    ),
    "batch norm": Everyday(
        standardised, ("bf16[M,K]", "bf16[N,K]", "f32[N]", "f32[N]"), LARGE, TOKENS
    ),
    "a number a row": Everyday(
        score, ("bf16[M,K]", "bf16[N,K]", "f32[N]", "f32[N]"), LARGE, TOKENS
    ),
    "cosine, then norm": Everyday(
        cosine_then_norm, ("bf16[M,K]", "bf16[N,K]"), {"M": 8192, "N": 1024, "K": 512}, TOKENS
    ),
}  # fmt: skip
QUICK = {("rotary", "sm_90a"), ("attention", "sm_90a"), ("depth to space", "sm_80")}
