"""Sizes that programs compute with, `x.shape[0]`, on the PTX machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polygen as pg

M, K, N, B = 24, 40, 16, 2
SIZES = {"M": M, "K": K, "N": N, "B": B}
X_W = ("f32[M,K]", "f32[K,N]")

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "rows": (lambda x, w: x @ w / x.shape[0] + w.shape[1], X_W),
    "in front": (lambda x, w: (1 / x.shape[0]) * (x @ w) - (2 - x.shape[1]), X_W),
    "roots": (lambda x, w: x @ w / np.sqrt(x.shape[1]) * x.shape[0] ** -0.5, X_W),
    "products": (lambda x, w: x @ w / (x.shape[0] * w.shape[1]), X_W),
    "numbers of NumPy": (lambda x, w: x @ w * (np.float32(2) / np.maximum(x.shape[1], 3)), X_W),
    "places": (lambda x, w: x @ w * ((pg.indices(x @ w)[0] + 0.5) / x.shape[0]), X_W),
    "double": (lambda x, w: x @ w / x.shape[0], ("f64[M,K]", "f64[K,N]")),
    "batches": (lambda x, w: x @ w * x.shape[1] - x.shape[0], ("f32[B,M,K]", "f32[K,N]")),
    "other order": (lambda x, w: (x @ w).T * x.shape[0], ("f16[M,K]", "f16[K,N]")),
    "folds": (lambda x, w, y: np.sum((x @ w - y) ** 2) / x.shape[0], (*X_W, "f32[M,N]")),
    "a covariance": (lambda x, m: (x - m).T @ (x - m) / (x.shape[0] - 1), ("f32[M,K]", "f32[K]")),
    "several kernels": (
        lambda x, w, y: x.T @ (pg.relu(x @ w) - y) / x.shape[0], ("f32[M,K]", "f32[K]", "f32[M]"),
    ),
    "a chain": (
        lambda x, u: (pg.relu(x @ u) * x.shape[0]) @ u.T / x.shape[0], ("f32[M,32]", "f32[32,N]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compute_with_sizes(name: str, arch: str) -> None:
    function, signature = PROGRAMS[name]
    fused = pg.fuse(function, name="sized")
    program = fused.program(*signature)
    generator = np.random.default_rng(0)
    arrays = [
        generator.integers(-3, 4, [SIZES.get(d, d) for d in tensor.dims]).astype(tensor.dtype.numpy)
        for tensor in program.operands
    ]
    known = {name: SIZES[name] for name in program.sizes}
    made = fused.compile(*signature, arch=arch, sizes=known)
    found = np.asarray(made.emulate(*arrays)).astype(np.float64)
    np.testing.assert_allclose(found, fused.reference(*arrays), rtol=2e-6, atol=1e-5)
