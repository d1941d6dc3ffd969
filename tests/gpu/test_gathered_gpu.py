"""Rows by index, on a GPU: exact on integers, whatever the index says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg

pytestmark = pytest.mark.gpu

LAYERS: dict[str, tuple[Any, tuple[str, ...], dict[str, int]]] = {
    "rows": (
        lambda x, r, w: x[r] @ w.T, ("f16[S,K]", "s32[T]", "f16[N,K]"),
        {"S": 1000, "T": 777, "N": 1024, "K": 512},
    ),
    "rows of any pitch": (
        lambda x, r, w: x[r] @ w.T, ("f16[S,K]", "s32[T]", "f16[N,K]"),
        {"S": 37, "T": 4099, "N": 131, "K": 129},
    ),
    "columns": (
        lambda x, r, w, b: pg.relu(x @ w[r].T + b),
        ("f16[M,K]", "s32[N]", "f16[V,K]", "f32[N]"),
        {"M": 300, "N": 520, "V": 2000, "K": 256},
    ),
    "scaled rows": (
        lambda x, r, w, g, s: (x[r] * g * s[r][:, None]) @ w.T,
        ("f16[S,K]", "s32[T]", "f16[N,K]", "f16[K]", "f32[S]"),
        {"S": 100, "T": 1030, "N": 264, "K": 192},
    ),
    "a table behind the product": (
        lambda x, r, w, b: x @ w.T + b[r], ("f16[M,K]", "s32[M]", "f16[N,K]", "f32[E,N]"),
        {"M": 1030, "N": 520, "K": 256, "E": 17},
    ),
    "rows that are summed": (
        lambda x, r, w: x @ w[r], ("f16[M,T]", "s32[T]", "f16[V,N]"),
        {"M": 129, "T": 300, "N": 520, "V": 70},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_rows_by_index_are_exact(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    function, signature, sizes = LAYERS[name]
    kernel = pg.fuse(function, name="gathered").compile(*signature, sizes=sizes, out_dtype="f32")
    rng = np.random.default_rng(0)
    arrays: list[Any] = []
    for tensor in kernel.program.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in tensor.dims]
        if tensor.name in kernel.program.gathered:
            count = sizes[str(kernel.program.gathered[tensor.name])]
            named = rng.integers(0, count, shape).astype(np.int32)
            named[:4] = (-1, count, -(2**31), 2**31 - 1)
            arrays.append(named)
        else:
            arrays.append(rng.integers(-1, 2, shape).astype(tensor.dtype.numpy))
    found = kernel(*map(cupy.asarray, arrays)).get()
    kept = [
        np.clip(array, 0, sizes[str(kernel.program.gathered[t.name])] - 1)
        if t.name in kernel.program.gathered
        else array
        for t, array in zip(kernel.program.inputs, arrays, strict=True)
    ]
    np.testing.assert_array_equal(found, pg.fuse(function).reference(*kept))


def test_rows_that_are_no_rows_are_named_on_request() -> None:
    cupy = pytest.importorskip("cupy")
    with pytest.raises(pg.PolygenError, match="row 1 is row 9"):
        pg.check_rows(cupy.asarray([0, 9], dtype=cupy.int32), 9)
