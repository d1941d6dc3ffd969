"""Computed operands of f32 on the PTX machine: exact on whole numbers, by warps and by warpgroups.

Whole numbers of up to 22 bits fit into two parts of tf32: a product that rounds its operands to
tf32, of 11 bits, gives others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from machine.conftest import ptx_of

import polygen as pg
from polygen.check import check
from polygen.comparison import operands_off
from polygen.frontend.dtypes import F32, TF32
from polygen.frontend.evaluate import evaluate
from polygen.rewrite.tf32_parts import in_parts

X, W = "f32[M,K]", "f32[N,K]"
SIZES = {"M": 70, "N": 72, "K": 72, "S": 31, "B": 2, "E": 3}
LARGE = {"M": 4096, "N": 4096, "K": 1024, "S": 5000, "B": 2, "E": 8}
PROGRAMS = {
    "left": (lambda x, w: pg.maximum(x, 0) @ w.T, X, W),
    "right": (lambda x, w, v: x @ (w + v).T, X, W, W),
    "both": (lambda x, g, w: (x * g) @ (w - 1).T, X, "f32[K]", W),
    "rows by index": (lambda x, r, w: x[r] @ w.T, "f32[S,K]", "s32[M]", W),
    "functions of them": (lambda x, r, w: pg.relu(x[r] - 1) @ w, "f32[S,K]", "s32[M]", "f32[K,N]"),
    "coordinates": (lambda x, w: pg.tril(x) @ w.T, "f32[K,K]", W),
    "narrow weights": (lambda x, q, s: x @ (q * s[:, None]).T, X, "s8[N,K]", "f32[N]"),
    "beside an argument": (lambda x, w, v: pg.relu(x) @ w.T + x @ v.T, X, W, W),
    "batches": (lambda x, s, w: (x * s[:, :, None]) @ w, "f32[B,M,K]", "f32[B,M]", "f32[K,N]"),
    "16 bits beside": (lambda x, w: (x + 1) @ w.T, "bf16[M,K]", W),
}
WAYS = ("sm_80", "sm_90a", "sm_90a, large")


def arrays(program, which):
    """Small whole numbers, and in one matrix of f32 some of 13 bits, which no tf32 holds."""
    matrices = [t.name for t in program.inputs if t.dtype == F32 and len(t.dims) > 1]
    random = np.random.default_rng(3)
    found = {}
    for tensor in program.inputs:
        shape = tuple(d if isinstance(d, int) else SIZES[d] for d in tensor.dims)
        values = random.integers(-2, 3, shape).astype(tensor.dtype.numpy)
        if tensor.name in program.gathered:
            values = random.integers(-1, SIZES["S"] + 1, shape).astype(np.int32)
        elif tensor.name == matrices[which]:
            values.reshape(-1)[::7] = 4097 * np.sign(values.reshape(-1)[::7])
        found[tensor.name] = values
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_keep_the_digits_of_f32(name, way):
    function, *signature = PROGRAMS[name]
    fused = pg.fuse(function)
    arch, _, large = way.partition(", ")
    known = LARGE if large else SIZES
    sizes = {dim: known[dim] for dim in fused.program(*signature).sizes}
    kernel = fused.compile(*signature, arch=arch, sizes=sizes)
    for which in (0, -1):
        given = arrays(kernel.program, which)
        (wanted,) = evaluate(fused.program(*signature), given)
        assert abs(wanted).max() < 2**24
        found = np.asarray(kernel.emulate(*given.values()))
        np.testing.assert_array_equal(found, wanted)


def test_warpgroups_multiply_parts_of_what_is_computed():
    function, *signature = PROGRAMS["left"]
    kernel = pg.fuse(function).compile(
        *signature, arch="sm_90a", sizes={d: LARGE[d] for d in "MNK"}
    )
    assert kernel.schedule.specialised
    assert kernel.schedule.makes_first
    assert "nearest_tf32" in kernel.source


def test_tf32_beside_it_stays_what_it_was():
    fused = pg.fuse(PROGRAMS["left"][0])
    program = fused.program(X, "tf32[N,K]")
    assert not program.contractions[0].exact
    kernel = fused.compile(X, "tf32[N,K]", arch="sm_80", sizes={d: SIZES[d] for d in "MNK"})
    assert kernel.passes.plan.match.a.multiplied == TF32
    exact = fused.compile(X, W, arch="sm_80", sizes={d: SIZES[d] for d in "MNK"})
    assert exact.passes.plan.match.a.multiplied == F32


def test_parts_of_what_products_or_folds_compute_are_not_taken():
    def normed(x, w):
        return (x / (1 + abs(x).max(axis=1))[:, None]) @ w.T

    plain = pg.fuse(PROGRAMS["left"][0]).program(X, W)
    assert in_parts(plain) is not None
    assert in_parts(pg.fuse(normed).program(X, W)) is None


def test_a_check_takes_functions_whose_sums_cancel_and_finds_a_sum_that_is_off():
    fused = pg.fuse(lambda x, w: pg.silu(x) @ w.T)
    kernel = fused.compile(X, W, arch="sm_80", sizes={d: LARGE[d] for d in "MNK"})
    assert kernel.check().ok
    assert set(operands_off(kernel.program).values()) == {2.0**-18}
    plan, source = kernel.passes.plan, kernel.passes.source
    wrong = replace(source, text=source.text.replace("made[e] = ", "made[e] = 1.0001f * ", 1))
    assert wrong.text != source.text
    report = check(plan, wrong, ptx_of(wrong), {"M": 40, "N": 40, "K": 40})
    assert [one.code for one in report.findings] == ["wrong-value"]
