"""Rows that are stored by index, on the PTX machine: values, edges, and what is never written."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from test_machine_gathered import ints, schedules

import polygen as pg
from polygen.schedule.load import shipped_as

ARCHS = ("sm_80", "sm_90a")
F32 = np.float32


def scatter(x, w, rows, out):
    """The rows of a product, each to a row of an array that the call is given."""
    out[rows] = pg.relu(x @ w.T)
    return out


def different(count, rows, seed=0):
    """Different rows, as is promised."""
    return np.random.default_rng(seed).permutation(rows)[:count].astype(np.int32)


def stored(kernel, *operands):
    """The array that is stored into; the machine refuses every access outside of an array."""
    before = operands[-1].copy()
    done = kernel.emulation(*operands)
    assert done.report.ok, str(done.report)
    np.testing.assert_array_equal(operands[-1], before)
    return np.asarray(done.results).astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_ways_out_of_a_kernel(arch):
    """Rows and columns end inside of tiles; numbers that are no row are among the others."""
    fused = pg.fuse(scatter, name="scattered")
    x, w, out = ints(21, 40), ints(22, 40, seed=1), ints(33, 22, seed=2, dtype=F32)
    rows = different(21, 33)
    wanted = fused.reference(x, w, rows, out)
    lost = rows[3:7].copy()
    rows[3:7] = (-1, 33, -(2**31), 2**31 - 1)
    wanted[lost] = out[lost]
    for one in schedules(arch):
        kernel = fused.compile("bf16[T,K]", "bf16[N,K]", "s32[T]", "f32[S,N]@8", arch=arch,
                               schedule=one)  # fmt: skip
        np.testing.assert_array_equal(stored(kernel, x, w, rows, out), wanted)


def into_a_vector(x, w, rows, out):
    """One product of every row."""
    out[rows] = x @ w
    return out


def gathered_too(x, w, rows, out):
    """What is read by an index is stored by the same."""
    out[rows] = x[rows] @ w.T
    return out


def of_each_row(x, w, rows, s, out):
    """An epilogue beside it."""
    out[rows] = (x @ w.T) * s[:, None] + pg.indices(x @ w.T)[0]
    return out


CASES = {
    "a vector": (into_a_vector, {"x": ("bf16[T,K]", 29, 40), "w": ("bf16[K]", 40),
                                 "rows": ("s32[T]", 29, 70), "out": ("f32[S]", 70)}),
    "where columns are adjacent in no row": (
        scatter, {"x": ("bf16[T,K]", 29, 40), "w": ("bf16[N,K]", 24, 40),
                  "rows": ("s32[T]", 29, 31), "out": ("bf16[S,N]:col@2", 31, 24)},
    ),
    "read and stored by one index": (
        gathered_too, {"x": ("bf16[S,K]", 61, 40), "w": ("bf16[N,K]", 24, 40),
                       "rows": ("s32[T]", 29, 61), "out": ("bf16[S,N]", 61, 24)},
    ),
    "an epilogue": (
        of_each_row, {"x": ("bf16[T,K]", 70, 40), "w": ("bf16[N,K]", 24, 40),
                      "rows": ("s32[T]", 70, 75), "s": ("f32[T]", 70), "out": ("f32[S,N]", 75, 24)},
    ),
    "whole numbers": (
        scatter, {"x": ("s8[T,K]", 21, 64), "w": ("s8[N,K]", 16, 64), "rows": ("s32[T]", 21, 33),
                  "out": ("s32[S,N]", 33, 16)},
    ),
}  # fmt: skip
_BYTES = {"bf16": 2, "f32": 4}
_STORED = {"bf16": ml_dtypes.bfloat16, "s8": np.int8, "s32": np.int32}


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CASES)
def test_programs_that_store_rows_by_index(name, arch):
    function, given = CASES[name]
    fused = pg.fuse(function, name="scattered")
    kernel = fused.compile(*(one[0] for one in given.values()), arch=arch)
    operands = [
        different(*shape) if argument == "rows"
        else ints(*shape, seed=seed, dtype=_STORED.get(text.split("[")[0], F32))
        for seed, (argument, (text, *shape)) in enumerate(given.items())
    ]  # fmt: skip
    text, *_ = given["out"]
    if ":col" in text:
        operands[-1] = np.asfortranarray(operands[-1])
    wanted = fused.reference(*operands).astype(operands[-1].dtype).astype(np.float64)
    np.testing.assert_array_equal(stored(kernel, *operands), wanted)


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
def test_a_kernel_checks_itself(arch):
    """Trial numbers are different; some are no rows."""
    kernel = pg.fuse(scatter, name="scattered").compile(
        "bf16[T,K]", "bf16[N,K]", "s32[T]", "bf16[S,N]", arch=arch
    )
    assert kernel.check(sizes={"S": 30, "T": 70, "N": 40, "K": 72}).ok
    assert any("stores by index never meet" in one for one in kernel._generated.proofs)


@pytest.mark.slow
def test_a_row_that_two_blocks_store_is_a_race():
    """The promise, broken: one number in rows of two tiles."""
    kernel = pg.fuse(scatter, name="scattered").compile(
        "bf16[T,K]", "bf16[N,K]", "s32[T]", "bf16[S,N]", arch="sm_90a"
    )
    x, w, out = ints(200, 40), ints(24, 40, seed=1), ints(300, 24, seed=2)
    rows = different(200, 300)
    rows[150] = rows[3]
    report = kernel.emulation(x, w, rows, out).report
    assert {finding.code for finding in report.findings} == {"race-write-write"}


@pytest.mark.parametrize("kind", ["bf16", pytest.param("f32", marks=pytest.mark.slow)])
def test_rows_that_begin_anywhere_are_stored_by_chunks(kind):
    """Rows of 77 elements: chunks of each begin elsewhere, and the last row ends the array."""
    fused, of = pg.fuse(scatter, name="scattered"), shipped_as("sm_90a", "cooperative_128x64x64")
    ways, stages = replace(of.epilogue, through="lines"), replace(of.pipeline, stages=4)
    kernel = fused.compile(
        "bf16[T,K]", "bf16[N,K]", "s32[T]", f"{kind}[S,N]@{_BYTES[kind]}", arch="sm_90a",
        schedule=replace(of, epilogue=ways, pipeline=stages),
    )  # fmt: skip
    assert "const int head" in kernel.source
    x, w, rows = ints(100, 72), ints(77, 72, seed=1), different(100, 150)
    out = ints(150, 77, seed=2, dtype=_STORED.get(kind, F32))
    wanted = fused.reference(x, w, rows, out).astype(out.dtype).astype(np.float64)
    wanted[rows[5]], rows[5] = out[rows[5]], -1
    np.testing.assert_array_equal(stored(kernel, x, w, rows, out), wanted)
