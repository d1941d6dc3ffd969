"""Rows by index, and parts, of operands of 8 and 4 bits: moved as they are, to the tensor cores."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.errors import PolygenError, UnsupportedProgram

E4, BF = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
NUMPY = {"s8": np.int8, "u8": np.uint8, "e4m3": E4, "bf16": BF, "f32": np.float32}


def numbers(generator, kind, *shape):
    values = generator.integers(0 if kind == "u8" else -2, 3, shape)
    return values.astype(NUMPY[kind])


def rows(x, r, w):
    return x[r] @ w.T


def columns(x, r, w):
    return x[r] @ w


def both(x, r, w):
    return x[r] @ w[r].T


CASES = {
    "s8": (rows, ("s8", "s8"), 48),
    "rows that end anywhere": (rows, ("s8", "s8"), 45),
    "u8 by s8, both by index": (both, ("u8", "s8"), 48),
    "e4m3": (rows, ("e4m3", "e4m3"), 48),
    "columns of s8": (columns, ("s8", "s8"), 48),
    "bf16": (rows, ("bf16", "bf16"), 45),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_rows_by_index(name, arch):
    function, kinds, depth = CASES[name]
    if "e4m3" in kinds and arch == "sm_80":
        pytest.skip("no instruction multiplies 8-bit floats there")
    generator = np.random.default_rng(0)
    x = numbers(generator, kinds[0], 60, depth)
    shape = (depth, 32) if function is columns else (60 if function is both else 40, depth)
    w = numbers(generator, kinds[1], *shape)
    r = generator.integers(0, 60, 37).astype(np.int32)
    side = "K,N" if function is columns else "S,K" if function is both else "N,K"
    kernel = pg.fuse(function, name="f").compile(
        f"{kinds[0]}[S,K]", "s32[T]", f"{kinds[1]}[{side}]", arch=arch, sizes={"K": depth}
    )
    wanted = function(x.astype(float), r, w.astype(float))
    np.testing.assert_array_equal(kernel.emulate(x, r, w).astype(float), wanted)
    report = kernel.check()
    assert report.ok, str(report)


def test_bytes_are_moved_as_they_are():
    kernel = pg.fuse(rows, name="f").compile("s8[S,K]", "s32[T]", "s8[N,K]", arch="sm_90a")
    _, body = kernel.source.split('extern "C" __global__', 1)
    assert "read_run<16" in body and "from_s8" not in body
    with pytest.raises(UnsupportedProgram, match="computed and rounded to s8"):
        pg.fuse(lambda x, r, w: (x[r] * 2).astype("s8") @ w.T).compile(
            "s8[S,K]", "s32[T]", "s8[N,K]", arch="sm_90a"
        )


def unpacked(q, kind):
    values = np.stack([q & 15, q >> 4], -1).reshape(len(q), -1).astype(int)
    return np.where(values > 7, values - 16, values) if kind == "i4" else values


@pytest.mark.parametrize("kind", ["i4", "u4"])
@pytest.mark.parametrize(
    "part",
    [
        lambda q: q[:, 32:],
        lambda q: q[:, 16:48],
        lambda q: q[:, ::2],
        lambda q: q[:, 1::2],
        lambda q: q[5:, :32],
    ],
)
def test_parts_of_four_bits(part, kind):
    generator = np.random.default_rng(1)
    x = numbers(generator, "bf16", 20, 32)
    q = generator.integers(0, 256, (30, 32)).astype(np.uint8)
    kernel = pg.fuse(lambda x, q: x @ part(q).astype("bf16").T, name="f").compile(
        "bf16[M,32]", f"{kind}[30,64]", arch="sm_90a", out_dtype="f32"
    )
    wanted = x.astype(float) @ part(unpacked(q, kind)).T
    np.testing.assert_array_equal(kernel.emulate(x, q), wanted)


def test_rows_of_four_bits():
    generator = np.random.default_rng(1)
    x = numbers(generator, "bf16", 20, 64)
    q = generator.integers(0, 256, (30, 32)).astype(np.uint8)
    r = generator.integers(0, 30, 17).astype(np.int32)
    kernel = pg.fuse(lambda x, q, r: x @ q[r].astype("bf16").T, name="f").compile(
        "bf16[M,64]", "i4[V,64]", "s32[T]", arch="sm_90a", out_dtype="f32"
    )
    wanted = x.astype(float) @ unpacked(q, "i4")[r].T
    np.testing.assert_array_equal(kernel.emulate(x, q, r), wanted)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, q: x[:, :32] @ q[:, 1:33].astype("bf16").T, "a slice, j.1, are repeated"),
        (lambda x, q: x @ q.astype("bf16"), r'unpack\(q, "i4"\)'),
    ],
)
def test_what_is_said_of_four_bits(function, said):
    with pytest.raises(PolygenError, match=said):
        pg.fuse(function).compile("bf16[M,64]", "i4[N,64]", arch="sm_90a")
