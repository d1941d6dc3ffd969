"""Products of every pair of types on a card: whole numbers, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

import polygen as pg

pytestmark = pytest.mark.gpu
STORED = {
    "s8": np.int8, "u8": np.uint8, "f64": np.float64, "f32": np.float32, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
PAIRS = [
    ("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8"), ("e4m3", "e5m2"), ("e5m2", "e4m3"),
    ("f16", "bf16"), ("bf16", "f16"), ("f64", "f64"), ("f32", "f32"),
]  # fmt: skip
RANGES = {"s8": (-128, 128), "u8": (0, 256), "f64": (-(1 << 20), 1 << 20), "f32": (-512, 513)}


@pytest.mark.parametrize("sizes", [(128, 256, 512), (333, 257, 96), (4096, 4096, 1024)])
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_whole_numbers_are_exact(kinds, sizes):
    cupy = pytest.importorskip("cupy")
    m, n, k = sizes
    rng = np.random.default_rng(m)
    x, w = (rng.integers(*RANGES.get(kind, (-4, 5)), (rows, k)).astype(STORED[kind])
            for kind, rows in zip(kinds, (m, n), strict=True))  # fmt: skip
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    out = "s32" if kinds[0] in ("s8", "u8") else "f64" if kinds[0] == "f64" else "f32"
    kernel = pg.fuse(lambda x, w: x @ w.T).compile(
        f"{kinds[0]}[M,K]", f"{kinds[1]}[N,K]", sizes={"M": m, "N": n, "K": k}, out_dtype=out
    )
    on_card = [  # CuPy has no floats of 8 bits: their bytes
        cupy.asarray(one.view(np.uint8) if kind in ("e4m3", "e5m2") else one)
        for kind, one in zip(kinds, (x, w), strict=True)
    ]
    found = cupy.asnumpy(kernel(*on_card))
    np.testing.assert_array_equal(found.astype(np.float64), wanted)
