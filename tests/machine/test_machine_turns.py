"""Consumers in turns on the PTX machine: fewer tiles than consumers, and counts of every kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.emulated import emulate
from polygen.small_problem import few_blocks

BF16 = ml_dtypes.bfloat16
WIDTH, STAGES = 32, 3


@pg.fuse
def residual(x: Any, w: Any, r: Any) -> Any:
    return pg.relu(x @ w.T) + r


@cache
def kernel(form: str, cluster: tuple[int, int]) -> pg.Kernel:
    schedule = roles(form, WIDTH, 32, stages=STAGES, cluster=cluster, columns=16, prefetch=1)
    types = ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]")
    return residual.compile(*types, arch="sm_90a", schedule=schedule)


def padded(array: np.ndarray) -> np.ndarray:
    """Rows that begin at multiples of 16 bytes, whatever their length."""
    wide = np.zeros((len(array), -(-array.shape[1] // 8) * 8), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


@pytest.mark.parametrize("cluster", [(1, 1), pytest.param((1, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["pingpong", "three_in_turns"])
def test_every_number_of_tiles_and_of_k_tiles(form: str, cluster: tuple[int, int]) -> None:
    """One block has 1 to 8 tiles: of 1 k tile, of fewer than the ring has slots, and of more."""
    made, rng = kernel(form, cluster), np.random.default_rng(1)
    source = few_blocks(made.passes.source)
    alone = replace(source, launch=replace(source.launch, persistent=source.launch.blocks))
    for tiles in (1, 2, 3, 4, 5, 8):
        for depth in (1, 33, 130):
            m, n = 64 - tiles, WIDTH * tiles * cluster[1]
            shapes = ((m, depth), (n, depth), (m, n))
            x, w, r = (padded(rng.integers(-2, 3, shape).astype(BF16)) for shape in shapes)
            done = emulate(made.program, alone, made.ptx, (x, w, r))
            wanted = np.maximum(x.astype(float) @ w.astype(float).T, 0) + r.astype(float)
            assert not done.report.findings, (tiles, depth, done.report)
            assert np.array_equal(done.results.astype(float), wanted.astype(BF16).astype(float))
