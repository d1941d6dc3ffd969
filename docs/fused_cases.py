"""What `docs/measure_fused.py` measures: programs for polygen, and the same for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import polygen as pg

WIDTH = 3  # of windows
GROUP = 128  # weights of a row that share a scale
EPSILON = 1e-6


@dataclass(frozen=True)
class Case:
    """What is measured: one program for polygen and for PyTorch.

    Attributes:
        polygen: the function that polygen takes.
        torch: the same for tensors.
        signature: of the operands, sizes as names.
        sizes: of the names.
        scaled: operands that are drawn smaller, by k to the power -1/2.
        others: whether polygen's ways to finish rows are measured beside each other.
        operations: multiplications and additions of the products that are needed.
        made: operands that are drawn otherwise, by position.
    """

    polygen: Callable[..., Any]
    torch: Callable[..., Any]
    signature: tuple[str, ...]
    sizes: dict[str, int]
    operations: int
    scaled: tuple[int, ...] = (1,)
    others: bool = False
    made: dict[int, Callable[[dict[str, int]], Any]] = field(default_factory=dict)
    inductor: bool = True


def pytorch() -> Any:
    """PyTorch, which has to be there."""
    import torch  # noqa: PLC0415

    return torch


def _wide(v: Any) -> Any:
    """Sums are of f32, or of f64 where the exact result is asked for."""
    return v if v.dtype == pytorch().float64 else v.float()


def _rms(v: Any, g: Any) -> Any:
    wide = _wide(v)
    return (wide * (wide * wide).mean(-1, keepdim=True).add(EPSILON).rsqrt() * g).to(v.dtype)


def _layer_norm(v: Any, g: Any) -> Any:
    found = pytorch().nn.functional.layer_norm(_wide(v), (v.shape[-1],), _wide(g))
    return found.to(v.dtype)


def _softmax(v: Any) -> Any:
    return _wide(v).softmax(-1).to(v.dtype)


def _windows(stride: int) -> Callable[..., Any]:
    def convolution(x: Any, w: Any) -> Any:
        x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        v = np.lib.stride_tricks.sliding_window_view(x, (WIDTH, WIDTH), axis=(1, 2))
        return pg.einsum("npqcrs,krsc->npqk", v[:, ::stride, ::stride], w)

    return convolution


def _convolved(stride: int) -> Callable[..., Any]:
    def convolution(x: Any, w: Any) -> Any:
        torch = pytorch()
        found = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride, padding=1
        )
        return found.permute(0, 2, 3, 1)

    return convolution


MATRICES = ("bf16[M,K]", "bf16[N,K]")


def all_cases() -> dict[str, Case]:
    """All of them, by their names."""
    found = {}

    def rows(
        kind: str, own: Any, other: Any, more: tuple[str, ...], shapes: Any, others: bool = False
    ) -> None:
        for m, n, k in shapes:
            found[f"{kind} {m}x{n}x{k}"] = Case(
                own, other, (*MATRICES, *more), {"M": m, "N": n, "K": k}, 2 * m * n * k,
                others=others,
            )  # fmt: skip

    rows(
        "rms_norm(x @ w.T + r, g)",
        lambda x, w, r, g: pg.rms_norm(x @ w.T + r, g).astype("bf16"),
        lambda x, w, r, g: _rms(x @ w.T + r, g),
        ("bf16[M,N]", "bf16[N]"),
        [(4096, 256, 4096), (16384, 128, 2048), (8192, 1024, 1024), (4096, 4096, 4096)],
        others=True,
    )
    rows(
        "layer_norm(x @ w.T + r, g)",
        lambda x, w, r, g: pg.layer_norm(x @ w.T + r, g).astype("bf16"),
        lambda x, w, r, g: _layer_norm(x @ w.T + r, g),
        ("bf16[M,N]", "bf16[N]"),
        [(8192, 768, 3072), (8192, 1024, 4096), (8192, 2048, 2048)],
        others=True,
    )
    rows(
        "softmax(x @ w.T)",
        lambda x, w: pg.softmax(x @ w.T).astype("bf16"),
        lambda x, w: _softmax(x @ w.T),
        (),
        [(16384, 256, 1024), (8192, 1024, 1024), (8192, 2048, 1024), (8192, 4096, 1024)],
        others=True,
    )
    rows(
        "logsumexp(x @ w.T)",
        lambda x, w: pg.logsumexp(x @ w.T, axis=1),
        lambda x, w: _wide(x @ w.T).logsumexp(-1),
        (),
        [(8192, 50304, 768), (4096, 32000, 4096)],
    )
    rows(
        "x @ w.T + r and the mean of its squares",
        lambda x, w, r: _with_mean(x @ w.T + r),
        lambda x, w, r: _with_mean(x @ w.T + r),
        ("bf16[M,N]",),
        [(8192, 6144, 2048)],
    )
    m, n, k = 16384, 4096, 128
    found[f"argmin(c - 2 * (x @ w.T)) {m}x{n}x{k}"] = Case(
        lambda x, w, c: np.argmin(c - 2 * (x @ w.T), axis=1),
        lambda x, w, c: (c - 2 * _wide(x @ w.T)).argmin(1),
        (*MATRICES, "f32[N]"), {"M": m, "N": n, "K": k}, 2 * m * n * k,
    )  # fmt: skip
    m, n, k = 65536, 1024, 64
    found[f"exp(-(a - 2 * (x @ w.T) + c) / 64) {m}x{n}x{k}"] = Case(
        lambda x, w, a, c: pg.exp((2 * (x @ w.T) - a[:, None] - c) * 0.015625),
        lambda x, w, a, c: ((2 * _wide(x @ w.T) - a[:, None] - c) * 0.015625).exp().to(x.dtype),
        (*MATRICES, "f32[M]", "f32[N]"), {"M": m, "N": n, "K": k}, 2 * m * n * k, scaled=(),
    )  # fmt: skip
    rows(
        "rms_norm(x, g) @ w.T",
        lambda x, w, g: pg.rms_norm(x, g).astype("bf16") @ w.T,
        lambda x, w, g: _rms(x, g) @ w.T,
        ("bf16[K]",),
        [(4096, 4096, 4096), (8192, 6144, 2048)],
    )
    rows(
        "layer_norm(x) @ w.T",
        lambda x, w: pg.layer_norm(x).astype("bf16") @ w.T,
        lambda x, w: pytorch().nn.functional.layer_norm(_wide(x), (x.shape[-1],)).to(x.dtype) @ w.T,
        (),
        [(4096, 4096, 4096), (8192, 6144, 2048)],
    )
    rows(
        "softmax(x) @ w.T",
        lambda x, w: pg.softmax(x).astype("bf16") @ w.T,
        lambda x, w: _softmax(x) @ w.T,
        (),
        [(4096, 4096, 4096), (8192, 6144, 2048)],
    )
    rows(
        "(x * g) @ w.T",
        lambda x, w, g: (x * g) @ w.T,
        lambda x, w, g: (x * g) @ w.T,
        ("bf16[K]",),
        [(4096, 4096, 4096)],
    )
    rows(
        "silu(x) @ w.T",
        lambda x, w: pg.silu(x) @ w.T,
        lambda x, w: pytorch().nn.functional.silu(x) @ w.T,
        (),
        [(4096, 4096, 4096)],
    )
    rows("x @ w.T", lambda x, w: x @ w.T, lambda x, w: x @ w.T, (), [(4096, 4096, 4096)])
    found |= _stored_in_bytes() | _folded_alone() | _long_sums()
    for size in (4096, 8192):
        sizes = {"M": size, "K": size}
        found[f"x @ x.T {size}"] = Case(
            lambda x: x @ x.T, lambda x: x @ x.T, ("bf16[M,K]",), sizes, 2 * size**3, ()
        )
        found[f"tril(x @ x.T) {size}"] = Case(
            lambda x: pg.tril(x @ x.T), lambda x: (x @ x.T).tril(), ("bf16[M,K]",), sizes,
            size * (size + 1) * size, (),
        )  # fmt: skip
    for images, side, channels, made, stride in (
        (64, 56, 256, 256, 1), (64, 14, 1024, 1024, 1), (64, 7, 2048, 512, 1),
        (64, 56, 64, 64, 1), (64, 56, 128, 128, 2),
    ):  # fmt: skip
        small = (side + 2 - WIDTH) // stride + 1
        found[f"convolution {images}x{side}x{side}x{channels} to {made}, step {stride}"] = Case(
            _windows(stride), _convolved(stride),
            (f"bf16[N,{side},{side},{channels}]", f"bf16[{made},{WIDTH},{WIDTH},{channels}]"),
            {"N": images}, 2 * images * small**2 * made * channels * WIDTH**2, inductor=False,
        )  # fmt: skip
    m, n, k, rank = 8192, 4096, 4096, 16
    found[f"x @ w.T + (x @ a.T) @ b.T {m}x{n}x{k}, {rank}"] = Case(
        lambda x, w, a, b: x @ w.T + (x @ a.T) @ b.T,
        lambda x, w, a, b: x @ w.T + (x @ a.T) @ b.T,
        (*MATRICES, f"bf16[{rank},K]", f"bf16[N,{rank}]"), {"M": m, "N": n, "K": k},
        2 * m * (n * k + rank * (n + k)), (1, 2),
    )  # fmt: skip
    m, n, k = 8192, 4096, 4096
    indexed: dict[int, Any] = {1: lambda sizes: _permuted(sizes["R"], sizes["M"])}
    found[f"x[rows] @ w.T, half of {2 * m}, x{n}x{k}"] = Case(
        lambda x, rows, w: x[rows] @ w.T, lambda x, rows, w: x[rows] @ w.T,
        ("bf16[R,K]", "s32[M]", "bf16[N,K]"), {"R": 2 * m, "M": m, "N": n, "K": k},
        2 * m * n * k, (2,), made=indexed,
    )  # fmt: skip
    for name, kind in (("f32", "f32"), ("f64", "f64")):
        size = 4096 if kind == "f32" else 2048
        found[f"x @ w.T of {name} {size}"] = Case(
            lambda x, w: x @ w.T, lambda x, w: x @ w.T, (f"{kind}[M,K]", f"{kind}[N,K]"),
            {"M": size, "N": size, "K": size}, 2 * size**3, (), inductor=False,
        )  # fmt: skip
    return found


def _stored_in_bytes() -> dict[str, Case]:
    """Weights of 8 and 4 bits; PyTorch's of 4 bits are unpacked from bytes."""
    found = {}
    n = k = 8192
    groups = k // GROUP
    for m in (1, 16, 64, 4096):
        found[f"int8 weights {m}x{n}x{k}"] = Case(
            lambda x, q, s: x @ (q.astype("bf16") * s[:, None]).T,
            lambda x, q, s: x @ (q.to(x.dtype) * s[:, None].to(x.dtype)).T,
            (f"bf16[M,{k}]", f"s8[N,{k}]", "f32[N]"), {"M": m, "N": n}, 2 * m * n * k, (2,),
        )  # fmt: skip
        found[f"int8 weights in groups of {GROUP}, {m}x{n}x{k}"] = Case(
            lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, GROUP, axis=1)).T,
            lambda x, q, s: x @ (q.to(x.dtype) * s.repeat_interleave(GROUP, 1)).T,
            (f"bf16[M,{k}]", f"s8[N,{k}]", f"bf16[N,{groups}]"), {"M": m, "N": n},
            2 * m * n * k, (2,),
        )  # fmt: skip
        found[f"int4 weights in groups of {GROUP}, {m}x{n}x{k}"] = Case(
            lambda x, q, s: x
            @ (pg.unpack(q, "i4").astype("bf16") * pg.repeat(s, GROUP, axis=1)).T,
            lambda x, q, s: x @ (_nibbles(q).to(x.dtype) * s.repeat_interleave(GROUP, 1)).T,
            (f"bf16[M,{k}]", f"u8[N,{k // 2}]", f"bf16[N,{groups}]"), {"M": m, "N": n},
            2 * m * n * k, (2,),
        )  # fmt: skip
    return found


def _folded_alone() -> dict[str, Case]:
    """Folds that no kernel has beside its products."""
    found = {}
    m, n, k = 8192, 50304, 768
    found[f"mean cross entropy {m}x{n}x{k}"] = Case(
        _cross_entropy,
        lambda x, w, t: pytorch().nn.functional.cross_entropy(_wide(x @ w.T), t.long()),
        (*MATRICES, "s32[M]"), {"M": m, "N": n, "K": k}, 2 * m * n * k,
        made={2: lambda sizes: _permuted(sizes["N"], sizes["M"])},
    )  # fmt: skip
    m, k = 8192, 512
    found[f"contrastive loss along both axes {m}x{m}x{k}"] = Case(
        _contrastive, _contrastive_torch, ("bf16[M,K]", "bf16[M,K]"), {"M": m, "K": k},
        2 * m * m * k, (0, 1),
    )  # fmt: skip
    for kind, (m, n, k) in (("bf16", (8192, 4096, 4096)), ("f32", (1_000_000, 64, 64))):
        found[f"standardised columns of {kind} {m}x{n}x{k}"] = Case(
            lambda x, w: ((x - x.mean(0)) / np.sqrt(x.var(0) + EPSILON)).astype(w.dtype) @ w.T,
            lambda x, w: _standardised(x) @ w.T,
            (f"{kind}[M,K]", f"{kind}[N,K]"), {"M": m, "N": n, "K": k}, 2 * m * n * k,
        )  # fmt: skip
    found["shares of columns 8192x4096x4096"] = Case(
        lambda x, w: pg.softmax(x, axis=0) @ w.T,
        lambda x, w: pytorch().softmax(_wide(x), 0).to(x.dtype) @ w.T,
        MATRICES, {"M": 8192, "N": 4096, "K": 4096}, 2 * 8192 * 4096 * 4096,
    )  # fmt: skip
    size = 4096
    found[f"a weight rounded by its largest element {size}"] = Case(
        lambda x, w: x @ np.clip(np.round(w / (np.abs(w).max() / 127)), -127, 127).T,
        lambda x, w: x @ (_wide(w) / (_wide(w).abs().max() / 127)).round().to(x.dtype).T,
        MATRICES, {"M": size, "N": size, "K": size}, 2 * size**3,
    )  # fmt: skip
    return found


def _long_sums() -> dict[str, Case]:
    """Few results of sums of many terms."""
    found, m, k = {}, 1_000_000, 64
    for kind in ("f32", "bf16", "f64"):
        found[f"x.T @ x of {kind} {m}x{k}"] = Case(
            lambda x: x.T @ x, lambda x: x.T @ x, (f"{kind}[M,{k}]",), {"M": m},
            2 * m * k * k, (),
        )  # fmt: skip
    found[f"x.T @ y of f32 {m}x{k}, 8 columns"] = Case(
        lambda x, y: x.T @ y, lambda x, y: x.T @ y, (f"f32[M,{k}]", "f32[M,8]"), {"M": m},
        2 * m * k * 8, (),
    )  # fmt: skip
    found["a @ b of f32 50000000"] = Case(
        lambda a, b: a @ b, lambda a, b: a @ b, ("f32[K]", "f32[K]"), {"K": 50_000_000},
        2 * 50_000_000, (),
    )  # fmt: skip
    return found


def _cross_entropy(x: Any, w: Any, t: Any) -> Any:
    logits = x @ w.T
    chosen = np.take_along_axis(logits, t[:, None], axis=1)[:, 0]
    return (pg.logsumexp(logits, axis=1) - chosen).mean()


def _contrastive(a: Any, b: Any) -> Any:
    s = a @ b.T
    both = pg.logsumexp(s, axis=1).mean() + pg.logsumexp(s, axis=0).mean()
    return both / 2 - np.mean(np.diagonal(s))


def _contrastive_torch(a: Any, b: Any) -> Any:
    s = _wide(a @ b.T)
    own = pytorch().arange(s.shape[0], device=s.device)
    loss = pytorch().nn.functional.cross_entropy
    return (loss(s, own) + loss(s.T, own)) / 2


def _standardised(x: Any) -> Any:
    wide = _wide(x)
    variance, mean = pytorch().var_mean(wide, 0, correction=0)
    return ((wide - mean) * (variance + EPSILON).rsqrt()).to(x.dtype)


def _nibbles(packed: Any) -> Any:
    torch = pytorch()
    both = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).to(torch.int8)
    return both - 16 * (both > 7)


def _with_mean(v: Any) -> Any:
    if isinstance(v, pytorch().Tensor):
        return v, (_wide(v) * _wide(v)).mean(1)
    return v.astype("bf16"), (v * v).mean(axis=1)


def _permuted(total: int, count: int) -> Any:
    torch = pytorch()
    return torch.randperm(total, device="cuda")[:count].to(torch.int32)
