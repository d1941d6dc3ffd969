"""Products with a vector as folds: what they become, that it is the same, and when it is done."""

from __future__ import annotations

import numpy as np
import pytest
from split_samples import check_same

import polygen as pg
from polygen.faster_split import split_sum
from polygen.hardware.device import device
from polygen.rewrite.folded_products import with_folded_product

COLUMNS = ("f32[M,N]", "f32[M]")


def program(function, *signature):
    return pg.fuse(function, name="f").program(*signature)


def test_the_elements_products_are_folded_in_the_order_of_the_matrix():
    found, fold = with_folded_product(program(lambda a, u: u @ a, *COLUMNS))
    assert list(map(str, found.statements)) == [
        "w0[k,i] = mul(u[k], a[k,i])",
        "v0[i] = sum over k of w0[k,i]",
        "y0[i] = cast(v0[i])",
    ]
    assert fold == "v0" and not found.contractions


def test_which_axis_is_innermost_is_that_of_memory():
    column_major = ("f32[M,N]:col", "f32[N]")
    found, _ = with_folded_product(program(lambda a, v: a @ v, *column_major))
    assert str(found.statements[0]) == "w0[k,i] = mul(a[i,k], v[k])"
    assert with_folded_product(program(lambda a, u: a.T @ u, "f32[M,N]:col", "f32[M]")) is None


FUNCTIONS = {
    "columns": (lambda a, u: a.T @ u, COLUMNS),
    "work around": (lambda a, u, b: np.maximum((a * 2).T @ u + b, 0), (*COLUMNS, "f32[N]")),
    "matrices": (lambda a, u: pg.einsum("bmn,bm->bn", a, u), ("f32[2,M,N]", "f32[2,M]")),
    "f64": (lambda a, u: a.T @ u, ("f64[M,N]", "f64[M]")),
    "bf16": (lambda a, u: a.T @ u, ("bf16[M,N]", "bf16[M]")),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_the_same(name):
    function, signature = FUNCTIONS[name]
    whole = program(function, *signature)
    folded, _ = with_folded_product(whole)
    assert folded.real == whole.real
    check_same(whole, folded, {"M": 5, "N": 3})


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda a, v: a @ v, ("f32[M,N]", "f32[N]")),  # along the rows
        (lambda a, b: a.T @ b, ("f32[M,N]", "f32[M,L]")),  # of two matrices
        (lambda a, u: a[::2].T @ u, ("f32[8,N]", "f32[4]")),  # at places of its own
        (lambda a, u: a.T @ u, ("s8[M,N]", "s8[M]")),
        (lambda a, u: a.T @ u + a.T @ u[::-1], ("f32[8,N]", "f32[8]")),  # several
    ],
)
def test_others_stay(function, signature):
    assert with_folded_product(program(function, *signature)) is None


@pytest.mark.parametrize(
    ("kind", "m", "n", "folded"),
    [("f32", 4096, 4096, True), ("bf16", 262144, 128, True), ("f64", 1024, 1024, True),
     ("bf16", 8192, 8192, False)],
)  # fmt: skip
def test_it_is_done_where_it_is_predicted_to_be_faster(kind, m, n, folded):
    made = program(lambda a, u: a.T @ u, f"{kind}[M,N]", f"{kind}[M]")
    found = split_sum(made, {"M": m, "N": n}, device("sm_90a"))
    assert (found is not None) == folded
    assert found is None or (found.whole == made and not found.parts.contractions)


@pytest.mark.parametrize(
    ("function", "signature", "folds"),
    [
        (lambda x, w: (x @ w).max(), ("f32[M,N]", "f32[N]"), {"v1"}),
        (lambda x, w: (x @ w).mean(), ("f64[M,N]", "f64[N]"), {"v1"}),
        (lambda x, w: np.any(x @ w > 0), ("f32[M,N]", "f32[N]"), {"v3"}),
        (lambda x, w: (x @ w).max(0), ("f32[M,N]", "f32[N,64]"), None),
        (lambda x, w: x @ w, ("f32[M,N]", "f32[N]"), None),
    ],
)
def test_folds_of_what_lanes_multiply_are_of_another_kernel(function, signature, folds):
    made = program(function, *signature)
    found = split_sum(made, {"M": 262144, "N": 128}, device("sm_90a"))
    assert (found and set(found.folds)) == folds
    assert found is None or found.parts == found.whole == made


def test_products_of_zeros_are_left():
    """They are behind what only folds elements, and multiply no vector that there is."""
    kernels = pg.fuse(lambda a, u, b: pg.relu(u @ a + b), name="f").compile(
        *COLUMNS, "f32[N]", arch="sm_90a", sizes={"M": 4096, "N": 4096}
    )
    first, last = kernels.kernels
    assert first.schedule.of_elements and last.program.contractions
    assert split_sum(last.program, {"N": 4096}, device("sm_90a")) is None


def test_sizes_that_a_part_computes_with_and_has_no_array_of_are_numbers():
    kernels = pg.fuse(lambda x, y, w: x.T @ (x @ w - y) * (2.0 / x.shape[0]), name="f").compile(
        "f32[M,N]", "f32[M]", "f32[N]", arch="sm_90a", sizes={"M": 262144, "N": 128}
    )
    assert len(kernels.kernels) == 3
    assert kernels.program.inputs[0].dims == (262144, "N")
