"""Operands of chains that are computed, folds of what chains give, layers read again: on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu

LAYERS = ("bf16[M,64]", "bf16[64,96]", "bf16[96,64]")
HEADS = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
SIZES = {"M": 1003, "B": 3, "S": 301, "T": 259}


def turned(x: Any) -> Any:
    return pg.concatenate([-x[..., 32:], x[..., :32] * 1], axis=-1)


def returned(x: Any, u: Any, d: Any) -> Any:
    h = pg.relu(s := x @ u)
    return h @ d, s, h


def gated(x: Any, g: Any, u: Any, d: Any) -> Any:
    h = pg.maximum(x @ g, 0) * pg.minimum(x @ u, 1)
    return h @ d, h


def behind(x: Any, a: Any, b: Any) -> Any:
    h = pg.relu(x @ a)
    return h @ b + h, (h @ b) * pg.minimum(h, 1)


def read_again(x: Any, a: Any, b: Any, c: Any) -> Any:
    h = pg.minimum(pg.relu(x @ a), 3)  # so that what is made of it is exact in bf16
    return pg.relu(pg.relu(h @ b) + h) @ c


EXACT = {
    "scaled": (lambda x, u, d, g: pg.relu((x * g) @ u) @ d, (*LAYERS, "bf16[64]")),
    "largest twice": (
        lambda x, u, d: pg.relu(pg.where(x < x.max(axis=1, keepdims=True), x, x * 2) @ u) @ d,
        LAYERS,
    ),
    "columns": (lambda x, u, d: (pg.relu(x @ u) @ d).sum(axis=0), LAYERS),
    "rows": (
        lambda x, u, d: (np.argmax(pg.relu(x @ u) @ d, axis=1), (pg.relu(x @ u) @ d).max(axis=1)),
        LAYERS,
    ),
    "below the largest": (
        lambda x, u, d: (v := pg.relu(x @ u) @ d) - v.max(axis=1, keepdims=True),
        LAYERS,
    ),
    "scaled columns": (
        lambda x, u, d, g: (pg.relu((x * g) @ u) @ d).max(axis=0),
        (*LAYERS, "bf16[64]"),
    ),
    "read again": (read_again, ("bf16[M,64]", *["bf16[64,64]"] * 3)),
    "returned": (returned, LAYERS),
    "gated and returned": (gated, ("bf16[M,64]", *["bf16[64,96]"] * 2, "bf16[96,64]")),
    "read behind": (behind, ("bf16[M,64]", *["bf16[64,64]"] * 2)),
    "turned": (lambda q, k, v: pg.relu(turned(q) @ turned(k).mT) @ v, HEADS),
}
NEAR = {
    "normed heads": (
        lambda q, k, v: pg.softmax(turned(pg.rms_norm(q)) @ turned(pg.rms_norm(k)).mT * 0.125) @ v,
        HEADS,
    ),
    "normed results": (
        lambda q, k, v, g: pg.rms_norm(pg.softmax(q @ k.mT * 0.125) @ v, g),
        (*HEADS, "bf16[64]"),
    ),
    "a layer between norms": (
        lambda x, u, d, g, h: pg.rms_norm(pg.gelu(pg.rms_norm(x, g) @ u) @ d + x, h),
        (*LAYERS, "bf16[64]", "bf16[64]"),
    ),
    "classes": (lambda x, u, d: pg.softmax(pg.relu(x @ u) @ d), LAYERS),
}


def run(function: Any, signature: tuple[str, ...], schedule: str, least: int) -> tuple[Any, Any]:
    """What the GPU gives, and the reference in the results' types, as arrays of float64."""
    torch = pytest.importorskip("torch")
    own = str(current_arch())
    if schedule == "roles" and not device(own).has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    fused = pg.fuse(function, name="worked")
    program = fused.program(*signature)
    sizes = {dim: SIZES[dim] for dim in program.sizes}
    arch = own if schedule == "roles" else "sm_80"
    decided = fused.compile(*signature, arch=arch, sizes=sizes).schedule
    kernel = fused.compile(*signature, arch=own, sizes=sizes, schedule=decided)
    rng = np.random.default_rng(0)
    given = [
        rng.integers(-least, least + 1, [d if isinstance(d, int) else sizes[d] for d in one.dims])
        for one in program.inputs
    ]
    kinds = [one.dtype.numpy for one in program.inputs]
    wanted = fused.reference(*(a.astype(kind) for a, kind in zip(given, kinds, strict=True)))
    got = kernel(*(torch.from_numpy(one).cuda().bfloat16() for one in given))
    got, wanted = (one if isinstance(one, tuple) else (one,) for one in (got, wanted))
    exact = [torch.from_numpy(np.asarray(one, np.float64)) for one in wanted]
    rounded = [one.to(own.dtype) for one, own in zip(exact, got, strict=True)]
    given, wanted = ([one.double().cpu().numpy() for one in these] for these in (got, rounded))
    return given, wanted


@pytest.mark.parametrize("schedule", ["roles", "warps"])
@pytest.mark.parametrize("name", EXACT)
def test_integers_are_exact(name: str, schedule: str) -> None:
    for one, exact in zip(*run(*EXACT[name], schedule, 1), strict=True):
        np.testing.assert_array_equal(one, exact)


@pytest.mark.parametrize("schedule", ["roles", "warps"])
@pytest.mark.parametrize("name", NEAR)
def test_norms_and_softmax_are_near(name: str, schedule: str) -> None:
    """Within some roundings of bf16 of the largest result: so are weights and hidden values."""
    for one, exact in zip(*run(*NEAR[name], schedule, 2), strict=True):
        assert np.abs(one - exact).max() <= 2.0**-6 * np.abs(exact).max()
