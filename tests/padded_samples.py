"""Programs of every kind that kernels are made for, to be run on views of larger arrays.

Dims of theirs are odd where nothing forbids it, so that rows that begin at multiples of 16 bytes
end anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from chain_samples import few_rows
from matrix import UNUSUAL, roles, small
from older_targets import compilable
from paged_samples import signature as pages
from paged_samples import sums_of_whole_numbers
from random_prologues import FRAGMENTS
from rest_samples import form, low_rank
from rest_samples import signature as of_rank
from row_samples import two_levels

import polygen as pg
from polygen.kernel import Kernel
from polygen.schedule.model import Schedule

HOPPER, ADA, AMPERE, TURING, VOLTA = "sm_90a", "sm_89", "sm_80", "sm_75", "sm_70"


@dataclass(frozen=True, slots=True)
class Sample:
    """One program.

    Attributes:
        function: of arrays.
        signature: of its operands; bf16 is f16 on targets without it.
        archs: targets.
        schedule: of its kernel.
        trial: sizes to run it at, where they are not the usual ones.
        sizes: to optimise for.
        options: for `Fused.compile`.
    """

    function: Callable[..., Any]
    signature: tuple[str, ...]
    archs: tuple[str, ...] = (HOPPER, AMPERE)
    schedule: Schedule | str = "auto"
    trial: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def kernel(self, arch: str) -> Kernel:
        """The kernel for a target, by whatever compiler is here."""
        signature = self.signature
        if arch in (TURING, VOLTA):
            signature = tuple(text.replace("bf16", "f16") for text in signature)
        made = pg.fuse(self.function, name="padded").compile(
            *signature, arch=arch, schedule=self.schedule, sizes=self.sizes, **self.options
        )
        return compilable(made)


def nt(x: Any, w: Any) -> Any:
    return x @ w.T


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.relu(x @ w + b) * r


def gathered(x: Any, rows: Any, w: Any) -> Any:
    return x[rows] @ w.T


def scattered(x: Any, w: Any, rows: Any, out: Any) -> Any:
    out[rows] = pg.relu(x @ w.T)
    return out


def scaled(x: Any, s: Any, w: Any) -> Any:
    return (x * s + 1) @ w.T


def by_group(x: Any, q: Any, s: Any) -> Any:
    return x @ (q.astype(x.dtype) * pg.repeat(s, 32, axis=1)).T


def blocks(x: Any, sx: Any, w: Any, sw: Any) -> Any:
    return (x * pg.repeat(sx, 128, axis=1)) @ (w * pg.repeat(sw, 128, axis=1)).T


def attention(q: Any, k: Any, v: Any, b: Any) -> Any:
    s = (q @ k.mT) * 0.125 + b
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def causal(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    return (pg.softmax(pg.where(i >= j, s, -np.inf)) @ v).swapaxes(1, 2)


def decoding(q: Any, k: Any, v: Any) -> Any:
    return pg.softmax((q @ k.mT) * 0.125) @ v


def convolution(x: Any, w: Any) -> Any:
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return pg.relu(pg.einsum("npqcrs,krsc->npqk", windows, w))


def heads(x: Any, w: Any, r: Any) -> Any:
    return (x @ w.T).reshape(x.shape[0], 6, 20).transpose(1, 0, 2) + r


def several(x: Any, u: Any, v: Any) -> Any:
    return x @ u.T, pg.maximum(x @ v.T, 0)


def beside(x: Any, u: Any, v: Any) -> Any:
    return x @ np.concatenate([u, v]).T


def backward(g: Any, x: Any) -> Any:
    return g.T @ x


NT = ("bf16[M,K]", "bf16[N,K]")
NN = ("bf16[M,K]", "bf16[K,N]", "f32[N]", "bf16[M,N]")
OLD, EVERY = (TURING, VOLTA), (HOPPER, ADA, AMPERE, TURING, VOLTA)
FEW = {"M": 16, "N": 4096, "K": 4096}
MANY_KEYS = {"S": 43, "T": 91, "G": 5}

# Of every way in which leaves move pieces of rows one, quick to run.
QUICK: dict[str, Sample] = {
    "background": Sample(layer, NN, (AMPERE,), small()),
    "staged": Sample(nt, NT, (TURING,)),
    "lanes": Sample(
        nt, ("bf16[1,K]", "bf16[N,K]"), (HOPPER,), sizes={"N": 4096, "K": 4096}
    ),
    "fragments": Sample(scaled, ("bf16[M,K]", "bf16[K]", "bf16[N,K]"), (HOPPER,), FRAGMENTS[0]),
    "panels": Sample(layer, NN, (HOPPER,)),
}  # fmt: skip

SAMPLES: dict[str, Sample] = {
    "layers": Sample(layer, NN, EVERY),
    "columns of both": Sample(backward, ("bf16[T,M]", "bf16[T,N]"), EVERY),
    "stored by columns": Sample(layer, ("bf16[M,K]:col", "bf16[K,N]:col", "f32[N]", "bf16[M,N]"),
                                EVERY),
    "batches": Sample(lambda x, w: x @ w, ("bf16[B,M,K]", "bf16[B,K,N]"), EVERY),
    "heads inside rows": Sample(
        lambda x, w: np.einsum("bihd,bjhd->bhij", x, w), ("f16[B,M,H,D]", "f16[B,N,H,D]"),
    ),
    "whole numbers": Sample(nt, ("s8[M,K]", "s8[N,K]"), (HOPPER, AMPERE, TURING),
                            options={"out_dtype": "s32"}),
    "8-bit floats": Sample(nt, ("e4m3[M,K]", "e5m2[N,K]"), (HOPPER, ADA),
                           options={"out_dtype": "bf16"}),
    "f32": Sample(nt, ("f32[M,K]", "f32[N,K]")),
    "f64": Sample(nt, ("f64[M,K]", "f64[N,K]")),
    "tf32": Sample(lambda x, w: x @ w, ("tf32[M,K]", "tf32[K,N]")),
    "one row": Sample(nt, ("bf16[1,K]", "bf16[N,K]"), EVERY, sizes={"N": 4096, "K": 4096}),
    "few rows": Sample(nt, NT, (HOPPER, TURING), trial={"M": 9}, sizes=FEW),
    "a vector": Sample(lambda x, w: x @ w, ("bf16[K]", "bf16[K,N]")),
    "unusual": Sample(nt, NT, (AMPERE,), UNUSUAL["stages_4_spread"]),
    "roles": Sample(nt, NT, (HOPPER,), roles("two", 96, through="lines")),
    "panels": Sample(nt, NT, (HOPPER,), roles(), {"N": 48}),
    "shared sums": Sample(nt, NT, (HOPPER,), roles(cluster=(1, 1, 2)), {"N": 48, "K": 205}),
    "long sums": Sample(backward, ("bf16[T,N]", "bf16[T,K]"), sizes={"T": 8192, "N": 64, "K": 64}),
    "several products": Sample(lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T), (*NT, "bf16[N,K]")),
    "sections": Sample(several, (*NT, "bf16[E,K]"), (HOPPER,), trial={"E": 53}),
    "beside each other": Sample(beside, ("bf16[M,K]", "bf16[40,K]", "bf16[21,K]"), (HOPPER,)),
    "low rank": Sample(low_rank, of_rank(16), (HOPPER,), form("registers")),
    "steps": Sample(lambda x, w: x[:, ::2] @ w, ("bf16[M,90]", "bf16[45,N]")),
    "parts of rows": Sample(lambda x, w: x[:, 8:69] @ w.T, ("bf16[M,90]", "bf16[N,61]")),
    "reshapes": Sample(heads, ("bf16[M,K]", "bf16[120,K]", "bf16[6,M,20]"), EVERY),
    "windows": Sample(convolution, ("f16[B,7,9,C]", "f16[O,3,3,C]"), (HOPPER, AMPERE, TURING),
                      trial={"C": 35}),
    "computed": Sample(lambda x, w: pg.exp(pg.minimum(x, 0)) @ w.T, NT, EVERY),
    "made by consumers": Sample(
        lambda x, w: (1 / (x + 0.5)).astype("bf16") @ w.T, NT, (HOPPER,), FRAGMENTS[1],
    ),
    "weights of 8 bits": Sample(
        lambda x, q, s: x @ (q.astype("bf16") * s[:, None]).T, ("bf16[M,K]", "s8[N,K]", "f32[N]"),
        trial={"M": 9}, sizes=FEW,
    ),
    "weights of 4 bits": Sample(by_group, ("f16[M,96]", "i4[N,96]", "f16[N,3]"), EVERY),
    "few rows, weights of 4 bits": Sample(
        by_group, ("f16[M,96]", "i4[N,96]", "f16[N,3]"), trial={"M": 9}, sizes={"M": 16, "N": 4096},
    ),
    "scales of blocks": Sample(
        blocks, ("e4m3[M,256]", "f32[M,2]", "e4m3[N,256]", "f32[N,2]"), (HOPPER,),
        options={"out_dtype": "bf16"},
    ),
    "rows by index": Sample(gathered, ("bf16[S,K]", "s32[T]", "bf16[N,K]"), EVERY),
    "stored by index": Sample(
        scattered, ("bf16[T,K]", "bf16[N,K]", "s32[T]", "bf16[S,N]"), EVERY, trial={"T": 29},
    ),
    "groups of rows": Sample(
        lambda x, w, ends: pg.grouped_matmul(x, w, ends), ("bf16[T,K]", "bf16[E,K,N]", "s32[E]"),
        EVERY, trial={"T": 75},
    ),
    "folds of rows": Sample(two_levels, NT),
    "folds of columns": Sample(lambda x, w: (x @ w.T, pg.max(x @ w.T, axis=0)), NT, EVERY),
    "softmax": Sample(lambda x, w: pg.softmax(x @ w.T), NT),
    "norms in front": Sample(lambda x, g, w: (pg.rms_norm(x) * g) @ w.T, (NT[0], "bf16[K]", NT[1])),
    "triangles": Sample(lambda x, w: np.tril(x @ w.T), NT),
    "attention": Sample(
        attention, ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]", "bf16[S,T]"), (HOPPER,),
        trial=MANY_KEYS,
    ),
    "causal attention": Sample(
        causal, ("f16[B,S,H,40]", "f16[B,T,H,40]", "f16[B,T,H,48]"), (HOPPER,), trial=MANY_KEYS,
    ),
    "decoding": Sample(
        decoding, ("bf16[B,2,G,64]", "bf16[B,2,T,64]", "bf16[B,2,T,64]"), (HOPPER,),
        few_rows(32, keys=32), MANY_KEYS,
    ),
    "pages": Sample(
        sums_of_whole_numbers(), pages(16, "J"), (HOPPER,), few_rows(keys=32),
        {"B": 2, "G": 3, "N": 9, "J": 5},
    ),
}  # fmt: skip
EACH = [(name, arch) for name, sample in SAMPLES.items() for arch in sample.archs]
