"""Norms in front of a product, and sums over matrices of one: the same numbers, one product."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.rewrite.batch_sums import batches_in_sums
from polygen.rewrite.programs import ASSUMED, rewritten

SIZES = {"A": 2, "B": 3, "M": 5, "N": 4, "K": 6}
MATRICES = ("tf32[M,K]", "tf32[N,K]", "f32[K]", "f32[K]")
STACKS = ("bf16[B,M,K]", "bf16[B,K,N]")


def rms(x, w, g):
    return pg.rms_norm(x, g) @ w.T


def layer(x, w, g, b):
    return pg.relu(pg.layer_norm(x, g, b) @ w.T) + 1


def of_columns(x, w):
    """The other operand's, and a quotient."""
    return x @ (w / np.sqrt(np.sum(w * w, axis=1, keepdims=True) + 1)).T


def mean_of_stacks(x, w):
    return np.mean(np.matmul(x, w), axis=0)


def stacks_of_stacks(x, w):
    return np.sum(x @ w, axis=(0, 1)) * 2


@pytest.mark.parametrize(
    ("function", "signature", "folds"),
    [
        (rms, MATRICES[:3], 1),
        (layer, MATRICES, 4),
        (of_columns, MATRICES[:2], 1),
        (mean_of_stacks, STACKS, 0),
        (stacks_of_stacks, ("bf16[A,B,M,K]", "bf16[A,B,K,N]"), 0),
    ],
)
def test_the_same_numbers(function, signature, folds):
    """In double precision, but for the rounding of an operand's elements to tf32."""
    asked = pg.fuse(function).program(*signature, out_dtype="f32")
    found = rewritten(asked)
    generator = np.random.default_rng(1)
    arrays = {
        t.name: generator.integers(-4, 5, [SIZES[str(d)] for d in t.dims]).astype(np.float64)
        for t in asked.inputs
    }
    (wanted,), (made,) = (evaluate(one, arrays, SIZES) for one in (asked, found))
    # Elements are below 16 where they are rounded, before or behind a row's factor.
    rounded = 2 * 2.0**-11 * 16 * 4 * SIZES["K"] if asked.folds and folds else 0
    np.testing.assert_allclose(made, wanted, rtol=1e-9, atol=rounded)
    assert abs(wanted).max() > 8 * rounded
    assert len(found.contractions) == 1 and len(found.folds) == folds
    assert _multiplies_no_fold(found) and rewritten(found) == found


def _multiplies_no_fold(program: Program) -> bool:
    late = {fold.write.name for fold in program.folds}
    for one in program.pointwise:
        if late & {access.name for access in one.reads}:
            late.add(one.write.name)
    return not late & {access.name for one in program.contractions for access in one.reads}


def test_what_is_read_besides_is_no_part_of_a_sum():
    both = pg.fuse(lambda x, w: (np.sum(x @ w, axis=0), x @ w)).program(*STACKS)
    shared = pg.fuse(lambda x, w: np.sum(x @ w, axis=0)).program("bf16[B,M,K]", "bf16[K,N]")
    assert rewritten(both) == both and rewritten(shared) == shared


def test_a_rewrite_is_shown_with_what_it_assumes():
    kernel = pg.fuse(rms, name="rms").compile("bf16[M,K]", "bf16[N,K]", "bf16[K]", arch="sm_80")
    shown = kernel.show("rewrite")
    assert ASSUMED in shown and "v1[i] = sum over j of v0[i,j]" in shown
    assert shown.count("in  x: bf16[M, K]") == 2


def test_sums_of_an_axis_in_another_order_are_no_products():
    """Digits of what a product writes, which a reshape has put in another order."""

    def turned(x, w):
        return (x @ w).reshape(2, 4, 12, 16).swapaxes(0, 1).reshape(8, 12, 16).sum(0)

    signature = ("bf16[8,12,16]", "bf16[8,16,16]")
    given = pg.fuse(turned).program(*signature)
    assert batches_in_sums(given) == given
    with pytest.raises(UnsupportedProgram, match="parts of computed values"):
        pg.fuse(turned).compile(*signature, arch="sm_80")
    whole = pg.fuse(lambda x, w: (x @ w).sum(0)).program(*signature)
    assert [len(one.domain) for one in batches_in_sums(whole).contractions] == [4]
