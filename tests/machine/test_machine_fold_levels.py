"""Results of folds in an order other than that in which they can be made."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polygen as pg


@pg.fuse
def of_columns(x: Any, w: Any) -> Any:
    v = x @ w.T
    return (v - v.max(axis=0, keepdims=True)).min(axis=0), pg.sum(v, axis=0)


@pg.fuse
def of_rows(x: Any, w: Any) -> Any:
    v = x @ w.T
    most = v.max(axis=-1, keepdims=True)
    beside = v * 2 - pg.sum(v, axis=-2, keepdims=True)
    return pg.where(v >= most, 1, 0).sum(axis=-1), beside, pg.max(v, axis=-1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("program", [of_columns, of_rows], ids=lambda one: one.__name__)
def test_a_later_level_may_be_returned_first(program: pg.Fused, arch: str) -> None:
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((50, 21), (48, 21)))
    kernel = program.compile("bf16[M,K]", "bf16[N,K]", arch=arch, sizes={"M": 50, "N": 48, "K": 21})
    v = x.astype(float) @ w.astype(float).T
    wanted: tuple[Any, ...]
    if program is of_columns:
        wanted = (v - v.max(0)).min(0), v.sum(0)
    else:
        wanted = (v >= v.max(-1, keepdims=True)).sum(-1), v * 2 - v.sum(0), v.max(-1)
    for one, other in zip(kernel.emulation(x, w).results, wanted, strict=True):
        own = np.asarray(one)
        assert np.array_equal(own, other.astype(own.dtype))
