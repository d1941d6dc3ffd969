"""Scaled e4m3 products on a card: exact where sums are, and closer to float64 than unpromoted ones.

``python docs/measure_scaled.py`` prints errors, and times beside ``torch._scaled_mm``.
"""

import ml_dtypes
import numpy as np
import pytest

import polygen as pg

pytestmark = pytest.mark.gpu
E4M3 = ml_dtypes.float8_e4m3fn


def on_card(*arrays):
    cupy = pytest.importorskip("cupy")
    return [cupy.asarray(a.view(np.uint8) if a.dtype == E4M3 else a) for a in arrays]


@pytest.mark.parametrize("rows", [16, 1000, 4096])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_whole_numbers_and_powers_of_two_give_every_bit(rows, group):
    """Sums of 256 products of at most 4 keep all bits in the matrix unit, scaled ones in f32."""
    rng = np.random.default_rng(rows + group)
    depth, columns = 2048, 777
    x, w = (rng.integers(-2, 3, (size, depth)).astype(E4M3) for size in (rows, columns))
    s, t = (2.0 ** rng.integers(-2, 3, (size, depth // group)) for size in (rows, columns))
    arrays = (x, s.astype(np.float32), w, t.astype(np.float32))

    def function(x, s, w, t):
        return (x * pg.repeat(s, group, axis=1)) @ (w * pg.repeat(t, group, axis=1)).T

    fused = pg.fuse(function, name="scaled")
    kernel = fused.compile(
        f"e4m3[M,{depth}]", f"f32[M,{depth // group}]", f"e4m3[N,{depth}]",
        f"f32[N,{depth // group}]", sizes={"M": rows, "N": columns}, out_dtype="f32",
    )  # fmt: skip
    found = kernel(*on_card(*arrays)).get()
    np.testing.assert_array_equal(found.astype(np.float64), fused.reference(*arrays))


def test_scales_of_square_blocks_and_an_epilogue():
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, (size, 1024)).astype(E4M3) for size in (300, 512))
    s, t = (2.0 ** rng.integers(-2, 3, shape) for shape in ((300, 8), (4, 8)))
    b = rng.integers(-4, 5, 512)
    arrays = (x, s.astype(np.float32), w, t.astype(np.float32), b.astype(np.float32))

    def function(x, s, w, t, b):
        square = pg.repeat(pg.repeat(t, 128, axis=0), 128, axis=1)
        return pg.relu((x * pg.repeat(s, 128, axis=1)) @ (w * square).T + b)

    fused = pg.fuse(function, name="scaled")
    kernel = fused.compile(
        "e4m3[M,1024]", "f32[M,8]", "e4m3[512,1024]", "f32[4,8]", "f32[512]",
        sizes={"M": 300}, out_dtype="f32",
    )  # fmt: skip
    found = kernel(*on_card(*arrays)).get()
    np.testing.assert_array_equal(found.astype(np.float64), fused.reference(*arrays))


def test_promoted_sums_are_no_further_from_float64_than_those_of_the_matrix_unit():
    rng = np.random.default_rng(1)
    size, depth = 512, 8192
    x, w = (rng.random((size, depth)).astype(np.float32).astype(E4M3) for _ in "xw")
    ones = np.ones((size, depth // 128), np.float32)
    shape, scales = f"e4m3[{size},{depth}]", f"f32[{size},{depth // 128}]"
    plain = pg.fuse(lambda x, w: x @ w.T).compile(shape, shape, out_dtype="f32")
    promoted = pg.fuse(lambda x, s, w: (x * pg.repeat(s, 128, axis=1)) @ w.T).compile(
        shape, scales, shape, out_dtype="f32"
    )
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    given_x, given_w, given_s = on_card(x, w, ones)
    apart, together = (
        np.abs(found.get() - exact).mean()
        for found in (promoted(given_x, given_s, given_w), plain(given_x, given_w))
    )
    print(f"\nmean error: promoted {apart:.4g}, unpromoted {together:.4g}")
    assert apart <= together
