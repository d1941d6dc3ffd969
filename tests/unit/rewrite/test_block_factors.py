"""Factors that leave a sum, or the sum of a block: what is rewritten, and that it is the same."""

import ml_dtypes
import numpy as np

import polygen as pg
from polygen.frontend.evaluate import evaluate, reference
from polygen.rewrite.programs import rewritten

SIGNATURE = ("e4m3[M,256]", "f32[M,2]", "e4m3[128,256]", "f32[2,4]", "f32[128]")


def function(x, s, w, t, c):
    left = x * pg.repeat(s, 128, axis=1)
    right = w * pg.repeat(pg.repeat(t, 64, axis=0), 64, axis=1) * c[:, None]
    return pg.relu(left @ right.T)


def program(of=function, signature=SIGNATURE):
    return pg.fuse(of, name="scaled").program(*signature)


def test_factors_multiply_the_sum_of_the_indices_for_which_they_are_the_same():
    product, behind, *_ = rewritten(program()).statements
    assert str(product) == (
        "w0[i,j] += s[i,floor(k/128)] * t[floor(j/64),floor(k/64)] * (x[i,k] * w[j,k] over 64 of k)"
    )
    assert str(behind).endswith("mul(w0[i,j], c[j])")


def test_the_rewritten_program_computes_the_same():
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((7, 256), (128, 256))]
    x, w = (array.astype(ml_dtypes.float8_e4m3fn) for array in arrays)
    s, t, c = (rng.uniform(0.5, 2, shape) for shape in ((7, 2), (2, 4), 128))
    given = dict(zip("xswtc", (x, s, w, t, c), strict=True))
    (found,) = evaluate(rewritten(program()), given, {"M": 7}, round_outputs=False)
    np.testing.assert_allclose(found, reference(function, (x, s, w, t, c)), rtol=1e-9)


def test_programs_that_say_what_they_multiply_stay_as_they_are():
    def rounded(x, s, w):
        return (x.astype("bf16") * s).astype("bf16") @ w.astype("bf16").T

    given = program(rounded, ("e4m3[M,256]", "f32[256]", "e4m3[N,256]"))
    assert rewritten(given) is given


def test_a_cast_to_f32_rounds_nothing():
    def cast(x, s, w):
        return (x.astype("f32") * pg.repeat(s, 128, axis=1)) @ w.T

    given = program(cast, ("e4m3[M,256]", "f32[M,2]", "e5m2[N,256]"))
    assert rewritten(given).contractions[0].block == 128
