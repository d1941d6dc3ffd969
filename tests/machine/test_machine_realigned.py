"""Operands whose rows start anywhere, copied to whole lines first: both launches, exact.

The machine reports every byte that is read or written outside an array, gaps between rows included,
and the workspace is NaN before: what the product reads of it, the copy has written.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from fewer import one_in
from generated import edited
from matrix import roles
from test_machine_odd_rows import NN, NT, TT, biased, held, plain

import polygen as pg
from polygen.emulated import emulate, launches_of
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.machine import run
from polygen.schedule.model import Launches, Schedule
from polygen.small_problem import few_blocks


@pg.fuse
def batched(x, w):
    return x @ w.mT


@pg.fuse
def and_itself(x, w):
    return x @ w.T + x


def copying(form: str = "one", n: int = 64, k: int = 64, **changes: object) -> Schedule:
    """A small schedule behind a copy of what the copy engine does not take."""
    schedule = roles(form, n, k, **{"through": "lines", **changes})
    return replace(schedule, launch=Launches(realign=True))


@cache
def made(function, signature, sizes, schedule, out_dtype=None) -> Kernel:
    return function.compile(
        *signature, arch="sm_90a", sizes=dict(sizes), schedule=schedule, out_dtype=out_dtype
    )


def sizes_of(*extents: int, **more: int) -> tuple[tuple[str, int], ...]:
    return (*zip("MNK", extents, strict=False), *more.items())


# function, signature, sizes, schedule, what is copied, elements between rows and before the first
CASES = {
    "both": (biased, NT, sizes_of(67, 45, 131), copying(), "xw", 0, 0),
    "off by one element, odd pitches": (biased, NT, sizes_of(67, 45, 131), copying(), "xw", 1, 1),
    "m and n innermost": (biased, TT, sizes_of(67, 45, 131), copying("two"), "xw", 0, 0),
    "the left alone": (plain, NN, sizes_of(70, 136, 197), copying("two"), "x", 0, 0),
    "the right alone": (plain, NN, sizes_of(70, 141, 136), copying("two"), "w", 0, 0),
    "in a cluster": (
        biased, NT, sizes_of(150, 45, 131), copying("two", cluster=(2, 1)), "xw", 0, 0,
    ),
    "in turns": (biased, NT, sizes_of(150, 205, 65), copying("pingpong", 96), "xw", 0, 0),
    "one row, one column, one of k": (biased, NT, sizes_of(1, 1, 1), copying(), "xw", 0, 0),
    "fewer k than one chunk": (biased, NT, sizes_of(3, 5, 7), copying(), "xw", 0, 2),
    "rows of 8 bytes": (biased, NT, sizes_of(67, 45, 132), copying(), "xw", 0, 0),
    "rows of several segments": (plain, NN, sizes_of(9, 4099, 70), copying(), "xw", 1, 3),
    "matrices": (
        batched, ("bf16[B,M,K]", "bf16[B,N,K]"), sizes_of(19, 21, 67, B=3), copying(), "xw", 1, 1,
    ),
    "one matrix for all": (
        batched, ("bf16[B,M,K]", "bf16[N,K]"), sizes_of(19, 21, 67, B=3), copying(), "xw", 0, 1,
    ),
    "an operand that is added too": (
        and_itself, ("bf16[M,K]", "bf16[K,K]"), sizes_of(67, 0, 75), copying(), "xw", 0, 1,
    ),
    "tf32": (
        biased, ("tf32[M,K]", "tf32[N,K]", "f32[N]"), sizes_of(67, 45, 67), copying(k=32), "xw", 0,
        1,
    ),
    "e4m3": (
        biased, ("e4m3[M,K]", "e4m3[N,K]", "f32[N]"), sizes_of(67, 45, 131), copying(k=128), "xw",
        3, 5,
    ),
}  # fmt: skip
QUICK = ("both", "off by one element, odd pitches", "the left alone", "matrices", "e4m3")


def around(rng, tensor, shape, pitch, offset):
    """`held`, for matrices of several matrices too."""
    if len(shape) < 3:
        return held(rng, tensor, shape, pitch, offset)
    count, rows, columns = shape
    kind = tensor.dtype.numpy
    owner = np.zeros(count * (rows + 1) * (columns + pitch) + offset, kind)
    view = owner[offset:].reshape(count, rows + 1, columns + pitch)[:, :rows, :columns]
    view[...] = rng.integers(-3, 4, shape).astype(np.float32).astype(kind)
    return view


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name):
    function, signature, sizes, schedule, copied, pitch, offset = CASES[name]
    dims = {dim: size for dim, size in sizes if size}
    out_dtype = "bf16" if signature[0].startswith("e4m3") else None
    kernel = made(function, signature, tuple(dims.items()), schedule, out_dtype)
    source = few_blocks(kernel.passes.source)
    assert source.realign is not None and source.realign.names == tuple(copied)
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    rng = np.random.default_rng(len(name))
    operands = tuple(
        around(rng, t, tuple(dims[d] for d in t.dims), pitch, offset) for t in kernel.program.inputs
    )
    done = emulate(kernel.program, source, kernel.ptx, operands)
    assert done.report.ok, str(done.report)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, operands, strict=True)}
    (wanted,) = evaluate(kernel.program, arrays, dims)
    assert np.array_equal(done.results.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_the_bits_are_those_of_the_aligned_kernel(dtype):
    """On floats: the same kernel on arrays whose rows the copy engine takes."""
    (m, n, k), depth = (67, 45, 131), 32 if dtype == "tf32" else 64
    signature = (f"{dtype}[M,K]", f"{dtype}[N,K]", "f32[N]")
    odd = made(biased, signature, sizes_of(m, n, k), copying(k=depth))
    even = made(biased, signature, sizes_of(m, 48, 136), roles(k=depth))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, k)) for rows in (m, n))
    b, kind = rng.standard_normal(n).astype(np.float32), odd.program.inputs[0].dtype.numpy
    ours = odd.emulate(x.astype(kind), w.astype(kind), b)
    wide = [np.zeros(shape, kind) for shape in ((m, 136), (48, 136))]
    wide[0][:, :k], wide[1][:n, :k] = x.astype(kind), w.astype(kind)
    theirs = even.emulate(*wide, np.pad(b, (0, 3)))
    assert odd.sums == even.sums
    same = (np.ascontiguousarray(one).view(np.uint8) for one in (ours, theirs[:, :n]))
    assert np.array_equal(*same)


@pytest.mark.parametrize("shift", range(8))
def test_every_shift_of_a_row(shift):
    """The copy alone: rows that start at every element of a chunk, and zeros behind their ends."""
    kernel = made(biased, NT, sizes_of(67, 45, 131), copying())
    rng, (rows, k) = np.random.default_rng(shift), (5, 131)
    x, w = (
        rng.integers(0, 1 << 15, n * 139 + shift, np.uint16)[shift:].reshape(n, 139)[:, :k]
        for n in (rows, 3)
    )
    kind = kernel.program.inputs[0].dtype.numpy
    operands = (x.view(kind), w.view(kind), np.zeros(3, np.float32))
    first, _ = launches_of(kernel.program, kernel._generated.source, operands)
    report = run(kernel.ptx, first)
    assert report.ok, str(report)
    for array, copy in ((x, report.arrays[1]), (w, report.arrays[3])):
        found = np.ascontiguousarray(copy).view(np.uint16)
        assert np.array_equal(found[:, :k], array) and not found[:, k:].any()


FAULTS = {
    "the first chunk is read whole": ("if (0 < g && g < realign_last)", "if (g < realign_last)"),
    "the last chunk is read whole": (
        "if (0 < g && g < realign_last)",
        "if (0 < g && g <= realign_last)",
    ),
    "one word too few": ("(shift) & 4 ? words[i + 1] : words[i]", "words[i]"),
    "half a chunk too few": ("(shift) & 8 ? from[u][i + 2]", "(shift) & 8 ? from[u][i]"),
    "no shift by bytes": ("__funnelshift_r(words[i], words[i + 1], (shift) * 8)", "words[i]"),
    "a chunk too many": ("if (own < realign_chunks)", "if (own <= realign_chunks)"),
    "a chunk too few": ("if (own < realign_chunks)", "if (own + 1 < realign_chunks)"),
    "rows too close": ("to_0 + row * pitch", "to_0 + row * (pitch - 16)"),
    "one row too many": ("if (realign_rows >= (warp + 1))", "if (realign_rows >= warp)"),
}


@pytest.mark.parametrize("fault", one_in(2, FAULTS))
def test_faults_of_the_copy_are_found(compile_ptx, fault):
    kernel = made(biased, NT, sizes_of(67, 45, 131), copying())
    broken = compile_ptx(edited(kernel.source, [FAULTS[fault]]), "sm_90a")
    rng, dims = np.random.default_rng(1), {"M": 67, "N": 45, "K": 131}
    operands = tuple(
        held(rng, t, tuple(dims[d] for d in t.dims), 3, 5) for t in kernel.program.inputs
    )
    done = emulate(kernel.program, few_blocks(kernel.passes.source), broken, operands)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, operands, strict=True)}
    (wanted,) = evaluate(kernel.program, arrays, dims)
    right = np.array_equal(done.results.astype(np.float64), wanted.astype(np.float64))
    assert not (done.report.ok and right)


def test_check_runs_both_launches():
    kernel = made(biased, NT, sizes_of(67, 45, 131), copying())
    report = kernel.check()
    assert report.ok, str(report)
    assert dict(report.sizes)["K"] % 8, "rows of the trial start at all shifts"
    assert any("every chunk of a copy" in proof.claim for proof in report.proofs)
