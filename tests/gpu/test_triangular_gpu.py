"""Results that masks leave a part of on a real GPU: any mask and sizes, sentinels around views."""

from __future__ import annotations

import numpy as np
import pytest
from triangular_samples import banded, far, lower, rising, upper

import polygen as pg
from polygen.errors import PolygenError
from polygen.frontend.evaluate import evaluate
from polygen.hardware.device import device
from polygen.runtime import environment
from polygen.schedule.load import shipped

pytestmark = pytest.mark.gpu

PLAIN = ("f16[M,K]", "f16[K,N]")
SIZES = (
    {"M": 2048, "N": 2048, "K": 256},
    {"M": 1000, "N": 3144, "K": 136},
    {"M": 3000, "N": 520, "K": 72},
    {"M": 8, "N": 4096, "K": 64},
)
SENTINEL = 1234.0


def folded(x, w):
    v = np.tril(x @ w, 8)
    return v, v.max(axis=1)


band, steep, beyond = banded(300, 500), rising(400), far(100_000)
FUNCTIONS = (lower, upper, band, steep, beyond, folded)


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def operands(program, sizes):
    """Small integers: every sum is exact."""
    random = np.random.default_rng(list(sizes.values()))
    return {
        t.name: random.integers(-1, 2, [sizes[d] for d in t.dims]).astype(t.dtype.numpy)
        for t in program.inputs
    }


@pytest.fixture(scope="module")
def kernels():
    made = {}

    def kernel(function, signature=PLAIN):
        key = (function, signature)
        if key not in made:
            made[key] = pg.fuse(function).compile(*signature)
        return made[key]

    return kernel


def run(cupy, made, sizes):
    """Compare a call with NumPy, every bit, in the middle of larger arrays."""
    arrays = operands(made.program, sizes)
    wanted = evaluate(made.program, arrays, sizes)
    big = [cupy.full([n + 16 for n in one.shape], SENTINEL, one.dtype) for one in wanted]
    views = [whole[tuple(slice(8, -8) for _ in whole.shape)] for whole in big]
    out = views[0] if len(views) == 1 else tuple(views)
    made(*map(cupy.asarray, arrays.values()), out=out)
    for whole, view, right in zip(big, views, wanted, strict=True):
        np.testing.assert_array_equal(view.get(), right)
        view.fill(SENTINEL)
        assert (whole.get() == SENTINEL).all()


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes.values())))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_mask_is_right_at_every_size(cupy, kernels, function, sizes):
    run(cupy, kernels(function), sizes)


def test_matrices_of_a_batch(cupy, kernels):
    made = kernels(lower, ("f16[B,M,K]", "f16[B,K,N]"))
    run(cupy, made, {"B": 5, "M": 1000, "N": 776, "K": 136})


def test_odd_rows(cupy, kernels):
    made = kernels(lower, ("f16[M,K]@2", "f16[K,N]@2"))
    sizes = {"M": 701, "N": 1001, "K": 77}
    arrays = operands(made.program, sizes)
    (wanted,) = evaluate(made.program, arrays, sizes)
    np.testing.assert_array_equal(made(*map(cupy.asarray, arrays.values())).get(), wanted)


@pytest.mark.parametrize("function", [upper, band])
def test_every_kind_of_schedule(cupy, function):
    """One of each form, cluster and way out that the card has."""
    kinds = {}
    for one in shipped(device(str(environment.current_arch()))):
        kind = (one.specialised, one.roles.form, one.cluster, one.epilogue.through, one.exchange)
        kinds.setdefault(kind, one)
    ran = 0
    for one in kinds.values():
        try:
            made = pg.fuse(function).compile(*PLAIN, schedule=one, sizes=SIZES[1])
        except PolygenError:  # it does not fit the program, which other tests are about
            continue
        run(cupy, made, SIZES[1])
        ran += 1
    assert ran > 2


def test_a_graph_is_right(cupy, kernels):
    made, sizes = kernels(lower), SIZES[0]
    arrays = operands(made.program, sizes)
    (wanted,) = evaluate(made.program, arrays, sizes)
    given = list(map(cupy.asarray, arrays.values()))
    out = cupy.full(wanted.shape, SENTINEL, "f2")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        made(*given, out=out)
        stream.synchronize()
        stream.begin_capture()
        made(*given, out=out)
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(SENTINEL)
            graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(out.get(), wanted)
