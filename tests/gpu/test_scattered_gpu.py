"""Rows that are stored by index, on a GPU: exact on integers, whatever the index says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg

pytestmark = pytest.mark.gpu


def scatter(x: Any, w: Any, rows: Any, out: Any) -> Any:
    """The rows of a product, each to a row of an array that the call is given."""
    out[rows] = pg.relu(x @ w.T)
    return out


def through(x: Any, w: Any, rows: Any, out: Any) -> Any:
    """What is read by an index is stored by the same."""
    out[rows] = x[rows] @ w.T
    return out


SIZES: dict[str, tuple[Any, dict[str, int]]] = {
    "many rows": (scatter, {"T": 4099, "S": 5000, "N": 1024, "K": 512, "M": 4099}),
    "few rows": (scatter, {"T": 16, "S": 5000, "N": 1024, "K": 512, "M": 16}),
    "odd columns": (scatter, {"T": 777, "S": 1000, "N": 131, "K": 129, "M": 777}),
    "read and stored": (through, {"T": 777, "S": 1000, "N": 264, "K": 192, "M": 1000}),
}


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", SIZES)
def test_rows_stored_by_index_are_exact(name: str, dtype: str) -> None:
    """Into a given array, whose other rows stay; what is no row is not stored."""
    cupy = pytest.importorskip("cupy")
    function, sizes = SIZES[name]
    t, s, n, k = (sizes[dim] for dim in "TSNK")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-1, 2, shape).astype(np.float16) for shape in ((sizes["M"], k), (n, k)))
    out = rng.integers(-1, 2, (s, n)).astype({"f16": np.float16, "f32": np.float32}[dtype])
    rows = rng.permutation(s)[:t].astype(np.int32)
    wanted = pg.fuse(function).reference(x, w, rows, out)
    lost = rows[:4].copy()
    rows[:4] = (-1, s, -(2**31), 2**31 - 1)
    wanted[lost] = out[lost]
    given = [cupy.asarray(array) for array in (x, w, rows, out)]
    fused = pg.fuse(function, name="scattered")
    assert fused(*given) is given[-1]
    np.testing.assert_array_equal(given[-1].get(), wanted)
    layout = [
        f"f16[{'T' if function is scatter else 'S'},K]",
        "f16[N,K]",
        "s32[T]",
        f"{dtype}[S,N]",
    ]
    known = {dim: size for dim, size in sizes.items() if dim != "M"}
    kernel = fused.compile(*layout, sizes=known)
    again = [*given[:3], cupy.asarray(out)]
    assert kernel(*again) is again[-1]
    np.testing.assert_array_equal(again[-1].get(), wanted)
