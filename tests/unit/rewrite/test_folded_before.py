"""Folds of what a product multiplies, by kernels before it: which, when; that it is the same."""

from __future__ import annotations

import numpy as np
import pytest
from split_samples import check_same

import polygen as pg
from polygen.faster_split import split_sum
from polygen.hardware.device import device
from polygen.kernel_sequence import KernelSequence
from polygen.rewrite.folds_alone import folds_beside, multiplies_zeros, with_products

H200 = device("sm_90a")
MATRICES = ("bf16[M,K]", "bf16[N,K]")


def squares(value):
    return np.sum(value * value, axis=-1)


def distances(x, w):
    return squares(x)[:, None] - 2 * (x @ w.T) + squares(w)


def cosines(x, w):
    return (x @ w.T) / np.sqrt(squares(x)[:, None] * squares(w))


def with_norms(x, w):
    return distances(x, w), squares(x)


def normed(x, w):
    return pg.rms_norm(x) @ w.T


def program(function):
    return pg.fuse(function, name="f").program(*MATRICES)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (distances, 2),
        (cosines, 2),
        (normed, 0),  # the operand is made of it
        (lambda x, w: np.sum(x @ w.T, axis=1), 0),  # of what the product gives
        (lambda x, w: (x @ w.T, x.sum(axis=1)), 0),  # which nothing but a caller uses
    ],
)
def test_folds_that_elements_use_and_operands_do_not_are_found(function, count):
    assert len(folds_beside(program(function))) == count


def test_a_program_with_products_in_front_of_them_is_the_same():
    whole = program(distances)
    apart = with_products(whole, also=folds_beside(whole))
    assert len(apart.contractions) == 3 and not multiplies_zeros(apart)
    check_same(whole, apart, {"M": 4, "N": 3, "K": 5})


@pytest.mark.parametrize(
    ("function", "sizes", "apart"),
    [
        (distances, (4096, 4096, 4096), True),
        (cosines, (4096, 4096, 4096), True),
        (distances, (8192, 8192, 512), True),
        (distances, (65536, 1024, 64), False),
        (distances, (16384, 4096, 128), False),
        (distances, (2048, 2048, 1024), False),
        (normed, (4096, 4096, 4096), False),
    ],
)
def test_they_are_folded_before_where_it_was_measured_to_be_faster(function, sizes, apart):
    """On an H200, `docs/results/h200_tallies.json`."""
    known = dict(zip("MNK", sizes, strict=True))
    assert (split_sum(program(function), known, H200) is not None) == apart


@pytest.mark.parametrize("function", [distances, cosines, with_norms])
def test_the_kernels_in_order_give_what_one_does(function):
    """Of whole numbers, on the PTX machine."""
    known = {"M": 4096, "N": 4096, "K": 4096}
    kernel = pg.fuse(function, name="f").compile(*MATRICES, arch="sm_90a", sizes=known)
    assert isinstance(kernel, KernelSequence) and len(kernel.kernels) == 3
    assert kernel.check(sizes={"M": 70, "N": 40, "K": 72}).ok


def test_a_result_that_is_used_and_returned_leaves_a_kernel_twice():
    """Once for the caller, and once for the kernels behind it, whichever the program has first."""

    def centred(x, w):
        mean = x.mean(axis=0)
        return (x - mean) @ w.T, mean

    known = {"M": 4096, "N": 4096, "K": 4096}
    kernel = pg.fuse(centred, name="f").compile(*MATRICES, arch="sm_90a", sizes=known)
    assert kernel.check(sizes={"M": 70, "N": 40, "K": 72}).ok


def test_one_kernel_can_be_asked_for():
    known = {"M": 4096, "N": 4096, "K": 4096}
    function = pg.fuse(distances, name="f")
    kernel = function.compile(*MATRICES, arch="sm_90a", sizes=known, single=True)
    assert not isinstance(kernel, KernelSequence)
