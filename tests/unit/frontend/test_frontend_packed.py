"""Numbers of four bits, two in a byte: packed once, and read by kernels."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

import polygen as pg
from polygen.errors import ArgumentError, DTypeError, ShapeError

ALL = {"i4": np.arange(-8, 8), "u4": np.arange(16)}


@pytest.mark.parametrize("dtype", ["i4", "u4"])
@pytest.mark.parametrize("axis", [0, 1, -1, 2])
def test_what_is_packed_is_unpacked(dtype, axis):
    numbers = np.random.default_rng(1).choice(ALL[dtype], (6, 8, 10)).astype("int8")
    packed = pg.pack(numbers, dtype, axis)
    assert packed.dtype == np.uint8
    assert packed.shape[axis] * 2 == numbers.shape[axis]
    np.testing.assert_array_equal(pg.unpack(packed, dtype, axis), numbers)


def test_the_first_of_two_is_in_the_low_half():
    assert pg.pack(np.array([[3, -2]]), "i4").tolist() == [[0xE3]]
    assert pg.pack(np.array([[1, 15]], "uint8"), "u4").tolist() == [[0xF1]]


def test_kernels_take_what_is_packed():
    fused = pg.fuse(lambda x, q: x @ q.astype("bf16").T, name="packed")
    kernel = fused.compile("bf16[M,64]", "i4[N,64]", arch="sm_80")
    random = np.random.default_rng(2)
    x, q = random.integers(-4, 5, (24, 64)), random.integers(-8, 8, (40, 64))
    found = kernel.emulate(x.astype(bfloat16), pg.pack(q, "i4"))
    np.testing.assert_array_equal(found, (x @ q.T).astype(np.float32).astype(bfloat16))


@pytest.mark.parametrize(
    ("numbers", "dtype", "axis", "error", "message"),
    [
        (np.zeros((2, 4), int), "s4", -1, DTypeError, "pack to 's4'. Use i4 or u4"),
        (np.zeros((2, 4)), "i4", -1, DTypeError, "float64 .*Round it first"),
        ([[1, 2]], "i4", -1, DTypeError, "Pass a NumPy or CuPy array"),
        (np.zeros((2, 3), int), "i4", -1, ShapeError, r"shape \(2, 3\) along axis -1"),
        (np.zeros((2, 4), int), "i4", 2, ShapeError, "Name an axis of even size"),
        (np.array(3), "i4", 0, ShapeError, "even size"),
        (np.array([[8, 0]]), "i4", -1, ArgumentError, r"from 0 to 8 .*numbers.clip\(-8, 7\)"),
        (np.array([[-1, 0]]), "u4", -1, ArgumentError, r"u4 holds 0 to 15"),
    ],
)
def test_what_cannot_be_packed_is_refused(numbers, dtype, axis, error, message):
    with pytest.raises(error, match=message):
        pg.pack(numbers, dtype, axis)


def test_functions_unpack():
    with pytest.raises(DTypeError, match="inside of functions there is unpack"):
        pg.fuse(lambda x, q: x @ pg.pack(q, "i4").T).program("bf16[M,64]", "s8[N,128]")
