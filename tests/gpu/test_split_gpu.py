"""Products of f32 by three of tf32, on a card: no worse than cuBLAS's f32, against float64.

Where results are few cuBLAS sums parts of k apart and adds them up, whose errors are smaller than
those of one sum: those are bounded by what one sum of f32 may lose.
"""

import os

import numpy as np
import pytest

import polygen as pg

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("data", ["normal", "uniform"])
@pytest.mark.parametrize(("size", "depth"), [(512, 64), (4096, 4096)])
def test_errors_are_no_larger_than_those_of_cublas(data, size, depth):
    own, other = errors(data, size, depth)
    for measure in (np.abs, np.square):
        assert measure(own).max() <= measure(other).max()
        assert measure(own).mean() <= measure(other).mean()


@pytest.mark.parametrize("data", ["normal", "uniform"])
@pytest.mark.parametrize("depth", [1024, 4096])
def test_errors_of_few_results_are_below_those_of_a_sum_of_f32(data, depth):
    own, other = errors(data, 512, depth)
    print(f"\n{data}, 512x512x{depth}, in 2^-24 of the sum of |a||b|:", end=" ")
    print(*(f"{abs(one).max() * 2**24:.2f} {one.std() * 2**24:.2f}" for one in (own, other)))
    assert abs(own).max() <= depth / 8 * 2.0**-24  # a rounding for each instruction of 8 k


def errors(data, size, depth):
    """Ours and cuBLAS's, as parts of the sum of |a||b|."""
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(depth)
    made = rng.standard_normal if data == "normal" else rng.random
    x, w = (made((size, depth)).astype(np.float32) for _ in "xw")
    kernel = pg.fuse(lambda x, w: x @ w.T).compile(
        "f32[M,K]", "f32[N,K]", sizes={"M": size, "N": size, "K": depth}
    )
    on_card = cupy.asarray(x), cupy.asarray(w)
    assert os.environ.get("CUPY_TF32", "0") == "0"
    ours, theirs = (cupy.asnumpy(one) for one in (kernel(*on_card), on_card[0] @ on_card[1].T))
    x, w = x.astype(np.float64), w.astype(np.float64)
    exact, scale = x @ w.T, np.abs(x) @ np.abs(w).T
    return tuple((one - exact) / scale for one in (ours, theirs))


@pytest.mark.parametrize("right", ["[K,N]", "[N,K]"])
@pytest.mark.parametrize("sizes", [(4096, 4096, 1024), (4099, 1031, 2050)])
def test_whole_numbers_are_exact_in_parts(right, sizes):
    """By warpgroups where there are some, of parts that a launch before the kernel makes."""
    cupy = pytest.importorskip("cupy")
    named = dict(zip("MNK", sizes, strict=True))
    aligned = "" if named["K"] % 4 == 0 and named["N"] % 4 == 0 else "@4"
    rng = np.random.default_rng(0)
    x, w = (
        cupy.asarray(rng.integers(-8, 9, (rows, named["K"])).astype(np.float32))
        for rows in sizes[:2]
    )
    inner = right == "[N,K]"
    kernel = pg.fuse((lambda x, w: x @ w.T) if inner else (lambda x, w: x @ w)).compile(
        f"f32[M,K]{aligned}", f"f32{right}{aligned}", sizes=named
    )
    found = kernel(x, w if inner else cupy.ascontiguousarray(w.T))
    exact = cupy.asarray(x, np.float64) @ cupy.asarray(w, np.float64).T
    assert (found == exact).all()
    if kernel.passes.plan.device.has("wgmma"):
        assert kernel.schedule.makes_first, kernel.schedule_origin
