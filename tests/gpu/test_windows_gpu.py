"""Convolutions on a GPU: tiles of pixels, strides that boxes leave out, exact on integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import Cluster, Launches, Schedule

pytestmark = pytest.mark.gpu


def slid(x: Any, size: int, stride: int, pad: int) -> Any:
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))) if pad else x
    found = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return found[:, ::stride, ::stride]


def convolution(size: int, stride: int = 1, pad: int = 0) -> Any:
    return lambda x, w: pg.einsum("npqcrs,krsc->npqk", slid(x, size, stride, pad), w)


def layer(size: int, stride: int = 1, pad: int = 0) -> Any:
    plain = convolution(size, stride, pad)
    return lambda x, w, b, r: pg.relu(plain(x, w) + b + r)


# Size, stride and padding of windows, height, width and channels of the image, results, images.
LAYERS = {
    "56x56": ((3, 1, 1), (56, 56, 128), 136, 3),
    "14x14": ((3, 1, 1), (14, 14, 256), 264, 37),
    "7x7": ((3, 1, 1), (7, 7, 320), 256, 65),
    "a point, 7x7": ((1, 1, 0), (7, 7, 512), 512, 33),
    "a point, every second": ((1, 2, 0), (15, 13, 256), 128, 9),
    "every second of even": ((3, 2, 1), (28, 30, 128), 256, 5),
    "every second of odd": ((3, 2, 1), (15, 27, 128), 72, 11),
    "every third": ((5, 3, 2), (23, 31, 64), 64, 7),
    "one image": ((3, 1, 1), (14, 14, 512), 512, 1),
    "one pixel": ((7, 1, 0), (7, 7, 128), 128, 130),
    "3 channels": ((7, 2, 3), (31, 33, 3), 64, 9),
    "8 channels": ((3, 3, 1), (23, 31, 8), 64, 7),
    "16 channels": ((3, 1, 1), (28, 28, 16), 72, 5),
    "24 channels": ((5, 1, 2), (15, 13, 24), 64, 11),
    "96 channels": ((3, 1, 1), (14, 14, 96), 136, 19),
}


USUAL, COPIED = Launches(), Launches(realign=True)


def integers(rng: Any, *shape: int) -> Any:
    return rng.integers(-2, 3, shape).astype(np.float16)


def expected(x: Any, w: Any, size: int, stride: int, pad: int) -> Any:
    """In float64, a tap after the other."""
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))).astype(np.float64)
    h, v = ((x.shape[axis] - size) // stride + 1 for axis in (1, 2))
    found = np.zeros((len(x), h, v, len(w)))
    for r, s in np.ndindex(size, size):
        rows = slice(r, r + (h - 1) * stride + 1, stride)
        columns = slice(s, s + (v - 1) * stride + 1, stride)
        found += x[:, rows, columns] @ w[:, r, s].T.astype(np.float64)
    return found


def run(name: str, schedule: Schedule | str = "auto") -> pg.Kernel:
    """Check a layer with bias, residual and relu, with nothing written beside the result."""
    cupy = pytest.importorskip("cupy")
    window, image, results, images = LAYERS[name]
    size, rng = window[0], np.random.default_rng(0)
    x, w = integers(rng, images, *image), integers(rng, results, size, size, image[2])
    wanted = expected(x, w, *window)
    shape, (h, v) = wanted.shape, wanted.shape[1:3]
    b, r = rng.integers(-9, 10, results).astype(np.float32), integers(rng, *shape)
    signature = (
        f"f16[N,{','.join(map(str, image))}]", f"f16[{results},{size},{size},{image[2]}]",
        f"f32[{results}]", f"f16[N,{h},{v},{results}]",
    )  # fmt: skip
    kernel = pg.fuse(layer(*window), name="layer").compile(
        *signature, sizes={"N": images}, schedule=schedule
    )
    around = cupy.full((images + 2, h, v, results), 77, cupy.float16)
    out = around[1:-1]
    for _ in range(3):
        kernel(*map(cupy.asarray, (x, w, b, r)), out=out)
    whole = np.maximum(wanted + b + r.astype(np.float64), 0).astype(np.float16)
    np.testing.assert_array_equal(out.get(), whole)
    assert (around[0] == 77).all() and (around[-1] == 77).all()
    return kernel


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_exact(name: str) -> None:
    kernel = run(name)
    if device(current_arch() or "sm_80").has("wgmma") and name in ("14x14", "7x7"):
        assert kernel.schedule.tile.pixels, kernel.schedule_origin


# K tiles that go through taps: with roles by boxes of one tap each, else by threads.
JOINED: list[tuple[str, str, str, int, tuple[int, ...], Cluster, Launches]] = [
    ("3 channels", "sm_90a", "cooperative_128x64x64", 80, (2, 8, 8), Cluster(), COPIED),
    ("3 channels", "sm_80", "64x64x64_w32x32_s4", 32, (), Cluster(), USUAL),
    ("8 channels", "sm_90a", "cooperative_256x64x64_w128_s2_b2", 80, (4, 8, 8), Cluster(), USUAL),
    ("8 channels", "sm_80", "64x64x64_w32x32_s4", 32, (), Cluster(), USUAL),
    ("16 channels", "sm_90a", "cooperative_128x64x64", 48, (1, 8, 16), Cluster(n=2), USUAL),
    ("16 channels", "sm_90a", "pingpong_64x128x64", 64, (64, 1, 1), Cluster(), USUAL),
    ("24 channels", "sm_90a", "cooperative_128x64x64", 48, (2, 8, 8), Cluster(), USUAL),
    ("24 channels", "sm_90a", "cooperative_64x64x64_s11_k2", 48, (1, 8, 8), Cluster(k=2), USUAL),
    (
        "96 channels",
        "sm_90a",
        "cooperative_128x128x64_w64_s5_e3p2",
        64,
        (8, 4, 4),
        Cluster(),
        USUAL,
    ),
    ("96 channels", "sm_90a", "pingpong_64x64x64_s10", 64, (4, 8, 2), Cluster(m=2), USUAL),
]


@pytest.mark.parametrize(("name", "arch", "base", "k", "sides", "cluster", "launch"), JOINED)
def test_k_tiles_that_go_through_taps(
    name: str,
    arch: str,
    base: str,
    k: int,
    sides: tuple[int, ...],
    cluster: Cluster,
    launch: Launches,
) -> None:
    if arch == "sm_90a" and not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    found = load_schedule(schedules_folder() / arch / f"{base}.toml")
    cta = replace(found.tile.cta, k=k)
    found = replace(
        found,
        tile=replace(found.tile, cta=cta, pixels=sides, joined=True),
        cluster=cluster,
        launch=launch,
        min_blocks=1,
    )
    if arch == "sm_90a":
        found = replace(found, pipeline=replace(found.pipeline, stages=2))
    if cluster.k > 1:  # ranges of k, and where taps are, are more than 40 registers of a producer
        found = replace(found, roles=replace(found.roles, producer_registers=56))
    assert run(name, found).schedule.tile.joined


ASKED: list[tuple[str, str, tuple[int, ...], Cluster]] = [
    ("14x14", "cooperative_128x128x64_w64_s5_e3p2", (2, 4, 16), Cluster()),
    ("14x14", "pingpong_64x128x64", (64, 1, 1), Cluster()),
    ("14x14", "cooperative_128x64x64", (32, 2, 2), Cluster(n=2)),
    ("14x14", "pingpong_64x64x64_s10", (4, 8, 2), Cluster(m=2)),
    ("7x7", "cooperative_64x64x64_s11_k2", (1, 8, 8), Cluster(k=2)),
    ("7x7", "cooperative_128x128x64_w64_s5_e3p2", (2, 8, 8), Cluster(m=2)),
    ("every second of odd", "cooperative_128x64x64", (2, 4, 16), Cluster()),
    ("every second of odd", "cooperative_256x64x64_w128_s2_b2", (2, 1, 128), Cluster()),
    ("every third", "cooperative_128x64x64", (128, 1, 1), Cluster()),
]


@pytest.mark.parametrize(("name", "base", "sides", "cluster"), ASKED)
def test_boxes_that_are_asked_for(
    name: str, base: str, sides: tuple[int, ...], cluster: Cluster
) -> None:
    if not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    found = load_schedule(schedules_folder() / "sm_90a" / f"{base}.toml")
    pipeline = replace(found.pipeline, stages=2)
    tile = replace(found.tile, pixels=sides)
    run(name, replace(found, tile=tile, cluster=cluster, pipeline=pipeline, min_blocks=1))
