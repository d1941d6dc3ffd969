"""Long sums in parts: what they become, and that it is the same program."""

from __future__ import annotations

import numpy as np
import pytest
from split_samples import check_same

import polygen as pg
from polygen.chained import numbered
from polygen.faster_split import split_sum
from polygen.hardware.device import device
from polygen.rewrite.split_sums import with_split_sum


def program(function, *signature, k=0):
    made = pg.fuse(function, name="f").program(*signature)
    return numbered(made, {"K": k}) if k else made


COLUMNS = ("f32[K,M]", "f32[K,N]")


def test_parts_are_matrices_of_a_batch_that_a_fold_adds_up():
    found, fold = with_split_sum(program(lambda x, y: x.T @ y, *COLUMNS, k=4000), 20)
    assert list(map(str, found.statements)) == [
        "w0[p,i,j] += x[200*p + k,i] * y[200*p + k,j]",
        "v0[i,j] = sum over p of w0[p,i,j]",
        "y0[i,j] = cast(v0[i,j])",
    ]
    assert fold == "v0"


def test_fewer_parts_leave_nothing_or_what_is_left_is_a_product():
    even, _ = with_split_sum(program(lambda x, y: x.T @ y, *COLUMNS, k=4000), 23)
    assert dict(even.contractions[0].domain)["p"] == 20  # of 200
    odd, fold = with_split_sum(program(lambda x, y: x.T @ y, *COLUMNS, k=4001), 20)
    assert [str(one) for one in odd.statements[2:4]] == [
        "w1[i,j] += x[k+4000,i] * y[k+4000,j]", f"v0[i,j] = add({fold}[i,j], w1[i,j])",
    ]  # fmt: skip


def test_work_in_front_is_of_the_parts():
    found, _ = with_split_sum(
        program(lambda x, g, y: (x * g[:, None]).T @ y, "f32[K,M]", "f32[K]", "f32[K,N]", k=4000),
        20,
    )
    assert str(found.statements[0]) == "w0[p,i,j] = mul(x[200*p + i,j], g[200*p + i])"


def test_of_vectors_the_products_of_elements_are_folded():
    found, fold = with_split_sum(program(lambda a, b: a @ b, "f32[K]", "f32[K]", k=4000), 20)
    assert list(map(str, found.statements[:2])) == [
        "w0[p,k] = mul(a[200*p + k], b[200*p + k])", f"{fold} = sum over p,k of w0[p,k]",
    ]  # fmt: skip


FUNCTIONS = {
    "columns": (lambda x, y: x.T @ y, COLUMNS),
    "rows": (lambda x, y: np.maximum(x @ y.T + 1, 0), ("f32[M,K]", "f32[N,K]")),
    "matrices": (lambda x, y: x.mT @ y, ("f32[B,K,M]", "f32[K,N]")),
    "work": (lambda x, y: np.abs(x * 2 + 1).T @ (y - np.sum(y, axis=0)), COLUMNS),
    "both": (lambda x: (x + 1).T @ (x - 1), ("f32[K,M]",)),
    "vectors": (lambda a, b: a @ b, ("f32[K]", "f32[K]")),
    "a vector": (lambda x, b: x @ b, ("f32[M,K]", "f32[K]")),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("k", "parts"), [(64, 8), (70, 5), (97, 6), (8 * 11, 11), (300, 7)])
def test_results_are_the_same(name, k, parts):
    function, signature = FUNCTIONS[name]
    whole = program(function, *signature, k=k)
    split, _ = with_split_sum(whole, parts)
    check_same(whole, split, {"M": 3, "N": 4, "B": 2})


@pytest.mark.parametrize(
    ("function", "signature", "k"),
    [
        (lambda x, y: x.T @ y, COLUMNS, 0),  # of any length
        (lambda x, y: x.T @ y, COLUMNS, 100),  # too short
        (lambda x, y: x.T @ y + x.T @ y, COLUMNS, 0),
        (lambda x, y: x.T @ y, ("s8[K,M]", "s8[K,N]"), 4000),
        (
            lambda x, y: x[::2].T @ y[1::2],
            ("f32[4000,M]", "f32[4000,N]"),
            0,
        ),  # at places of their own
        (lambda x, y: (x * pg.indices(x)[0]).T @ y, COLUMNS, 4000),
    ],
)
def test_others_stay(function, signature, k):
    assert with_split_sum(program(function, *signature, k=k), 20) is None


@pytest.mark.parametrize(
    ("m", "n", "k", "split"),
    [(64, 64, 1_000_000, True), (64, 64, 4000, False), (4096, 4096, 65536, False),
     (16, 4096, 16384, True), (1024, 1024, 65536, False)],
)  # fmt: skip
def test_few_tiles_of_long_sums_are_split(m, n, k, split):
    sizes = {"M": m, "N": n, "K": k}
    found = split_sum(program(lambda x, y: x.T @ y, *COLUMNS), sizes, device("sm_90a"))
    assert (found is not None) == split
    if found is not None:
        assert found.whole.inputs[0].dims == (k, "M")


def test_nothing_is_split_where_a_size_is_not_known():
    made = program(lambda x, y: x.T @ y, *COLUMNS)
    assert split_sum(made, {"M": 64, "K": 1_000_000}, device("sm_90a")) is None


def test_the_number_of_terms_is_a_constant_of_such_kernels():
    kernels = pg.fuse(lambda x: x.T @ x, name="f").compile(
        "f32[K,64]", arch="sm_90a", sizes={"K": 1_000_000}
    )
    assert len(kernels.kernels) == 2 and kernels.program.inputs[0].dims == (1_000_000, 64)
    whole = pg.fuse(lambda x: x.T @ x, name="f").compile(
        "f32[K,64]", arch="sm_90a", sizes={"K": 1_000_000}, single=True
    )
    assert whole.program.inputs[0].dims == ("K", 64)
