"""Operands with one value per column, in the panels of warpgroups: in words, alone, at edges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from matrix import roles

import polygen as pg

STORED = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
M, N, K = 70, 72, 64  # one panel of 64 columns inside the arrays, and one at their edge


@pytest.mark.parametrize(
    ("bias", "alignment"), [("bf16", 16), ("bf16", 2), ("f16", 16), ("f32", 16), ("f32", 4)]
)
def test_every_column_gets_its_own_value(bias, alignment):
    kernel = pg.fuse(lambda x, w, b: x @ w.T + b).compile(
        "f16[M,K]",
        "f16[N,K]",
        f"{bias}[N]@{alignment}",
        arch="sm_90a",
        out_dtype="f16",
        schedule=roles("pingpong"),
    )
    word = "const unsigned*>(b" if bias != "f32" else "const uint2*>(b"
    assert (word in kernel.source) == (alignment == 16)
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-2, 3, (rows, K)).astype(np.float16) for rows in (M, N))
    b = (np.arange(N) - 40).astype(STORED[bias])
    wanted = x.astype(np.float64) @ w.astype(np.float64).T + b.astype(np.float64)
    np.testing.assert_array_equal(kernel.emulate(x, w, b).astype(np.float64), wanted)
