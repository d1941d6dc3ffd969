"""Integers that index results: their statements keep the axis; what is stored has lost it."""

import numpy as np
import pytest

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.rewrite.kept_axes import with_kept_axes
from polygen.small_problem import trial_operands
from polygen.tune.reference import by_rows

COLUMN = ("bf16[M,K]", "bf16[K,24]")


def lines(function, *types):
    program = with_kept_axes(pg.fuse(function, name="f").program(*types))
    return [str(one) for one in program.statements]


def test_only_what_is_stored_loses_the_axis():
    assert lines(lambda x, w: pg.relu((x @ w)[:, 3]), *COLUMN) == [
        "v0[i,j] += x[i,k] * w[k,j+3]",
        "v1[i,j] = maximum(v0[i,j], 0.0)",
        "y0[i] = cast(v1[i,j])",
    ]
    assert lines(lambda x, w: (x @ w)[:, 3].sum(), *COLUMN)[1] == "v1 = sum over i,j of v0[i,j]"


def test_an_axis_that_others_have_is_none_of_one_index():
    of = lines(lambda x, w, y: (x @ w)[:, 3:4] * y, *COLUMN, "f32[M,N]")
    assert of[1] == "v1[i,j] = mul(v0[i,0], y[i,j])"
    refused = "different output domains"
    with pytest.raises(UnsupportedProgram, match=refused):
        function = pg.fuse(lambda x, w, y: (x @ w)[:, 3:4] * y)
        function.compile(*COLUMN, "f32[M,N]", arch="sm_80")


def heads(q, k, v):
    return (pg.softmax(q[:, :, None] @ k.mT * 0.125) @ v)[:, :, 0]


FORMS = {
    "column": (lambda x, w: (x @ w)[:, 0], COLUMN),
    "row": (lambda x, w: (x @ w)[0], ("bf16[16,K]", "bf16[K,N]")),
    "vector on the left": (lambda x, w: (x[None] @ w)[0], ("bf16[K]", "bf16[K,N]")),
    "vector on the right": (lambda x, w: (x @ w[:, None])[:, 0], ("bf16[M,K]", "bf16[K]")),
    "batched": (lambda w, x: (w @ x[..., None])[..., 0] + 1, ("f16[B,M,K]", "f16[B,K]")),
    "reshaped": (lambda w, x: (w @ x[..., None]).reshape(5, 33), ("f16[5,33,K]", "f16[5,K]")),
    "beside a vector": (
        lambda x, w, b: pg.relu((x @ w)[:, 3] + b) * 2,
        (*COLUMN, "f32[M]"),
    ),
    "two columns": (lambda x, w: (x @ w)[:, 0] * (x @ w)[:, 1], COLUMN),
    "two results": (lambda x, w: ((x @ w)[:, 0], (x @ w)[:, 1] + 1), COLUMN),
    "side by side": (lambda x, w: np.stack([(x @ w)[:, 0], (x @ w)[:, 1]], 1), COLUMN),
    "the largest's place": (lambda x, w: np.argmax((x @ w)[:, 3], 0), COLUMN),
    "of a row": (lambda x, w: np.argmax((x[None] @ w)[0]), ("bf16[K]", "bf16[K,N]")),
    "of matrices": (
        lambda x, w: np.argmin((x @ w[..., None])[..., 0], -1),
        ("bf16[B,M,K]", "bf16[B,K]"),
    ),
    # As kernels in order.
    "axes of different values": (
        lambda x, w: (x[None] @ w[None, :, None])[0, :, 0] + (x @ w[:, None])[:, 0],
        ("bf16[M,K]", "bf16[K]"),
    ),
    "a row beside a column": (lambda x: (x @ x.T)[0] * (x @ x.T)[:, 0], ("bf16[16,K]",)),
    "of one product": (lambda x: (v := x @ x.T)[0] * v[:, 0], ("bf16[16,K]",)),
    "one query": (heads, ("bf16[2,4,64]", "bf16[2,4,T,64]", "bf16[2,4,T,64]")),
    "the last query": (
        lambda q, k, v: (pg.softmax(q @ k.mT * 0.125) @ v)[:, -1],
        ("bf16[2,16,64]", "bf16[2,T,64]", "bf16[2,T,64]"),
    ),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", FORMS)
def test_results_are_numpys(name, arch):
    function, types = FORMS[name]
    assert pg.fuse(function, name="f").compile(*types, arch=arch).check().ok


@pytest.mark.parametrize(
    "name", ["column", "row", "batched", "side by side", "two results", "of a row", "of matrices"]
)
def test_what_they_mean(name):
    function, types = FORMS[name]
    program = pg.fuse(function, name="f").program(*types)
    sizes = {"B": 3, "M": 5, "N": 7, "K": 4}
    operands = [one.astype(float) for one in trial_operands(program, sizes, 1)]
    arrays = dict(zip((one.name for one in program.operands), operands, strict=True))
    wanted = function(*arrays.values())
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for of in (program, with_kept_axes(program)):
        for one, other in zip(evaluate(of, arrays, sizes), wanted, strict=True):
            np.testing.assert_array_equal(one.astype(float), other)


def test_tuners_take_no_rows_of_them():
    program = pg.fuse(lambda x, w: pg.relu((x @ w)[3])).program("bf16[5,K]", "bf16[K,24]")
    assert not by_rows(program)
