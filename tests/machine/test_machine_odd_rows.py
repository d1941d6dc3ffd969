"""Operands and results at any address, with roles, on the PTX machine: exact, nothing outside.

Threads of the producer shift rows into place, threads of consumers store results line by line. The
machine reports every byte that is read or written outside an array, gaps between rows included.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from fewer import one_in
from generated import edited
from matrix import roles

import polygen as pg
from polygen.check import emulate, launch_of
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.machine import run
from polygen.schedule.model import Schedule
from polygen.small_problem import few_blocks


@pg.fuse
def biased(x, w, b):
    return pg.relu(x @ w.T + b)


@pg.fuse
def plain(x, w):
    return x @ w


@pg.fuse
def finished(x, w, r):
    return x @ w.T + r, pg.relu(x @ w.T).T


@pg.fuse
def several(x, w, r, s):
    y = x @ w.T + r
    return y, pg.relu(y + s)


def filling(form: str = "one", n: int = 64, k: int = 64, **changes: object) -> Schedule:
    """A small schedule whose producer has registers to shift rows into place."""
    schedule = roles(form, n, k, **{"through": "lines", **changes})
    few, most = (104, 136) if form == "three" else (152, 176)
    return replace(
        schedule,
        roles=replace(schedule.roles, producer_registers=few, consumer_registers=most),
    )


@cache
def made(function, signature, sizes, schedule, out_dtype=None) -> Kernel:
    return function.compile(
        *signature,
        arch="sm_90a",
        sizes=dict(zip("MNK", sizes, strict=True)),
        schedule=schedule,
        out_dtype=out_dtype,
    )


def held(rng, tensor, shape, pitch, offset):
    """Integers in an array whose rows are `pitch` elements apart more, `offset` behind an owner.

    A vector begins where its alignment says.
    """
    kind, inner = tensor.dtype.numpy, tensor.order[-1]
    data = rng.integers(-3, 4, shape).astype(np.float32).astype(kind)
    if len(shape) == 1:
        offset = offset if tensor.alignment <= kind.itemsize else 0
        owner = np.zeros(shape[0] + offset + 9, kind)
        view = owner[offset : offset + shape[0]]
    else:
        rows, columns = shape[1 - inner], shape[inner]
        owner = np.zeros(rows * (columns + pitch) + offset, kind)
        view = owner[offset:].reshape(rows, columns + pitch)[:, :columns]
        view = view if inner == 1 else view.T
    view[...] = data
    return view


NT, NN = ("bf16[M,K]", "bf16[N,K]", "f32[N]"), ("bf16[M,K]", "bf16[K,N]")
TT = ("bf16[M,K]:col", "bf16[N,K]:col", "f32[N]")
# function, signature, sizes, schedule, elements between rows, elements before the first one
CASES = {
    "both by threads": (biased, NT, (67, 45, 131), filling(), 0, 0),
    "off by one element, odd pitches": (biased, NT, (67, 45, 131), filling(), 1, 1),
    "rows as far apart as tensor maps want": (biased, NT, (67, 45, 131), filling(), 5, 1),
    "m and n innermost": (biased, TT, (67, 45, 131), filling("two"), 0, 0),
    "m and n innermost, with gaps": (biased, TT, (67, 45, 131), filling("two"), 2, 3),
    "left by the copy engine": (plain, NN, (70, 141, 136), filling("two"), 0, 0),
    "right by the copy engine": (plain, NN, (70, 136, 197), filling("two"), 0, 0),
    "in turns": (biased, NT, (150, 205, 65), filling("pingpong", 96), 0, 0),
    "in turns, aligned results": (
        biased, NT, (150, 208, 65), filling("pingpong", through="tma"), 0, 0,
    ),
    "three consumers": (biased, NT, (200, 45, 131), filling("three"), 0, 0),
    "several boxes of k": (plain, NN, (70, 301, 197), filling("one", 128, 128, stages=2), 0, 0),
    "rows of 4 bytes": (biased, NT, (67, 45, 130), filling(), 0, 0),
    "rows of 8 bytes": (biased, NT, (67, 45, 132), filling(), 0, 0),
    "one row, one column, one of k": (biased, NT, (1, 1, 1), filling(), 0, 0),
    "fewer k than one chunk": (biased, NT, (3, 5, 7), filling(), 0, 2),
    "a k tile and one": (plain, NN, (65, 65, 65), filling(), 0, 0),
    "results of both orders, a residual": (
        finished, ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]"), (67, 45, 131), filling(), 1, 1,
    ),
    "a residual with m innermost": (
        finished, ("f16[M,K]", "f16[N,K]", "f32[M,N]:col"), (67, 44, 64), filling(stages=2), 0, 0,
    ),
    "several panels by shifted chunks": (
        several, ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]", "bf16[M,N]"), (67, 75, 131),
        filling(stages=2), 1, 1,
    ),
    "tf32": (biased, ("tf32[M,K]", "tf32[N,K]", "f32[N]"), (67, 45, 67), filling(k=32), 0, 0),
    "e4m3": (biased, ("e4m3[M,K]", "e4m3[N,K]", "f32[N]"), (67, 45, 131), filling(k=128), 3, 5),
}  # fmt: skip
QUICK = (
    "both by threads",
    "off by one element, odd pitches",
    "m and n innermost",
    "right by the copy engine",
    "fewer k than one chunk",
    "several panels by shifted chunks",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES],
)
def test_exact_and_nothing_outside(name):
    function, signature, sizes, schedule, pitch, offset = CASES[name]
    out_dtype = "bf16" if signature[0].startswith("e4m3") else None
    kernel = made(function, signature, sizes, schedule, out_dtype)
    taken = kernel.resources
    assert (taken.spill_store_bytes, taken.stack_bytes) == (0, 0)
    dims, rng = dict(zip("MNK", sizes, strict=True)), np.random.default_rng(len(name))
    operands = tuple(
        held(rng, t, tuple(dims[d] for d in t.dims), pitch, offset) for t in kernel.program.inputs
    )
    source = few_blocks(kernel.passes.source)
    done = emulate(kernel.program, source, kernel.ptx, operands)
    assert done.report.ok, str(done.report)
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, operands, strict=True)}
    for got, wanted in zip(results, evaluate(kernel.program, arrays, dims), strict=True):
        assert np.array_equal(got.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_the_sums_are_those_of_the_aligned_kernel(dtype):
    """Bit for bit, on floats: the same products in the same order, with zeros behind the last.

    Operands of tf32 are rounded on their way, as the copy engine rounds them.
    """
    (m, n, k), through = (67, 45, 131), filling(k=32 if dtype == "tf32" else 64)
    signature = (f"{dtype}[M,K]", f"{dtype}[N,K]", "f32[N]")
    odd = made(biased, signature, (m, n, k), through)
    even = made(biased, signature, (m, 48, 136), roles())
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, k)) for rows in (m, n))
    b = rng.standard_normal(n).astype(np.float32)
    kind = odd.program.inputs[0].dtype.numpy
    ours = odd.emulate(x.astype(kind), w.astype(kind), b)
    wide = [np.zeros(shape, kind) for shape in ((m, 136), (48, 136))]
    wide[0][:, :k], wide[1][:n, :k] = x.astype(kind), w.astype(kind)
    theirs = even.emulate(*wide, np.pad(b, (0, 3)))
    assert "fill_threads" not in even.source and "put(i, k, 0, 0)" in odd.source
    same = (np.ascontiguousarray(one).view(np.uint8) for one in (ours, theirs[:, :n]))
    assert np.array_equal(*same)


@pytest.mark.parametrize("pitch", [0, 3, 4])
def test_what_lies_around_an_output_is_not_touched(pitch):
    """A view inside a larger array: a write to the gaps between its rows would be a finding."""
    kernel = made(biased, NT, (67, 45, 131), filling())
    rng, program = np.random.default_rng(1), kernel.program
    dims = {"M": 67, "N": 45, "K": 131}
    operands = tuple(held(rng, t, tuple(dims[d] for d in t.dims), 0, 0) for t in program.inputs)
    source = kernel.passes.source
    launch = launch_of(program, source, operands)
    kind = program.outputs[0].dtype.numpy
    big = np.full((70, 45 + 4 + pitch), 7, kind)
    view = big[2:69, 3:48]
    arguments = list(launch.arguments)
    for place, argument in enumerate(source.arguments):
        if argument.tensor == program.outputs[0].name:
            arguments[place] = view if argument.kind == "pointer" else np.int32(big.shape[1])
    report = run(kernel.ptx, replace(launch, arguments=(*arguments,)))
    assert report.ok, str(report)
    (wanted,) = evaluate(
        program, {t.name: a for t, a in zip(program.inputs, operands, strict=True)}, dims
    )
    (got,) = (a for a in report.arrays if a.shape == view.shape)
    assert np.array_equal(got.astype(np.float32), wanted.astype(np.float32))


# Faults in the code of a kernel whose threads fill.
FAULTS = [
    ("no fence", [('asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); };', "};", 1)]),
    ("the arrival before the fence", [
        ("        fence_arrive_full_ring(i, k);\n        arrive_full_ring(i, k);",
         "        arrive_full_ring(i, k);\n        fence_arrive_full_ring(i, k);"),
    ]),
    ("one warp does not arrive", [
        ("if (lane == 0) barrier_arrive(", "if (lane == 0 && warp % 4) barrier_arrive(", 1),
    ]),
    ("one arrival too few expected", [("slot, 4);  // full_ring", "slot, 3);  // full_ring")]),
    ("no wait for the slot", [("        wait_empty_ring(i, k);\n", "")]),
    ("read before it is written out", [
        ("        put(i, k, 0, 0);\n", "        get(i, k + 1, 0, 0);\n        put(i, k, 0, 0);\n"),
    ]),
    ("rows not shifted", [("shift & 8 ? from[i + 2]", "false ? from[i + 2]")]),
    ("halves of words not shifted", [("__funnelshift_r(w[i], w[i + 1], shift * 8)", "w[i]")]),
    ("what is behind a row is not cleared", [("if (left < 16) {", "if (false) {")]),
    ("chunks outside the array are read whole", [
        ("whole = whole && from >= low && from + 32 <= low + range;", ""),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edits"), one_in(2, FAULTS), ids=[name for name, _ in FAULTS])
def test_faults_show(compile_ptx, name, edits):
    kernel = made(biased, NT, (67, 45, 131), filling())
    text = edited(kernel.passes.source.text, edits)
    rng, program = np.random.default_rng(2), kernel.program
    dims = {"M": 67, "N": 45, "K": 331}
    operands = tuple(held(rng, t, tuple(dims[d] for d in t.dims), 0, 0) for t in program.inputs)
    arrays = {t.name: a for t, a in zip(program.inputs, operands, strict=True)}
    (wanted,) = evaluate(program, arrays, dims)
    done = emulate(program, few_blocks(kernel.passes.source), compile_ptx(text, "sm_90a"), operands)
    same = np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
    assert not (done.report.ok and same)
