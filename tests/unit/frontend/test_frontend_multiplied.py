"""In which type computed operands are multiplied: nothing that is said is lost on the way."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.errors import DTypeError
from polygen.poly.prologue import multiplied

BF, F16, F32, F64 = ml_dtypes.bfloat16, np.float16, np.float32, np.float64
NUMPY = {"bf16": BF, "f16": F16, "f32": F32, "f64": F64, "s8": np.int8}
NUMPY["e4m3"] = ml_dtypes.float8_e4m3fn


def both(x, w):
    return pg.abs(x) @ pg.abs(w).T


def left(x, w):
    return pg.abs(x) @ w.T


def said(x, w):
    return x.astype("f32") @ w.astype("f32").T


def half(x, w):
    return (x * 3).astype("f32") @ w.T


def narrow(x, w):
    return (x.astype("f16") - 1) @ (w.astype("f16") - 1).T


def positive(x, w):
    return (x > 0) @ pg.abs(w).T


def true(x, w):
    return (x > 0) @ (w > 0).T


def marked(x, w):
    return pg.where(x > 0, 1.0, 0.0) @ w.T


def kinds(function, x, w, **more):
    """The type of the product, of its sums' results, and where its operands come from."""
    found = pg.fuse(function).program(f"{x}[M,K]", f"{w}[N,K]", **more)
    (product,) = found.contractions
    own = set()
    for one in product.reads:
        writer = [s for s in found.statements if s.write.name == one.name]
        tensor = found.tensors.get(one.name)
        own.add(multiplied(found, writer[0]) if tensor is None else tensor.dtype)
    (kind,) = own
    return str(kind), str(found.outputs[0].dtype), {"x", "w"} <= {one.name for one in product.reads}


@pytest.mark.parametrize(
    ("function", "types", "kind"),
    [
        (both, ("bf16", "f32"), "f32"),
        (both, ("bf16", "f16"), "tf32"),
        (both, ("bf16", "bf16"), "bf16"),
        (both, ("f32", "f64"), "f64"),
        (both, ("bf16", "s8"), "bf16"),
        (both, ("f32", "s8"), "f32"),
        (left, ("bf16", "f16"), "tf32"),
        (left, ("f16", "bf16"), "tf32"),
        (left, ("f32", "bf16"), "bf16"),
        (left, ("bf16", "f32"), "f32"),
        (left, ("s8", "f16"), "f16"),
        (said, ("bf16", "bf16"), "bf16"),
        (said, ("bf16", "f16"), "tf32"),
        (said, ("s8", "bf16"), "bf16"),
        (said, ("s8", "e4m3"), "bf16"),
        (said, ("bf16", "f32"), "f32"),
        (half, ("bf16", "bf16"), "f32"),
        (narrow, ("s8", "e4m3"), "f16"),
        (both, ("s32", "bf16"), "f32"),
        (both, ("f32", "tf32"), "f32"),
        (both, ("u8", "bf16"), "bf16"),
        (both, ("u8", "s8"), "f32"),
        (both, ("s32", "e4m3"), "f32"),
        (said, ("s32", "tf32"), "f32"),
        (said, ("u8", "bf16"), "bf16"),
        (half, ("f32", "tf32"), "tf32"),
        (half, ("bf16", "f16"), "f32"),
        (positive, ("f32", "bf16"), "bf16"),
        (positive, ("f32", "f32"), "f32"),
        (true, ("bf16", "bf16"), "bf16"),
        (true, ("u8", "s8"), "f32"),
        (marked, ("f32", "f16"), "f16"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_kinds(function, types, kind, turned):
    def exchanged(x, w):
        return function(w, x)

    given = exchanged if turned else function
    found, stored, bare = kinds(given, *(types[::-1] if turned else types))
    assert found == kind
    wide = function is said or kind in ("tf32", "f32")
    assert stored == ("f32" if wide else kind)
    assert bare == (function is said and types == ("bf16", "bf16"))


def test_bytes_alone_imply_nothing():
    with pytest.raises(DTypeError, match=r"it comes from s8.*astype\(\"bf16\"\)"):
        kinds(both, "s8", "e4m3")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("function", "types", "number"),
    [
        (both, ("f32", "bf16"), 1.001),
        (left, ("bf16", "f16"), 1e5),
        (said, ("f32", "bf16"), 1.001),
        (half, ("f32", "bf16"), 1.001),
        (both, ("bf16", "f16"), 2.0**-30),
    ],
)
def test_numbers_keep_their_digits(function, types, number, turned):
    """Numbers of the first type that the other has not, beside ones."""
    arrays = [np.ones((8, 16), NUMPY[one]) for one in types]
    arrays[0][:] = number
    order = slice(None, None, -1 if turned else 1)
    given, signature = arrays[order], types[order]

    def exchanged(x, w):
        return function(w, x) if turned else function(x, w)

    kernel = pg.fuse(exchanged).compile(
        f"{signature[0]}[M,K]", f"{signature[1]}[N,K]", arch="sm_90a", out_dtype="f32"
    )
    wide = [one.astype(F64) for one in given]
    wanted = wide[0] @ wide[1].T * (3 if function is half else 1)
    np.testing.assert_allclose(kernel.emulate(*given), wanted, rtol=1e-6)


def test_an_operand_of_a_product_that_is_said_to_be_f32_is_f32():
    found = pg.fuse(lambda x, u, v: (x @ u.T).astype("f32") @ v).program(
        "bf16[M,K]", "bf16[16,K]", "bf16[16,N]"
    )
    assert found.contractions[1].exact and str(found.outputs[0].dtype) == "f32"


def test_a_slice_of_what_is_said_to_be_f32():
    found = pg.fuse(lambda x, w: x.astype("f32")[:, ::2] @ w.astype("f32").T).program(
        "bf16[M,32]", "bf16[N,16]"
    )
    (product,) = found.contractions
    assert {one.name for one in product.reads} == {"x", "w"}
    assert str(found.outputs[0].dtype) == "f32"
