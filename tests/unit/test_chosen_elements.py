"""Elements that indices choose, of what NumPy programs write; and what is said of others."""

from __future__ import annotations

import functools
import pickle

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.errors import ArgumentError, DTypeError, PolygenError, ShapeError, TraceError

BF = ml_dtypes.bfloat16
ROWS = ("bf16[M,K]", "bf16[N,K]")


def chosen(z, t):
    return np.take_along_axis(z, t[:, None], axis=1)[:, 0]


def arrays(kind=BF):
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-2, 3, (n, 24)).astype(kind) for n in (50, 40))
    return x, w, generator.integers(0, 40, 50).astype(np.int32)


def found(function, *signature, given, **more):
    kernel = pg.fuse(function, name="f").compile(*signature, arch="sm_90a", **more)
    report = kernel.check()
    assert report.ok, str(report)
    return kernel.emulate(*given)


@pytest.mark.parametrize(
    "of",
    [
        lambda t: np.maximum(t - 5, 0),
        lambda t: pg.where(t < 7, 0, t),
        lambda t: np.abs(t - 10),
        lambda t: np.minimum(t, 3) * 2,
    ],
)
def test_indices_that_are_computed_of_whole_numbers(of):
    x, w, t = arrays()
    values = found(lambda x, w, t: chosen(x @ w.T, of(t)), *ROWS, "s32[M]", given=(x, w, t))
    np.testing.assert_array_equal(values, chosen(x.astype(float) @ w.T.astype(float), of(t)))


def test_one_element_of_each_row_as_numpy_writes_it():
    x, w, t = arrays()
    signature = ("bf16[50,K]", "bf16[N,K]", "s32[50]")
    values = found(lambda x, w, t: (x @ w.T)[np.arange(50), t], *signature, given=(x, w, t))
    wanted = (x.astype(float) @ w.T.astype(float))[np.arange(50), t]
    np.testing.assert_array_equal(values, wanted)
    for other in (np.arange(50)[::-1], np.arange(49), np.zeros(50, int)):
        picked = functools.partial(lambda x, w, t, rows: (x @ w.T)[rows, t], rows=other)
        with pytest.raises(PolygenError, match=r"arrays of numbers.*take_along_axis"):
            pg.fuse(picked, name="f").program(*signature)


def test_indices_beside_double_precision():
    x, w, t = arrays(np.float64)
    signature = ("f64[M,K]", "f64[N,K]", "s32[M]")

    def loss(x, w, t):
        return pg.logsumexp(x @ w.T, axis=1) - chosen(x @ w.T, t)

    z = x @ w.T
    wanted = np.log(np.exp(z).sum(1)) - chosen(z, t)
    values = found(loss, *signature, given=(x, w, t))
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, wanted, rtol=1e-13)
    scaled = found(lambda x, w, t: (x @ w.T) * t[:, None], *signature, given=(x, w, t))
    np.testing.assert_array_equal(scaled, z * t[:, None])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("of", "shape", "count"),
    [
        (lambda s, r: pg.repeat(s[r], 2, axis=0)[:, None], (30,), 32),
        (lambda s, r: pg.repeat(s[r], 2, axis=0)[None], (30,), 20),
        (lambda s, r: pg.repeat(s[r], 2, axis=0), (30, 40), 32),
    ],
)
def test_rows_by_index_that_are_repeated_behind_a_product(of, shape, count, arch):
    generator = np.random.default_rng(2)
    x, w = (generator.integers(-2, 3, (n, 24)).astype(BF) for n in (64, 40))
    s = generator.integers(-2, 3, shape).astype(np.float32)
    r = generator.integers(0, 30, count).astype(np.int32)
    signature = ("bf16[64,K]", "bf16[40,K]", f"f32[S{',40' * (len(shape) - 1)}]", f"s32[{count}]")
    kernel = pg.fuse(lambda x, w, s, r: (x @ w.T) * of(s, r), name="f").compile(
        *signature, arch=arch, out_dtype="f32"
    )
    wanted = (x.astype(float) @ w.T.astype(float)) * of(s, r)
    np.testing.assert_array_equal(kernel.emulate(x, w, s, r), wanted)


def test_sizes_that_became_numbers_are_those_of_a_check():
    sizes = {"M": 33, "N": 40, "K": 64}
    kernel = pg.fuse(
        lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 16, axis=1)).T, name="f"
    ).compile("bf16[M,K]", "s8[N,K]", "bf16[N,4]", arch="sm_90a", sizes=sizes)
    assert kernel.numbers == {"K": 64} and kernel.check(sizes).ok
    assert pickle.loads(pickle.dumps(kernel)).numbers == kernel.numbers
    with pytest.raises(PolygenError, match=r"K is 64 in this kernel, not 32.*one for K = 32"):
        kernel.check(sizes | {"K": 32})
    sizes = {"M": 20, "K": 16, "N": 24, "L": 16}
    several = pg.fuse(lambda x, u, v: pg.softmax(x @ u.T) @ v, name="f").compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[N,L]", arch="sm_80", sizes=sizes
    )
    assert several.check(sizes).ok


def test_one_array_for_the_only_output():
    x, w, _ = arrays()
    kernel = pg.fuse(lambda x, w: np.max(x @ w.T, axis=1), name="f").compile(*ROWS, arch="sm_90a")
    out = np.zeros(50, np.float32)
    wanted = (x.astype(float) @ w.T.astype(float)).max(1)
    for given in (out, (out,), [out], None):
        np.testing.assert_array_equal(kernel.emulation(x, w, out=given).results, wanted)
    assert not out.any()


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (
            lambda x, w, t: chosen(x @ w.T, t / 2),
            DTypeError,
            r"which is f32 .*Write \(t / 2\).astype\(.s32.\)",
        ),
        (
            lambda x, w, t: np.max(x @ w.T, axis=1, where=(x @ w.T) > 0, initial=0),
            TraceError,
            r"with where=.*np.max\(np.where",
        ),
        (lambda x, w, t: x @ w.T + pg.indices((50, 71))[0], TraceError, r"of \(50, 71\).*indices"),
        (
            lambda x, w, t: x @ w.T + pg.random.uniform((50, 71), seed=1),
            TraceError,
            r"of \(50, 71\)",
        ),
        (lambda x, w, t: x @ pg.repeat(w, 2, axis=5).T, ShapeError, "along axis 5.*-2 to 1"),
    ],
)
def test_what_is_said(function, error, said):
    with pytest.raises(error, match=said):
        pg.fuse(function).program(*ROWS, "s32[M]")


def test_what_is_said_of_arrays():
    _, w, _ = arrays()
    kernel = pg.fuse(lambda x, w: x @ w.T, name="f").compile(*ROWS, arch="sm_90a")
    with pytest.raises(ArgumentError, match=r"x is no array of numbers. Pass .* bf16"):
        kernel.emulate(None, w)
    with pytest.raises(ArgumentError, match="No row is legal"):
        pg.check_rows(np.zeros(3, np.int32), 0)
    with pytest.raises(DTypeError, match=r'Write w.T.astype\("f64"\)'):
        pg.fuse(lambda x, w: x @ w.T).program("f64[M,K]", "f32[N,K]")
