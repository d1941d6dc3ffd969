"""Products of f32 by three of tf32, on a card: no worse than cuBLAS's f32, against float64."""

import os

import numpy as np
import pytest

import polygen as pg

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("data", ["normal", "uniform"])
@pytest.mark.parametrize("depth", [64, 1024, 4096])
def test_errors_are_no_larger_than_those_of_cublas(data, depth):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(depth)
    made = rng.standard_normal if data == "normal" else rng.random
    x, w = (made((512, depth)).astype(np.float32) for _ in "xw")
    kernel = pg.fuse(lambda x, w: x @ w.T).compile(
        "f32[M,K]", "f32[N,K]", sizes={"M": 512, "N": 512, "K": depth}
    )
    on_card = cupy.asarray(x), cupy.asarray(w)
    assert os.environ.get("CUPY_TF32", "0") == "0"
    ours, theirs = (cupy.asnumpy(one) for one in (kernel(*on_card), on_card[0] @ on_card[1].T))
    x, w = x.astype(np.float64), w.astype(np.float64)
    exact, scale = x @ w.T, np.abs(x) @ np.abs(w).T
    for measure in (np.abs, np.square):
        own, other = (measure((one - exact) / scale) for one in (ours, theirs))
        assert own.max() <= other.max() and own.mean() <= other.mean()
