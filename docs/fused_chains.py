"""More of what `docs/measure_fused.py` measures: several products in a row, in layers or attention,
folds beside a product, and operands in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fused_cases import Case, pytorch

import polygen as pg

_relu = pg.relu


def chains() -> dict[str, Case]:
    """Layers and attention, by their names."""
    return _layers() | _attention()


def beside() -> dict[str, Case]:
    """Sums beside a product, rows of doubles, and operands copied first, by their names."""
    found = {}
    size = 4096
    sizes = {"M": size, "N": size, "K": size}
    found[f"x.T @ d and d.sum(0) {size}"] = Case(
        lambda x, d: ((x.T @ d).astype("bf16"), d.sum(axis=0)),
        lambda x, d: (x.T @ d, d.float().sum(0)),
        ("bf16[M,K]", "bf16[M,N]"), sizes, 2 * size**3,
    )  # fmt: skip
    m = 2048
    found[f"softmax(x @ w.T) of f64 {m}"] = Case(
        lambda x, w: pg.softmax(x @ w.T, axis=-1),
        lambda x, w: (x @ w.T).softmax(-1),
        ("f64[M,K]", "f64[N,K]"), {"M": m, "N": m, "K": m}, 2 * m**3,
    )  # fmt: skip
    found[f"x @ w of s8 {size}"] = Case(
        lambda x, w: x @ w, _integers, ("s8[M,K]", "s8[K,N]"), sizes, 2 * size**3, (),
        inductor=False,
    )  # fmt: skip
    for images, side, channels, made in ((64, 56, 64, 64), (64, 14, 256, 256)):
        found[f"convolution {images}x{channels}x{side}x{side} to {made}, channels first"] = Case(
            _convolution, lambda x, w: pytorch().nn.functional.conv2d(x, w),
            (f"bf16[N,{channels},{side},{side}]", f"bf16[{made},{channels},3,3]"), {"N": images},
            2 * images * (side - 2) ** 2 * made * channels * 9, inductor=False,
        )  # fmt: skip
    return found


def _layers() -> dict[str, Case]:
    found = {}
    for m in (2**16, 2**20):
        found[f"4 layers of 64, {m} rows"] = Case(
            lambda x, a, b, c, d: _relu(_relu(_relu(x @ a) @ b) @ c) @ d,
            lambda x, a, b, c, d: (((x @ a).relu() @ b).relu() @ c).relu() @ d,
            ("bf16[M,64]", *["bf16[64,64]"] * 4), {"M": m}, 8 * m * 64**2, (), others=True,
            made=_weights("bf16", *[(64, 64)] * 4),
        )  # fmt: skip
        found[f"3 layers of 128, {m} rows"] = Case(
            lambda x, a, b, c: _relu(_relu(x @ a) @ b) @ c,
            lambda x, a, b, c: ((x @ a).relu() @ b).relu() @ c,
            ("bf16[M,128]", *["bf16[128,128]"] * 3), {"M": m}, 6 * m * 128**2, (), others=True,
            made=_weights("bf16", *[(128, 128)] * 3),
        )  # fmt: skip
    m = 2**18
    found[f"gated layers of 128, 256 inside, {m} rows"] = Case(
        lambda x, g, u, d: (pg.silu(x @ g) * (x @ u)) @ d,
        lambda x, g, u, d: (pytorch().nn.functional.silu(x @ g) * (x @ u)) @ d,
        ("bf16[M,128]", "bf16[128,256]", "bf16[128,256]", "bf16[256,128]"), {"M": m},
        6 * m * 128 * 256, (), others=True,
        made=_weights("bf16", (128, 256), (128, 256), (256, 128)),
    )  # fmt: skip
    for kind in ("tf32", "f32"):
        found[f"relu(x @ u) @ d of {kind}, 64, 128 inside, {m} rows"] = Case(
            lambda x, u, d: _relu(x @ u) @ d,
            lambda x, u, d: (x @ u).relu() @ d,
            (f"{kind}[M,64]", f"{kind}[64,128]", f"{kind}[128,64]"), {"M": m},
            4 * m * 64 * 128, (), others=True,
            made=_weights(kind, (64, 128), (128, 64)),
        )  # fmt: skip
    return found


def _weights(kind: str, *shapes: tuple[int, int]) -> dict[int, Any]:
    """Those behind the first operand, whose products are about as large as their rows."""

    def drawn(shape: tuple[int, int]) -> Any:
        torch = pytorch()
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        return (torch.randn(*shape, device="cuda") * shape[0] ** -0.5).to(dtype)

    return {n: lambda _, s=shape: drawn(s) for n, shape in enumerate(shapes, 1)}


def _attention() -> dict[str, Case]:
    found = {}
    heads, rows = 64, 2048
    for kind in ("tf32", "f32"):
        for depth in (64, 128):
            part = f"{kind}[{heads},{rows},{depth}]"
            found[f"attention of {kind}, {heads} heads of {depth}, {rows} rows"] = Case(
                _attends(depth**-0.5),
                lambda q, k, v: pytorch().nn.functional.scaled_dot_product_attention(q, k, v),
                (part, part, part), {}, 4 * heads * rows * rows * depth, (), others=True,
            )  # fmt: skip
    return found


def _attends(scale: float) -> Any:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return pg.softmax(q @ k.mT * scale, axis=-1) @ v

    return attention


def _integers(x: Any, w: Any) -> Any:
    return pytorch()._int_mm(x, w)


def _convolution(x: Any, w: Any) -> Any:
    v = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return pg.einsum("ncpqrs,kcrs->nkpq", v, w)
