"""Direct calls of a function with invariant dims: one program and one class for all their sizes."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (bfloat16 by name)
import pytest
from runtime_samples import cupy_array

import polygen as pg
from polygen import knobs
from polygen.errors import ArgumentError, InvarianceError

pytest.importorskip("cupy")
X, W, R = 1 << 40, 2 << 40, 3 << 40
N, K = 4096, 2048


@pytest.fixture(autouse=True)
def hopper(tmp_path):
    with knobs.scope(arch="sm_90a", cache_dir=tmp_path, cache=True, schedule=None):
        yield


def layer():
    return pg.fuse(
        lambda x, w, r: pg.relu(x @ w.T) + r, name="layer", invariant={"M": {"x": 0, "r": 0}}
    )


def kernel_for(fused, m, n=N, k=K):
    shapes = ((m, k), X), ((n, k), W), ((m, n), R)
    return fused._kernel_for(tuple(cupy_array(*one, dtype="f2") for one in shapes))


def test_calls_of_all_sizes_are_of_one_class():
    """Sizes that equal others, too, and 1, which elsewhere is a constant."""
    fused = layer()
    found = {m: kernel_for(fused, m) for m in (1, 2, 7, 64, 512, K, 3000, N)}
    assert {one.program.invariant for one in found.values()} == {("M",)}
    assert {one.program.sizes for one in found.values()} == {("M", "D0", "D1")}
    assert len({one.sums for one in found.values()}) == 1
    assert len({one.schedule for one in found.values()}) > 1


def test_calls_without_the_promise_are_of_several():
    fused = pg.fuse(lambda x, w, r: pg.relu(x @ w.T) + r, name="layer")
    assert len({kernel_for(fused, m, 1024, 1024).sums.text for m in (2, 4096)}) == 2


def test_rows_that_no_alignment_divides_have_a_class_too():
    fused = layer()
    found = [kernel_for(fused, m, k=2049) for m in (1, 64, 4096)]
    assert len({one.sums for one in found}) == 1


def test_compile_takes_the_dims_that_fuse_was_told():
    made = layer().compile(
        "f16[T,K]", "f16[N,K]", "f16[T,N]", arch="sm_90a", sizes={"T": 64, "N": N, "K": K}
    )
    assert made.program.invariant == ("T",)


def test_dims_may_have_names_of_our_own():
    fused = pg.fuse(lambda x, w: x @ w.T, name="layer", invariant={"D0": {"x": 0}})
    arrays = cupy_array((64, K), X, dtype="f2"), cupy_array((N, K), W, dtype="f2")
    program = fused._kernel_for(arrays).program
    assert program.sizes == ("D0", "D_0", "D_1")
    assert program.invariant == ("D0",)


def test_axes_that_disagree_are_refused():
    fused = pg.fuse(lambda x, w: x @ w.T, name="f", invariant={"M": {"x": 0, "w": 0}})
    arrays = cupy_array((64, K), X, dtype="f2"), cupy_array((N, K), W, dtype="f2")
    with pytest.raises(ArgumentError, match=r"w.shape\[0\] = 4096, but M = 64"):
        fused._kernel_for(arrays)


def test_arrays_with_an_invariant_axis_innermost_are_refused():
    """One row of them is stored as one row of any other: it would be another program."""
    fused = pg.fuse(lambda x, w: x @ w.T, name="f", invariant={"M": {"x": 0}})
    w = cupy_array((N, K), W, dtype="f2")
    for m in (2, 64):
        x = cupy_array((m, K), X, dtype="f2", strides=(2, 2 * m))
        with pytest.raises(InvarianceError, match=r"x: f16\[M, D0\] column-major: M is innermost"):
            fused._kernel_for((x, w))
    one = cupy_array((1, K), X, dtype="f2", strides=(2, 2))
    assert fused._kernel_for((one, w)).program.invariant == ("M",)


def test_a_sum_over_an_invariant_axis_is_refused_by_the_call():
    fused = pg.fuse(lambda x, w: x @ w.T, name="f", invariant={"K": {"x": 1, "w": 1}})
    arrays = cupy_array((64, K), X, dtype="f2"), cupy_array((N, K), W, dtype="f2")
    with pytest.raises(InvarianceError, match="S0 sums over K"):
        fused._kernel_for(arrays)


def test_a_decorator_takes_invariant_dims():
    @pg.fuse(invariant={"M": {"x": 0}})
    def product(x, w):
        return x @ w.T

    kernels = [
        product._kernel_for((cupy_array((m, K), X, dtype="f2"), cupy_array((N, K), W, dtype="f2")))
        for m in (1, 4096)
    ]
    assert kernels[0].sums == kernels[1].sums


def test_a_function_that_is_fused_again_keeps_its_promise():
    again = pg.fuse(layer(), name="again")
    assert again.promised == {"M": {"x": 0, "r": 0}}
    assert kernel_for(again, 64).program.invariant == ("M",)
